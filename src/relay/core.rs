//! Plain NATS, for the subscribers that are there: published in order, and confirmed now and then by a round trip on the
//! same connection.

use std::collections::HashSet;
use std::time::Duration;

use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, PublishErrorKind};
use tokio::time::Instant;

use super::stream::stored_after;
use super::{Cursor, Relay, RelayError, Round, too_large};
use crate::faults::{self, Point};
use crate::ledger::Outgoing;
use crate::nats::{Connection, ERROR_GRACE, Mark, RoundTrip, RoundTripError, Trouble, header_map};
use crate::streams::{JETSTREAM_WITHIN, Wanted};
use crate::wire::EventKind;

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

/// How far the relay has come on its connection.
pub(super) struct Core {
    round_trip: RoundTrip,
    /// The event stream, which is asked at first whether it has what is not published; `None` once it was.
    stream: Option<Wanted>,
    /// Events that the stream has beside others of their revision that it lacks: from before a crash in `jetstream` mode.
    found: HashSet<(i64, EventKind)>,
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
    /// The last revision that is known to be published.
    settled: i64,
    cursor: Cursor,
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

impl Core {
    /// Begins at the cursor.
    ///
    /// # Errors
    /// If the client has ended.
    pub(super) async fn new(
        connection: &Connection,
        stream: Wanted,
    ) -> Result<Self, async_nats::Error> {
        Ok(Self {
            round_trip: RoundTrip::new(connection).await?,
            stream: Some(stream),
            found: HashSet::new(),
            position: None,
            unconfirmed: None,
            window: WINDOW_BYTES_MIN,
            unsettled: None,
            taken: None,
            settled: 0,
            cursor: Cursor::default(),
        })
    }

    /// If the server refused something of what it has taken since the cursor, begins there again.
    pub(super) fn go_back(&mut self, error: &RelayError) {
        if matches!(error, RelayError::RoundTrip(RoundTripError::ServerError)) {
            self.position = None;
            self.unconfirmed = None;
            self.unsettled = None;
            self.taken = None;
        }
    }

    /// Publishes one reading of the outbox.
    pub(super) async fn round(&mut self, relay: &mut Relay) -> Result<Round, RelayError> {
        self.confirm(relay).await?;
        self.settle(relay)?;
        self.cursor.advance(relay, self.settled).await;
        let after = match self.position {
            Some(after) => after,
            None => {
                let cursor = relay.ledger.published_seq().await?;
                self.cursor.noted = self.cursor.noted.max(cursor);
                let stored = self.skip_stored(relay, cursor).await?;
                self.settled = self.settled.max(stored);
                stored
            }
        };
        self.position = Some(after);
        let outgoing = relay.next_after(after, self.room()).await?;
        let Some(last) = outgoing.last().map(|outgoing| outgoing.seq) else {
            return self.rest(relay).await;
        };
        relay.check_connected()?;
        let mark = relay.connection.mark();
        for outgoing in &outgoing {
            publish(relay, outgoing, &self.found).await?;
        }
        let bytes = outgoing.iter().map(Outgoing::bytes).sum();
        self.published(after, last, bytes, mark);
        faults::pass(Point::AfterPublish);
        Ok(Round::Published)
    }

    /// Asks the event stream once for what is not published by the cursor: before a crash in `jetstream` mode it may have been
    /// stored, and would be a second time. Where there is no such stream, nothing was.
    async fn skip_stored(&mut self, relay: &Relay, cursor: i64) -> Result<i64, RelayError> {
        let Some(stream) = self.stream.take() else {
            return Ok(cursor);
        };
        let committed = *relay.committed.borrow();
        if cursor == committed {
            return Ok(cursor);
        }
        let context = ContextBuilder::new()
            .timeout(JETSTREAM_WITHIN)
            .build(Client::clone(&relay.connection.client()));
        let Ok(there) = context.get_stream(stream.name()).await else {
            return Ok(cursor);
        };
        let stored = stored_after(relay, &there, cursor, committed, true).await;
        if stored.is_err() {
            self.stream = Some(stream);
        }
        let (settled, found) = stored?;
        self.found = found;
        Ok(settled)
    }

