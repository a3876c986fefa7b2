//! What the designs have in common that tell reports apart: reading one, answering it, publishing its events.

use std::sync::Arc;

use async_nats::{Client, HeaderMap, Message};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Deserialize;
use tasklatch::content::JsonText;
use tasklatch::nats::header_map;
use tasklatch::task::{Status, Task, TaskResult, Timestamp};
use tasklatch::wire::{Subjects, events_of, header};
use tokio::sync::{Semaphore, mpsc};

use crate::failure::{During, Failure, Result};

/// How many reports are worked on at once.
const AT_ONCE: usize = 1024;

/// A report as these designs read it: without the checks of tasklatch.
#[derive(Deserialize)]
pub struct Report {
    /// The task.
    pub task_id: String,
    status: Status,
    summary: String,
    #[serde(default)]
    artifacts: Vec<String>,
    evidence: JsonText,
}

impl Report {
    /// Reads one.
    ///
    /// # Errors
    /// If it is none.
    pub fn read(payload: &[u8]) -> Result<Self> {
        serde_json::from_slice(payload).during("read a report")
    }

    /// The result that it becomes.
    pub fn into_result(self, reported_at: Timestamp) -> TaskResult {
        TaskResult {
            status: self.status,
            summary: self.summary,
            artifacts: self.artifacts,
            evidence: self.evidence,
            reported_at,
        }
    }
}

/// What became of a report.
pub enum Outcome {
    /// It is the task's result from now on.
    Accepted(Task),
    /// It was the task's result before.
    Replayed(Task),
    /// Another one is.
    Conflict,
}

/// Takes reports, each in a task of its own, and answers what `handle` makes of them.
///
/// # Errors
/// The first that one of them meets: a report that is not answered is no measurement.
pub async fn each<F>(
    client: &Client,
    with_events: bool,
    handle: impl Fn(Bytes) -> F + Send + Sync + 'static,
) -> Result<()>
where
    F: Future<Output = Result<Outcome>> + Send,
{
    let mut reports = super::reports(client).await?;
    let at_once = Arc::new(Semaphore::new(AT_ONCE));
    let handle = Arc::new(handle);
    let (failed, mut failures) = mpsc::channel(1);
    loop {
        let place = at_once
            .clone()
            .acquire_owned()
            .await
            .during("take a report")?;
        let report = tokio::select! {
            report = reports.next() => report,
            Some(failure) = failures.recv() => return Err(failure),
        };
        let report =
            report.ok_or_else(|| Failure::new("the connection to the NATS server has ended"))?;
        let (client, handle, failed) = (client.clone(), handle.clone(), failed.clone());
        tokio::spawn(async move {
            let done = match handle(report.payload.clone()).await {
                Ok(outcome) => answer(&client, report, outcome, with_events).await,
                Err(failure) => Err(failure),
            };
            if let Err(failure) = done {
                // The first one ends the process; later ones tell nothing new.
                let _ = failed.try_send(failure);
            }
            drop(place);
        });
    }
}

async fn answer(
    client: &Client,
    report: Message,
    outcome: Outcome,
    with_events: bool,
) -> Result<()> {
    let (task, word) = match &outcome {
        Outcome::Accepted(task) => (Some(task), "accepted"),
        Outcome::Replayed(task) => (Some(task), "replayed"),
        Outcome::Conflict => (None, "conflict"),
    };
    if let Some(reply) = report.reply {
        let mut headers = HeaderMap::new();
        headers.insert(header::OUTCOME, word);
        let body = match task {
            Some(task) => serde_json::to_vec(task).during("write a task as JSON")?,
            None => br#"{"error":{"code":"result_conflict"}}"#.to_vec(),
        };
        client
            .publish_with_headers(reply, headers, body.into())
            .await
            .during("publish an answer")?;
    }
    match outcome {
        Outcome::Accepted(task) if with_events => publish_events(client, &task).await,
        _ => Ok(()),
    }
}

async fn publish_events(client: &Client, task: &Task) -> Result<()> {
    let subjects = Subjects::new("tasklatch").during("name the subjects")?;
    for event in events_of(task).during("write events as JSON")? {
        // Any UUID has the length of a ledger's identity.
        let headers = header_map(event.headers(&task.task_id));
        client
            .publish_with_headers(event.subject(&subjects), headers, event.data)
            .await
            .during("publish an event")?;
    }
    Ok(())
}
