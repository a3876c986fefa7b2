//! What the service counts, in the text format of OpenMetrics.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::ledger::Lag;
use crate::task::Timestamp;

/// The media type of [`Metrics::page`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is counted. Cheap to count.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Events that were published: acknowledged by the event stream, or handed to the server in `core` mode.
    pub events_published: Counter,
    /// Events that the stream took for duplicates though they were never published before: a fault.
    pub events_taken_for_duplicates: Counter,
    /// How often publishing met trouble and was put off.
    pub relay_failures: Counter,
    lag_changes: Gauge,
    lag: Gauge<f64, std::sync::atomic::AtomicU64>,
    events_parked: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("tasklatch");
        let [events_published, events_taken_for_duplicates, relay_failures] = [
            (
                "events_published",
                "Events that were published: acknowledged by the event stream, or handed to the server in core mode",
            ),
            (
                "events_taken_for_duplicates",
                "Events that the event stream took for duplicates though they were never published before",
            ),
            (
                "relay_failures",
                "How often publishing events met trouble and was put off",
            ),
        ]
        .map(|(name, help)| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        });
        let lag_changes = Gauge::default();
        registry.register(
            "relay_lag_changes",
            "Changes that wait to be published; each has one event, an accepted report two",
            lag_changes.clone(),
        );
        let lag = Gauge::default();
        registry.register_with_unit(
            "relay_lag",
            "How long the oldest of them waits",
            Unit::Seconds,
            lag.clone(),
        );
        let events_parked = Gauge::default();
        registry.register(
            "events_parked",
            "Events that cannot be published as they are and wait for somebody to send them again",
            events_parked.clone(),
        );
        Self {
            registry,
            events_published,
            events_taken_for_duplicates,
            relay_failures,
            lag_changes,
            lag,
            events_parked,
        }
    }
}

impl Metrics {
    /// All of it as a page; `lag` is `None` if the store does not say.
    pub fn page(&self, lag: Option<Lag>, now: Timestamp) -> String {
        if let Some(lag) = lag {
            self.lag_changes.set(lag.changes);
            self.lag.set(lag.seconds(now));
            self.events_parked.set(lag.parked);
        }
        let mut page = String::new();
        // A string takes all that is written to it.
        let _ = encode(&mut page, &self.registry);
        page
    }
}
