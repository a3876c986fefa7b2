//! Into the event stream: each event acknowledged before the cursor passes it, and stored exactly once.
//!
//! Events are on their way many at a time, each on the condition that the stream ends with the one before it
//! (`Nats-Expected-Last-Msg-Id`). So they are stored in order or not at all: if one is refused or lost, so are those that
//! follow, and what is late comes too late to be stored a second time, however long the outage; the stream's duplicate
//! window is not relied on.
//!
//! What was on its way when something went wrong, or when the process ended, is in doubt. It was stored up to some event and
//! not past it. The relay first reads where the stream ends, then asks for one event in doubt after the other, and goes on
//! with the first that the stream does not have, on the condition that the stream still ends there
//! (`Nats-Expected-Last-Sequence`); if it has grown meanwhile, the relay begins again.

mod alone;

use std::collections::{HashSet, VecDeque};
use std::future::IntoFuture;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::context::{ContextBuilder, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{Context, ErrorCode, context::PublishError};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use futures_util::{FutureExt, TryStreamExt};
use tokio::time::{Instant, sleep_until};

use super::lookup::{Come, has, has_come_to, last_made, may_have_gaps};
use super::strangers::Strangers;
use super::{Cursor, Relay, RelayError, Round, too_large};
use crate::faults::{self, Point};
use crate::ledger::Outgoing;
use crate::nats::{Mark, RoundTripError, header_map};
use crate::streams::{Ensured, JETSTREAM_WITHIN, Wanted};
use crate::wire::{Event, EventKind, HEADERS_USUAL_BYTES, Trace, header};

/// How long the stream may take to acknowledge an event, measured here.
pub(super) const ACK_WITHIN: Duration = Duration::from_secs(5);

/// How many events are on their way at once, and how many bytes of them.
const IN_FLIGHT_EVENTS_MAX: usize = 1024;
const IN_FLIGHT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How often the connection is looked at while an acknowledgment is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How many events in doubt are asked for at once.
const LOOKUPS_AT_ONCE: usize = 16;

/// How far the relay has come with the stream.
pub(super) struct IntoStream {
    context: Context,
    wanted: Wanted,
    /// The last revision all of whose events are stored or parked; `None` to begin at the cursor.
    settled: Option<i64>,
    /// Revisions up to this one may be in the stream though nobody here knows.
    in_doubt: i64,
    /// The last revision of which anything was sent.
    attempted: i64,
    /// Whether what is in doubt from before this start may be stored with gaps; `None` before that was looked at.
    has_gaps: Option<bool>,
    /// Events after `settled` that the stream was found to have.
    found: HashSet<(i64, EventKind)>,
    /// Where the stream ends with what is on its way; `None` if something is in doubt.
    chain: Option<Chain>,
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: usize,
    cursor: Cursor,
    strangers: Strangers,
}

/// What was published last, and where.
struct Chain {
    /// How the stream ends after all that is on its way.
    end: End,
    /// The revision after which to go on.
    position: i64,
    /// The largest message that the stream takes, in bytes.
    message_max: usize,
    mark: Mark,
}

/// How the stream must end for the next event to be stored.
enum End {
    /// With this sequence: read before it was asked for events in doubt.
    Sequence(u64),
    /// With this event. Not by its sequence: a message of somebody else in between would make room for the one after the next.
    Event(String),
}

/// An event on its way. The last of each revision settles it; one without an acknowledgment to wait for is in the stream
/// already, or parked.
struct InFlight {
    seq: i64,
    kind: EventKind,
    is_last: bool,
    id: String,
    bytes: usize,
    /// The trace that it belongs to.
    trace: Option<Box<Trace>>,
    due: Instant,
    ack: Option<BoxFuture<'static, Acked>>,
}

impl IntoStream {
    /// Begins at the cursor. What is committed up to `in_doubt` may be in the stream.
    pub(super) fn new(client: Client, wanted: Wanted, in_doubt: i64) -> Self {
        let context = ContextBuilder::new()
            .timeout(JETSTREAM_WITHIN)
            .ack_timeout(ACK_WITHIN)
            // What was given up on counts until its time is over.
            .max_ack_inflight(8 * IN_FLIGHT_EVENTS_MAX)
            .build(client);
        Self {
            context,
            wanted,
            settled: None,
            in_doubt,
            attempted: 0,
            has_gaps: None,
            found: HashSet::new(),
            chain: None,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            cursor: Cursor::default(),
            strangers: Strangers::default(),
        }
    }

    /// Begins again where the stream ends. What is on its way `is_in_doubt`, unless the first of it was refused: then all that
    /// follows is, as it is on the condition that the first was stored.
    pub(super) fn go_back(&mut self, is_in_doubt: bool) {
        self.chain = None;
        if is_in_doubt {
            self.in_doubt = self.in_doubt.max(self.attempted);
        }
        self.in_flight.clear();
        self.in_flight_bytes = 0;
        self.found.clear();
    }

    /// Puts more on its way, takes in what was acknowledged, and moves the cursor.
    pub(super) async fn round(&mut self, relay: &mut Relay) -> Result<Round, RelayError> {
        if self.chain.is_none() {
            self.begin(relay).await?;
        }
        if self.strangers.is_crowded() {
            return self.publish_alone(relay).await;
        }
        self.fill(relay).await?;
        let settled_before = self.settled;
        self.take_acks(relay).await?;
        if self.settled != settled_before {
            relay.health.relay_ok();
        }
        self.tell_cursor(relay).await
    }

    /// Finds where the stream ends, and which events in doubt it has.
    async fn begin(&mut self, relay: &mut Relay) -> Result<(), RelayError> {
        relay.check_connected()?;
        let mark = relay.connection.mark();
        let Ensured { stream, is_new } = self.wanted.ensure(&self.context).await?;
        // Before the events are asked for: should one of them come in after that, the stream has grown.
        let info = stream.cached_info();
        let sequence = info.state.last_sequence;
        self.strangers.look(relay, &stream, sequence).await?;
        let message_max = usize::try_from(info.config.max_message_size)
            .ok()
            .filter(|&bytes| bytes > 0)
            .unwrap_or(usize::MAX);
        let mut settled = match self.settled {
            Some(settled) => settled,
            None => {
                check_not_set_back(relay, &stream, sequence).await?;
                let cursor = relay.ledger.published_seq().await?;
                self.cursor.noted = cursor;
                cursor
            }
        };
        if is_new && settled > 0 {
            tracing::warn!(
                stream.name = %self.wanted.name(),
                "the event stream was made anew, and has none of the events that were published before; \
                 `tasklatch events republish --since all` sends those that the outbox has kept"
            );
        }
        if settled < self.in_doubt {
            let exact = match self.has_gaps {
                Some(exact) => exact,
                None => may_have_gaps(&stream, relay.ledger.ledger_id(), sequence).await?,
            };
            self.has_gaps = Some(exact);
            let until = self.in_doubt;
            (settled, self.found) = stored_after(relay, &stream, settled, until, exact).await?;
        }
        self.settled = Some(settled);
        self.chain = Some(Chain {
            end: End::Sequence(sequence),
            position: settled,
            message_max,
            mark,
        });
        Ok(())
    }

    /// Puts as much on its way as there is room for.
    async fn fill(&mut self, relay: &mut Relay) -> Result<(), RelayError> {
        while self.in_flight.len() < IN_FLIGHT_EVENTS_MAX
            && self.in_flight_bytes < IN_FLIGHT_BYTES_MAX
        {
            let Some(chain) = &self.chain else {
                return Ok(());
            };
            let room = IN_FLIGHT_BYTES_MAX - self.in_flight_bytes;
            let outgoing = relay.next_after(chain.position, room).await?;
            if outgoing.is_empty() {
                return Ok(());
            }
            relay.check_connected()?;
            for outgoing in &outgoing {
                self.publish(relay, outgoing).await?;
            }
            faults::pass(Point::AfterPublish);
        }
        Ok(())
    }

    async fn publish(&mut self, relay: &mut Relay, outgoing: &Outgoing) -> Result<(), RelayError> {
        let seq = outgoing.seq;
        self.attempted = self.attempted.max(seq);
        for (at, event) in outgoing.events.iter().enumerate() {
            let is_last = at + 1 == outgoing.events.len();
            let is_done = relay.is_parked(seq, event) || self.found.contains(&(seq, event.kind));
            let ack = match is_done {
                true => None,
                false => self.send(relay, seq, event).await?,
            };
            let bytes = event.data.len();
            self.in_flight_bytes += bytes;
            self.in_flight.push_back(InFlight {
                seq,
                kind: event.kind,
                is_last,
                id: event.id(),
                bytes,
                trace: event.trace.clone(),
                due: Instant::now() + ACK_WITHIN,
                ack,
            });
        }
        if let Some(chain) = &mut self.chain {
            chain.position = seq;
        }
        Ok(())
    }

    /// Sends one event, or parks it if it never can be.
    async fn send(
        &mut self,
        relay: &mut Relay,
        seq: i64,
        event: &Event,
    ) -> Result<Option<BoxFuture<'static, Acked>>, RelayError> {
        let Some(chain) = &mut self.chain else {
            return Ok(None);
        };
        let bytes = event.data.len();
        // What is refused for less is parked when the stream says so.
        if bytes + HEADERS_USUAL_BYTES > chain.message_max {
            let reason = too_large(bytes, chain.message_max, "the event stream");
            relay.park(seq, event.kind, &event.id(), reason).await?;
            return Ok(None);
        }
        let message_max = chain.message_max.min(relay.connection.max_payload());
        let headers = event.traced_headers(relay.ledger.ledger_id(), message_max);
        let message_id = message_id_of(&headers);
        let message = message_of(event, headers, &chain.end);
        let subject = event.subject(&relay.subjects);
        match self.context.send_publish(subject, message).await {
            Ok(ack) => {
                chain.end = End::Event(message_id);
                Ok(Some(ack.into_future()))
            }
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                let limit = relay.connection.max_payload();
                let reason = too_large(bytes, limit, "the NATS server");
                relay.park(seq, event.kind, &event.id(), reason).await?;
                Ok(None)
            }
            Err(source) => Err(RelayError::NotStored {
                id: event.id(),
                source,
            }),
        }
    }

    /// Waits for the first acknowledgment, or for more to publish; and takes in what else is there.
    async fn take_acks(&mut self, relay: &mut Relay) -> Result<(), RelayError> {
        let mut has_waited = false;
        while let Some(first) = self.in_flight.front_mut() {
            let acked = match first.ack.as_mut().map(FutureExt::now_or_never) {
                None => None,
                Some(Some(acked)) => Some(acked),
                Some(None) if has_waited => return Ok(()),
                Some(None) => {
                    has_waited = true;
                    match self.wait(relay).await? {
                        Some(acked) => Some(acked),
                        None => return Ok(()),
                    }
                }
            };
            self.settle_first(relay, acked).await?;
        }
        Ok(())
    }

    /// Waits for the first acknowledgment; `None` if there is something else to do before.
    async fn wait(&mut self, relay: &mut Relay) -> Result<Option<Acked>, RelayError> {
        let has_room = self.in_flight.len() < IN_FLIGHT_EVENTS_MAX
            && self.in_flight_bytes < IN_FLIGHT_BYTES_MAX;
        let (Some(first), Some(chain)) = (self.in_flight.front_mut(), &self.chain) else {
            return Ok(None);
        };
        let Some(ack) = &mut first.ack else {
            return Ok(None);
        };
        let look = first.due.min(Instant::now() + LOOK_EVERY);
        tokio::select! {
            acked = ack => return Ok(Some(acked)),
            // When all senders are gone there is nothing more to publish.
            Ok(()) = relay.committed.changed(), if has_room => return Ok(None),
            () = sleep_until(look) => {}
        }
        if relay.connection.has_reconnected_since(chain.mark) {
            return Err(RoundTripError::Reconnected.into());
        }
        if relay.connection.has_errors_since(chain.mark) {
            return Err(RoundTripError::ServerError.into());
        }
        match Instant::now() < first.due {
            true => Ok(None),
            false => Err(RelayError::NoAck {
                id: first.id.clone(),
            }),
        }
    }

    /// Takes in what became of the first event on its way.
    async fn settle_first(
        &mut self,
        relay: &mut Relay,
        acked: Option<Acked>,
    ) -> Result<(), RelayError> {
        let Some(first) = self.in_flight.pop_front() else {
            return Ok(());
        };
        self.in_flight_bytes -= first.bytes;
        let mut has_gap = false;
        let is_duplicate = match acked {
            None => false,
            Some(Ok(ack)) => self.check_ack(relay, &first, &ack)?,
            Some(Err(error)) if is_too_large(&error) => {
                let reason = format!("the event stream does not take it: {error}");
                relay.park(first.seq, first.kind, &first.id, reason).await?;
                // What follows expects an event that will never be there.
                has_gap = true;
                false
            }
            Some(Err(error)) if error.kind() == PublishErrorKind::TimedOut => {
                return Err(RelayError::NoAck { id: first.id });
            }
            Some(Err(error))
                if matches!(
                    error.kind(),
                    PublishErrorKind::WrongLastSequence | PublishErrorKind::WrongLastMessageId
                ) =>
            {
                return Err(RelayError::StreamMoved);
            }
            Some(Err(source)) => {
                return Err(RelayError::NotStored {
                    id: first.id,
                    source,
                });
            }
        };
        if first.is_last {
            self.settled = Some(first.seq);
        }
        if (is_duplicate || has_gap) && self.in_flight.is_empty() {
            self.go_back(true);
        }
        Ok(())
    }

    /// Looks at an acknowledgment; whether it says that the stream had the event before.
    fn check_ack(
        &mut self,
        relay: &Relay,
        first: &InFlight,
        ack: &PublishAck,
    ) -> Result<bool, RelayError> {
        if ack.stream != self.wanted.name() {
            return Err(RelayError::OtherStream {
                id: first.id.clone(),
                stream: ack.stream.clone(),
                wanted: self.wanted.name().to_owned(),
            });
        }
        let metrics = relay.health.metrics();
        if !ack.duplicate {
            self.strangers.stored(ack.sequence);
            metrics.published(first.kind);
            if let Some(trace) = &first.trace {
                let took = (Instant::now() + ACK_WITHIN).saturating_duration_since(first.due);
                relay.note_span(trace, first.kind, &first.id, took);
            }
        } else if first.seq > self.in_doubt {
            metrics.taken_for_duplicate();
            tracing::error!(
                event.id = %first.id,
                stream.sequence = ack.sequence,
                "the event stream takes an event for a duplicate that was never published before: another ledger of the same ID \
                 publishes there, or somebody else uses its Nats-Msg-Id; find out who, `tasklatch ledger verify` shows what is missing"
            );
        }
        Ok(ack.duplicate)
    }

    /// Has the cursor moved, now and then, and says what is left to do.
    async fn tell_cursor(&mut self, relay: &mut Relay) -> Result<Round, RelayError> {
        let settled = self.settled.unwrap_or_default();
        self.cursor.advance(relay, settled).await;
        let position = self.chain.as_ref().map_or(settled, |chain| chain.position);
        if !self.in_flight.is_empty() || position < *relay.committed.borrow() {
            return Ok(Round::Published);
        }
        if self.cursor.noted < settled {
            relay.rest_until(self.cursor.due()).await;
            return Ok(Round::Rested);
        }
        Ok(Round::Idle)
    }
}

