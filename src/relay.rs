//! Unpublished revisions → published events → the cursor.
//!
//! The relay takes what was committed in the order of the outbox, publishes, learns that it was taken, and only then asks the
//! writer to move the cursor. A crash in between leaves events in doubt. In `core` mode those are published again, with the same
//! `ce-id`; in `jetstream` mode the event stream is asked for them first, so that each is stored once (docs/protocol.md, "Events").
//!
//! Trouble that may pass is waited out, with back-off, for ever. An event that can never be published as it is, since it is
//! too large, is parked, and holds up no other.

mod core;
mod lookup;
mod strangers;
mod stream;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use backon::BackoffBuilder;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer::{Then, Work};
use crate::faults::{self, Point};
use crate::health::Health;
use crate::ledger::{Applied, Command, Fault, Ledger, Outgoing, ParkedEvent};
use crate::metrics::Retried;
use crate::nats::{Connection, RETRY_MAX, RoundTripError, Trouble, retry_waits};
use crate::streams::{StreamError, Wanted};
use crate::telemetry::Period;
use crate::wire::{Event, EventKind, Subjects, Trace};

pub use lookup::{LookupError, has};
pub use stream::is_too_large;

/// Where events go.
#[derive(Clone, Debug)]
pub enum Way {
    /// To the subscribers that are there. The stream may have events from a time when they went there.
    Core(Box<Wanted>),
    /// Into this stream.
    Stream(Box<Wanted>),
}

/// What the relay takes from and reports to.
pub struct Relay {
    /// Where the outbox is.
    pub ledger: Ledger,
    /// A connection of its own, so that a flood of answers and a flood of events do not hold up each other.
    pub connection: Connection,
    /// Where events go.
    pub subjects: Subjects,
    /// Says that something was committed: the last revision.
    pub committed: watch::Receiver<i64>,
    /// To the writer, for the cursor.
    pub work: mpsc::Sender<Work>,
    /// Where trouble shows.
    pub health: Arc<Health>,
    /// Events that are parked and not to be published, past the cursor.
    pub parked: HashSet<(i64, EventKind)>,
}

/// How often the cursor is moved at most, so that moving it costs next to nothing beside the reports.
const CURSOR_EVERY: Duration = Duration::from_millis(50);

/// What the writer has noted, and was asked to note, of how far events are published. It is not waited for while there is
/// more to publish; but it may fail, and is asked again then.
#[derive(Default)]
struct Cursor {
    noted: i64,
    asked: Option<(i64, oneshot::Receiver<Result<Applied, Fault>>)>,
    at: Option<Instant>,
}

impl Cursor {
    /// Has the writer note that all up to `seq` is published, now and then, and looks whether it has.
    async fn advance(&mut self, relay: &Relay, seq: i64) {
        if let Some((asked, told)) = &mut self.asked {
            match told.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => return,
                Ok(Ok(Applied::Published)) => self.noted = *asked,
                _ => {}
            }
            self.asked = None;
        }
        let now = Instant::now();
        if self.noted >= seq || self.at.is_some_and(|at| now < at + CURSOR_EVERY) {
            return;
        }
        faults::pass(Point::BeforeCursor);
        let (tell, told) = oneshot::channel();
        let work = Work {
            command: Command::Published(seq),
            then: Then::Tell(tell),
        };
        self.at = Some(now);
        match relay.work.send(work).await {
            Ok(()) => self.asked = Some((seq, told)),
            // The writer ends after the relay; should it have failed, the service is on its way down and what was published is
            // in doubt at the next start.
            Err(_) => self.noted = seq,
        }
    }

    /// When there is something to do about it, if it is not where it should be.
    fn due(&self) -> Instant {
        self.at.map_or_else(Instant::now, |at| at + CURSOR_EVERY)
    }
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
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("the event stream cannot be asked what it has: {0}")]
    Lookup(#[from] LookupError),
    #[error("event {id} was not stored: {source}")]
    NotStored {
        id: String,
        source: async_nats::jetstream::context::PublishError,
    },
    #[error("event {id} was not acknowledged within {} s", stream::ACK_WITHIN.as_secs())]
    NoAck { id: String },
    #[error(
        "the stream {stream} acknowledged event {id}, and not {wanted}; let only one stream have the event subjects"
    )]
    OtherStream {
        id: String,
        stream: String,
        wanted: String,
    },
    #[error(
        "the event stream has an event {id} that this database does not know of, so the database was set back to an earlier copy; save a snapshot of it and \
         restore that, which gives it a new identity, or put the database back that published the other"
    )]
    SetBack { id: String },
    #[error("others publish into the event stream, and events do not get in between")]
    StreamMoved,
    #[error("an event could not be parked; see the log of the store")]
    NotParked,
}

