//! Unpublished revisions → published events → the cursor.
//!
//! The relay reads the outbox in commit order, publishes, has the server confirm by a round trip on the same connection,
//! and only then asks the writer to move the cursor. A crash in between publishes some events again, with the same
//! `ce-id`; it loses none (docs/protocol.md, "Events").

use std::time::Duration;

use async_nats::connection::State;
use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::consumer::{Then, Work};
use crate::health::Health;
use crate::ledger::{Command, Fault, Ledger, Outgoing};
use crate::nats::{Connection, ERROR_GRACE, Mark, RoundTrip, RoundTripError, header_map};
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
    RoundTrip(#[from] RoundTripError),
}

/// How far the relay has come on its connection.
struct Progress {
    round_trip: RoundTrip,
    /// The last revision that the server has taken; `None` to begin at the cursor.
    position: Option<i64>,
    /// The last revision that the server has taken but may still report an error about, with the mark before its round.
    unsettled: Option<(i64, Mark)>,
}

impl Progress {
    /// Begins at the cursor again: the server refused something of what it has taken since.
    fn go_back(&mut self) {
        self.position = None;
        self.unsettled = None;
    }
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
        let mut progress = Progress {
            round_trip: RoundTrip::new(&self.connection).await?,
            position: None,
            unsettled: None,
        };
        loop {
            let finishing = finish.is_cancelled();
            tokio::select! {
                () = self.catch_up(&mut progress) => {}
                () = abandon.cancelled() => return Ok(()),
            };
            if finishing {
                return Ok(());
            }
            tokio::select! {
                changed = self.committed.changed() => if changed.is_err() { return Ok(()) },
                () = finish.cancelled() => {}
                () = abandon.cancelled() => return Ok(()),
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    /// Publishes until nothing is left and all of it is behind the cursor.
    async fn catch_up(&mut self, progress: &mut Progress) {
        let mut backoff = None;
        loop {
            // What is committed from here on wakes the relay again.
            self.committed.mark_unchanged();
            match self.round(progress).await {
                Ok(0) => return self.health.relay_ok(),
                Ok(_) => backoff = None,
                Err(error) => {
                    if matches!(error, RelayError::RoundTrip(RoundTripError::ServerError)) {
                        progress.go_back();
                    }
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
    async fn round(&mut self, progress: &mut Progress) -> Result<usize, RelayError> {
        let after = match progress.position {
            Some(after) => after,
            None => self.ledger.published_seq().await?,
        };
        progress.position = Some(after);
        let outgoing = self.ledger.outgoing(after).await?;
        let Some(last) = outgoing.last().map(|outgoing| outgoing.seq) else {
            self.settle_after_grace(progress).await?;
            return Ok(0);
        };
        if self.connection.client.connection_state() != State::Connected {
            return Err(RelayError::NotConnected);
        }
        let mark = progress.round_trip.mark();
        for outgoing in &outgoing {
            self.publish(outgoing).await?;
        }
        progress
            .round_trip
            .begin()
            .await
            .map_err(RoundTripError::Ended)?;
        self.confirm(progress, mark).await?;
        // An error about the round before has had all of this round to show.
        self.settle(progress).await?;
        progress.position = Some(last);
        progress.unsettled = Some((last, mark));
        Ok(outgoing.len())
    }

    /// Waits for the server for as long as the connection lives: what is under way must not be published a second time
    /// only since the server is slow.
    async fn confirm(&self, progress: &mut Progress, mark: Mark) -> Result<(), RelayError> {
        loop {
            match progress.round_trip.wait(mark, CONFIRM_WITHIN).await {
                Err(slow @ RoundTripError::TimedOut(_)) => {
                    self.health.relay_failed(&slow.to_string());
                    tracing::warn!(error = %slow, "events are delayed; waiting on");
                }
                confirmed => return Ok(confirmed?),
            }
        }
    }

    async fn settle_after_grace(&self, progress: &mut Progress) -> Result<(), RelayError> {
        if progress.unsettled.is_some() {
            tokio::time::sleep(ERROR_GRACE).await;
        }
        self.settle(progress).await
    }

    /// Has the cursor moved past the last round, unless the server has reported an error since.
    async fn settle(&self, progress: &mut Progress) -> Result<(), RelayError> {
        let Some((last, mark)) = progress.unsettled else {
            return Ok(());
        };
        if progress.round_trip.has_errors_since(mark) {
            return Err(RoundTripError::ServerError.into());
        }
        progress.unsettled = None;
        self.health.relay_ok();
        let moved = Work {
            command: Command::Published(last),
            then: Then::Nothing,
        };
        // The writer ends after the relay; should it have failed, the service is on its way down and the events that
        // were published are published once more at the next start.
        let _ = self.work.send(moved).await;
        Ok(())
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
