//! Filling an empty ledger from a snapshot, in one transaction: all of it or nothing, also if the process is killed.

use std::collections::HashSet;

use sqlx::{Connection, Sqlite, Transaction};

use super::statements::{insert_results, insert_revision, insert_tasks};
use super::{Next, Writer};
use crate::ids;
use crate::ledger::desk::Key;
use crate::ledger::fault::{During, Fault, FaultKind};
use crate::ledger::rows::{task_columns, task_from};
use crate::task::{Task, TaskResult};

/// An empty ledger being filled. Dropped before [`commit`](Self::commit), it leaves the ledger empty.
pub struct SnapshotWriter<'w> {
    transaction: Transaction<'w, Sqlite>,
    ledger_id: String,
    next: Next,
    /// Where `next` goes once it is true.
    committed_next: &'w mut Next,
}

impl Writer {
    /// Whether the ledger holds no task.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn is_empty(&mut self) -> Result<bool, Fault> {
        sqlx::query_scalar("SELECT NOT EXISTS (SELECT 1 FROM tasks)")
            .fetch_one(self.connection().await?)
            .await
            .during("looking for tasks")
    }

    /// Begins to fill the ledger, which gets a new identity, so that no event after the restore is taken for one from
    /// before it (docs/protocol.md, "Events").
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn restore(&mut self) -> Result<SnapshotWriter<'_>, Fault> {
        self.connection().await?;
        let Self {
            connection: Some(connection),
            next,
            ..
        } = self
        else {
            return Err(Fault::new("beginning to restore", sqlx::Error::PoolClosed));
        };
        let mut transaction = connection
            .begin_with("BEGIN IMMEDIATE")
            .await
            .during("beginning to restore")?;
        let ledger_id = ids::new_ledger_id();
        sqlx::query("UPDATE ledger SET ledger_id = ?1")
            .bind(ledger_id.clone())
            .execute(&mut *transaction)
            .await
            .during("renewing the ledger's identity")?;
        // The outbox has no index by task, and a service has no use for one.
        sqlx::query("CREATE TEMP TABLE last_unpublished (task_key INTEGER PRIMARY KEY, revision INTEGER NOT NULL)")
            .execute(&mut *transaction)
            .await
            .during("beginning to restore")?;
        Ok(SnapshotWriter {
            transaction,
            ledger_id,
            next: *next,
            committed_next: next,
        })
    }

    /// For a ledger that is thrown away: what a crash would leave of it does not matter from now on, which makes
    /// filling it cheaper.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn make_disposable(&mut self) -> Result<(), Fault> {
        let connection = self.connection().await?;
        for pragma in ["PRAGMA synchronous = OFF", "PRAGMA journal_mode = MEMORY"] {
            sqlx::query(pragma)
                .execute(&mut *connection)
                .await
                .during("leaving out the write-ahead log")?;
        }
        Ok(())
    }
}

impl SnapshotWriter<'_> {
    /// The identity that the ledger has from now on.
    pub fn ledger_id(&self) -> &str {
        &self.ledger_id
    }

    /// Adds tasks, as they are, after those before them. If one has the ID of another, or of a task that was added
    /// before, its place among these is given, and nothing more can be added.
    ///
    /// # Errors
    /// If the store cannot be written or refuses a task for another reason.
    pub async fn add_tasks(&mut self, tasks: &[Task]) -> Result<Option<usize>, Fault> {
        let keyed: Vec<(Key, &Task)> = (self.next.key..).zip(tasks).collect();
        let results: Vec<(Key, &TaskResult)> = keyed
            .iter()
            .filter_map(|&(key, task)| Some((key, task.result.as_ref()?)))
            .collect();
        insert_results(&mut self.transaction, &results).await?;
        match insert_tasks(&mut self.transaction, &keyed).await {
            Ok(()) => {}
            Err(fault) if fault.kind() == FaultKind::Refused => {
                let repeated = self.find_repeated(tasks).await?;
                return repeated.map(Some).ok_or(fault);
            }
            Err(fault) => return Err(fault),
        }
        self.next.key += tasks.len() as i64;
        Ok(None)
    }

    async fn find_repeated(&mut self, tasks: &[Task]) -> Result<Option<usize>, Fault> {
        let mut seen = HashSet::new();
        for (at, task) in tasks.iter().enumerate() {
            if !seen.insert(task.task_id.as_str()) || self.find_task(&task.task_id).await?.is_some()
            {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// A task that was added.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn find_task(&mut self, task_id: &str) -> Result<Option<(i64, Task)>, Fault> {
        let sql = concat!(
            "SELECT ",
            task_columns!(),
            " FROM tasks AS t LEFT JOIN results AS r ON r.task_key = t.task_key WHERE t.task_id = ?1"
        );
        let row = sqlx::query(sql)
            .bind(task_id.to_owned())
            .fetch_optional(&mut *self.transaction)
            .await
            .during("reading a task")?;
        row.as_ref()
            .map(task_from)
            .transpose()
            .during("reading a task")
    }

    /// Puts a revision of a task into the outbox, to be published when a service runs; `false` if a revision of that
    /// task is there already which is not before this one.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn add_unpublished(&mut self, key: i64, as_of: &Task) -> Result<bool, Fault> {
        let later = sqlx::query(
            "INSERT INTO temp.last_unpublished (task_key, revision) VALUES (?1, ?2)
             ON CONFLICT (task_key) DO UPDATE SET revision = excluded.revision WHERE revision < excluded.revision",
        )
        .bind(key)
        .bind(as_of.revision)
        .execute(&mut *self.transaction)
        .await
        .during("comparing revisions")?;
        if later.rows_affected() == 0 {
            return Ok(false);
        }
        insert_revision(&mut self.transaction, self.next.seq, key, as_of).await?;
        self.next.seq += 1;
        Ok(true)
    }

    /// Makes all of it durable at once.
    ///
    /// # Errors
    /// If the store cannot be written; the ledger is then empty.
    pub async fn commit(mut self) -> Result<(), Fault> {
        sqlx::query("DROP TABLE temp.last_unpublished")
            .execute(&mut *self.transaction)
            .await
            .during("committing the restore")?;
        self.transaction
            .commit()
            .await
            .during("committing the restore")?;
        *self.committed_next = self.next;
        Ok(())
    }
}
