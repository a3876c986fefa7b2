//! Dead letters: reports that can never be applied, each with its refusal (docs/protocol.md, "Durable reports").

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::PublishError;
use bytes::Bytes;

use crate::wire::{Answer, StreamKind, Subjects, header, limits, may_be_in_task_id};

/// Stands for the task ID of a report whose subject names none.
const NO_TASK: &str = "_";

/// Says which stream must take the message: none other keeps dead letters.
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";

/// Why a report could not be set aside.
#[derive(Debug, thiserror::Error)]
#[error("{subject} does not take a report: {source}")]
pub(super) struct DeadError {
    subject: String,
    source: PublishError,
}

/// A report as it is set aside.
pub(super) struct Letter<'a> {
    /// The end of its subject, which should be a task ID.
    pub(super) task_id: &'a str,
    /// The sender's; `None` if they cannot be read.
    pub(super) headers: Option<&'a HeaderMap>,
    pub(super) payload: Bytes,
    /// The same for each try, and for no other report.
    pub(super) id: String,
    /// Whether it was tried before.
    pub(super) is_again: bool,
}

/// Sets a report aside, and waits until its stream has it. Doing it again stores it once.
pub(super) async fn publish(
    context: &Context,
    subjects: &Subjects,
    letter: Letter<'_>,
    answer: &Answer,
) -> Result<(), DeadError> {
    let subject = subjects.dead(token_of(letter.task_id));
    let stream = subjects.stream(StreamKind::Dead);
    if letter.is_again && is_there(context, &stream, &subject, &letter.id).await {
        return Ok(());
    }
    let mut refusal = HeaderMap::new();
    for (name, value) in &answer.headers {
        refusal.insert(*name, value.as_str());
    }
    refusal.insert(header::MSG_ID, letter.id);
    refusal.insert(EXPECTED_STREAM, stream);
    let max_payload = context.client().max_payload();
    let (headers, payload) = match letter.headers {
        Some(senders) => fitted(senders, letter.payload, refusal, max_payload),
        None => {
            refusal.insert(header::LEFT_OUT, "headers");
            fitted(&HeaderMap::new(), letter.payload, refusal, max_payload)
        }
    };
    let failed = |source| DeadError {
        subject: subject.clone(),
        source,
    };
    context
        .publish_with_headers(subject.clone(), headers, payload)
        .await
        .map_err(failed)?
        .await
        .map_err(failed)?;
    Ok(())
}

/// Whether it was set aside before: the window in which the stream finds that out by itself may be over.
async fn is_there(context: &Context, stream: &str, subject: &str, id: &str) -> bool {
    let last = async {
        let stream = context.get_stream_no_info(stream).await.ok()?;
        stream.get_last_raw_message_by_subject(subject).await.ok()
    };
    last.await.is_some_and(|message| {
        let known = message.headers.get(header::MSG_ID);
        known.is_some_and(|known| known.as_str() == id)
    })
}

fn token_of(task_id: &str) -> &str {
    let sized = (1..=limits::TASK_ID_BYTES).contains(&task_id.len());
    match sized && task_id.bytes().all(may_be_in_task_id) {
        true => task_id,
        false => NO_TASK,
    }
}

/// The headers and the payload of a dead letter. With its refusal it is longer than the report was, and may not fit into a
/// message any more: then the sender's headers go, or else the payload.
fn fitted(
    senders: &HeaderMap,
    payload: Bytes,
    refusal: HeaderMap,
    max_payload: usize,
) -> (HeaderMap, Bytes) {
    let whole = with_senders(senders, &refusal);
    let candidates = [
        (None, whole.clone(), payload.clone()),
        (Some("headers"), refusal.clone(), payload),
        (Some("payload"), whole, Bytes::new()),
    ];
    for (left_out, mut headers, payload) in candidates {
        if let Some(what) = left_out {
            headers.insert(header::LEFT_OUT, what);
        }
        if wire_bytes(&headers) + payload.len() <= max_payload {
            return (headers, payload);
        }
    }
    let mut headers = refusal;
    headers.insert(header::LEFT_OUT, "headers, payload");
    (headers, Bytes::new())
}

/// The refusal's headers over the sender's. What begins with `Nats-` would have the stream do something.
fn with_senders(senders: &HeaderMap, refusal: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, values) in senders.iter() {
        let text: &str = name.as_ref();
        let is_order = (text.get(..5)).is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
        let is_ours = [header::PROTOCOL, header::OUTCOME, header::LEFT_OUT]
            .iter()
            .any(|ours| text.eq_ignore_ascii_case(ours));
        if !is_order && !is_ours {
            for value in values {
                headers.append(name.clone(), value.clone());
            }
        }
    }
    for (name, values) in refusal.iter() {
        for value in values {
            headers.insert(name.clone(), value.clone());
        }
    }
    headers
}

/// How long the headers are in a message.
fn wire_bytes(headers: &HeaderMap) -> usize {
    let lines = headers.iter().flat_map(|(name, values)| {
        let name: &str = name.as_ref();
        values
            .iter()
            .map(move |value| name.len() + ": \r\n".len() + value.as_str().len())
    });
    "NATS/1.0\r\n\r\n".len() + lines.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, *value);
        }
        map
    }

    fn left_out(max_payload: usize) -> (String, usize, bool) {
        let senders = map(&[("X-Note", "0123456789012345678901234567890123456789")]);
        let refusal = map(&[("Nats-Service-Error", "invalid_report: x")]);
        let payload = Bytes::from(vec![b'x'; 100]);
        let (headers, payload) = fitted(&senders, payload, refusal, max_payload);
        let what = headers.get(header::LEFT_OUT);
        (
            what.map(|what| what.as_str().to_owned())
                .unwrap_or_default(),
            payload.len(),
            headers.get("X-Note").is_some(),
        )
    }

    #[test]
    fn a_dead_letter_that_does_not_fit_loses_the_senders_headers_or_else_the_payload() {
        assert_eq!(left_out(1_000), (String::new(), 100, true));
        assert_eq!(left_out(190), ("headers".to_owned(), 100, false));
        assert_eq!(left_out(150), ("payload".to_owned(), 0, true));
        assert_eq!(left_out(60), ("headers, payload".to_owned(), 0, false));
    }

    #[test]
    fn no_header_of_the_sender_steers_the_stream_of_dead_letters() {
        let senders = map(&[
            ("Nats-Rollup", "all"),
            ("nats-ttl", "1s"),
            ("Tasklatch-Protocol", "9"),
            ("X-Note", "a"),
            ("X-Note", "b"),
        ]);
        let refusal = map(&[("Nats-Msg-Id", "r")]);
        let headers = with_senders(&senders, &refusal);
        let mut names: Vec<_> = headers.iter().map(|(name, _)| name.to_string()).collect();
        names.sort();
        assert_eq!(names, ["Nats-Msg-Id", "X-Note"]);
        assert_eq!(headers.get_all("X-Note").count(), 2);
    }

    #[test]
    fn a_subject_that_names_no_task_is_set_aside_under_a_token_of_its_own() {
        assert_eq!(token_of("t-1_A"), "t-1_A");
        for bad in ["", "a.b", "ü", &"x".repeat(129)] {
            assert_eq!(token_of(bad), "_", "{bad:?}");
        }
    }
}
