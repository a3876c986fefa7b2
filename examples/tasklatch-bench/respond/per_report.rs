//! What one would write first: a transaction for each report, then the answer and the events.

use std::path::Path;

use async_nats::Client;
use bytes::Bytes;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Row, Sqlite, SqlitePool, Transaction};
use tasklatch::content::JsonText;
use tasklatch::task::{Lifecycle, Task, Timestamp};

use super::report::{Outcome, Report, each};
use super::store;
use crate::failure::{During, Failure, Result};

/// With more connections this design is not faster, and at last slower: one transaction writes at a time, and the others
/// sleep until they look again.
const CONNECTIONS: u32 = 1;

/// Answers every report after its own transaction.
pub async fn respond(client: &Client, database: &Path) -> Result<()> {
    let pool = SqlitePoolOptions::new()
        .max_connections(CONNECTIONS)
        .connect_with(store::options(database))
        .await
        .during(format_args!("open {}", database.display()))?;
    each(client, true, move |payload| apply(pool.clone(), payload)).await
}

async fn apply(pool: SqlitePool, payload: Bytes) -> Result<Outcome> {
    let report = Report::read(&payload)?;
    let now = Timestamp::now();
    let mut transaction = pool
        .begin_with("BEGIN IMMEDIATE")
        .await
        .during("begin a transaction")?;
    let mut task = load(&mut transaction, &report.task_id).await?;
    let inserted = sqlx::query(
        "INSERT INTO results (task_id, report, reported_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
    )
    .bind(report.task_id.clone())
    .bind(payload.to_vec())
    .bind(now.to_string())
    .execute(&mut *transaction)
    .await
    .during("insert a result")?;
    if inserted.rows_affected() == 0 {
        return repeated(transaction, task, report, &payload).await;
    }
    task.accept(report.into_result(now), now);
    sqlx::query("UPDATE tasks SET lifecycle = ?, revision = ?, updated_at = ? WHERE task_id = ?")
        .bind(task.lifecycle.as_str())
        .bind(task.revision)
        .bind(task.updated_at.to_string())
        .bind(task.task_id.clone())
        .execute(&mut *transaction)
        .await
        .during("update a task")?;
    sqlx::query("INSERT INTO outbox (task_id, revision) VALUES (?, ?)")
        .bind(task.task_id.clone())
        .bind(task.revision)
        .execute(&mut *transaction)
        .await
        .during("insert into the outbox")?;
    transaction.commit().await.during("commit")?;
    Ok(Outcome::Accepted(task))
}

/// The task has a result: this report, or another one.
async fn repeated(
    mut transaction: Transaction<'_, Sqlite>,
    mut task: Task,
    report: Report,
    payload: &[u8],
) -> Result<Outcome> {
    let row = sqlx::query("SELECT report, reported_at FROM results WHERE task_id = ?")
        .bind(task.task_id.clone())
        .fetch_one(&mut *transaction)
        .await
        .during("read a result")?;
    let accepted: &[u8] = row.try_get(0).during("read a result")?;
    if accepted != payload {
        return Ok(Outcome::Conflict);
    }
    let reported_at = time(row.try_get(1).during("read a result")?)?;
    task.result = Some(report.into_result(reported_at));
    Ok(Outcome::Replayed(task))
}

async fn load(transaction: &mut Transaction<'_, Sqlite>, task_id: &str) -> Result<Task> {
    let row = sqlx::query(
        "SELECT title, metadata, lifecycle, revision, created_at, updated_at FROM tasks WHERE task_id = ?",
    )
    .bind(task_id.to_owned())
    .fetch_one(&mut **transaction)
    .await
    .during(format_args!("read task {task_id}"))?;
    let text = |at: usize| row.try_get::<&str, _>(at).during("read a task");
    let metadata: Option<String> = row.try_get(1).during("read a task")?;
    Ok(Task {
        task_id: task_id.to_owned(),
        pane_id: None,
        title: text(0)?.to_owned(),
        lifecycle: Lifecycle::from_word(text(2)?)
            .ok_or_else(|| Failure::new("a task has a lifecycle that there is not"))?,
        metadata: metadata
            .map(JsonText::from_stored)
            .transpose()
            .during("read a task")?,
        deadline: None,
        reason: None,
        result: None,
        disposition: None,
        revision: row.try_get(3).during("read a task")?,
        created_at: time(text(4)?)?,
        updated_at: time(text(5)?)?,
    })
}

fn time(text: &str) -> Result<Timestamp> {
    Timestamp::parse(text).ok_or_else(|| Failure::new(format!("{text:?} is no time")))
}
