//! What the service counts, in the text format of OpenMetrics (docs/metrics.md).
//!
//! To count costs an addition: what has labels is resolved when the service starts, and what can be read elsewhere is only
//! read when somebody asks for the page.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::ledger::Lag;
use crate::task::{Timestamp, words};
use crate::wire::{Answer, Code, Endpoint, EventKind, Outcome};

/// The media type of [`Metrics::page`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of durations, in seconds: from what an answer out of memory takes to what a stuck disk does.
const SECONDS: [f64; 14] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
];

/// Upper bounds of how many commands a batch has; the last is the most that it can have.
const COMMANDS: [f64; 11] = [
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
];

words! {
    /// What became of a report.
    ReportOutcome {
        /// It is the result of its task.
        Accepted = "accepted",
        /// The task had this result already.
        Replayed = "replayed",
        /// It was refused.
        Refused = "refused",
    }
}

words! {
    /// What is tried again after trouble.
    Retried {
        /// Publishing events.
        Relay = "relay",
        /// Taking reports from the report stream.
        DurableReports = "durable_reports",
        /// One report of that stream, which cannot be applied now.
        DurableReport = "durable_report",
    }
}

words! {
    /// The connections of the service to the server.
    ConnectionName {
        /// Requests and answers.
        Requests = "requests",
        /// Events.
        Events = "events",
        /// Durable reports.
        Reports = "reports",
    }
}

/// Counters by one label, whose values are known.
#[derive(Debug)]
struct Counters<const N: usize>([Counter; N]);

/// What can be read elsewhere, as it is when the page is asked for. `None`: it cannot be read now.
#[derive(Debug, Default)]
pub struct Readings {
    /// How far events are behind.
    pub lag: Option<Lag>,
    /// Whether the service is ready.
    pub is_ready: bool,
    /// Pieces of work that wait for the writer.
    pub queued: usize,
    /// Requests that are taken on and not answered.
    pub in_hand: usize,
    /// How many of those there may be.
    pub in_hand_max: usize,
    /// How many changes may wait to be published.
    pub unpublished_max: i64,
    /// The size of the database, in bytes.
    pub database_bytes: Option<u64>,
    /// The size of its write-ahead log, in bytes.
    pub log_bytes: Option<u64>,
    /// For each connection: messages that were dropped, and errors that the server sent.
    pub connections: Vec<(ConnectionName, u64, u64)>,
    /// What the process has in memory, in bytes.
    pub resident_bytes: Option<u64>,
}

/// What is counted. Cheap to count.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reports: Counters<{ ReportOutcome::ALL.len() }>,
    refusals: Counters<{ Code::ALL.len() }>,
    reply_duration: [Histogram; Endpoint::ALL.len()],
    batch_commands: Histogram,
    commit_duration: Histogram,
    events_published: Counters<{ EventKind::ALL.len() }>,
    events_taken_for_duplicates: Counter,
    retries: Counters<{ Retried::ALL.len() }>,
    dropped: Counters<{ ConnectionName::ALL.len() }>,
    server_errors: Counters<{ ConnectionName::ALL.len() }>,
    gauges: Gauges,
}

/// What is set when the page is asked for.
#[derive(Debug)]
struct Gauges {
    ready: Gauge,
    queued: Gauge,
    in_hand: Gauge,
    in_hand_max: Gauge,
    lag_changes: Gauge,
    lag: Gauge<f64, AtomicU64>,
    unpublished_max: Gauge,
    events_parked: Gauge,
    database: Gauge,
    log: Gauge,
    resident: Gauge,
}

type Label = [(&'static str, &'static str); 1];

/// Registers counters by one label, each of which shows from the start.
fn counters<const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    label: &'static str,
    values: [&'static str; N],
) -> Counters<N> {
    let family = Family::<Label, Counter>::default();
    registry.register(name, help, family.clone());
    Counters(values.map(|value| family.get_or_create_owned(&[(label, value)])))
}

impl Gauges {
    fn register(registry: &mut Registry, resident: Gauge) -> Self {
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let ready = gauge("ready", "1 if the service is ready, as /ready says, else 0");
        let queued = gauge("queued_commands", "Pieces of work that wait for the writer");
        let in_hand = gauge(
            "requests_in_hand",
            "Requests that are taken on and not answered",
        );
        let in_hand_max = gauge(
            "requests_in_hand_limit",
            "Requests that may be in hand; what is past that is refused as overloaded",
        );
        let lag_changes = gauge(
            "relay_lag_changes",
            "Changes that wait to be published; each has one event, an accepted report two",
        );
        let unpublished_max = gauge(
            "relay_lag_changes_limit",
            "Changes that may wait to be published; past that new work is refused as overloaded",
        );
        let events_parked = gauge(
            "events_parked",
            "Events that cannot be published as they are and wait for somebody to send them again",
        );
        let mut bytes = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register_with_unit(name, help, Unit::Bytes, gauge.clone());
            gauge
        };
        let database = bytes("database_size", "The database file");
        let log = bytes("wal_size", "The write-ahead log of the database");
        let lag = Gauge::default();
        registry.register_with_unit(
            "relay_lag",
            "How long the oldest change that is not published waits",
            Unit::Seconds,
            lag.clone(),
        );
        Self {
            ready,
            queued,
            in_hand,
            in_hand_max,
            lag_changes,
            lag,
            unpublished_max,
            events_parked,
            database,
            log,
            resident,
        }
    }

    fn set(&self, readings: &Readings, now: Timestamp) {
        // A page that said 0 for what is not known would say that all is well.
        if let Some(lag) = readings.lag {
            self.lag_changes.set(lag.changes);
            self.lag.set(lag.seconds(now));
            self.events_parked.set(lag.parked);
        }
        let known = [
            (&self.database, readings.database_bytes),
            (&self.log, readings.log_bytes),
            (&self.resident, readings.resident_bytes),
        ];
        for (gauge, bytes) in known {
            if let Some(bytes) = bytes {
                gauge.set(bytes as i64);
            }
        }
        self.ready.set(i64::from(readings.is_ready));
        self.queued.set(readings.queued as i64);
        self.in_hand.set(readings.in_hand as i64);
        self.in_hand_max.set(readings.in_hand_max as i64);
        self.unpublished_max.set(readings.unpublished_max);
    }
}

