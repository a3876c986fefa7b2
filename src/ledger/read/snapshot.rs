//! A consistent picture of a whole ledger, in pages, so that memory does not grow with it.

use sqlx::{Connection, Row, SqliteConnection};

use super::{OUTGOING_SQL, Outgoing, events_as_of};
use crate::ledger::fault::{During, Fault};
use crate::ledger::ledger_id_of;
use crate::ledger::rows::{SEQ_COLUMN, task_columns, task_from};
use crate::task::Task;

/// How many rows a page has at most.
const PAGE_ROWS: i64 = 64;

/// Reads one moment of a ledger, beside a service that goes on. While it is open the write-ahead log cannot be folded
/// away, so it must not wait on anybody slow.
#[derive(Debug)]
pub struct SnapshotReader {
    connection: SqliteConnection,
    after_key: i64,
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
        let after_seq = sqlx::query_scalar("SELECT published_seq FROM ledger")
            .fetch_one(&mut connection)
            .await
            .during("reading the cursor")?;
        Ok(Self {
            connection,
            after_key: 0,
            after_seq,
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

    /// The next revisions that had not been published, in commit order; empty at the end.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn next_unpublished(&mut self) -> Result<Vec<Outgoing>, Fault> {
        let rows = sqlx::query(OUTGOING_SQL)
            .bind(self.after_seq)
            .bind(PAGE_ROWS)
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