/// A database that was set back would publish other events under identities that the stream has. Its last event shows it, if
/// it is one of this ledger.
async fn check_not_set_back(
    relay: &Relay,
    stream: &Stream,
    last_sequence: u64,
) -> Result<(), RelayError> {
    let ledger_id = relay.ledger.ledger_id();
    let Some((task_id, revision, time)) = last_made(stream, ledger_id, last_sequence).await? else {
        return Ok(());
    };
    match relay.ledger.has_made(&task_id, revision, time).await? {
        true => Ok(()),
        false => Err(RelayError::SetBack {
            id: format!("{task_id}.{revision}"),
        }),
    }
}

/// Up to which revision after `settled`, and not past `last`, the stream has all events, and which it has of those that
/// follow.
///
/// What the relay stores itself is there up to some event and not past it, so the look-up ends at the first that is missing.
/// What it published in `core` mode while there was a stream may have gaps: then each event is looked for, `exact`ly.
pub(super) async fn stored_after(
    relay: &Relay,
    stream: &Stream,
    mut settled: i64,
    last: i64,
    exact: bool,
) -> Result<(i64, HashSet<(i64, EventKind)>), RelayError> {
    let (mut position, mut found) = (settled, HashSet::new());
    while position < last {
        let mut outgoing = relay.next_after(position, IN_FLIGHT_BYTES_MAX).await?;
        outgoing.retain(|outgoing| outgoing.seq <= last);
        if outgoing.is_empty() {
            break;
        }
        let mut stored = lookups(relay, stream, &outgoing, exact);
        while let Some((seq, has)) = stored.try_next().await? {
            let is_whole = has.iter().all(|(_, is_there)| *is_there);
            if is_whole && settled == position {
                settled = seq;
            } else {
                let there = has.into_iter().filter(|(_, is_there)| *is_there);
                found.extend(there.map(|(kind, _)| (seq, kind)));
                if !exact {
                    return Ok((settled, found));
                }
            }
            position = seq;
        }
    }
    Ok((settled, found))
}

