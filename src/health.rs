//! How the service is, for those who ask from outside.

use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::metrics::Metrics;
use crate::nats::Connection;
use crate::telemetry::Telemetry;

/// How long it is said that somebody else has published into the event stream.
const STRANGERS_SHOWN: Duration = Duration::from_secs(60);

/// What the parts of the service say of themselves.
#[derive(Debug)]
pub struct Health {
    /// Those that the service needs, once there are some.
    connections: OnceLock<Vec<Connection>>,
    metrics: Metrics,
    telemetry: Option<Telemetry>,
    troubles: Mutex<Troubles>,
}

#[derive(Debug, Default)]
struct Troubles {
    /// What the start of the service waits for; `None` once it serves.
    starting: Option<String>,
    store: Option<String>,
    relay: Option<String>,
    outbox_full: bool,
    overlong_log: Option<u64>,
    durable: Option<String>,
    acknowledgments: Option<String>,
    dead_letters: Option<String>,
    /// Who else publishes into the event stream, and when that was seen last.
    strangers: Option<(Instant, String)>,
    stopping: bool,
}

/// The answer of `/ready`.
#[derive(Debug, Serialize)]
pub struct Readiness {
    /// Whether requests are served as they should be.
    pub ready: bool,
    /// Why not, for people; and what is wrong that keeps nobody from being served.
    pub reasons: Vec<String>,
}

impl Health {
    /// Of a service that starts; spans go to `telemetry`, if anywhere.
    pub fn new(telemetry: Option<Telemetry>) -> Self {
        let relay = "starting: waiting for the first look at what is to be published";
        Self {
            connections: OnceLock::new(),
            metrics: Metrics::default(),
            telemetry,
            troubles: Mutex::new(Troubles {
                starting: Some("its turn to connect".to_owned()),
                relay: Some(relay.to_owned()),
                ..Troubles::default()
            }),
        }
    }

    /// The service starts, and waits for this before it can go on.
    pub fn starting(&self, waits_for: String) {
        self.with(|troubles| troubles.starting = Some(waits_for));
    }