    /// When something is to be done if nothing happens before.
    fn next_due(&self) -> Option<Instant> {
        let unconfirmed = self.unconfirmed.map(|unconfirmed| unconfirmed.due);
        let unsettled = self.unsettled.map(|unsettled| unsettled.settled_at);
        let cursor = (self.cursor.noted < self.settled).then(|| self.cursor.due());
        unconfirmed.into_iter().chain(unsettled).chain(cursor).min()
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

    /// Asks the server whether it has what was published, if it is time for that. Should it not be known, all of it is
    /// published once more.
    async fn confirm(&mut self, relay: &Relay) -> Result<(), RelayError> {
        let (Some(unconfirmed), Some(last)) = (self.unconfirmed, self.position) else {
            return Ok(());
        };
        let is_full = self.room() == 0;
        let is_lost = relay.connection.has_reconnected_since(unconfirmed.mark);
        if !is_full && !is_lost && Instant::now() < unconfirmed.due {
            return Ok(());
        }
        let window = std::mem::replace(&mut self.window, WINDOW_BYTES_MIN);
        self.unconfirmed = None;
        self.position = Some(unconfirmed.after);
        if is_lost {
            return Err(RoundTripError::Reconnected.into());
        }
        self.round_trip
            .begin()
            .await
            .map_err(RoundTripError::Ended)?;
        self.wait_for_server(relay, unconfirmed.mark).await?;
        let grown = if is_full { 2 * window } else { window };
        self.window = grown.min(WINDOW_BYTES_MAX);
        self.position = Some(last);
        self.take(last, unconfirmed.mark);
        Ok(())
    }

    /// Waits for the server for as long as the connection lives: what is under way must not be published a second time
    /// only since the server is slow.
    async fn wait_for_server(&mut self, relay: &Relay, mark: Mark) -> Result<(), RelayError> {
        let mut trouble = Trouble::default();
        loop {
            match self.round_trip.wait(mark, CONFIRM_WITHIN).await {
                Err(slow @ RoundTripError::TimedOut(_)) => {
                    relay.health.relay_failed(&slow.to_string());
                    if trouble.failed(&slow.to_string()) {
                        tracing::warn!(error = %slow, "events are delayed; waiting on");
                    }
                }
                confirmed => return Ok(confirmed?),
            }
        }
    }

    /// With nothing to publish: waits until something is due for what was published, or until there is more.
    async fn rest(&mut self, relay: &mut Relay) -> Result<Round, RelayError> {
        let Some(due) = self.next_due() else {
            return Ok(Round::Idle);
        };
        relay.rest_until(due).await;
        Ok(Round::Rested)
    }

    /// Lets the cursor pass what the server has taken, once an error about it would have shown.
    fn settle(&mut self, relay: &Relay) -> Result<(), RelayError> {
        let Some(unsettled) = self.unsettled else {
            return Ok(());
        };
        if relay.connection.has_errors_since(unsettled.mark) {
            return Err(RoundTripError::ServerError.into());
        }
        if Instant::now() < unsettled.settled_at {
            return Ok(());
        }
        self.unsettled = None;
        self.wait_for_taken();
        relay.health.relay_ok();
        self.settled = unsettled.last;
        Ok(())
    }
}

async fn publish(
    relay: &mut Relay,
    outgoing: &Outgoing,
    found: &HashSet<(i64, EventKind)>,
) -> Result<(), RelayError> {
    for event in &outgoing.events {
        if relay.is_parked(outgoing.seq, event) || found.contains(&(outgoing.seq, event.kind)) {
            continue;
        }
        let headers = header_map(
            event.traced_headers(relay.ledger.ledger_id(), relay.connection.max_payload()),
        );
        let subject = event.subject(&relay.subjects);
        let begun = Instant::now();
        let published = relay
            .connection
            .client()
            .publish_with_headers(subject, headers, event.data.clone())
            .await;
        match published {
            Ok(()) => {
                relay.health.metrics().published(event.kind);
                if let Some(trace) = &event.trace {
                    relay.note_span(trace, event.kind, &event.id(), begun.elapsed());
                }
            }
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                let limit = relay.connection.max_payload();
                let reason = too_large(event.data.len(), limit, "the NATS server");
                relay
                    .park(outgoing.seq, event.kind, &event.id(), reason)
                    .await?;
            }
            Err(source) => {
                return Err(RelayError::Publish {
                    id: event.id(),
                    source,
                });
            }
        }
    }
    Ok(())
}
