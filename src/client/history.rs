//! Events that the event stream kept, and those that come after them.
//!
//! A short-lived consumer reads them in order. Whenever something is missing (a gap in its count, a new connection, a
//! consumer that is gone), another one begins behind the last event that was handed on: so none is left out and none comes
//! twice, however often the server restarts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::Message;
use async_nats::jetstream::consumer::pull::{Config, Stream};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy};
use async_nats::jetstream::context::{
    ContextBuilder, GetStreamError, GetStreamErrorKind, RequestError, RequestErrorKind,
};
use async_nats::jetstream::{Context, ErrorCode};
use futures_util::StreamExt;
use time::OffsetDateTime;
use tokio::time::timeout;

use super::{Client, ClientError, Source, Watch, broken, checked_task_id};
use crate::task::Timestamp;
use crate::wire::{EventKind, StreamKind};

/// What has the service make the event stream.
const MADE_BY: &str = "--events jetstream";

/// How many events one request asks for.
const BATCH_EVENTS: usize = 200;

/// How often the server says that it is still there.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// How long one request for events stays open.
const EXPIRES: Duration = Duration::from_secs(30);

/// How long the server keeps a consumer that nobody asks any more.
const CONSUMER_KEPT: Duration = Duration::from_secs(30);

/// How often it is looked whether the connection is another one.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long to wait before the stream is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// From when on events are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// All that the stream holds.
    All,
    /// Those that the stream got at this instant or later.
    Instant(Timestamp),
}

/// Events in the order of the event stream.
pub(super) struct History {
    client: async_nats::Client,
    context: Context,
    stream: String,
    filter: String,
    since: Since,
    /// When the stream was made that `last` counts in.
    created: Option<OffsetDateTime>,
    /// The last event that was handed on.
    last: u64,
    reading: Option<Reading>,
    /// Whether it was said already that the stream cannot be read.
    is_told: bool,
}

/// One consumer.
struct Reading {
    messages: Stream,
    /// How many it has delivered.
    count: u64,
    connects: u64,
}

impl Client {
    /// The events that the event stream kept since then, of one task or of all, and all that come after them.
    ///
    /// # Errors
    /// [`ClientError`], also if there is no such stream.
    pub async fn watch_since(
        &self,
        task_id: Option<&str>,
        result_only: bool,
        since: Since,
    ) -> Result<Watch, ClientError> {
        let token = task_id.map_or(Ok("*"), checked_task_id)?;
        // One subject, so that the order is that of the stream on every server.
        let subject = match result_only {
            true => self.subjects.event(EventKind::Result, token),
            false => format!("{}.event.*.{token}", self.subjects.prefix()),
        };
        let context = ContextBuilder::new()
            .timeout(self.timeout)
            .build(self.nats.clone());
        let mut history = History {
            client: self.nats.clone(),
            context,
            stream: self.subjects.stream(StreamKind::Events),
            filter: subject.clone(),
            since,
            created: None,
            last: 0,
            reading: None,
            is_told: false,
        };
        history.reading = Some(history.open().await?);
        Ok(Watch {
            source: Source::Stream(Box::new(history)),
            subject,
        })
    }
}

impl History {
    /// The next event, or once what is in the way of it.
    pub(super) async fn next(&mut self) -> Result<Message, ClientError> {
        loop {
            match self.step().await {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(error) => {
                    self.reading = None;
                    if !std::mem::replace(&mut self.is_told, true) {
                        return Err(error);
                    }
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Option<Message>, ClientError> {
        let connects = self.connects();
        if (self.reading.as_ref()).is_none_or(|reading| reading.connects != connects) {
            self.reading = None;
            self.reading = Some(self.open().await?);
        }
        let Some(reading) = &mut self.reading else {
            return Ok(None);
        };
        let Ok(came) = timeout(LOOK_EVERY, reading.messages.next()).await else {
            return Ok(None);
        };
        let Some(Ok(message)) = came else {
            // The consumer is gone or silent. Another one finds out what is wrong.
            self.reading = None;
            tokio::time::sleep(RETRY_AFTER).await;
            return Ok(None);
        };
        let info = message.info().map_err(|error| ClientError::StreamFailed {
            stream: self.stream.clone(),
            what: error.to_string(),
        })?;
        let (sequence, count) = (info.stream_sequence, info.consumer_sequence);
        if count != reading.count + 1 {
            self.reading = None;
            return Ok(None);
        }
        reading.count = count;
        self.is_told = false;
        if sequence <= self.last {
            return Ok(None);
        }
        self.last = sequence;
        Ok(Some(message.into()))
    }

    /// Begins behind the last event.
    async fn open(&mut self) -> Result<Reading, ClientError> {
        let connects = self.connects();
        let stream = match self.context.get_stream(&self.stream).await {
            Ok(stream) => stream,
            Err(error) => return Err(self.no_stream(error)),
        };
        let created = stream.cached_info().created;
        if self
            .created
            .replace(created)
            .is_some_and(|was| was != created)
        {
            // Another stream of that name counts anew, and nothing of it was shown.
            (self.last, self.since) = (0, Since::All);
        }
        let failed = |what: String| ClientError::StreamFailed {
            stream: self.stream.clone(),
            what,
        };
        let config = Config {
            deliver_policy: self.begin()?,
            ack_policy: AckPolicy::None,
            filter_subject: self.filter.clone(),
            inactive_threshold: CONSUMER_KEPT,
            memory_storage: true,
            num_replicas: 1,
            ..Config::default()
        };
        let consumer =
            (stream.create_consumer(config).await).map_err(|error| failed(error.to_string()))?;
        let messages = consumer
            .stream()
            .max_messages_per_batch(BATCH_EVENTS)
            .heartbeat(HEARTBEAT)
            .expires(EXPIRES)
            .messages();
        Ok(Reading {
            messages: messages.await.map_err(|error| failed(error.to_string()))?,
            count: 0,
            connects,
        })
    }

    fn begin(&self) -> Result<DeliverPolicy, ClientError> {
        Ok(match (self.last, self.since) {
            (0, Since::All) => DeliverPolicy::All,
            (0, Since::Instant(instant)) => {
                let nanos = i128::from(instant.micros()) * 1_000;
                let start_time = OffsetDateTime::from_unix_timestamp_nanos(nanos);
                DeliverPolicy::ByStartTime {
                    start_time: start_time.map_err(broken)?,
                }
            }
            (last, _) => DeliverPolicy::ByStartSequence {
                start_sequence: last + 1,
            },
        })
    }

    fn connects(&self) -> u64 {
        let statistics = self.client.statistics();
        statistics.connects.load(Ordering::SeqCst)
    }

    fn no_stream(&self, error: GetStreamError) -> ClientError {
        let stream = self.stream.clone();
        let is_missing = match error.kind() {
            GetStreamErrorKind::JetStream(error) => {
                error.error_code() == ErrorCode::STREAM_NOT_FOUND
            }
            // Nobody answers: the server has no JetStream.
            _ => std::error::Error::source(&error)
                .and_then(|source| source.downcast_ref::<RequestError>())
                .is_some_and(|error| error.kind() == RequestErrorKind::NoResponders),
        };
        match is_missing {
            true => ClientError::NoStream {
                stream,
                made_by: MADE_BY,
            },
            false => ClientError::StreamFailed {
                stream,
                what: error.to_string(),
            },
        }
    }
}
