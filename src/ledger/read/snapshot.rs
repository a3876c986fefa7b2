//! A consistent picture of a whole ledger, in pages, so that memory does not grow with it.

use sqlx::{Connection, Row, SqliteConnection};

use super::{Outgoing, events_as_of};
use crate::ledger::fault::{During, Fault};
use crate::ledger::ledger_id_of;
use crate::ledger::rows::{SEQ_COLUMN, task_as_of_columns, task_columns, task_from};
use crate::task::Task;

/// How many rows a page has at most.
const PAGE_ROWS: i64 = 64;

/// Revisions that are not published, and those with a parked event: a snapshot has both events of such a one, as they are
/// other events under the identity that a restore gives.
const UNPUBLISHED_SQL: &str = concat!(
    "SELECT ",
    task_as_of_columns!(),
    " FROM revisions AS v JOIN tasks AS t ON t.task_key = v.task_key
      LEFT JOIN results AS r ON r.task_key = v.task_key
      WHERE v.seq > ?1 AND (v.seq > ?2 OR v.seq IN (SELECT value FROM json_each(?4))) ORDER BY v.seq LIMIT ?3"
);

/// Revisions with a parked event. A database of the first schema has none, and can be saved before it is brought up to date.
async fn parked_seqs(connection: &mut SqliteConnection) -> Result<Vec<i64>, Fault> {
    let reading = "reading parked events";
    let tables: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'parked_events'",
    )
    .fetch_one(&mut *connection)
    .await
    .during(reading)?;
    if tables == 0 {
        return Ok(Vec::new());
    }
    sqlx::query_scalar("SELECT DISTINCT seq FROM parked_events ORDER BY seq")
        .fetch_all(connection)
        .await
        .during(reading)
}

/// Reads one moment of a ledger, beside a service that goes on. While it is open the write-ahead log cannot be folded
/// away, so it must not wait on anybody slow.
#[derive(Debug)]
pub struct SnapshotReader {
    connection: SqliteConnection,
    after_key: i64,
    published_seq: i64,
    /// Revisions with a parked event, in their order.
    parked: Vec<i64>,
    after_seq: i64,
}

impl SnapshotReader {
    /// Takes the picture: all that follows is as of now.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn begin(mut connection: SqliteConnection) -> Result<Self, Fault> {
        sqlx::query("BEGIN")
            .execute(&mut connection)
            .await
            .during("beginning to read")?;
        // SQLite takes the picture at the first reading, which this is.
        let published_seq = sqlx::query_scalar("SELECT published_seq FROM ledger")
            .fetch_one(&mut connection)
            .await
            .during("reading the cursor")?;
        let parked = parked_seqs(&mut connection).await?;
        Ok(Self {
            connection,
            after_key: 0,
            published_seq,
            after_seq: parked
                .first()
                .map_or(published_seq, |first| published_seq.min(first - 1)),
            parked,
        })
    }

    /// The identity of the ledger.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn ledger_id(&mut self) -> Result<String, Fault> {
        ledger_id_of(&mut self.connection)
            .await
            .during("reading the ledger's identity")
    }

    /// How many tasks there are.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn count(&mut self) -> Result<i64, Fault> {
        sqlx::query_scalar("SELECT count(*) FROM tasks")
            .fetch_one(&mut self.connection)
            .await
            .during("counting tasks")
    }

    /// The next tasks in the order of their creation; empty at the end.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn next_tasks(&mut self) -> Result<Vec<Task>, Fault> {
        let sql = concat!(
            "SELECT ",
            task_columns!(),
            " FROM tasks AS t LEFT JOIN results AS r ON r.task_key = t.task_key
              WHERE t.task_key > ?1 ORDER BY t.task_key LIMIT ?2"
        );
        let rows = sqlx::query(sql)
            .bind(self.after_key)
            .bind(PAGE_ROWS)
            .fetch_all(&mut self.connection)
            .await
            .during("reading tasks")?;
        let mut tasks = Vec::with_capacity(rows.len());
        for row in &rows {
            let (key, task) = task_from(row).during("reading a task")?;
            self.after_key = key;
            tasks.push(task);
        }
        Ok(tasks)
    }

    /// The next revisions that had not been published, or not with all their events, in commit order; empty at the end.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn next_unpublished(&mut self) -> Result<Vec<Outgoing>, Fault> {
        let rows = sqlx::query(UNPUBLISHED_SQL)
            .bind(self.after_seq)
            .bind(self.published_seq)
            .bind(PAGE_ROWS)
            .bind(serde_json::json!(self.parked).to_string())
            .fetch_all(&mut self.connection)
            .await
            .during("reading the outbox")?;
        let mut outgoing = Vec::with_capacity(rows.len());
        for row in &rows {
            let seq = row.try_get(SEQ_COLUMN).during("reading the outbox")?;
            self.after_seq = seq;
            outgoing.push(Outgoing {
                seq,
                events: events_as_of(row)?,
            });
        }
        Ok(outgoing)
    }

    /// Lets go of the picture.
    ///
    /// # Errors
    /// If SQLite fails to close.
    pub async fn close(self) -> Result<(), Fault> {
        self.connection.close().await.during("closing the database")
    }
}
