//! Workers that report without a pause, and what must hold of their tasks afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::Client;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use crate::Result;
use crate::stream;
use crate::wire::ask;

/// How many work at once.
const WORKERS: usize = 8;

/// The most tasks of one worker, so that a load ends by itself.
const TASKS_MAX: usize = 5_000;

/// How long a number of reports may take.
const PROGRESS_WITHIN: Duration = Duration::from_secs(60);

/// How often its progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A load that is running.
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    workers: JoinSet<Result<Vec<String>>>,
    sequence: u64,
    coordinator: Client,
}

impl Load {
    /// Starts it; the IDs of its tasks begin with `name`, which must be new.
    pub async fn begin(coordinator: &Client, worker: &Client, name: &str) -> Result<Self> {
        let sequence = stream::last_sequence(coordinator).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicUsize::new(0));
        let mut workers = JoinSet::new();
        for number in 0..WORKERS {
            let stop = stop.clone();
            let done = done.clone();
            let coordinator = coordinator.clone();
            let worker = worker.clone();
            let name = format!("{name}-{number}");
            workers.spawn(async move {
                let mut task_ids = Vec::new();
                for count in 0..TASKS_MAX {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let task_id = format!("{name}-{count}");
                    settle(&coordinator, &worker, &task_id).await?;
                    done.fetch_add(1, Ordering::SeqCst);
                    task_ids.push(task_id);
                }
                Ok(task_ids)
            });
        }
        Ok(Self {
            stop,
            done,
            workers,
            sequence,
            coordinator: coordinator.clone(),
        })
    }

    /// Waits until so many more tasks are settled.
    pub async fn progress(&self, tasks: usize) -> Result {
        let goal = self.done.load(Ordering::SeqCst) + tasks;
        let end = Instant::now() + PROGRESS_WITHIN;
        let mut again = interval(LOOK_EVERY);
        while self.done.load(Ordering::SeqCst) < goal {
            if Instant::now() > end {
                let done = self.done.load(Ordering::SeqCst);
                return Err(format!("{done} tasks are settled, and not {goal}").into());
            }
            again.tick().await;
        }
        Ok(())
    }

    /// Ends it, and checks every task: it has the result that its worker was told, and both events once.
    pub async fn end(mut self) -> Result {
        self.stop.store(true, Ordering::SeqCst);
        let mut task_ids = Vec::new();
        while let Some(ended) = self.workers.join_next().await {
            task_ids.extend(ended??);
        }
        let events = stream::until(&self.coordinator, self.sequence, |events| {
            task_ids
                .iter()
                .all(|task_id| events.get(task_id).is_some_and(|events| events.len() >= 3))
        })
        .await?;
        for task_id in &task_ids {
            let ids: Vec<&str> = events
                .get(task_id)
                .into_iter()
                .flatten()
                .map(|event| event.id.as_str())
                .collect();
            let right = [
                format!("{task_id}.1.task"),
                format!("{task_id}.2.result"),
                format!("{task_id}.2.task"),
            ];
            if ids != right {
                return Err(format!("the stream has {ids:?}, and not {right:?}").into());
            }
            let get = json!({"task_id": task_id});
            let task = ask(&self.coordinator, "tasklatch.task.get", &get)
                .await?
                .body;
            if task["result"]["summary"] != summary(task_id) || task["revision"] != 2 {
                return Err(format!("{task_id} is not as its worker was told: {task}").into());
            }
        }
        Ok(())
    }
}

fn summary(task_id: &str) -> String {
    format!("{task_id} is done")
}

/// Creates a task and reports it, each as often as it takes.
async fn settle(coordinator: &Client, worker: &Client, task_id: &str) -> Result {
    let create = json!({"task_id": task_id, "title": "A task of the load"});
    let created = ask(coordinator, "tasklatch.task.create", &create).await?;
    if created.code().is_some() {
        return Err(format!("{task_id} was not created: {}", created.body).into());
    }
    let report = json!({"task_id": task_id, "status": "completed", "summary": summary(task_id)});
    let reported = ask(worker, "tasklatch.report", &report).await?;
    if reported.outcome().is_none() {
        return Err(format!("the report of {task_id} was refused: {}", reported.body).into());
    }
    Ok(())
}