impl RelayError {
    /// The same for a page that shows nothing of any task.
    fn without_ids(&self) -> String {
        match self {
            Self::Publish { source, .. } => format!("an event cannot be published: {source}"),
            Self::NotStored { source, .. } => format!("an event was not stored: {source}"),
            Self::NoAck { .. } => Self::NoAck {
                id: "…".to_owned()
            }
            .to_string(),
            Self::OtherStream { stream, wanted, .. } => {
                format!("the stream {stream} acknowledges events, and not {wanted}")
            }
            Self::SetBack { .. } => Self::SetBack {
                id: "…".to_owned()
            }
            .to_string(),
            other => other.to_string(),
        }
    }
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

/// The two ways to publish, and how far each has come.
enum Publisher {
    Core(Box<core::Core>),
    Stream(Box<stream::IntoStream>),
}

impl Publisher {
    /// Begins at the cursor, with the client of the moment. What is committed by now may have been published.
    ///
    /// # Errors
    /// If that client has ended.
    async fn begin(way: &Way, relay: &Relay) -> Result<Self, async_nats::Error> {
        Ok(match way {
            Way::Core(stream) => {
                let stream = (**stream).clone();
                Self::Core(Box::new(core::Core::new(&relay.connection, stream).await?))
            }
            Way::Stream(wanted) => {
                let committed = *relay.committed.borrow();
                let client = Client::clone(&relay.connection.client());
                let wanted = (**wanted).clone();
                Self::Stream(Box::new(stream::IntoStream::new(client, wanted, committed)))
            }
        })
    }

    async fn round(&mut self, relay: &mut Relay) -> Result<Round, RelayError> {
        match self {
            Self::Core(core) => core.round(relay).await,
            Self::Stream(stream) => stream.round(relay).await,
        }
    }

    /// Others publish into the stream all the time.
    fn crowded(&mut self) {
        if let Self::Stream(stream) = self {
            stream.crowded();
        }
    }

