//! Unpublished revisions → published events → the cursor.
//!
//! The relay takes what was committed in the order of the outbox, publishes, has the server confirm by a round trip on the
//! same connection now and then, and only then asks the writer to move the cursor. A crash in between publishes some events again, with the same
//! `ce-id`; it loses none (docs/protocol.md, "Events").

use std::time::Duration;

use async_nats::connection::State;
use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer::{Then, Work};
use crate::health::Health;
use crate::ledger::{Command, Fault, Ledger, Outgoing};
use crate::nats::{Connection, ERROR_GRACE, Mark, RoundTrip, RoundTripError, header_map};
use crate::wire::Subjects;

/// How long events may have been published before the server is asked whether it has them. A round trip for each commit
/// would take the server and the service as much as an event does.
const CONFIRM_AFTER: Duration = Duration::from_millis(20);

/// How many bytes of events may be published before the server must confirm them: at first, and at most. What a server that
/// stands still leaves in the client is sent once it is back, and overtakes what was lost with the connection; so there is
/// no more than the operating system takes, until the server has shown that it keeps up.
const WINDOW_BYTES_MIN: usize = 32 * 1024;
const WINDOW_BYTES_MAX: usize = 2 * 1024 * 1024;

/// How long the server may take to confirm.
const CONFIRM_WITHIN: Duration = Duration::from_secs(5);

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

/// What a round did.
enum Round {
    /// It published some revisions.
    Published,
    /// It waited for what had been published, or for more to publish.
    Rested,
    /// There was nothing to do.
    Idle,
}

/// How far the relay has come on its connection.
struct Progress {
    round_trip: RoundTrip,
    /// The last revision that was published; `None` to begin at the cursor.
    position: Option<i64>,
    /// What was published and is not confirmed.
    unconfirmed: Option<Unconfirmed>,
    /// How many bytes of events that may be.
    window: usize,
    /// What the server has taken but may still report an error about, until its grace is over.
    unsettled: Option<Unsettled>,
    /// What it has taken since: that is unsettled next.
    taken: Option<(i64, Mark)>,
}

/// Revisions whose events were published, of which the server has not said that it has taken them.
#[derive(Clone, Copy)]
struct Unconfirmed {
    /// The last revision before them.
    after: i64,
    /// How large their events are.
    bytes: usize,
    /// The connection before the first of them was published.
    mark: Mark,
    /// When the server is asked at the latest.
    due: Instant,
}

/// Revisions whose events the server has taken.
#[derive(Clone, Copy)]
struct Unsettled {
    /// The last of them.
    last: i64,
    /// The connection before the first of them was published.
    mark: Mark,
    /// When an error about them would have shown.
    settled_at: Instant,
}

impl Progress {
    /// Begins at the cursor again: the server refused something of what it has taken since.
    fn go_back(&mut self) {
        self.position = None;
        self.unconfirmed = None;
        self.unsettled = None;
        self.taken = None;
    }

    /// When something is to be done if nothing happens before.
    fn next_due(&self) -> Option<Instant> {
        let unconfirmed = self.unconfirmed.map(|unconfirmed| unconfirmed.due);
        let unsettled = self.unsettled.map(|unsettled| unsettled.settled_at);
        unconfirmed.into_iter().chain(unsettled).min()
    }

    /// Revisions were published on the connection of `mark`.
    fn published(&mut self, after: i64, last: i64, bytes: usize, mark: Mark) {
        self.position = Some(last);
        let unconfirmed = self.unconfirmed.get_or_insert_with(|| Unconfirmed {
            after,
            bytes: 0,
            mark,
            due: Instant::now() + CONFIRM_AFTER,
        });
        unconfirmed.bytes += bytes;
    }

    /// How many bytes of events may be published now.
    fn room(&self) -> usize {
        let bytes = self.unconfirmed.map_or(0, |unconfirmed| unconfirmed.bytes);
        self.window.saturating_sub(bytes)
    }

    /// The server has taken what was published up to `last`.
    fn take(&mut self, last: i64, mark: Mark) {
        let mark = self.taken.map_or(mark, |(_, first)| first);
        self.taken = Some((last, mark));
        self.wait_for_taken();
    }

