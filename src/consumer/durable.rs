//! Reports from the report stream (docs/protocol.md, "Durable reports").
//!
//! They are pulled as fast as they are settled, decoded like a request and handed to the one writer by the same queue. The
//! stream hears that a report is settled only after its transaction is durable; until then it keeps the report and delivers
//! it again, which is a replay. Whatever goes wrong with the stream is tried again for ever, from the making of the
//! streams on, and shows in `/ready` meanwhile.

mod dead;
mod pull;
mod settle;
mod skim;

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{ConsumerError, Stream};
use async_nats::jetstream::{self, AckKind};
use backon::BackoffBuilder;
use tokio_util::sync::CancellationToken;

use super::{Consumer, InHand, Share};
use crate::health::Health;
use crate::ids;
use crate::metrics::Retried;
use crate::nats::{Connection, RETRY_MAX, Trouble, retry_waits};
use crate::streams::{JETSTREAM_WITHIN, StreamError, Wanted};
use crate::wire::{Endpoint, Refusal, Request, Subjects, decode};

use pull::{Pull, PullError};
pub use settle::Delivery;
use settle::{Origin, Settler};

/// The name of the consumer on the report stream.
const CONSUMER: &str = "tasklatch";

/// How long the stream waits for a report to be settled before it delivers it again. Twice is harmless.
const ACK_WAIT: Duration = Duration::from_secs(30);

/// How many reports the stream hands out at most that are not settled: those in hand, those that were pulled, and those
/// that wait for another try.
const ACK_PENDING_MAX: i64 = 8192;

/// How many reports from the stream are in hand at once. They share the queue of the writer with requests, which have
/// their own places in it.
pub const IN_HAND_MAX: usize = 2048;

/// How many bytes they have at most.
const IN_HAND_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Takes reports from the report stream.
pub struct DurableReports {
    consumer: Consumer,
    connection: Connection,
    subjects: Subjects,
    reports: Wanted,
    in_hand: InHand,
    health: Arc<Health>,
}

