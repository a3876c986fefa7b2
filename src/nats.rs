//! Connections to the server, as the service makes them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::{
    Client, ConnectError, ConnectErrorKind, Event, HeaderMap, HeaderName, SubscribeError,
    Subscriber,
};
use backon::ExponentialBuilder;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::watch;

use crate::config::{ConfigError, NatsOptions};

mod living;
mod outage;
mod proof;
mod trouble;

use living::{Current, keep_alive};
pub use living::{Ending, Lasting};
use outage::OutageLog;
pub use outage::note_client_panic;
use proof::Subscriptions;
pub use trouble::Trouble;

/// How many messages a subscription holds that nobody has taken yet. async-nats drops what comes past it, so the work in
/// hand is bounded below, and taking a message never waits for the store.
const SUBSCRIPTION_MESSAGES_MAX: usize = 65_536;

/// How long to wait before the server is tried again at start.
const CONNECT_RETRY: Duration = Duration::from_secs(1);

/// How often a fault that may come with every message is logged at most.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// The longest wait of [`retry_waits`].
pub const RETRY_MAX: Duration = Duration::from_secs(5);

/// How long to wait between tries at what may pass: longer and longer, for ever.
pub fn retry_waits() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(RETRY_MAX)
        .with_jitter()
        .without_max_times()
}

/// A connection that can never be had as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum ConnectFault {
    /// An option cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server is there and refuses.
    #[error(
        "the NATS server at {url} refuses the connection: {source}; check the credentials and TLS options"
    )]
    Refused {
        /// Where.
        url: String,
        /// Why.
        source: ConnectError,
    },
}

/// What has happened on a connection that no call reports.
#[derive(Debug)]
pub struct Happenings {
    /// Messages that were dropped since a subscription was full.
    pub dropped: AtomicU64,
    /// Errors that the server sent, such as a missing permission.
    pub server_errors: AtomicU64,
    /// Those of them that are not about something published.
    pub other_errors: AtomicU64,
    /// Errors that say that a subscription is refused.
    subscription_errors: AtomicU64,
    /// How many of those there were when the connection was last lost.
    subscription_errors_before: AtomicU64,
    /// When each was logged.
    drops: LogPace,
    errors: LogPace,
    outage: Arc<OutageLog>,
}

impl Happenings {
    fn new(connection: &'static str) -> Self {
        Self {
            dropped: AtomicU64::new(0),
            server_errors: AtomicU64::new(0),
            other_errors: AtomicU64::new(0),
            subscription_errors: AtomicU64::new(0),
            subscription_errors_before: AtomicU64::new(0),
            drops: LogPace::default(),
            errors: LogPace::default(),
            outage: Arc::new(OutageLog::new(connection)),
        }
    }

    /// Whether the server refuses a subscription of the connection that there is now.
    fn is_subscription_refused(&self) -> bool {
        let before = self.subscription_errors_before.load(Ordering::SeqCst);
        self.subscription_errors.load(Ordering::SeqCst) > before
    }

    /// What is sent from here on goes over another connection.
    fn lost(&self) {
        let errors = self.subscription_errors.load(Ordering::SeqCst);
        self.subscription_errors_before
            .store(errors, Ordering::SeqCst);
    }
}

/// Keeps what may come with every message from filling the log.
#[derive(Debug, Default)]
pub struct LogPace(Mutex<Option<Instant>>);

impl LogPace {
    /// Whether it is to be logged now: once in five seconds.
    pub fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

/// A connection with what happens on it. Should its client end, another takes its place.
#[derive(Clone, Debug)]
pub struct Connection {
    current: watch::Receiver<Current>,
    /// What no call reports.
    pub happenings: Arc<Happenings>,
    subscriptions: Arc<Subscriptions>,
}

impl Connection {
    /// Takes note of the connection, before anything is published on it.
    pub fn mark(&self) -> Mark {
        Mark {
            connects: self.connects(),
            server_errors: self.happenings.server_errors.load(Ordering::SeqCst),
            other_errors: self.happenings.other_errors.load(Ordering::SeqCst),
        }
    }

    /// The client of the moment. It may end, and then there is another. Shared and not copied, since each answer and each event
    /// asks for it.
    pub fn client(&self) -> Arc<Client> {
        self.current.borrow().client.clone()
    }

    /// How often the server was connected to: what was sent when it was less may be lost.
    pub fn connects(&self) -> u64 {
        self.current.borrow().connects()
    }

    /// The server's `max_payload` in bytes, as it last said.
    pub fn max_payload(&self) -> usize {
        self.current.borrow().client.max_payload()
    }

    /// Which client there is, counted from 1.
    pub fn client_number(&self) -> u64 {
        self.current.borrow().number
    }

    /// Whether the server is connected to.
    pub fn is_connected(&self) -> bool {
        self.current.borrow().state() == State::Connected
    }