    fn wait_for_taken(&mut self) {
        if self.unsettled.is_none()
            && let Some((last, mark)) = self.taken.take()
        {
            let settled_at = Instant::now() + ERROR_GRACE;
            self.unsettled = Some(Unsettled {
                last,
                mark,
                settled_at,
            });
        }
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
            unconfirmed: None,
            window: WINDOW_BYTES_MIN,
            unsettled: None,
            taken: None,
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
                Ok(Round::Idle) => return self.health.relay_ok(),
                Ok(Round::Published | Round::Rested) => backoff = None,
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

    /// Publishes one reading of the outbox.
    async fn round(&mut self, progress: &mut Progress) -> Result<Round, RelayError> {
        self.confirm(progress).await?;
        self.settle(progress).await?;
        let after = match progress.position {
            Some(after) => after,
            None => self.ledger.published_seq().await?,
        };
        progress.position = Some(after);
        // Nothing is looked for where nothing can be.
        let is_more = after < *self.committed.borrow();
        let outgoing = match is_more {
            true => self.ledger.outgoing(after, progress.room()).await?,
            false => Vec::new(),
        };
        let Some(last) = outgoing.last().map(|outgoing| outgoing.seq) else {
            return self.rest(progress).await;
        };
        if self.connection.client.connection_state() != State::Connected {
            return Err(RelayError::NotConnected);
        }
        let mark = progress.round_trip.mark();
        for outgoing in &outgoing {
            self.publish(outgoing).await?;
        }
        let bytes = outgoing.iter().map(Outgoing::bytes).sum();
        progress.published(after, last, bytes, mark);
        Ok(Round::Published)
    }

    /// Asks the server whether it has what was published, if it is time for that. Should it not be known, all of it is
    /// published once more.
    async fn confirm(&self, progress: &mut Progress) -> Result<(), RelayError> {
        let (Some(unconfirmed), Some(last)) = (progress.unconfirmed, progress.position) else {
            return Ok(());
        };
        let is_full = progress.room() == 0;
        let is_lost = progress.round_trip.has_reconnected_since(unconfirmed.mark);
        if !is_full && !is_lost && Instant::now() < unconfirmed.due {
            return Ok(());
        }
        let window = std::mem::replace(&mut progress.window, WINDOW_BYTES_MIN);
        progress.unconfirmed = None;
        progress.position = Some(unconfirmed.after);
        if is_lost {
            return Err(RoundTripError::Reconnected.into());
        }
        progress
            .round_trip
            .begin()
            .await
            .map_err(RoundTripError::Ended)?;
        self.wait_for_server(progress, unconfirmed.mark).await?;
        let grown = if is_full { 2 * window } else { window };
        progress.window = grown.min(WINDOW_BYTES_MAX);
        progress.position = Some(last);
        progress.take(last, unconfirmed.mark);
        Ok(())
    }

    /// Waits for the server for as long as the connection lives: what is under way must not be published a second time
    /// only since the server is slow.
    async fn wait_for_server(&self, progress: &mut Progress, mark: Mark) -> Result<(), RelayError> {
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

    /// With nothing to publish: waits until something is due for what was published, or until there is more.
    async fn rest(&mut self, progress: &mut Progress) -> Result<Round, RelayError> {
        let Some(due) = progress.next_due() else {
            return Ok(Round::Idle);
        };
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            // When all senders are gone there is nothing more to wait for.
            changed = self.committed.changed() => if changed.is_err() {
                tokio::time::sleep_until(due).await;
            },
        }
        Ok(Round::Rested)
    }

    /// Has the cursor moved past what the server has taken, once an error about it would have shown: at most once in
    /// [`ERROR_GRACE`], so that moving it costs next to nothing beside the reports.
    async fn settle(&self, progress: &mut Progress) -> Result<(), RelayError> {
        let Some(unsettled) = progress.unsettled else {
            return Ok(());
        };
        if progress.round_trip.has_errors_since(unsettled.mark) {
            return Err(RoundTripError::ServerError.into());
        }
        if Instant::now() < unsettled.settled_at {
            return Ok(());
        }
        progress.unsettled = None;
        progress.wait_for_taken();
        self.health.relay_ok();
        let moved = Work {
            command: Command::Published(unsettled.last),
            then: Then::Nothing,
        };
        // The writer ends after the relay; should it have failed, the service is on its way down and the events that
        // were published are published once more at the next start.
        let _ = self.work.send(moved).await;
        Ok(())
    }

    async fn publish(&self, outgoing: &Outgoing) -> Result<(), RelayError> {
        for event in &outgoing.events {
            let headers = header_map(event.headers(self.ledger.ledger_id()));
            let subject = event.subject(&self.subjects);
            self.connection
                .client
                .publish_with_headers(subject, headers, event.data.clone())
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
