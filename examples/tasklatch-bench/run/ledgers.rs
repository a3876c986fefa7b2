//! Ledgers with many tasks in them, made by the library that restores snapshots.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tasklatch::ledger;
use tasklatch::task::Task;

use crate::content::{REPORT_BYTES, StoredTasks};
use crate::failure::{During, Failure, Result};
use crate::figures::grouped;

/// How many tasks are added at once.
const CHUNK_TASKS: u64 = 1000;

/// What the tasks of a ledger are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filling {
    /// Each has the result of a report of the usual size.
    Reported,
    /// None has one.
    Open,
}

/// A ledger that rounds use one after the other.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its file.
    pub database: PathBuf,
    /// The number that the next new task gets.
    pub next_task: u64,
}

/// The ledgers of a run. Each is made when it is first asked for.
pub struct Ledgers {
    folder: PathBuf,
    made: HashMap<(Filling, u64), Stored>,
}

impl Ledgers {
    /// Ledgers in this folder.
    pub fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            made: HashMap::new(),
        }
    }

    /// The ledger with so many tasks to begin with.
    ///
    /// # Errors
    /// If it cannot be made.
    pub async fn get(&mut self, filling: Filling, tasks: u64) -> Result<Stored> {
        if let Some(stored) = self.made.get(&(filling, tasks)) {
            return Ok(stored.clone());
        }
        let database = self
            .folder
            .join(format!("{filling:?}-{tasks}.db").to_lowercase());
        let started = Instant::now();
        fill(&database, filling, tasks).await?;
        eprintln!(
            "         made a ledger of {} tasks in {:.0} s",
            grouped(tasks as f64),
            started.elapsed().as_secs_f64()
        );
        let stored = Stored {
            database,
            next_task: tasks,
        };
        self.made.insert((filling, tasks), stored.clone());
        Ok(stored)
    }

    /// A round has made more tasks in a ledger.
    pub fn grew(&mut self, filling: Filling, tasks: u64, by: u64) {
        if let Some(stored) = self.made.get_mut(&(filling, tasks)) {
            stored.next_task += by;
        }
    }
}

/// Makes a ledger. What a crash would leave of it does not matter while it is filled.
async fn fill(database: &Path, filling: Filling, tasks: u64) -> Result<()> {
    let report_bytes = (filling == Filling::Reported).then_some(REPORT_BYTES);
    let stored = StoredTasks::new(report_bytes)?;
    let filling = || format!("fill the ledger {}", database.display());
    let (ledger, mut writer) = ledger::open(database, "the benchmark, which fills it")
        .await
        .during(filling())?;
    writer.make_disposable().await.during(filling())?;
    let mut restore = writer.restore().await.during(filling())?;
    let mut from = 0;
    while from < tasks {
        let to = tasks.min(from + CHUNK_TASKS);
        let chunk: Vec<Task> = (from..to)
            .map(|index| stored.at(index))
            .collect::<Result<_>>()?;
        if restore.add_tasks(&chunk).await.during(filling())?.is_some() {
            return Err(Failure::new(format!(
                "cannot {}: two tasks have one ID",
                filling()
            )));
        }
        from = to;
    }
    restore.commit().await.during(filling())?;
    ledger.close().await;
    writer.close().await.during(filling())?;
    // Written now, so that it is not while something is measured.
    File::open(database)
        .and_then(|file| file.sync_all())
        .during(filling())
}
