//! Reports whose headers or subject cannot be read.
//!
//! The server keeps any bytes as headers and in subjects. async-nats gives a connection up over some, and its client ends
//! over others, and so the report that has them would cost the connection each time that it is delivered. Such a report is
//! found by way of the server's API, which hands out its bytes as text, and is set aside.

use std::ops::RangeInclusive;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::Stream;
use async_nats::{Client, HeaderName, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;

use super::CONSUMER;
use super::dead::{self, Letter};
use super::settle::Origin;
use crate::streams::JETSTREAM_WITHIN;
use crate::wire::{Answer, Code, Refusal, StreamKind, Subjects};

/// Sets aside the reports with an unreadable subject or headers among those that were delivered and are not settled. Over a
/// connection that gets none of them as they are.
pub(super) async fn skim(client: &Client, subjects: &Subjects) -> Result<(), async_nats::Error> {
    let context = ContextBuilder::new()
        .timeout(JETSTREAM_WITHIN)
        .build(client.clone());
    let name = subjects.stream(StreamKind::Reports);
    let stream = context.get_stream(&name).await?;
    let origin = Origin {
        stream: name,
        created: stream.cached_info().created.unix_timestamp_nanos(),
    };
    let (mut next, last) = unsettled(&stream).await?.into_inner();
    while next <= last {
        let Some(found) = find_from(client, &origin.stream, next).await? else {
            break;
        };
        let sequence = found.seq;
        next = sequence + 1;
        if sequence > last {
            break;
        }
        // The server puts this character in the place of bytes that are not UTF-8.
        let has_subject = !found.subject.contains(char::REPLACEMENT_CHARACTER);
        if has_subject && found.hdrs.is_none_or(|headers| is_readable(&headers)) {
            continue;
        }
        let queue = subjects.queued_report_of("");
        let letter = Letter {
            task_id: found.subject.strip_prefix(&queue).unwrap_or_default(),
            headers: None,
            payload: found.data.into(),
            id: origin.id_of(sequence),
            is_again: true,
        };
        let refusal = Refusal::new(
            Code::InvalidReport,
            "the headers or the subject of the report cannot be read; send it with headers as NATS has them, or without, on the subject of its task",
        );
        dead::publish(&context, subjects, letter, &Answer::refused(&refusal)).await?;
        stream.delete_message(sequence).await?;
        tracing::warn!(
            report.seq = sequence,
            "set aside a report whose headers or subject cannot be read"
        );
    }
    Ok(())
}

async fn unsettled(stream: &Stream) -> Result<RangeInclusive<u64>, async_nats::Error> {
    let consumer: PullConsumer = stream.get_consumer(CONSUMER).await?;
    let info = consumer.cached_info();
    let first = info.ack_floor.stream_sequence + 1;
    let last = info.delivered.stream_sequence;
    Ok(first..=last)
}

#[derive(Deserialize)]
struct Found {
    seq: u64,
    subject: String,
    #[serde(default, deserialize_with = "some_bytes")]
    hdrs: Option<Vec<u8>>,
    #[serde(default, deserialize_with = "bytes")]
    data: Vec<u8>,
}

fn bytes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD.decode(text).map_err(serde::de::Error::custom)
}

fn some_bytes<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<u8>>, D::Error> {
    bytes(deserializer).map(Some)
}

/// The first report from this sequence on that is still there. What was settled is gone, so that as many are found as are not
/// settled, however far they lie apart.
async fn find_from(
    client: &Client,
    stream: &str,
    sequence: u64,
) -> Result<Option<Found>, async_nats::Error> {
    #[derive(Deserialize)]
    struct Said {
        message: Option<Found>,
    }
    let subject = format!("$JS.API.STREAM.MSG.GET.{stream}");
    let request = json!({"seq": sequence, "next_by_subj": ">"}).to_string();
    let answer = client.request(subject, request.into()).await?;
    let said: Said = serde_json::from_slice(&answer.payload)?;
    Ok(said.message)
}

/// Whether async-nats reads these headers.
fn is_readable(headers: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(headers) else {
        return false;
    };
    let mut lines = text.lines();
    let Some(status) = lines.next().and_then(|line| line.strip_prefix("NATS/1.0")) else {
        return false;
    };
    let status = status.trim().split(' ').next().unwrap_or_default();
    let is_status = status.is_empty() || status.parse::<StatusCode>().is_ok();
    let mut is_first = true;
    let mut is_header = |line: &str| {
        let goes_on = !std::mem::take(&mut is_first) && line.starts_with(char::is_whitespace);
        let name = line.split_once(':').map(|(name, _)| name);
        // A carriage return within a value ends the client; one at an edge, which does not, is as odd.
        !line.contains('\r')
            && (goes_on || name.is_some_and(|name| name.parse::<HeaderName>().is_ok()))
    };
    is_status && lines.all(|line| line.is_empty() || is_header(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_readable_as_async_nats_reads_them() {
        for good in [
            "NATS/1.0\r\n\r\n",
            "NATS/1.0\r\nX: a\r\n b\r\nY:\r\n\r\n",
            "NATS/1.0 503\r\n\r\n",
            "NATS/1.0 404 No Messages\r\n\r\n",
        ] {
            assert!(is_readable(good.as_bytes()), "{good:?}");
        }
        for bad in [
            "",
            "HTTP/1.1 200\r\n\r\n",
            "NATS/1.0 abcd\r\n\r\n",
            "NATS/1.0\r\nnonsense\r\n\r\n",
            "NATS/1.0\r\nA b: c\r\n\r\n",
            "NATS/1.0\r\nX: a\rb\r\n\r\n",
            "NATS/1.0\r\nX: a\r\n b\rc\r\n\r\n",
            "NATS/1.0\r\nX: a\r\r\n b\r\n\r\n",
        ] {
            assert!(!is_readable(bad.as_bytes()), "{bad:?}");
        }
        assert!(!is_readable(b"NATS/1.0\r\nX: \xff\r\n\r\n"));
    }
}
