//! Laying out a desk: all tasks and panes that a batch speaks of, in at most four statements; one for a batch that names
//! its tasks by their IDs.

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::{Desk, Key, Pane};
use crate::ledger::fault::{During, Fault};
use crate::ledger::rows::{task_columns, task_from};
use crate::ledger::{BATCH_COMMANDS_MAX, Command, SWEEP_TASKS_MAX};
use crate::report::Selector;
use crate::task::Timestamp;
use crate::wire::Change;

/// Past this many open tasks of a pane it does not matter how many more there are: one batch cannot close them all.
const OPEN_COUNT_MAX: i64 = BATCH_COMMANDS_MAX as i64 + 2;

macro_rules! by_id {
    () => {
        concat!(
            "SELECT ",
            task_columns!(),
            " FROM json_each(?1) AS named CROSS JOIN tasks AS t ON t.task_id = named.value
              LEFT JOIN results AS r ON r.task_key = t.task_key"
        )
    };
}

/// The tasks of a list of IDs, with their results.
const BY_ID_SQL: &str = by_id!();

/// The same as the first statement of a transaction. IMMEDIATE: what is read must still be true when it is written, and a
/// lock that is had now can be refused later. One string, since each trip to the connection's thread costs about 80 µs.
const BEGIN_SQL: &str = concat!("BEGIN IMMEDIATE; ", by_id!());

/// What a batch speaks of.
#[derive(Default)]
pub(in crate::ledger) struct Named<'a> {
    task_ids: HashSet<&'a str>,
    pane_ids: HashSet<&'a str>,
    sweep: bool,
}

impl<'a> Named<'a> {
    pub(in crate::ledger) fn by(commands: &'a [Command]) -> Self {
        let mut named = Self::default();
        for command in commands {
            match command {
                Command::Published(_)
                | Command::Park(_)
                | Command::Prune { .. }
                | Command::Probe
                | Command::Fold
                | Command::Look => {}
                Command::Sweep => named.sweep = true,
                Command::Get(selector) => named.add(selector),
                Command::Change(change) | Command::Traced(change, _) => match change {
                    Change::Create(new) => {
                        named.task_ids.insert(&new.task_id);
                    }
                    Change::Report { selector, .. }
                    | Change::Start(selector)
                    | Change::Cancel { selector, .. }
                    | Change::Review { selector, .. } => named.add(selector),
                },
            }
        }
        named
    }

    /// The tasks that are named by their ID.
    pub(in crate::ledger) fn task_ids(&self) -> impl Iterator<Item = &'a str> {
        self.task_ids.iter().copied()
    }

    fn add(&mut self, selector: &'a Selector) {
        self.task_ids.extend(selector.task_id());
        self.pane_ids.extend(selector.pane_id());
    }
}

impl Desk {
    /// Begins a transaction and loads the tasks that are named by their ID and not on the desk. Where there is nothing to
    /// load it does not begin; the answer says whether it did.
    ///
    /// # Errors
    /// If another process holds the write lock: [`is_locked_out`](Fault::is_locked_out).
    pub(in crate::ledger) async fn begin(
        &mut self,
        connection: &mut SqliteConnection,
        named: &Named<'_>,
    ) -> Result<bool, Fault> {
        let is_unknown = |task_id: &&&str| !self.keys.contains_key(**task_id);
        let unknown: HashSet<&str> = named.task_ids.iter().filter(is_unknown).copied().collect();
        if unknown.is_empty() && named.pane_ids.is_empty() && !named.sweep {
            return Ok(false);
        }
        let rows = sqlx::query(BEGIN_SQL)
            .bind(json_array(&unknown))
            .fetch_all(connection);
        self.take(&rows.await.during("beginning a transaction")?)?;
        Ok(true)
    }

    /// Loads the tasks that are named by their ID, for those who only read.
    pub(in crate::ledger) async fn load_by_id(
        &mut self,
        connection: &mut SqliteConnection,
        named: &Named<'_>,
    ) -> Result<(), Fault> {
        let wanted = json_array(&named.task_ids);
        let rows = sqlx::query(BY_ID_SQL).bind(wanted).fetch_all(connection);
        self.take(&rows.await.during("reading tasks")?)
    }