    /// The server is proved to have the subscriptions of the service. From here on its connections tell how they are: the
    /// first has the requests.
    pub fn serving(&self, connections: Vec<Connection>) {
        // It is only said once.
        let _ = self.connections.set(connections);
        self.with(|troubles| troubles.starting = None);
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Where spans go, if anywhere.
    pub fn telemetry(&self) -> Option<&Telemetry> {
        self.telemetry.as_ref()
    }

    /// The store took a batch.
    pub fn store_ok(&self) {
        self.with(|troubles| troubles.store = None);
    }

    /// The store failed.
    pub fn store_failed(&self, why: &str) {
        self.with(|troubles| troubles.store = Some(format!("the store cannot be written: {why}")));
    }

    /// Whether the last batch failed.
    pub fn is_store_in_trouble(&self) -> bool {
        let mut in_trouble = false;
        self.with(|troubles| in_trouble = troubles.store.is_some());
        in_trouble
    }

    /// Events go out.
    pub fn relay_ok(&self) {
        self.with(|troubles| troubles.relay = None);
    }

    /// Whether events go out.
    pub fn is_relay_ok(&self) -> bool {
        let mut is_ok = false;
        self.with(|troubles| is_ok = troubles.relay.is_none());
        is_ok
    }

    /// Events are delayed.
    pub fn relay_failed(&self, why: &str) {
        self.with(|troubles| troubles.relay = Some(format!("events are delayed: {why}")));
    }

    /// Whether new work is refused since too much waits to be published.
    pub fn outbox_full(&self, full: bool) {
        self.with(|troubles| troubles.outbox_full = full);
    }

    /// New work is refused since the write-ahead log is so many bytes long; `None` if it is not.
    pub fn overlong_log(&self, bytes: Option<u64>) {
        self.with(|troubles| troubles.overlong_log = bytes);
    }

    /// Whether new work is refused since the write-ahead log is too long.
    pub fn is_log_overlong(&self) -> bool {
        let mut is_overlong = false;
        self.with(|troubles| is_overlong = troubles.overlong_log.is_some());
        is_overlong
    }

    /// Reports are taken from the report stream.
    pub fn durable_ok(&self) {
        self.with(|troubles| troubles.durable = None);
    }

    /// The report stream has not replied yet.
    pub fn durable_starting(&self) {
        let text = "starting: waiting for the first reply of the report stream";
        self.with(|troubles| troubles.durable = Some(text.to_owned()));
    }

    /// Durable reports cannot be pulled; `why` is shown by `/ready`.
    pub fn durable_failed(&self, why: &str) {
        let text = format!("durable reports are not taken: {why}");
        self.with(|troubles| troubles.durable = Some(text));
    }

    /// The report stream has heard an acknowledgment.
    pub fn acknowledgments_ok(&self) {
        self.with(|troubles| troubles.acknowledgments = None);
    }

    /// It did not.
    pub fn acknowledgments_failed(&self, why: &str) {
        let text = format!(
            "durable reports are applied, but the report stream does not hear of it and sends them again: {why}"
        );
        self.with(|troubles| troubles.acknowledgments = Some(text));
    }

    /// A report that can never be applied is out of the way.
    pub fn dead_letters_ok(&self) {
        self.with(|troubles| troubles.dead_letters = None);
    }

    /// It cannot be put there, and waits.
    pub fn dead_letters_failed(&self, why: &str) {
        let text = format!("durable reports that can never be applied cannot be set aside: {why}");
        self.with(|troubles| troubles.dead_letters = Some(text));
    }

    /// Somebody else publishes into the event stream: `who` tells where and how much.
    pub fn strangers(&self, who: String) {
        self.with(|troubles| troubles.strangers = Some((Instant::now(), who)));
    }

    /// The service takes on no more work.
    pub fn stopping(&self) {
        self.with(|troubles| troubles.stopping = true);
    }

    /// Whether the service is ready, and if not, why.
    pub fn readiness(&self) -> Readiness {
        let mut connections = self.connections.get().into_iter().flatten();
        // Of one server that is gone each connection would say the same.
        let trouble = connections.find_map(Connection::trouble);
        let mut reasons: Vec<_> = trouble.into_iter().collect();
        self.with(|troubles| {
            let starting = troubles.starting.as_ref();
            reasons.extend(starting.map(|what| format!("starting: waiting for {what}")));
            reasons.extend(troubles.store.clone());
            reasons.extend(troubles.relay.clone());
            reasons.extend(troubles.outbox_full.then(|| {
                "too many changes wait to be published, so that new work is refused (--max-unpublished)"
                    .to_owned()
            }));
            reasons.extend(troubles.overlong_log.map(|bytes| {
                format!(
                    "the write-ahead log has grown to {bytes} bytes under a reader of the database, so that new work is \
                     refused (--max-wal-size): end the shell, backup or snapshot that has been reading it"
                )
            }));
            reasons.extend(troubles.durable.clone());
            reasons.extend(troubles.acknowledgments.clone());
            reasons.extend(troubles.dead_letters.clone());
            reasons.extend(
                troubles
                    .stopping
                    .then(|| "the service is stopping".to_owned()),
            );
        });
        let ready = reasons.is_empty();
        self.with(|troubles| {
            let strangers = troubles.strangers.as_ref();
            let now = strangers.filter(|(seen, _)| seen.elapsed() < STRANGERS_SHOWN);
            reasons.extend(now.map(|(_, who)| who.clone()));
        });
        Readiness { ready, reasons }
    }

    fn with(&self, look: impl FnOnce(&mut Troubles)) {
        // A panic while the lock is held cannot leave these texts half-written.
        let mut troubles = self
            .troubles
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        look(&mut troubles);
    }
}