    /// Subscribes, and again with each client that takes the place of one that ended.
    ///
    /// # Errors
    /// If the client of the moment has ended.
    pub async fn subscribe(
        &self,
        subject: String,
        queue_group: Option<&'static str>,
    ) -> Result<Lasting, SubscribeError> {
        let subscriptions = self.subscriptions.clone();
        Lasting::begin(self.current.clone(), subscriptions, subject, queue_group).await
    }

    /// Whether the server has reported an error since `mark`.
    pub fn has_errors_since(&self, mark: Mark) -> bool {
        self.mark().server_errors != mark.server_errors
    }

    /// Whether it is another connection than at `mark`: what was sent on it may be lost.
    pub fn has_reconnected_since(&self, mark: Mark) -> bool {
        self.mark().connects != mark.connects
    }
}

/// Connects, and waits for a server that is not there yet: a service is often started before it.
///
/// # Errors
/// [`ConnectFault`] if waiting cannot help.
pub async fn connect(
    options: &NatsOptions,
    name: &'static str,
) -> Result<Connection, ConnectFault> {
    let happenings = Arc::new(Happenings::new(name));
    let door = Door {
        options: options.clone(),
        name,
        happenings: happenings.clone(),
    };
    loop {
        match door.enter().await {
            Ok(client) => {
                let (tell, current) = watch::channel(Current::first(client));
                tokio::spawn(keep_alive(door, tell));
                return Ok(Connection {
                    current,
                    happenings,
                    subscriptions: Arc::default(),
                });
            }
            Err(ConnectFault::Refused { url, source }) if !is_final(&source) => {
                happenings.outage.no_server_yet(&url, &source);
                tokio::time::sleep(CONNECT_RETRY).await;
            }
            Err(fault) => return Err(fault),
        }
    }
}

/// What it takes to connect.
struct Door {
    options: NatsOptions,
    name: &'static str,
    happenings: Arc<Happenings>,
}

impl Door {
    /// Connects once.
    async fn enter(&self) -> Result<Client, ConnectFault> {
        let (name, noted) = (self.name, self.happenings.clone());
        let options = self
            .options
            .connect_options()?
            .name(name)
            .subscription_capacity(SUBSCRIPTION_MESSAGES_MAX)
            .event_callback(move |event| {
                note(event, name, &noted);
                std::future::ready(())
            });
        let connected = options.connect(self.options.addresses()?).await;
        connected.map_err(|source| ConnectFault::Refused {
            url: self.options.shown_urls(),
            source,
        })
    }
}

fn is_final(error: &ConnectError) -> bool {
    matches!(
        error.kind(),
        ConnectErrorKind::Authentication
            | ConnectErrorKind::AuthorizationViolation
            | ConnectErrorKind::ServerParse
            | ConnectErrorKind::Tls
    )
}

fn note(event: Event, connection: &'static str, happenings: &Happenings) {
    match event {
        Event::SlowConsumer(_) => {
            let dropped = happenings.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if happenings.drops.is_due() {
                tracing::warn!(
                    nats.connection = connection,
                    messages.dropped = dropped,
                    "requests came faster than they were taken, and some were dropped; their senders will try again"
                );
            }
        }
        Event::ServerError(error) => {
            let text = error.to_string();
            if !is_of_publishing(&text) {
                happenings.other_errors.fetch_add(1, Ordering::SeqCst);
            }
            if is_of_subscribing(&text) {
                happenings
                    .subscription_errors
                    .fetch_add(1, Ordering::SeqCst);
            }
            happenings.outage.server_said(&text);
            let errors = happenings.server_errors.fetch_add(1, Ordering::SeqCst) + 1;
            if happenings.errors.is_due() {
                tracing::error!(
                    nats.connection = connection,
                    errors.count = errors,
                    error = %text,
                    "the NATS server reports an error"
                );
            }
        }
        Event::Disconnected => {
            happenings.lost();
            happenings.outage.lost();
        }
        Event::ClientError(error) => happenings.outage.failed(&error.to_string()),
        Event::Connected => happenings.outage.connected(),
        // What the service does itself.
        Event::Draining | Event::Closed => {}
        other => {
            tracing::info!(nats.connection = connection, event = %other, "the NATS connection changed")
        }
    }
}

/// Whether the server refused something that was published. Where answers are published, anybody can bring that about by
/// naming a subject for the answer that this connection may not publish to.
fn is_of_publishing(error: &str) -> bool {
    error
        .to_ascii_lowercase()
        .contains("permissions violation for publish")
}

/// Whether the server refused a subscription, so that what is sent there does not come.
fn is_of_subscribing(error: &str) -> bool {
    let error = error.to_ascii_lowercase();
    [
        "permissions violation for subscription",
        "maximum subscriptions",
    ]
    .iter()
    .any(|text| error.contains(text))
}

/// Headers as async-nats takes them. Names that are known when this is compiled need neither a check nor a copy.
pub fn header_map(headers: Vec<(&'static str, String)>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(HeaderName::from_static(name), value);
    }
    map
}

/// Why a round trip proved nothing.
#[derive(Debug, thiserror::Error)]
pub enum RoundTripError {
    /// The server has not sent our own message back yet. It still may: wait on with [`RoundTrip::wait`].
    #[error("no round trip to the NATS server within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The connection was lost and made anew in between: what was sent before may be lost.
    #[error("the connection to the NATS server was lost")]
    Reconnected,
    /// The server refused something in between.
    #[error("the NATS server refused something that was sent; see its error above")]
    ServerError,
    /// The client has ended.
    #[error("the NATS client has ended: {0}")]
    Ended(#[from] async_nats::Error),
}

/// Proves that the server has taken what was published before. A flush of the socket does not: it only says that the
/// operating system has it. A message to ourselves on the same connection does, as a server takes what one connection
/// sends in order, provided that it still is the same connection.
///
/// It does not prove that the server *allowed* it: an error comes before the echo, but by another task. After
/// [`ERROR_GRACE`], [`Connection::has_errors_since`] tells.
#[derive(Debug)]
pub struct RoundTrip {
    connection: Connection,
    /// The one that subscribed.
    client: Arc<Client>,
    inbox: String,
    echoes: Subscriber,
    sent: u64,
}

/// How often the connection is looked at while an echo is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long an error of the server may take from the connection to those who count it.
pub const ERROR_GRACE: Duration = Duration::from_millis(50);

/// The state of a connection at one moment; see [`Connection::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    connects: u64,
    server_errors: u64,
    other_errors: u64,
}

impl RoundTrip {
    /// Prepares round trips on a connection.
    ///
    /// # Errors
    /// If the client has ended.
    pub async fn new(connection: &Connection) -> Result<Self, async_nats::Error> {
        let client = connection.client();
        let inbox = client.new_inbox();
        let echoes = client.subscribe(inbox.clone()).await?;
        Ok(Self {
            connection: connection.clone(),
            client,
            inbox,
            echoes,
            sent: 0,
        })
    }

