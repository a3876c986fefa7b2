//! JetStream key-value buckets as the store.

use async_nats::Client;
use async_nats::jetstream::kv::{Config, CreateErrorKind, Store};
use async_nats::jetstream::{self, stream::StorageType};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tasklatch::task::{Task, Timestamp};

use super::report::{Outcome, Report, each};
use crate::content::StoredTasks;
use crate::failure::{During, Failure, Result};

/// How many tasks are put into the bucket at once, before anything is measured.
const PUT_AT_ONCE: usize = 1024;

/// Stores the result and nothing else: a report is accepted if it is the first under the key of its task.
pub async fn respond_create(client: &Client) -> Result<()> {
    let results = bucket(client, "results").await?;
    let tasks = std::sync::Arc::new(StoredTasks::new(None)?);
    each(client, false, move |payload| {
        let (results, tasks) = (results.clone(), tasks.clone());
        async move {
            let report = Report::read(&payload)?;
            let now = Timestamp::now();
            // There is no task in this design, so that of the answer is made up.
            let mut task = tasks.at(0)?;
            task.task_id.clone_from(&report.task_id);
            let first = is_first(&results, &report.task_id, &payload).await?;
            task.accept(report.into_result(now), now);
            Ok(outcome(first, task))
        }
    })
    .await
}

/// Stores the result, and the task with it: the least that has the answers of tasklatch. A crash between the two leaves a
/// result without its task, and one before the events are published loses them.
pub async fn respond_whole(client: &Client, tasks: u64) -> Result<()> {
    let results = bucket(client, "results").await?;
    let bucket = bucket(client, "tasks").await?;
    fill(&bucket, tasks).await?;
    each(client, true, move |payload| {
        let (results, bucket) = (results.clone(), bucket.clone());
        async move {
            let report = Report::read(&payload)?;
            let now = Timestamp::now();
            let task_id = report.task_id.clone();
            let first = is_first(&results, &task_id, &payload).await?;
            let stored = bucket
                .get(task_id.clone())
                .await
                .during(format_args!("read task {task_id}"))?
                .ok_or_else(|| Failure::new(format!("there is no task {task_id}")))?;
            let mut task: Task = serde_json::from_slice(&stored).during("read a task")?;
            if first == Some(true) {
                task.accept(report.into_result(now), now);
                let stored = serde_json::to_vec(&task).during("write a task as JSON")?;
                bucket
                    .put(task_id, stored.into())
                    .await
                    .during("write a task")?;
            }
            Ok(outcome(first, task))
        }
    })
    .await
}

fn outcome(first: Option<bool>, task: Task) -> Outcome {
    match first {
        Some(true) => Outcome::Accepted(task),
        Some(false) => Outcome::Replayed(task),
        None => Outcome::Conflict,
    }
}

/// Whether this is the first report of a task; if not, whether it is the same as that; `None` if it is another.
async fn is_first(results: &Store, task_id: &str, payload: &Bytes) -> Result<Option<bool>> {
    match results.create(task_id, payload.clone()).await {
        Ok(_) => return Ok(Some(true)),
        Err(error) if error.kind() == CreateErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).during("create a result"),
    }
    let accepted = results.get(task_id).await.during("read a result")?;
    Ok((accepted.as_ref() == Some(payload)).then_some(false))
}

async fn bucket(client: &Client, name: &str) -> Result<Store> {
    jetstream::new(client.clone())
        .create_key_value(Config {
            bucket: name.to_owned(),
            history: 1,
            storage: StorageType::File,
            ..Config::default()
        })
        .await
        .during(format_args!("make the bucket {name}"))
}

async fn fill(bucket: &Store, tasks: u64) -> Result<()> {
    let stored = StoredTasks::new(None)?;
    let put = |index| {
        let task = stored.at(index);
        async move {
            let task = task?;
            let json = serde_json::to_vec(&task).during("write a task as JSON")?;
            bucket
                .put(task.task_id, json.into())
                .await
                .during("make a task")
                .map(drop)
        }
    };
    stream::iter((0..tasks).map(put))
        .buffer_unordered(PUT_AT_ONCE)
        .try_collect()
        .await
}