/// What became of an event.
type Acked = Result<PublishAck, PublishError>;

/// A revision, and which of its events the stream has.
type Stored = (i64, Vec<(EventKind, bool)>);

/// Asks for the events of revisions, several at once, in their order. A parked event counts as one that is there.
fn lookups<'l>(
    relay: &'l Relay,
    stream: &'l Stream,
    outgoing: &'l [Outgoing],
    exact: bool,
) -> impl futures_util::Stream<Item = Result<Stored, RelayError>> + 'l {
    let look = move |outgoing: &'l Outgoing| async move {
        let mut there = Vec::with_capacity(outgoing.events.len());
        for event in &outgoing.events {
            let is_parked = relay.is_parked(outgoing.seq, event);
            let ledger_id = relay.ledger.ledger_id();
            let come = match is_parked {
                true => Come::Yes,
                false if exact => match has(stream, &relay.subjects, ledger_id, event).await? {
                    true => Come::Yes,
                    false => Come::No,
                },
                false => has_come_to(stream, &relay.subjects, ledger_id, event).await?,
            };
            let is_there = match come {
                Come::No => false,
                Come::Yes => true,
                Come::Otherwise => return Err(RelayError::SetBack { id: event.id() }),
            };
            there.push((event.kind, is_there));
        }
        Ok((outgoing.seq, there))
    };
    stream::iter(outgoing).map(look).buffered(LOOKUPS_AT_ONCE)
}

/// An event as the stream takes it: only if the stream ends like this.
fn message_of(event: &Event, headers: Headers, end: &End) -> PublishMessage {
    let message = PublishMessage::build()
        .headers(header_map(headers))
        .payload(event.data.clone());
    match end {
        End::Sequence(sequence) => message.expected_last_sequence(*sequence),
        End::Event(message_id) => message.expected_last_message_id(message_id),
    }
}

type Headers = Vec<(&'static str, String)>;

fn message_id_of(headers: &Headers) -> String {
    let id = headers.iter().find(|(name, _)| *name == header::MSG_ID);
    id.map(|(_, id)| id.clone()).unwrap_or_default()
}

/// Whether the server or the stream refuses an event for its size, whatever else it has.
pub fn is_too_large(error: &PublishError) -> bool {
    let source = std::error::Error::source(error);
    error.kind() == PublishErrorKind::MaxPayloadExceeded
        || source
            .and_then(|source| source.downcast_ref::<async_nats::jetstream::Error>())
            .is_some_and(|error| error.error_code() == ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM)
}