/// Registers a histogram of durations for each endpoint.
fn reply_durations(registry: &mut Registry) -> [Histogram; Endpoint::ALL.len()] {
    let family = Family::<Label, Histogram>::new_with_constructor(|| Histogram::new(SECONDS));
    registry.register_with_unit(
        "reply_duration",
        "From taking a request, or a report from the report stream, to handing its answer to the client of the server",
        Unit::Seconds,
        family.clone(),
    );
    Endpoint::ALL.map(|endpoint| family.get_or_create_owned(&[("endpoint", endpoint.name())]))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut all = Registry::default();
        // A name that every process has, so without our prefix.
        let resident = Gauge::default();
        all.register_with_unit(
            "process_resident_memory",
            "What the process has in memory",
            Unit::Bytes,
            resident.clone(),
        );
        let registry = all.sub_registry_with_prefix("tasklatch");
        registry.register(
            "build",
            "What is running",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        let batch_commands = Histogram::new(COMMANDS);
        registry.register(
            "batch_commands",
            "Pieces of work that the writer applied at once",
            batch_commands.clone(),
        );
        let commit_duration = Histogram::new(SECONDS);
        registry.register_with_unit(
            "commit_duration",
            "How long a batch that changed something took to be decided and made durable",
            Unit::Seconds,
            commit_duration.clone(),
        );
        let events_taken_for_duplicates = Counter::default();
        registry.register(
            "events_taken_for_duplicates",
            "Events that the event stream took for duplicates though they were never published before",
            events_taken_for_duplicates.clone(),
        );
        let connection_names = std::array::from_fn(|at| ConnectionName::ALL[at].as_str());
        Self {
            reports: counters(
                registry,
                "reports",
                "Reports that were decided, durable ones too",
                "outcome",
                std::array::from_fn(|at| ReportOutcome::ALL[at].as_str()),
            ),
            refusals: counters(
                registry,
                "refusals",
                "Requests and durable reports that were refused",
                "code",
                std::array::from_fn(|at| Code::ALL[at].as_str()),
            ),
            events_published: counters(
                registry,
                "events_published",
                "Events that were published: acknowledged by the event stream, or handed to the server in core mode",
                "kind",
                std::array::from_fn(|at| EventKind::ALL[at].word()),
            ),
            retries: counters(
                registry,
                "retries",
                "How often something met trouble and was put off",
                "part",
                std::array::from_fn(|at| Retried::ALL[at].as_str()),
            ),
            dropped: counters(
                registry,
                "messages_dropped",
                "Messages that came faster than they were taken, and were dropped",
                "connection",
                connection_names,
            ),
            server_errors: counters(
                registry,
                "nats_errors",
                "Errors that the NATS server reported, such as a missing permission",
                "connection",
                connection_names,
            ),
            reply_duration: reply_durations(registry),
            batch_commands,
            commit_duration,
            events_taken_for_duplicates,
            gauges: Gauges::register(registry, resident),
            registry: all,
        }
    }
}

impl Metrics {
    /// A request, or a durable report, was decided like this.
    pub fn answered(&self, endpoint: Endpoint, answer: &Answer) {
        if let Some(code) = answer.refused {
            self.refusals.0[code as usize].inc();
        }
        if endpoint.is_report() {
            self.reports.0[ReportOutcome::of(answer) as usize].inc();
        }
    }

    /// An answer was handed to the client, so long after its request was taken.
    pub fn replied(&self, endpoint: Endpoint, took: Duration) {
        self.reply_duration[endpoint as usize].observe(took.as_secs_f64());
    }

    /// The writer applied a batch; `took` if it changed something.
    pub fn applied(&self, commands: usize, took: Option<Duration>) {
        self.batch_commands.observe(commands as f64);
        if let Some(took) = took {
            self.commit_duration.observe(took.as_secs_f64());
        }
    }

    /// An event was published: acknowledged by the event stream, or handed to the server in `core` mode.
    pub fn published(&self, kind: EventKind) {
        self.events_published.0[kind as usize].inc();
    }

    /// The stream took an event for a duplicate though it was never published before: a fault.
    pub fn taken_for_duplicate(&self) {
        self.events_taken_for_duplicates.inc();
    }

    /// Something met trouble and was put off.
    pub fn retried(&self, what: Retried) {
        self.retries.0[what as usize].inc();
    }

    /// All of it as a page.
    pub fn page(&self, readings: &Readings, now: Timestamp) -> String {
        self.gauges.set(readings, now);
        for &(connection, dropped, server_errors) in &readings.connections {
            let at = connection as usize;
            self.dropped.0[at]
                .inner()
                .fetch_max(dropped, Ordering::Relaxed);
            self.server_errors.0[at]
                .inner()
                .fetch_max(server_errors, Ordering::Relaxed);
        }
        let mut page = String::new();
        // A string takes all that is written to it.
        let _ = encode(&mut page, &self.registry);
        page
    }
}

impl ReportOutcome {
    /// What an answer to a report says.
    pub fn of(answer: &Answer) -> Self {
        match (answer.refused, answer.outcome) {
            (None, Some(Outcome::Replayed)) => Self::Replayed,
            (None, _) => Self::Accepted,
            (Some(_), _) => Self::Refused,
        }
    }
}