    /// Loads what else is spoken of: panes and what is due, and the tasks that these point to.
    pub(in crate::ledger) async fn load_others(
        &mut self,
        connection: &mut SqliteConnection,
        named: &Named<'_>,
    ) -> Result<(), Fault> {
        if !named.pane_ids.is_empty() {
            let now = self.circumstances.now;
            self.load_panes(connection, &named.pane_ids, now).await?;
        }
        if named.sweep {
            self.due = due_keys(connection, self.circumstances.now).await?;
        }
        self.load_by_key(connection).await
    }

    async fn load_panes(
        &mut self,
        connection: &mut SqliteConnection,
        pane_ids: &HashSet<&str>,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let rows = sqlx::query(
            "WITH named AS (
                 SELECT value AS pane_id,
                        (SELECT max(task_key) FROM tasks WHERE pane_id = value) AS newest
                 FROM json_each(?1)
             )
             SELECT pane_id, newest,
                    (SELECT count(*) FROM (
                        SELECT 1 FROM tasks INDEXED BY open_tasks_by_pane
                        WHERE tasks.pane_id = named.pane_id AND lifecycle IN ('submitted', 'working')
                          AND (deadline IS NULL OR deadline > ?2)
                        LIMIT ?3)),
                    (SELECT task_key FROM tasks
                     WHERE tasks.pane_id = named.pane_id AND task_key < newest
                       AND lifecycle IN ('completed', 'failed', 'rejected')
                     ORDER BY task_key DESC LIMIT 1)
             FROM named WHERE newest IS NOT NULL",
        )
        .bind(json_array(pane_ids))
        .bind(now.micros())
        .bind(OPEN_COUNT_MAX)
        .fetch_all(connection)
        .await
        .during("reading panes")?;
        for row in rows {
            let read = || -> Result<(String, Pane), sqlx::Error> {
                let pane = Pane {
                    newest: row.try_get(1)?,
                    open: row.try_get(2)?,
                    earlier_result: row.try_get(3)?,
                };
                Ok((row.try_get(0)?, pane))
            };
            let (pane_id, pane) = read().during("reading a pane")?;
            self.panes.insert(pane_id, pane);
        }
        // A pane without a task yet may get one in this batch.
        for pane_id in pane_ids {
            self.panes.entry((*pane_id).to_owned()).or_default();
        }
        Ok(())
    }

    /// Loads the tasks that panes and the sweep point to.
    async fn load_by_key(&mut self, connection: &mut SqliteConnection) -> Result<(), Fault> {
        let pointed: HashSet<Key> = self
            .panes
            .values()
            .flat_map(|pane| [pane.newest, pane.earlier_result])
            .flatten()
            .chain(self.due.iter().copied())
            .filter(|key| !self.tasks.contains_key(key))
            .collect();
        if pointed.is_empty() {
            return Ok(());
        }
        let sql = concat!(
            "SELECT ",
            task_columns!(),
            " FROM json_each(?1) AS named CROSS JOIN tasks AS t ON t.task_key = named.value
              LEFT JOIN results AS r ON r.task_key = t.task_key"
        );
        let rows = sqlx::query(sql)
            .bind(json_array(&pointed))
            .fetch_all(connection);
        self.take(&rows.await.during("reading tasks")?)
    }

    fn take(&mut self, rows: &[SqliteRow]) -> Result<(), Fault> {
        for row in rows {
            let (key, task) = task_from(row).during("reading a task")?;
            self.lay_out(key, Arc::new(task));
        }
        Ok(())
    }
}

async fn due_keys(connection: &mut SqliteConnection, now: Timestamp) -> Result<Vec<Key>, Fault> {
    sqlx::query_scalar(
        "SELECT task_key FROM tasks
         WHERE deadline <= ?1 AND lifecycle IN ('submitted', 'working')
         ORDER BY deadline, task_key LIMIT ?2",
    )
    .bind(now.micros())
    .bind(SWEEP_TASKS_MAX as i64)
    .fetch_all(connection)
    .await
    .during("reading due tasks")
}

/// A set as a parameter. Task IDs are plain ASCII and pane IDs hold no control character, so that nothing in them means
/// anything to SQLite's JSON functions.
pub(super) fn json_array<T: serde::Serialize>(values: &HashSet<T>) -> String {
    // Strings and integers always encode.
    #[allow(clippy::expect_used)]
    serde_json::to_string(values).expect("a set of strings or integers encodes as JSON")
}