    /// Sends the message that shall come back; [`wait`](Self::wait) for it.
    ///
    /// # Errors
    /// If the client has ended.
    pub async fn begin(&mut self) -> Result<(), async_nats::Error> {
        self.sent += 1;
        let token = Bytes::from(self.sent.to_string());
        Ok(self.client.publish(self.inbox.clone(), token).await?)
    }

    /// Waits until the server has taken all that was published on this connection between `mark` and the last
    /// [`begin`](Self::begin).
    ///
    /// # Errors
    /// [`RoundTripError`]. After [`TimedOut`](RoundTripError::TimedOut) the message is still under way on the same
    /// connection, so that it may be waited for again; after all else what was sent may be lost.
    pub async fn wait(&mut self, mark: Mark, within: Duration) -> Result<(), RoundTripError> {
        let token = self.sent.to_string();
        let echo = async {
            while let Some(message) = self.echoes.next().await {
                if message.payload == token.as_bytes() {
                    return Ok(());
                }
            }
            Err(RoundTripError::Ended("its subscription ended".into()))
        };
        tokio::pin!(echo);
        let end = tokio::time::Instant::now() + within;
        let connection = &self.connection;
        let came = loop {
            let look = end.min(tokio::time::Instant::now() + LOOK_EVERY);
            match tokio::time::timeout_at(look, &mut echo).await {
                // What was lost with a connection never comes.
                Err(_) if look < end && !connection.has_reconnected_since(mark) => {}
                came => break came,
            }
        };
        let now = connection.mark();
        if now.connects != mark.connects {
            return Err(RoundTripError::Reconnected);
        }
        if now.server_errors != mark.server_errors {
            return Err(RoundTripError::ServerError);
        }
        came.map_err(|_| RoundTripError::TimedOut(within))?
    }
}

/// One round trip, for those who only want to know that the server has heard them, and allows what they subscribed to. That
/// an answer was refused says nothing of that.
///
/// # Errors
/// [`RoundTripError`]; [`TimedOut`](RoundTripError::TimedOut) however it was not had in time.
pub async fn round_trip(connection: &Connection, within: Duration) -> Result<(), RoundTripError> {
    let once = async {
        let mut round_trip = RoundTrip::new(connection).await?;
        let mark = connection.mark();
        round_trip.begin().await?;
        match round_trip.wait(mark, within).await {
            Err(RoundTripError::ServerError)
                if connection.mark().other_errors == mark.other_errors =>
            {
                Ok(())
            }
            other => other,
        }
    };
    tokio::time::timeout(within, once)
        .await
        .map_err(|_| RoundTripError::TimedOut(within))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_said_of_an_answer_is_told_from_what_is_said_of_a_subscription() {
        let answer = "nats: Permissions Violation for Publish to \"other.app\"";
        assert!(is_of_publishing(answer));
        for other in [
            "nats: Permissions Violation for Subscription to \"publish to\"",
            "nats: maximum subscriptions exceeded",
        ] {
            assert!(!is_of_publishing(other), "{other}");
        }
    }
}
