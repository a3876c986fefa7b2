//! The writes of a batch, a statement a table.
//!
//! Rows go in as one VALUES list, padded with NULL rows to a power of two so that few texts of statements come to be;
//! the padding is dropped by its NULL key. Every row count is checked: a row that did not go in where it was sure to is a
//! fault, never something to pass over.

use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection};

use super::Next;
use crate::ledger::desk::{Desk, Key, Revision};
use crate::ledger::fault::{During, Fault};
use crate::task::{Disposition, Task, TaskResult, Timestamp};

type Values<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Writes what a batch changed and gives the numbers that come next.
pub(super) async fn write_all(
    connection: &mut SqliteConnection,
    desk: &Desk,
    next: Next,
) -> Result<Next, Fault> {
    let writes = &desk.writes;
    let created = writes
        .created
        .iter()
        .map(|&key| Ok((key, on_desk(desk, key)?)));
    let created = created.collect::<Result<Vec<_>, Fault>>()?;
    let results = writes
        .results
        .iter()
        .map(|&key| Ok((key, result_on_desk(desk, key)?)));
    // Results first: a task is only given a reported lifecycle if the result that says so is there.
    insert_results(connection, &results.collect::<Result<Vec<_>, Fault>>()?).await?;
    insert_tasks(connection, &created).await?;
    let updated = writes
        .updated
        .iter()
        .map(|(&key, &was)| Ok((key, was, on_desk(desk, key)?)));
    update_tasks(connection, &updated.collect::<Result<Vec<_>, Fault>>()?).await?;
    insert_revisions(connection, &writes.revisions, next.seq).await?;
    if let Some(seq) = writes.published {
        move_cursor(connection, seq).await?;
    }
    if writes.probe {
        probe(connection).await?;
    }
    Ok(Next {
        key: next.key + created.len() as i64,
        seq: next.seq + writes.revisions.len() as i64,
    })
}

fn on_desk(desk: &Desk, key: Key) -> Result<&Task, Fault> {
    desk.task(key)
        .ok_or_else(|| Fault::new("writing a task", sqlx::Error::RowNotFound))
}

fn result_on_desk(desk: &Desk, key: Key) -> Result<&TaskResult, Fault> {
    on_desk(desk, key)?
        .result
        .as_ref()
        .ok_or_else(|| Fault::new("writing a result", sqlx::Error::RowNotFound))
}

pub(super) async fn insert_tasks(
    connection: &mut SqliteConnection,
    tasks: &[(Key, &Task)],
) -> Result<(), Fault> {
    let head = "INSERT INTO tasks (task_key, lifecycle, revision, updated_at, task_id, pane_id, deadline, created_at, \
                title, metadata, reason, verdict, note, reviewer, reviewed_at) SELECT * FROM (";
    let bind = |query: Values<'static>, &(key, task): &(Key, &Task)| {
        let query = query
            .bind(key)
            .bind(task.lifecycle.as_str())
            .bind(task.revision)
            .bind(task.updated_at.micros())
            .bind(task.task_id.clone())
            .bind(task.pane_id.clone())
            .bind(task.deadline.map(Timestamp::micros))
            .bind(task.created_at.micros())
            .bind(task.title.clone())
            .bind(
                task.metadata
                    .as_ref()
                    .map(|metadata| metadata.get().to_owned()),
            )
            .bind(task.reason.clone());
        bind_disposition(query, task.disposition.as_ref())
    };
    let rows = Rows {
        what: "inserting tasks",
        head,
        columns: 15,
        tail: INSERT_TAIL,
    };
    rows.execute(connection, tasks, bind).await
}

pub(super) async fn insert_results(
    connection: &mut SqliteConnection,
    results: &[(Key, &TaskResult)],
) -> Result<(), Fault> {
    let head = "INSERT INTO results (task_key, status, reported_at, summary, artifacts, evidence) SELECT * FROM (";
    let bind = |query: Values<'static>, &(key, result): &(Key, &TaskResult)| {
        query
            .bind(key)
            .bind(result.status.as_str())
            .bind(result.reported_at.micros())
            .bind(result.summary.clone())
            .bind(artifacts_text(&result.artifacts))
            .bind(result.evidence.get().to_owned())
    };
    let rows = Rows {
        what: "inserting results",
        head,
        columns: 6,
        tail: INSERT_TAIL,
    };
    rows.execute(connection, results, bind).await
}

