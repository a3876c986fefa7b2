//! What the event stream holds.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use futures_util::StreamExt;
use serde_json::Value;
use tokio::time::{Instant, interval};

use crate::Result;

const STREAM: &str = "TASKLATCH_EVENTS";

/// How long the events of what is committed may take.
const EVENTS_WITHIN: Duration = Duration::from_secs(60);

/// How often the stream is read again.
const READ_EVERY: Duration = Duration::from_millis(500);

/// How long one event may take to be read.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// An event as it is stored.
#[derive(Debug)]
pub struct Stored {
    pub id: String,
    pub kind: String,
    pub body: Value,
}

/// The sequence of the last event.
pub async fn last_sequence(client: &async_nats::Client) -> Result<u64> {
    let stream = jetstream::new(client.clone()).get_stream(STREAM).await?;
    Ok(stream.cached_info().state.last_sequence)
}

/// All events after a sequence, by task.
async fn read_after(
    client: &async_nats::Client,
    sequence: u64,
) -> Result<HashMap<String, Vec<Stored>>> {
    let stream = jetstream::new(client.clone()).get_stream(STREAM).await?;
    let last = stream.cached_info().state.last_sequence;
    let mut tasks: HashMap<String, Vec<Stored>> = HashMap::new();
    if last <= sequence {
        return Ok(tasks);
    }
    let consumer = stream
        .create_consumer(OrderedConfig {
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: sequence + 1,
            },
            ..OrderedConfig::default()
        })
        .await?;
    let mut messages = consumer.messages().await?;
    loop {
        let message = tokio::time::timeout(READ_WITHIN, messages.next())
            .await?
            .ok_or("the event stream ended")??;
        let at = message.info()?.stream_sequence;
        let header = |name: &str| {
            let headers = message.headers.as_ref();
            let value = headers.and_then(|headers| headers.get(name));
            value.map_or_else(String::new, |value| value.to_string())
        };
        let stored = Stored {
            id: header("ce-id"),
            kind: header("ce-type"),
            body: serde_json::from_slice(&message.payload)?,
        };
        tasks.entry(header("ce-subject")).or_default().push(stored);
        if at >= last {
            return Ok(tasks);
        }
    }
}

/// Waits until the stream has what `is_enough` asks of the events of each task after a sequence.
pub async fn until(
    client: &async_nats::Client,
    sequence: u64,
    is_enough: impl Fn(&HashMap<String, Vec<Stored>>) -> bool,
) -> Result<HashMap<String, Vec<Stored>>> {
    let end = Instant::now() + EVENTS_WITHIN;
    let mut again = interval(READ_EVERY);
    loop {
        again.tick().await;
        let events = read_after(client, sequence).await?;
        if is_enough(&events) || Instant::now() > end {
            return Ok(events);
        }
    }
}
