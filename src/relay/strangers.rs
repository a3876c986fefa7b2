//! Others who publish into the event stream: how much, and where.
//!
//! Their messages do no harm to events, each of which is stored on a condition; but they have the relay ask again where the
//! stream ends. Somebody who publishes all the time would do so for ever, and so events are then published one by one, on a
//! condition that holds whatever is published on other subjects.

use std::time::{Duration, Instant};

use async_nats::jetstream::stream::Stream;

use super::lookup::stranger_at;
use super::{Relay, RelayError};

/// How often the log says so at most.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// How long events are published one by one once others were found to publish all the time.
const CROWDED_FOR: Duration = Duration::from_secs(5);

/// What is known of others.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// The last sequence of the stream that was accounted for.
    seen: Option<u64>,
    /// How many messages of others there were since the last line of the log.
    count: u64,
    logged: Option<Instant>,
    /// Until when events are published one by one.
    crowded_until: Option<Instant>,
}

impl Strangers {
    /// Looks at what has come into the stream since it was looked at last, and was not stored by the relay.
    pub(super) async fn look(
        &mut self,
        relay: &Relay,
        stream: &Stream,
        last_sequence: u64,
    ) -> Result<(), RelayError> {
        let before = self.seen.replace(last_sequence);
        let more = before.map_or(0, |before| last_sequence.saturating_sub(before));
        if more == 0 {
            return Ok(());
        }
        let ledger_id = relay.ledger.ledger_id();
        let Some(subject) = stranger_at(stream, ledger_id, last_sequence).await? else {
            return Ok(());
        };
        self.count += more;
        let subject = subject.escape_debug().to_string();
        relay.health.strangers(format!(
            "others publish into the event stream, which slows events: {} messages, the last on {subject}; let nobody but the \
             service publish there",
            self.count
        ));
        if self.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            tracing::warn!(
                stranger.subject = %subject,
                stranger.messages = self.count,
                "others publish into the event stream, which slows events; let nobody but the service publish there"
            );
            self.logged = Some(Instant::now());
            self.count = 0;
        }
        Ok(())
    }

    /// The relay stored an event itself.
    pub(super) fn stored(&mut self, sequence: u64) {
        if let Some(seen) = self.seen {
            self.count += sequence.saturating_sub(seen + 1);
        }
        self.seen = self.seen.max(Some(sequence));
    }

    /// Others publish all the time.
    pub(super) fn crowded(&mut self) {
        self.crowded_until = Some(Instant::now() + CROWDED_FOR);
    }

    /// Whether events are to be published one by one.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded_until
            .is_some_and(|until| Instant::now() < until)
    }
}
