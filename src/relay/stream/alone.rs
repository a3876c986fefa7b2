//! Events one by one, while others publish into the event stream all the time.
//!
//! Each event is stored on the condition that the last message on its own subject is the one that was there when it was found
//! missing (`Nats-Expected-Last-Subject-Sequence`), and the next follows once it is acknowledged. So the order is kept, what is
//! late is refused, and somebody on other subjects cannot come in between. On the very same subject they can, for a moment.

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::Stream;
use tokio::time::Instant;

use super::{ACK_WITHIN, InFlight, IntoStream, is_too_large};
use crate::nats::header_map;
use crate::relay::lookup::{Come, come_by, last_on};
use crate::relay::{Relay, RelayError, Round, too_large};
use crate::wire::Event;

/// How often an event is tried on its condition, and then once without: whoever publishes on the very same subject all the time
/// must not hold it up for ever. What may be on its way from before is then kept apart by its `Nats-Msg-Id` alone.
const TRIES: u32 = 6;

/// How many bytes of events are read at once.
const READ_BYTES: usize = 64 * 1024;

impl IntoStream {
    /// Others publish all the time: events go one by one for a while.
    pub(in crate::relay) fn crowded(&mut self) {
        self.strangers.crowded();
    }

    /// Publishes some revisions, one event after the other.
    pub(super) async fn publish_alone(&mut self, relay: &mut Relay) -> Result<Round, RelayError> {
        // Where the stream ends is asked again once there are many on their way again.
        let Some(chain) = self.chain.take() else {
            return Ok(Round::Rested);
        };
        let stream = self.wanted.ensure(&self.context).await?.stream;
        let outgoing = relay.next_after(chain.position, READ_BYTES).await?;
        let has_more = !outgoing.is_empty();
        for outgoing in &outgoing {
            relay.check_connected()?;
            for event in &outgoing.events {
                let is_done = relay.is_parked(outgoing.seq, event)
                    || self.found.contains(&(outgoing.seq, event.kind));
                if !is_done {
                    self.attempted = self.attempted.max(outgoing.seq);
                    self.store_alone(relay, &stream, outgoing.seq, event)
                        .await?;
                }
            }
            self.settled = Some(outgoing.seq);
        }
        relay.health.relay_ok();
        let settled = self.settled.unwrap_or_default();
        self.cursor.advance(relay, settled).await;
        if has_more {
            return Ok(Round::Published);
        }
        if self.cursor.noted < settled {
            relay.rest_until(self.cursor.due()).await;
            return Ok(Round::Rested);
        }
        Ok(Round::Idle)
    }

    async fn store_alone(
        &mut self,
        relay: &mut Relay,
        stream: &Stream,
        seq: i64,
        event: &Event,
    ) -> Result<(), RelayError> {
        let subject = event.subject(&relay.subjects);
        for attempt in 1..=TRIES {
            let last = last_on(stream, &subject).await?;
            let end = last.as_ref().map_or(0, |last| last.sequence);
            if seq <= self.in_doubt
                && let Some(last) = last
            {
                let ledger_id = relay.ledger.ledger_id();
                match come_by(stream, &subject, ledger_id, event, last).await? {
                    Come::No => {}
                    Come::Yes => return Ok(()),
                    Come::Otherwise => return Err(RelayError::SetBack { id: event.id() }),
                }
            }
            // Each try before was refused, so that none of them is on its way: the last need not be.
            let condition = (attempt < TRIES).then_some(end);
            match self.try_alone(relay, seq, event, condition).await {
                Err(RelayError::StreamMoved) => {}
                ended => return ended,
            }
        }
        Err(RelayError::StreamMoved)
    }

    /// Has an event stored if the last message on its subject is still the one at `end`; `None` if whatever it is.
    async fn try_alone(
        &mut self,
        relay: &mut Relay,
        seq: i64,
        event: &Event,
        end: Option<u64>,
    ) -> Result<(), RelayError> {
        let limit = relay.connection.max_payload();
        let headers = event.traced_headers(relay.ledger.ledger_id(), limit);
        let mut message = PublishMessage::build()
            .headers(header_map(headers))
            .payload(event.data.clone());
        if let Some(end) = end {
            message = message.expected_last_subject_sequence(end);
        }
        let sent = InFlight {
            seq,
            kind: event.kind,
            is_last: true,
            id: event.id(),
            bytes: event.data.len(),
            trace: event.trace.clone(),
            due: Instant::now() + ACK_WITHIN,
            ack: None,
        };
        let subject = event.subject(&relay.subjects);
        let stored = match self.context.send_publish(subject, message).await {
            Ok(ack) => ack.await,
            Err(error) => Err(error),
        };
        match stored {
            Ok(ack) => self.check_ack(relay, &sent, &ack).map(drop),
            Err(error) if is_too_large(&error) => {
                let reason = too_large(event.data.len(), limit, "the event stream");
                relay.park(seq, event.kind, &event.id(), reason).await
            }
            Err(error) => Err(match error.kind() {
                PublishErrorKind::WrongLastSequence => RelayError::StreamMoved,
                PublishErrorKind::TimedOut => RelayError::NoAck { id: event.id() },
                _ => RelayError::NotStored {
                    id: event.id(),
                    source: error,
                },
            }),
        }
    }
}
