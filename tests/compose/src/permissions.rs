//! What each role may do, and what the server keeps it from: docs/security.md.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use crate::Result;
use crate::wire::{self, User, log_in};

/// How long the server may take to say that something is not allowed, or to take what is.
const WITHIN: Duration = Duration::from_secs(5);

/// What a role tries.
enum Try {
    /// Sends a request, which the service answers if it is allowed.
    Ask(&'static str),
    /// Publishes something that is not answered.
    Publish(&'static str),
    /// Subscribes.
    Subscribe(&'static str),
}

use Try::{Ask, Publish, Subscribe};

const ALLOWED: &[(&str, Try)] = &[
    ("worker", Ask("tasklatch.report")),
    ("worker", Ask("tasklatch.report.nobody")),
    ("worker", Ask("tasklatch.task.start")),
    ("worker", Ask("tasklatch.task.get")),
    ("worker", Ask("tasklatch.task.list")),
    ("worker", Subscribe("_INBOX.worker.x")),
    ("coordinator", Ask("tasklatch.task.create")),
    ("coordinator", Ask("tasklatch.task.cancel")),
    ("coordinator", Ask("tasklatch.task.review")),
    ("coordinator", Ask("tasklatch.task.list")),
    ("coordinator", Subscribe("tasklatch.event.>")),
    ("observer", Subscribe("tasklatch.event.>")),
];

const DENIED: &[(&str, Try)] = &[
    ("worker", Publish("tasklatch.task.create")),
    ("worker", Publish("tasklatch.task.cancel")),
    ("worker", Publish("tasklatch.task.review")),
    ("worker", Publish("tasklatch.event.result.other")),
    ("worker", Publish("tasklatch.dead.other")),
    ("worker", Publish("$JS.API.STREAM.DELETE.TASKLATCH_EVENTS")),
    ("worker", Subscribe("tasklatch.event.>")),
    ("worker", Subscribe("tasklatch.report")),
    ("worker", Subscribe("_INBOX.coordinator.>")),
    ("worker", Subscribe(">")),
    ("coordinator", Publish("tasklatch.event.task.other")),
    ("coordinator", Subscribe("tasklatch.report.*")),
    ("coordinator", Subscribe("_INBOX.worker.>")),
    ("observer", Publish("tasklatch.report")),
    ("observer", Publish("tasklatch.task.get")),
    ("observer", Publish("tasklatch.event.task.other")),
    ("observer", Subscribe("tasklatch.task.>")),
];

/// Tries all of it.
pub async fn check() -> Result {
    let mut wrong = Vec::new();
    for (tries, allowed) in [(ALLOWED, true), (DENIED, false)] {
        for (role, what) in tries {
            // A login of its own for each, so that no error is taken for that of another.
            let user = log_in(role).await?;
            if is_allowed(user, what).await? != allowed {
                let (verb, subject) = match what {
                    Ask(subject) => ("ask", subject),
                    Publish(subject) => ("publish to", subject),
                    Subscribe(subject) => ("subscribe to", subject),
                };
                let may = if allowed { "cannot" } else { "can" };
                wrong.push(format!("{role} {may} {verb} {subject}"));
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("; ").into()),
    }
}

async fn is_allowed(mut user: User, what: &Try) -> Result<bool> {
    let client = user.client.clone();
    match what {
        Ask(subject) => {
            let answer = wire::ask_once(&client, subject, &json!({"task_id": "nobody"})).await?;
            return Ok(answer.is_some());
        }
        Publish(subject) => client.publish(*subject, "{}".into()).await?,
        Subscribe(subject) => {
            // The subscription ends with the client, after the server has said what it thinks of it.
            let _subscription = client.subscribe(*subject).await?;
            return verdict(&mut user).await;
        }
    }
    verdict(&mut user).await
}

/// Whether the server has refused what was sent before: it answers what a connection sends in order, so that its answer to
/// what is certainly refused comes after.
async fn verdict(user: &mut User) -> Result<bool> {
    const CERTAINLY_REFUSED: &str = "$SYS.compose-test";
    user.client.publish(CERTAINLY_REFUSED, "".into()).await?;
    user.client.flush().await?;
    let error = timeout(WITHIN, user.errors.recv())
        .await
        .map_err(|_| format!("the server says nothing of what {} may not do", user.name))?;
    let error = error.ok_or("the client has ended")?;
    Ok(error
        .to_lowercase()
        .contains(&CERTAINLY_REFUSED.to_lowercase()))
}