async fn update_tasks(
    connection: &mut SqliteConnection,
    tasks: &[(Key, i64, &Task)],
) -> Result<(), Fault> {
    let head = "UPDATE tasks SET lifecycle = v.column3, revision = v.column4, updated_at = v.column5, \
                reason = v.column6, verdict = v.column7, note = v.column8, reviewer = v.column9, \
                reviewed_at = v.column10 FROM (";
    // The revision that was read, once more: a task that is not as it was decided on is not written.
    let tail = ") AS v WHERE tasks.task_key = v.column1 AND tasks.revision = v.column2";
    let bind = |query: Values<'static>, &(key, was, task): &(Key, i64, &Task)| {
        let query = query
            .bind(key)
            .bind(was)
            .bind(task.lifecycle.as_str())
            .bind(task.revision)
            .bind(task.updated_at.micros())
            .bind(task.reason.clone());
        bind_disposition(query, task.disposition.as_ref())
    };
    let rows = Rows {
        what: "updating tasks",
        head,
        columns: 10,
        tail,
    };
    rows.execute(connection, tasks, bind).await
}

pub(super) async fn insert_revisions(
    connection: &mut SqliteConnection,
    revisions: &[Revision],
    first_seq: i64,
) -> Result<(), Fault> {
    let head = "INSERT INTO revisions (seq, task_key, revision, lifecycle, updated_at, verdict, note, reviewer, \
                reviewed_at) SELECT * FROM (";
    let numbered: Vec<(i64, &Revision)> = (first_seq..).zip(revisions).collect();
    let bind = |query: Values<'static>, &(seq, revision): &(i64, &Revision)| {
        let query = query
            .bind(seq)
            .bind(revision.key)
            .bind(revision.revision)
            .bind(revision.lifecycle.as_str())
            .bind(revision.updated_at.micros());
        bind_disposition(query, revision.disposition.as_ref())
    };
    let rows = Rows {
        what: "inserting revisions",
        head,
        columns: 9,
        tail: INSERT_TAIL,
    };
    rows.execute(connection, &numbered, bind).await
}

async fn move_cursor(connection: &mut SqliteConnection, seq: i64) -> Result<(), Fault> {
    sqlx::query("UPDATE ledger SET published_seq = ?1 WHERE published_seq < ?1")
        .bind(seq)
        .execute(connection)
        .await
        .during("moving the cursor")
        .map(drop)
}

async fn probe(connection: &mut SqliteConnection) -> Result<(), Fault> {
    sqlx::query("UPDATE ledger SET probes = probes + 1")
        .execute(connection)
        .await
        .during("trying to write")
        .map(drop)
}

fn bind_disposition<'q>(query: Values<'q>, disposition: Option<&Disposition>) -> Values<'q> {
    query
        .bind(disposition.map(|disposition| disposition.verdict.as_str()))
        .bind(disposition.and_then(|disposition| disposition.note.clone()))
        .bind(disposition.and_then(|disposition| disposition.reviewer.clone()))
        .bind(disposition.map(|disposition| disposition.reviewed_at.micros()))
}

fn artifacts_text(artifacts: &[String]) -> String {
    // Strings always encode.
    #[allow(clippy::expect_used)]
    serde_json::to_string(artifacts).expect("an array of strings encodes as JSON")
}

const INSERT_TAIL: &str = ") WHERE column1 IS NOT NULL";

/// A statement over a list of rows.
struct Rows {
    what: &'static str,
    head: &'static str,
    columns: usize,
    tail: &'static str,
}

impl Rows {
    async fn execute<T>(
        &self,
        connection: &mut SqliteConnection,
        items: &[T],
        bind: impl Fn(Values<'static>, &T) -> Values<'static>,
    ) -> Result<(), Fault> {
        if items.is_empty() {
            return Ok(());
        }
        let padded = items.len().next_power_of_two();
        let mut query = sqlx::query(AssertSqlSafe(self.text(padded)));
        for item in items {
            query = bind(query, item);
        }
        for _ in 0..(padded - items.len()) * self.columns {
            query = query.bind(None::<i64>);
        }
        let done = query.execute(connection).await.during(self.what)?;
        if done.rows_affected() != items.len() as u64 {
            return Err(Fault::new(self.what, sqlx::Error::RowNotFound));
        }
        Ok(())
    }

    fn text(&self, rows: usize) -> String {
        let row = format!("({})", vec!["?"; self.columns].join(","));
        format!(
            "{}VALUES {}{}",
            self.head,
            vec![row.as_str(); rows].join(","),
            self.tail
        )
    }
}