    /// What was published and is not known to be taken is in doubt from now on.
    fn go_back(&mut self, error: &RelayError) {
        match self {
            Self::Core(core) => core.go_back(error),
            Self::Stream(stream) => {
                stream.go_back(!matches!(error, RelayError::StreamMoved));
            }
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
        way: Way,
        finish: CancellationToken,
        abandon: CancellationToken,
    ) -> Result<(), async_nats::Error> {
        let mut client_number = self.connection.client_number();
        let mut publisher = Publisher::begin(&way, &self).await?;
        loop {
            let finishing = finish.is_cancelled();
            tokio::select! {
                () = self.catch_up(&way, &mut publisher, &mut client_number) => {}
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
    async fn catch_up(&mut self, way: &Way, publisher: &mut Publisher, client_number: &mut u64) {
        let (mut backoff, mut moved, mut trouble) = (None, 0, Trouble::default());
        loop {
            // What is committed from here on wakes the relay again.
            self.committed.mark_unchanged();
            match publisher.round(self).await {
                Ok(round) => {
                    (backoff, moved) = (None, 0);
                    if matches!(round, Round::Idle) || self.health.is_relay_ok() {
                        self.health.relay_ok();
                        log_recovery(&mut trouble);
                    }
                    if matches!(round, Round::Idle) {
                        return;
                    }
                }
                // Nothing is wrong if somebody else's message came in between, unless there is no end to it.
                Err(RelayError::StreamMoved) if moved < STREAM_MOVED_MAX => {
                    moved += 1;
                    publisher.go_back(&RelayError::StreamMoved);
                    if moved >= CROWDED_AFTER {
                        publisher.crowded();
                    }
                    tokio::time::sleep(STREAM_MOVED_WAIT).await;
                }
                Err(error) => {
                    publisher.go_back(&error);
                    self.health.metrics().retried(Retried::Relay);
                    self.health.relay_failed(&error.without_ids());
                    let waits = backoff.get_or_insert_with(|| retry_waits().build());
                    let wait = waits.next().unwrap_or(RETRY_MAX);
                    if trouble.failed(&error.without_ids()) {
                        tracing::warn!(error = %error, "events are delayed; trying again until they are published");
                    }
                    tokio::time::sleep(wait).await;
                    // A publisher speaks by one client, which may have ended.
                    let number = self.connection.client_number();
                    if number != *client_number
                        && let Ok(another) = Publisher::begin(way, self).await
                    {
                        (*publisher, *client_number) = (another, number);
                    }
                }
            }
        }
    }

    /// What was committed after `seq`, up to about so many bytes of events. Nothing is looked for where nothing can be.
    async fn next_after(&self, seq: i64, bytes_max: usize) -> Result<Vec<Outgoing>, RelayError> {
        let committed = *self.committed.borrow();
        match seq < committed {
            true => Ok(self.ledger.outgoing(seq, bytes_max).await?),
            false => Ok(Vec::new()),
        }
    }

    fn check_connected(&self) -> Result<(), RelayError> {
        match self.connection.is_connected() {
            true => Ok(()),
            false => Err(RelayError::NotConnected),
        }
    }

    /// Waits until `due`, or until there is more to publish.
    async fn rest_until(&mut self, due: Instant) {
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            // When all senders are gone there is nothing more to wait for.
            Ok(()) = self.committed.changed() => {}
        }
    }

    /// Notes the span of an event that was published.
    fn note_span(&self, trace: &Trace, kind: EventKind, id: &str, took: Duration) {
        if let Some(telemetry) = self.health.telemetry() {
            telemetry.event(trace, kind, id.to_owned(), Period::of_last(took));
        }
    }

    fn is_parked(&self, seq: i64, event: &Event) -> bool {
        self.parked.contains(&(seq, event.kind))
    }

    /// Parks an event, and returns once that is durable: nothing after it is published before.
    async fn park(
        &mut self,
        seq: i64,
        kind: EventKind,
        id: &str,
        reason: String,
    ) -> Result<(), RelayError> {
        let (tell, told) = oneshot::channel();
        let parked = ParkedEvent {
            seq,
            kind,
            reason: reason.clone(),
        };
        let work = Work {
            command: Command::Park(parked),
            then: Then::Tell(tell),
        };
        let sent = self.work.send(work).await;
        if sent.is_err() || !matches!(told.await, Ok(Ok(Applied::Parked))) {
            return Err(RelayError::NotParked);
        }
        self.parked.insert((seq, kind));
        tracing::error!(
            event.id = id,
            reason,
            "an event cannot be published and is parked; `tasklatch events parked` shows it, `events resend` sends it once it can be"
        );
        Ok(())
    }
}

fn log_recovery(trouble: &mut Trouble) {
    if let Some((took, failures)) = trouble.over() {
        tracing::info!(
            trouble.seconds = took.as_secs_f64(),
            trouble.failures = failures,
            "events are published again"
        );
    }
}

/// After how many rounds in a row that somebody else's messages came in between events are published one by one.
const CROWDED_AFTER: u32 = 3;

/// How long the relay waits when the stream has moved, and how often in a row that is no trouble.
const STREAM_MOVED_WAIT: Duration = Duration::from_millis(5);
const STREAM_MOVED_MAX: u32 = 50;

/// Why an event of this size can never be published where messages of `limit` bytes at most are taken.
fn too_large(bytes: usize, limit: usize, whose: &str) -> String {
    format!(
        "its content has {bytes} bytes, which with its headers is more than the {limit} that {whose} takes"
    )
}
