//! Unpublished revisions → published events → the cursor.
//!
//! The relay reads the outbox in commit order, publishes, has the server confirm by a round trip on the same connection,
//! and only then asks the writer to move the cursor. A crash in between publishes some events again, with the same
//! `ce-id`; it loses none (protocol section 5, `core`).

use std::time::Duration;

use async_nats::connection::State;
use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::consumer::{Then, Work};
use crate::health::Health;
use crate::ledger::{Command, Fault, Ledger, Outgoing};
use crate::nats::{Connection, RoundTrip, RoundTripError, header_map};
use crate::wire::Subjects;

/// How long the server may take to confirm.
const CONFIRM_WITHIN: Duration = Duration::from_secs(5);

/// How often the outbox is looked at if nobody wakes the relay.
const POLL: Duration = Duration::from_secs(1);

/// What the relay needs.
pub struct Relay {
    /// Where the outbox is.
    pub ledger: Ledger,
    /// A connection of its own, so that a flood of answers and a flood of events do not hold up each other.
    pub connection: Connection,
    /// Where events go.
    pub subjects: Subjects,
    /// Says that something was committed.
    pub committed: watch::Receiver<i64>,
    /// To the writer, for the cursor.
    pub work: mpsc::Sender<Work>,
    /// Where trouble shows.
    pub health: std::sync::Arc<Health>,
}

/// Why a round did not move the cursor.
#[derive(Debug, thiserror::Error)]
enum RelayError {
    #[error("the store cannot be read: {0}")]
    Store(#[from] Fault),
    #[error("not connected to the NATS server")]
    NotConnected,
    #[error("event {id} cannot be published: {source}")]
    Publish {
        id: String,
        source: async_nats::PublishError,
    },
    #[error(transparent)]
    Confirm(#[from] RoundTripError),
}

impl Relay {
    /// Publishes what is committed, for as long as `finish` is not called for; then what is left, and ends. Trouble is
    /// tried again for ever with back-off; `abandon` ends even that.
    ///
    /// # Errors
    /// If the client has ended.
    pub async fn run(
        mut self,
        finish: CancellationToken,
        abandon: CancellationToken,
    ) -> Result<(), async_nats::Error> {
        let mut round_trip = RoundTrip::new(&self.connection).await?;
        let mut position = None;
        loop {
            let finishing = finish.is_cancelled();
            let caught_up = tokio::select! {
                caught_up = self.catch_up(&mut position, &mut round_trip) => caught_up,
                () = abandon.cancelled() => return Ok(()),
            };
            if caught_up && finishing {
                return Ok(());
            }
            tokio::select! {
                changed = self.committed.changed() => if changed.is_err() { return Ok(()) },
                () = finish.cancelled(), if !finishing => {}
                () = abandon.cancelled() => return Ok(()),
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    /// Publishes until nothing is left. Returns whether that was reached, which it always is unless it is abandoned.
    async fn catch_up(&mut self, position: &mut Option<i64>, round_trip: &mut RoundTrip) -> bool {
        let mut backoff = None;
        loop {
            // What is committed from here on wakes the relay again.
            self.committed.mark_unchanged();
            match self.round(position, round_trip).await {
                Ok(0) => {
                    self.health.relay_ok();
                    return true;
                }
                Ok(_) => {
                    self.health.relay_ok();
                    backoff = None;
                }
                Err(error) => {
                    self.health.relay_failed(&error.to_string());
                    let waits = backoff.get_or_insert_with(|| retry_waits().build());
                    let wait = waits.next().unwrap_or(RETRY_MAX);
                    tracing::warn!(error = %error, retry.after_ms = wait.as_millis() as u64, "events are delayed");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Publishes one reading of the outbox and returns how many revisions that were.
    async fn round(
        &mut self,
        position: &mut Option<i64>,
        round_trip: &mut RoundTrip,
    ) -> Result<usize, RelayError> {
        let after = match *position {
            Some(after) => after,
            None => self.ledger.published_seq().await?,
        };
        *position = Some(after);
        let outgoing = self.ledger.outgoing(after).await?;
        let Some(last) = outgoing.last().map(|outgoing| outgoing.seq) else {
            return Ok(0);
        };
        if self.connection.client.connection_state() != State::Connected {
            return Err(RelayError::NotConnected);
        }
        let mark = round_trip.mark();
        for outgoing in &outgoing {
            self.publish(outgoing).await?;
        }
        round_trip.confirm(mark, CONFIRM_WITHIN).await?;
        *position = Some(last);
        let moved = Work {
            command: Command::Published(last),
            then: Then::Nothing,
        };
        // The writer ends after the relay; should it have failed, the service is on its way down and the events that
        // were published are published once more at the next start.
        let _ = self.work.send(moved).await;
        Ok(outgoing.len())
    }

    async fn publish(&self, outgoing: &Outgoing) -> Result<(), RelayError> {
        for event in &outgoing.events {
            let headers = header_map(&event.headers(self.ledger.ledger_id()));
            let subject = event.subject(&self.subjects);
            self.connection
                .client
                .publish_with_headers(subject, headers, event.data.clone().into())
                .await
                .map_err(|source| RelayError::Publish {
                    id: event.id(),
                    source,
                })?;
        }
        Ok(())
    }
}

const RETRY_MAX: Duration = Duration::from_secs(5);

fn retry_waits() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(RETRY_MAX)
        .with_jitter()
        .without_max_times()
}