/// Why reports cannot be taken now.
#[derive(Debug, thiserror::Error)]
enum DurableError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("the consumer {CONSUMER} of the stream {stream} cannot be had: {source}")]
    Consumer {
        stream: String,
        source: ConsumerError,
    },
    #[error(
        "the consumer {CONSUMER} of the stream {stream} {what}; change it, or remove it and have it made anew"
    )]
    Unfit { stream: String, what: &'static str },
    #[error(transparent)]
    Pull(#[from] PullError),
}

impl DurableReports {
    /// Gets ready to take reports over a connection of its own, and to answer them like `consumer`.
    pub fn new(consumer: Consumer, connection: Connection, subjects: &Subjects) -> Self {
        let health = consumer.health.clone();
        health.durable_starting();
        Self {
            reports: Wanted::reports(subjects),
            in_hand: InHand::new(IN_HAND_MAX, IN_HAND_BYTES_MAX),
            subjects: subjects.clone(),
            consumer,
            connection,
            health,
        }
    }

    /// Takes reports until `stop` is cancelled. What was delivered and not taken on by then goes back to the stream.
    pub async fn run(self, stop: CancellationToken) {
        let (mut waits, mut trouble) = (None, Trouble::default());
        loop {
            let mut is_well = false;
            let other = self.consumer.replier.connection();
            let (others, client_number) = (other.connects(), self.connection.client_number());
            let Err(error) = self.session(&stop, &mut is_well, &mut trouble).await else {
                return;
            };
            if is_well {
                waits = None;
            }
            let has_ended = matches!(error, DurableError::Pull(PullError::Ended));
            let is_lost = has_ended || matches!(error, DurableError::Pull(PullError::Reconnected));
            if has_ended || (is_lost && others == other.connects()) {
                // Only this connection, so that the reason may be one of the reports.
                let client = other.client();
                let skimmed = skim::skim(&client, &self.subjects);
                if let Some(Err(error)) = stop.run_until_cancelled(skimmed).await {
                    tracing::warn!(error = %error, "cannot look for a report that costs the connection");
                }
            }
            // A connection that was lost and is there again is no reason to wait.
            let is_there = !has_ended || self.connection.client_number() != client_number;
            if is_well && is_lost && is_there {
                continue;
            }
            self.health.durable_failed(&error.to_string());
            self.health.metrics().retried(Retried::DurableReports);
            let waits = waits.get_or_insert_with(|| retry_waits().build());
            let wait = waits.next().unwrap_or(RETRY_MAX);
            if trouble.failed(&error.to_string()) {
                tracing::warn!(error = %error, "durable reports are not taken; trying again until they are");
            }
            let waited = tokio::time::sleep(wait);
            if stop.run_until_cancelled(waited).await.is_none() {
                return;
            }
        }
    }

    /// Takes reports until something fails. `is_well` says that the stream has answered.
    async fn session(
        &self,
        stop: &CancellationToken,
        is_well: &mut bool,
        trouble: &mut Trouble,
    ) -> Result<(), DurableError> {
        let Some(begun) = stop.run_until_cancelled(self.begin()).await else {
            return Ok(());
        };
        let (mut pull, origin, settler) = begun?;
        loop {
            let Some(came) = stop.run_until_cancelled(pull.next()).await else {
                break;
            };
            let came = came?;
            if !std::mem::replace(is_well, true) {
                self.health.durable_ok();
                let (took, failures) = trouble.over().unzip();
                tracing::info!(
                    stream.name = %origin.stream,
                    trouble.seconds = took.map(|took| took.as_secs_f64()),
                    trouble.failures = failures,
                    "taking durable reports"
                );
            }
            let Some(message) = came else {
                continue;
            };
            let room = self.in_hand.wait(message.length);
            match stop.run_until_cancelled(room).await {
                Some(share) => self.accept(message, &origin, &settler, share).await,
                None => {
                    give_back(message).await;
                    break;
                }
            }
        }
        pull.close().await;
        Ok(())
    }

    /// Sees to the streams and the consumer.
    async fn begin(&self) -> Result<(Pull, Arc<Origin>, Arc<Settler>), DurableError> {
        let context = ContextBuilder::new()
            .timeout(JETSTREAM_WITHIN)
            .build(Client::clone(&self.connection.client()));
        let settler = Settler::new(context.clone(), &self.subjects, self.health.clone());
        let stream = self.reports.ensure(&context).await?.stream;
        settler.ensure_dead().await?;
        let consumer = ensure_consumer(&stream).await?;
        let origin = Origin {
            stream: self.reports.name().to_owned(),
            created: stream.cached_info().created.unix_timestamp_nanos(),
        };
        let pull = Pull::begin(&self.connection, context, consumer).await?;
        Ok((pull, Arc::new(origin), Arc::new(settler)))
    }

    async fn accept(
        &self,
        message: jetstream::Message,
        origin: &Arc<Origin>,
        settler: &Arc<Settler>,
        share: Share,
    ) {
        let Some(delivery) = Delivery::of(message, origin, settler) else {
            return;
        };
        let decoded = decode(
            Endpoint::ReportOfTask,
            Some(delivery.task_id()),
            delivery.payload(),
            ids::new_task_id,
        );
        let ticket = self.consumer.replier.ticket_of(delivery, share);
        match decoded {
            Ok(Request::Change(change)) => self.consumer.change(change, ticket).await,
            Err(refusal) => self.consumer.refuse(ticket, &refusal).await,
            // Nothing else is decoded for this endpoint.
            Ok(Request::Get(_) | Request::List(_)) => {
                self.consumer.refuse(ticket, &Refusal::internal()).await;
            }
        }
    }
}

impl InHand {
    /// Waits for a share; the largest report gets one when nothing else is in hand.
    async fn wait(&self, bytes: usize) -> Share {
        let bytes = bytes.clamp(1, IN_HAND_BYTES_MAX) as u32;
        // The semaphores are never closed.
        #[allow(clippy::expect_used)]
        Share {
            _request: (self.requests.clone().acquire_owned())
                .await
                .expect("a place in hand"),
            _bytes: (self.bytes.clone().acquire_many_owned(bytes))
                .await
                .expect("room in hand"),
        }
    }
}

/// Gets the durable consumer, and makes it if it is missing. One that is there is left as it is.
async fn ensure_consumer(stream: &Stream) -> Result<PullConsumer, DurableError> {
    let name = || stream.cached_info().config.name.clone();
    let wanted = Config {
        durable_name: Some(CONSUMER.to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_deliver: -1,
        max_ack_pending: ACK_PENDING_MAX,
        ..Config::default()
    };
    let consumer: PullConsumer = stream
        .get_or_create_consumer(CONSUMER, wanted)
        .await
        .map_err(|source| DurableError::Consumer {
            stream: name(),
            source,
        })?;
    let there = &consumer.cached_info().config;
    let what = if there.ack_policy != AckPolicy::Explicit {
        "does not wait for acknowledgments"
    } else if there.max_deliver > 0 {
        "gives up on a report after some deliveries"
    } else if !there.filter_subject.is_empty() || !there.filter_subjects.is_empty() {
        "leaves out some subjects"
    } else if there.headers_only {
        "leaves out the payloads"
    } else {
        return Ok(consumer);
    };
    Err(DurableError::Unfit {
        stream: name(),
        what,
    })
}

/// Has the stream deliver a report again as soon as somebody asks.
async fn give_back(message: jetstream::Message) {
    if let Err(error) = message.ack_with(AckKind::Nak(None)).await {
        tracing::debug!(error = %error, "a report is not given back; the stream finds out");
    }
}
