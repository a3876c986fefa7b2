//! Pulling from the report stream.
//!
//! One request for messages is open at a time, and each asks for a bounded number of messages and bytes, so that no more
//! than that ever waits here, however much waits in the stream. async-nats has a stream of messages of its own; it does
//! not tell when the server is alive but has nothing, and what it has when it is dropped cannot be given back.

use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::{BatchConfig, BatchRequestError};
use async_nats::jetstream::{self, Context};
use async_nats::{StatusCode, SubscribeError, Subscriber};
use futures_util::StreamExt;
use tokio::time::{Instant, timeout};

use super::give_back;
use crate::nats::{Connection, Ending};

/// How many reports one request asks for.
const BATCH_MESSAGES: usize = 1024;

/// How many bytes one request asks for, but not less than the largest message that the server takes.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Room for the subject and the acknowledgment subject, which the server counts too.
const SUBJECTS_BYTES: usize = 16 * 1024;

/// How long a request stays open where there is nothing.
const EXPIRES: Duration = Duration::from_secs(60);

/// How often the server says that it still knows of the request.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// How long nothing may be heard of the server.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// How often it is looked whether the connection is another one, with which the request was lost.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long to wait for what is under way when pulling ends.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// Why pulling broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum PullError {
    #[error("the NATS client does not subscribe: {0}")]
    Subscribe(#[from] SubscribeError),
    #[error("the NATS client does not send: {0}")]
    Request(#[from] BatchRequestError),
    #[error("the subscription ended")]
    Ended,
    #[error("the connection to the NATS server was lost")]
    Reconnected,
    #[error(
        "the report stream has been silent for {} s; check that the server has JetStream, and the permissions on $JS.API.CONSUMER.MSG.NEXT.>",
        SILENCE_MAX.as_secs()
    )]
    Silent,
    #[error("no JetStream answers for the report stream, or its consumer is gone")]
    NoResponders,
    #[error("the report stream says {0:?}")]
    Broken(String),
}

/// A consumer that is pulled from.
pub(super) struct Pull {
    connection: Connection,
    context: Context,
    consumer: PullConsumer,
    messages: Subscriber,
    inbox: String,
    /// What the request that is open may still bring; no message: there is none.
    open_messages: usize,
    open_bytes: usize,
    batch_bytes: usize,
    /// The first request is answered at once, so that it is known whether pulling works.
    is_first: bool,
    heard: Instant,
    connects: u64,
}

impl Pull {
    pub(super) async fn begin(
        connection: &Connection,
        context: Context,
        consumer: PullConsumer,
    ) -> Result<Self, PullError> {
        let client = connection.client();
        let inbox = client.new_inbox();
        Ok(Self {
            connects: connection.connects(),
            messages: client.subscribe(inbox.clone()).await?,
            batch_bytes: BATCH_BYTES.max(client.max_payload() + SUBJECTS_BYTES),
            connection: connection.clone(),
            context,
            consumer,
            inbox,
            open_messages: 0,
            open_bytes: 0,
            is_first: true,
            heard: Instant::now(),
        })
    }

    /// The next report, or nothing but a sign that the stream is there. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> Result<Option<jetstream::Message>, PullError> {
        loop {
            if self.open_messages == 0 {
                self.request().await?;
            }
            let Ok(came) = timeout(LOOK_EVERY, self.messages.next()).await else {
                if self.connection.connects() != self.connects {
                    return Err(PullError::Reconnected);
                }
                if self.heard.elapsed() > SILENCE_MAX {
                    return Err(PullError::Silent);
                }
                continue;
            };
            let message = came.ok_or(PullError::Ended)?;
            self.heard = Instant::now();
            return self.read(message);
        }
    }

    async fn request(&mut self) -> Result<(), PullError> {
        let waits = !std::mem::replace(&mut self.is_first, false);
        let request = BatchConfig {
            batch: BATCH_MESSAGES,
            max_bytes: self.batch_bytes,
            no_wait: !waits,
            expires: waits.then_some(EXPIRES),
            idle_heartbeat: if waits { HEARTBEAT } else { Duration::ZERO },
            ..BatchConfig::default()
        };
        self.consumer
            .request_batch(request, self.inbox.clone().into())
            .await?;
        self.heard = Instant::now();
        self.open_messages = BATCH_MESSAGES;
        self.open_bytes = self.batch_bytes;
        Ok(())
    }

    fn read(
        &mut self,
        message: async_nats::Message,
    ) -> Result<Option<jetstream::Message>, PullError> {
        // Only what the server says itself has no subject for an acknowledgment; a report may claim any status.
        if message.reply.is_some() {
            // The server closes a request that has exactly no bytes left without a word.
            self.open_bytes = self.open_bytes.saturating_sub(message.length);
            self.open_messages = match self.open_bytes {
                0 => 0,
                _ => self.open_messages.saturating_sub(1),
            };
            let context = self.context.clone();
            return Ok(Some(jetstream::Message { message, context }));
        }
        let description = message.description.as_deref().unwrap_or_default();
        match message.status {
            Some(StatusCode::IDLE_HEARTBEAT) => {}
            Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => self.open_messages = 0,
            Some(StatusCode::REQUEST_TERMINATED) => match description {
                "Message Size Exceeds MaxBytes" => {
                    // Larger than any message may be by now: it came before the server's limit was lowered.
                    if self.open_messages == BATCH_MESSAGES {
                        self.batch_bytes = self.batch_bytes.saturating_mul(2);
                    }
                    self.open_messages = 0;
                }
                "Batch Completed" | "Exceeded MaxAckPending" => self.open_messages = 0,
                _ => return Err(PullError::Broken(description.to_owned())),
            },
            Some(StatusCode::NO_RESPONDERS) => return Err(PullError::NoResponders),
            status => {
                let text = format!("{status:?} {description}");
                return Err(PullError::Broken(text));
            }
        }
        Ok(None)
    }

    /// Ends the subscription and gives back what has come.
    pub(super) async fn close(self) {
        let Self {
            connection,
            context,
            messages,
            ..
        } = self;
        let mut ending = Ending::begin(&connection, messages, CLOSE_WITHIN).await;
        while let Some(message) = ending.next().await {
            if message.reply.is_some() {
                let context = context.clone();
                give_back(jetstream::Message { message, context }).await;
            }
        }
        if let Err(error) = ending.proved() {
            tracing::debug!(error = %error, "not all reports could be given back; the stream finds out");
        }
    }
}
