//! Letting go of tasks that ended long ago, with no service running on the ledger.

use sqlx::{Connection, Executor, SqliteConnection};

use crate::ledger::fault::{During, Fault};
use crate::ledger::lock::HolderLock;
use crate::task::Timestamp;

/// How many tasks go in one transaction. Each looks through the outbox once.
const BATCH_TASKS: i64 = 5000;

/// Tasks that the outbox still needs: with changes that are not published, an event that is parked, or its newest change, whose
/// number must not be given twice.
const HELD_SQL: &str = "
    CREATE TEMP TABLE held (task_key INTEGER PRIMARY KEY);
    INSERT OR IGNORE INTO temp.held SELECT task_key FROM revisions
        WHERE seq > (SELECT published_seq FROM ledger) OR seq = (SELECT max(seq) FROM revisions)
           OR seq IN (SELECT seq FROM parked_events)";

/// Tasks that may go. What a pane names must stay as it is, or be nothing:
/// - its newest task does not go before all the others, as the pane would name an earlier one then;
/// - while one of its tasks is open, its last result stays, by which a late repetition of that result is told from a report
///   for the open task.
///
/// The newest task of all stays, as its key would be given twice.
macro_rules! may_go {
    () => {
        "FROM tasks AS t WHERE t.lifecycle NOT IN ('submitted', 'working') AND t.updated_at < ?1
           AND t.task_key NOT IN (SELECT task_key FROM temp.held)
           AND t.task_key < (SELECT max(task_key) FROM tasks)
           AND (t.pane_id IS NULL
             OR ((EXISTS (SELECT 1 FROM tasks AS o WHERE o.pane_id = t.pane_id AND o.task_key > t.task_key)
                  OR NOT EXISTS (SELECT 1 FROM tasks AS o WHERE o.pane_id = t.pane_id AND o.task_key < t.task_key
                     AND (o.lifecycle IN ('submitted', 'working') OR o.updated_at >= ?1
                          OR o.task_key IN (SELECT task_key FROM temp.held))))
             AND NOT (t.lifecycle IN ('completed', 'failed', 'rejected')
                  AND EXISTS (SELECT 1 FROM tasks AS o INDEXED BY open_tasks_by_pane
                     WHERE o.pane_id = t.pane_id AND o.lifecycle IN ('submitted', 'working'))
                  AND NOT EXISTS (SELECT 1 FROM tasks AS o WHERE o.pane_id = t.pane_id AND o.task_key > t.task_key
                     AND o.lifecycle IN ('completed', 'failed', 'rejected')))))"
    };
}

/// Removes the tasks of `temp.going`, from what is left of them to themselves.
const GO_SQL: [&str; 3] = [
    "DELETE FROM revisions WHERE task_key IN (SELECT task_key FROM temp.going)",
    "DELETE FROM results WHERE task_key IN (SELECT task_key FROM temp.going)",
    "DELETE FROM tasks WHERE task_key IN (SELECT task_key FROM temp.going)",
];

/// Counts the tasks that [`Pruner`] would let go, beside a service that may be running. `connection` only reads.
///
/// # Errors
/// If the ledger cannot be read.
pub async fn count_prunable(
    connection: &mut SqliteConnection,
    before: Timestamp,
) -> Result<u64, Fault> {
    hold(connection).await?;
    let count: i64 = sqlx::query_scalar(concat!("SELECT count(*) ", may_go!()))
        .bind(before.micros())
        .fetch_one(connection)
        .await
        .during("counting old tasks")?;
    Ok(u64::try_from(count).unwrap_or(0))
}

async fn hold(connection: &mut SqliteConnection) -> Result<(), Fault> {
    connection
        .execute(HELD_SQL)
        .await
        .during("finding what the outbox needs")
        .map(drop)
}

/// A ledger that nobody else has open, to let tasks go.
#[derive(Debug)]
pub struct Pruner {
    connection: SqliteConnection,
    /// Given back last.
    _lock: HolderLock,
}

impl Pruner {
    pub(in crate::ledger) fn new(connection: SqliteConnection, lock: HolderLock) -> Self {
        Self {
            connection,
            _lock: lock,
        }
    }

    /// Lets go of all tasks that ended and were last changed before `before`, but for those that something needs. Each leaves
    /// its ID and the time `now`. Gives how many went.
    ///
    /// # Errors
    /// If SQLite fails. Some tasks may have gone by then, each of them wholly; the rest go when this is done again.
    pub async fn prune(&mut self, before: Timestamp, now: Timestamp) -> Result<u64, Fault> {
        hold(&mut self.connection).await?;
        (&mut self.connection)
            .execute("CREATE TEMP TABLE going (task_key INTEGER PRIMARY KEY)")
            .await
            .during("preparing to prune")?;
        let mut pruned = 0;
        loop {
            match self.prune_some(before, now).await? {
                0 => return Ok(pruned),
                some => pruned += some,
            }
        }
    }

    async fn prune_some(&mut self, before: Timestamp, now: Timestamp) -> Result<u64, Fault> {
        let mut transaction = self
            .connection
            .begin_with("BEGIN IMMEDIATE")
            .await
            .during("beginning to prune")?;
        sqlx::query("DELETE FROM temp.going")
            .execute(&mut *transaction)
            .await
            .during("pruning")?;
        let going = concat!(
            "INSERT INTO temp.going SELECT t.task_key ",
            may_go!(),
            " ORDER BY t.task_key LIMIT ?2"
        );
        let some = sqlx::query(going)
            .bind(before.micros())
            .bind(BATCH_TASKS)
            .execute(&mut *transaction)
            .await
            .during("choosing old tasks")?
            .rows_affected();
        sqlx::query(
            "INSERT INTO pruned_tasks (task_id, pruned_at)
             SELECT task_id, ?1 FROM tasks WHERE task_key IN (SELECT task_key FROM temp.going)",
        )
        .bind(now.micros())
        .execute(&mut *transaction)
        .await
        .during("noting what is pruned")?;
        for sql in GO_SQL {
            sqlx::query(sql)
                .execute(&mut *transaction)
                .await
                .during("removing old tasks")?;
        }
        transaction
            .commit()
            .await
            .during("committing the pruning")?;
        Ok(some)
    }

    /// Folds the write-ahead log into the database and closes it.
    ///
    /// # Errors
    /// If SQLite fails; what was pruned is pruned all the same.
    pub async fn close(self) -> Result<(), Fault> {
        self.connection
            .close()
            .await
            .during("closing the database after pruning")
    }
}
