//! What a NATS request costs at all: an answer of the right size, and nothing done for it.

use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use futures_util::StreamExt;
use tasklatch::nats::header_map;
use tasklatch::wire::{Subjects, events_of};

use crate::content::{REPORT_BYTES, StoredTasks, answer};
use crate::failure::{During, Failure, Result};

/// Answers every report with the same bytes, and publishes two events for it if asked to.
pub async fn respond(client: &Client, with_events: bool) -> Result<()> {
    let body = Bytes::from(answer()?);
    let events = if with_events { events()? } else { Vec::new() };
    let mut reports = super::reports(client).await?;
    while let Some(report) = reports.next().await {
        if let Some(reply) = report.reply {
            client
                .publish(reply, body.clone())
                .await
                .during("publish an answer")?;
        }
        for (subject, headers, data) in &events {
            client
                .publish_with_headers(subject.clone(), headers.clone(), data.clone())
                .await
                .during("publish an event")?;
        }
    }
    Err(Failure::new("the connection to the NATS server has ended"))
}

/// The two events of an accepted report, as the service publishes them.
fn events() -> Result<Vec<(String, HeaderMap, Bytes)>> {
    let task = StoredTasks::new(Some(REPORT_BYTES))?.at(0)?;
    let subjects = Subjects::new("tasklatch").during("name the subjects")?;
    let events = events_of(&task).during("write events as JSON")?;
    let ready = events.into_iter().map(|event| {
        // Any UUID has the length of a ledger's identity.
        let headers = header_map(event.headers(&task.task_id));
        (event.subject(&subjects), headers, event.data)
    });
    Ok(ready.collect())
}
