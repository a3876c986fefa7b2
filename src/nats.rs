//! Connections to the server, as the service makes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::{
    Client, ConnectError, ConnectErrorKind, Event, HeaderMap, HeaderName, Subscriber,
};
use backon::ExponentialBuilder;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::Mutex;

use crate::config::{ConfigError, NatsOptions};

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
#[derive(Debug, Default)]
pub struct Happenings {
    /// Messages that were dropped since a subscription was full.
    pub dropped: AtomicU64,
    /// Errors that the server sent, such as a missing permission.
    pub server_errors: AtomicU64,
}

/// A connection with what happens on it.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The client.
    pub client: Client,
    /// What no call reports.
    pub happenings: Arc<Happenings>,
}

impl Connection {
    /// Takes note of the connection, before anything is published on it.
    pub fn mark(&self) -> Mark {
        let connects = &self.client.statistics().connects;
        Mark {
            connects: connects.load(Ordering::SeqCst),
            server_errors: self.happenings.server_errors.load(Ordering::SeqCst),
        }
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
    let happenings = Arc::new(Happenings::default());
    let addresses = options.addresses()?;
    loop {
        let noted = happenings.clone();
        let last_log = Arc::new(Mutex::new(None));
        let connect_options = options
            .connect_options()?
            .name(name)
            .subscription_capacity(SUBSCRIPTION_MESSAGES_MAX)
            .event_callback(move |event| note(event, name, noted.clone(), last_log.clone()));
        match connect_options.connect(&addresses).await {
            Ok(client) => return Ok(Connection { client, happenings }),
            Err(source) if is_final(&source) => {
                return Err(ConnectFault::Refused {
                    url: options.shown_urls(),
                    source,
                });
            }
            Err(error) => {
                tracing::warn!(nats.url = %options.shown_urls(), error = %error, "no NATS server yet; trying again");
                tokio::time::sleep(CONNECT_RETRY).await;
            }
        }
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

async fn note(
    event: Event,
    connection: &'static str,
    happenings: Arc<Happenings>,
    last_log: Arc<Mutex<Option<Instant>>>,
) {
    match event {
        Event::SlowConsumer(_) => {
            let dropped = happenings.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            let mut last = last_log.lock().await;
            if last.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                *last = Some(Instant::now());
                tracing::warn!(
                    nats.connection = connection,
                    messages.dropped = dropped,
                    "requests came faster than they were taken, and some were dropped; their senders will try again"
                );
            }
        }
        Event::ServerError(error) => {
            happenings.server_errors.fetch_add(1, Ordering::SeqCst);
            tracing::error!(nats.connection = connection, error = %error, "the NATS server reports an error");
        }
        Event::Disconnected => tracing::warn!(
            nats.connection = connection,
            "lost the NATS server; reconnecting"
        ),
        Event::Connected => {
            tracing::info!(nats.connection = connection, "connected to the NATS server")
        }
        other => {
            tracing::info!(nats.connection = connection, event = %other, "the NATS connection changed")
        }
    }
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
}

impl RoundTrip {
    /// Prepares round trips on a connection.
    ///
    /// # Errors
    /// If the client has ended.
    pub async fn new(connection: &Connection) -> Result<Self, async_nats::Error> {
        let inbox = connection.client.new_inbox();
        let echoes = connection.client.subscribe(inbox.clone()).await?;
        Ok(Self {
            connection: connection.clone(),
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
        Ok(self
            .connection
            .client
            .publish(self.inbox.clone(), token)
            .await?)
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

/// One round trip, for those who only want to know that the server has heard them.
///
/// # Errors
/// [`RoundTripError`]; [`TimedOut`](RoundTripError::TimedOut) however it was not had in time.
pub async fn round_trip(connection: &Connection, within: Duration) -> Result<(), RoundTripError> {
    let once = async {
        let mut round_trip = RoundTrip::new(connection).await?;
        let mark = connection.mark();
        round_trip.begin().await?;
        round_trip.wait(mark, within).await
    };
    tokio::time::timeout(within, once)
        .await
        .map_err(|_| RoundTripError::TimedOut(within))?
}
