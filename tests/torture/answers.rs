//! Answers of the service: how they are had, and what must hold of all those about one task.

use std::time::Duration;

use async_nats::{Client, Message, Request, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::timeout;

use crate::model::{Failure, Shared, count};
use crate::stage::{END_WITHIN, MAX_PAYLOAD_LOW, last};

/// How long a worker waits for one answer before it sends the same again.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(700);

/// How many requests the service has in hand when it is asked to stop.
pub const ASKED_MANY: usize = 3000;

/// How long the answers of a service that has ended may be on their way.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// How long a worker waits at most before it tries again.
pub const RETRY_MAX: Duration = Duration::from_millis(200);

/// An answer of the service.
#[derive(Clone, Debug)]
pub struct Answer {
    /// `accepted`, `replayed` or nothing.
    pub outcome: String,
    /// The code of a refusal, or nothing.
    pub code: String,
    pub body: Bytes,
}

/// What a message says, if it is an answer of the service.
pub fn answer_of(message: &Message) -> Option<Answer> {
    let headers = message.headers.as_ref()?;
    (headers.get("Tasklatch-Protocol")?.as_str() == "1").then_some(())?;
    let outcome = headers
        .get("Tasklatch-Outcome")
        .map(|value| value.to_string());
    let body: Value = serde_json::from_slice(&message.payload).ok()?;
    let code = body.pointer("/error/code").and_then(Value::as_str);
    Some(Answer {
        outcome: outcome.unwrap_or_default(),
        code: code.unwrap_or_default().to_owned(),
        body: message.payload.clone(),
    })
}

impl Answer {
    pub fn at(&self, pointer: &str) -> Value {
        let body: Value = serde_json::from_slice(&self.body).unwrap();
        body.pointer(pointer).cloned().unwrap_or_default()
    }

    /// To be sent again: now is no time for it, or the server takes no messages of that size for now.
    fn asks_for_a_retry(&self) -> bool {
        let limit = self.at("/error/limit").as_u64();
        self.at("/error/action") == "retry"
            || (self.code.starts_with("invalid")
                && limit.is_some_and(|limit| limit <= MAX_PAYLOAD_LOW as u64))
    }
}

/// The result in a task, byte for byte.
pub fn result_text(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Part<'a> {
        #[serde(borrow)]
        result: Option<&'a RawValue>,
    }
    let part: Part = serde_json::from_slice(body).ok()?;
    part.result.map(|result| result.get().to_owned())
}

/// Sends the same until it is answered for good.
pub async fn insist(client: &Client, shared: &Shared, subject: &str, payload: &Bytes) -> Answer {
    let mut wait = Duration::from_millis(5);
    let is_report = subject.starts_with("tasklatch.report");
    loop {
        let request = Request::new()
            .payload(payload.clone())
            .timeout(Some(ANSWER_WITHIN));
        count(&shared.counts.sent);
        if is_report {
            count(&shared.counts.reports);
        }
        if let Ok(message) = client.send_request(subject.to_owned(), request).await
            && let Some(answer) = answer_of(&message)
            && !answer.asks_for_a_retry()
        {
            match answer.outcome.as_str() {
                "accepted" => count(&shared.counts.accepted),
                "replayed" => count(&shared.counts.replayed),
                _ if is_report => count(&shared.counts.refused),
                _ => {}
            }
            return answer;
        }
        last(wait).await;
        wait = RETRY_MAX.min(2 * wait);
    }
}

/// Sends [`ASKED_MANY`] reports and returns once the service has them all in hand, most of them without an answer yet. What is
/// still on its way to a service that unsubscribes may be lost: async-nats does not wait for it.
pub async fn ask_many(client: &Client) -> Subscriber {
    let inbox = client.new_inbox();
    let answers = client.subscribe(inbox.clone()).await.unwrap();
    let report = r#"{"task_id":"nobody","status":"completed","summary":"late"}"#;
    for _ in 0..ASKED_MANY {
        let asked = client.publish_with_reply("tasklatch.report", inbox.clone(), report.into());
        asked.await.unwrap();
    }
    // This is refused at once, and comes after them on the same connection.
    let refused = client.request("tasklatch.task.get", "not JSON".into());
    let _ = timeout(END_WITHIN, refused).await;
    answers
}

/// How many answers have come to [`ask_many`].
pub async fn count_answers(mut answers: Subscriber) -> usize {
    let mut answered = 0;
    while answered < ASKED_MANY
        && let Ok(Some(message)) = timeout(ANSWERS_WITHIN, answers.next()).await
    {
        answered += usize::from(answer_of(&message).is_some());
    }
    answered
}

/// What became of reports on one task: which content each had, and the answer.
pub type Answers = Vec<(usize, Answer)>;

/// An answer to look at.
pub fn show(answer: &Answer) -> String {
    format!(
        "[{}{}] {}",
        answer.outcome,
        answer.code,
        String::from_utf8_lossy(&answer.body)
    )
}

/// Checks what reports on one task were answered; gives the content that was accepted.
pub fn judge(
    task_id: &str,
    answers: &Answers,
    found: &Answer,
    may_be_terminal: bool,
) -> Result<Option<usize>, Failure> {
    let fail = |check: &str, expected: &str, seen: String| {
        Err(Failure::new(check, task_id, expected, seen))
    };
    let settled: Vec<_> = answers
        .iter()
        .filter(|(_, answer)| !answer.outcome.is_empty())
        .collect();
    let winner = settled.first().map(|(content, _)| *content);
    let accepted = settled
        .iter()
        .filter(|(_, answer)| answer.outcome == "accepted")
        .count();
    if accepted > 1 {
        return fail(
            "a report is accepted once",
            "one accepted at most",
            format!("{accepted}"),
        );
    }
    for (content, answer) in &settled {
        if Some(*content) != winner {
            let seen = format!("both {} and another", show(answer));
            return fail("one content is accepted", "one content", seen);
        }
        if answer.body != found.body {
            let seen = format!("{} and {}", show(answer), show(found));
            return fail(
                "every answer is the same task, byte for byte",
                "the same bytes",
                seen,
            );
        }
    }
    for (content, answer) in answers
        .iter()
        .filter(|(_, answer)| answer.outcome.is_empty())
    {
        let is_so = match answer.code.as_str() {
            "result_conflict" => winner.is_some() && Some(*content) != winner,
            "task_terminal" => winner.is_none() && may_be_terminal,
            _ => false,
        };
        if !is_so {
            let seen = format!("{} with winner {winner:?}, content {content}", show(answer));
            return fail(
                "a report is refused for what became of the task",
                "conflict or terminal",
                seen,
            );
        }
    }
    let has_result = result_text(&found.body).is_some();
    if has_result != winner.is_some() {
        return fail(
            "a task has a result if a report was accepted",
            "both or none",
            show(found),
        );
    }
    Ok(winner)
}
