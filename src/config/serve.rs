//! The options of the service, and what it does if nothing else is said.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use super::ConfigError;

/// Where /live and /ready are served if nothing else is said.
pub const DEFAULT_HTTP: &str = "127.0.0.1:7420";

/// How many requests a service takes on at once if nothing else is said.
pub const DEFAULT_MAX_IN_HAND: usize = 8192;

/// The most requests that a service can be told to take on at once. async-nats buffers as many messages for a
/// subscription, and drops what is past that.
pub const MAX_IN_HAND_LIMIT: usize = 65_536;

/// How many changes may wait to be published if nothing else is said. A change takes some 100 bytes of the outbox beside
/// its task, which is there anyway.
pub const DEFAULT_MAX_UNPUBLISHED: i64 = 5_000_000;

/// How long the write-ahead log may be if nothing else is said, in bytes: 4 GiB.
pub const DEFAULT_MAX_WAL_SIZE: u64 = 4 << 30;

/// The least limit of the write-ahead log, in bytes: a log that no reader holds up stays below it, but for the batch that is
/// being written.
const MAX_WAL_SIZE_MIN: u64 = 32 << 20;

/// The shortest time that nats-server takes for the duplicate window or the age of a stream.
pub const DUPLICATE_WINDOW_MIN: Duration = Duration::from_millis(100);

/// Where to serve /live and /ready: an address, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpAddress(pub Option<SocketAddr>);

impl FromStr for HttpAddress {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self(None));
        }
        let local = |port: &str| {
            port.parse()
                .map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        };
        text.parse()
            .or_else(|_| local(text.strip_prefix("localhost:").unwrap_or(text)))
            .map(|address| Self(Some(address)))
            .map_err(|_| {
                ConfigError(format!(
                    "give an address and a port, such as {DEFAULT_HTTP}, or off"
                ))
            })
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("off"),
        }
    }
}

/// The address of a collector: `http://HOST:PORT`, to which `/v1/traces` is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint(String);

impl OtlpEndpoint {
    /// Where spans are sent.
    pub fn traces_url(&self) -> String {
        format!("{}/v1/traces", self.0)
    }
}

impl FromStr for OtlpEndpoint {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim_end_matches('/');
        match text.strip_prefix("http://") {
            // Whoever has a login for it should not have it go over plain HTTP, nor show in listings.
            Some(host) if !host.is_empty() && !host.contains('@') => Ok(Self(text.to_owned())),
            _ => Err(ConfigError(
                "give the address of a collector near by without a login, such as http://127.0.0.1:4318"
                    .to_owned(),
            )),
        }
    }
}

/// How events are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EventsMode {
    /// Plain NATS: subscribers that are there get them.
    Core,
    /// Into the event stream, each stored once.
    #[default]
    Jetstream,
}

/// When the event stream lets go of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RetentionMode {
    /// When a limit of the stream is reached.
    Limits,
    /// When every consumer of the stream has it.
    Interest,
}

/// What becomes of events on their way and afterwards.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventsOptions {
    /// When the event stream lets go of an event, if the service makes it
    #[arg(long, env = "TASKLATCH_EVENTS_RETENTION", value_enum, default_value_t = RetentionMode::Limits, value_name = "POLICY")]
    pub events_retention: RetentionMode,

    /// Copies of the event stream in a cluster, if the service makes it [1 to 5]
    #[arg(
        long,
        env = "TASKLATCH_EVENTS_REPLICAS",
        default_value_t = 1,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=5),
        value_name = "COPIES"
    )]
    pub events_replicas: usize,

    /// How long the event stream remembers the IDs of events, if the service makes it [100ms or longer]
    #[arg(
        long,
        env = "TASKLATCH_EVENTS_DUPLICATE_WINDOW",
        default_value = "2m",
        value_parser = parse_window,
        value_name = "DURATION"
    )]
    pub events_duplicate_window: Duration,

    /// How long the event stream keeps an event, if the service makes it [default: for ever]
    #[arg(long, env = "TASKLATCH_EVENTS_MAX_AGE", value_parser = parse_window, value_name = "DURATION")]
    pub events_max_age: Option<Duration>,

    /// How long published changes stay in the outbox, so that `events republish` can send their events again
    #[arg(long, env = "TASKLATCH_KEEP_EVENTS", default_value = "7d", value_parser = parse_duration, value_name = "DURATION")]
    pub keep_events: Duration,

    /// Changes whose events wait to be published; past so many, new work is answered `overloaded`
    #[arg(
        long,
        env = "TASKLATCH_MAX_UNPUBLISHED",
        default_value_t = DEFAULT_MAX_UNPUBLISHED,
        value_parser = clap::value_parser!(i64).range(1..),
        value_name = "CHANGES"
    )]
    pub max_unpublished: i64,
}

impl Default for EventsOptions {
    fn default() -> Self {
        Self {
            events_retention: RetentionMode::Limits,
            events_replicas: 1,
            events_duplicate_window: Duration::from_secs(120),
            events_max_age: None,
            keep_events: Duration::from_secs(7 * 24 * 60 * 60),
            max_unpublished: DEFAULT_MAX_UNPUBLISHED,
        }
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write a duration such as 10m, 24h or 7d"))
}

/// A time that a stream keeps something: no server takes less than [`DUPLICATE_WINDOW_MIN`].
fn parse_window(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        window if window < DUPLICATE_WINDOW_MIN => Err("it must be 100ms or longer".to_owned()),
        window => Ok(window),
    }
}

/// A size in bytes, such as 64MiB. Other units would have to be told apart from these.
fn parse_wal_size(text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("", 0)];
    let in_bytes = units.iter().find_map(|(unit, shift)| {
        let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        number.checked_mul(1 << shift)
    });
    match in_bytes {
        None => Err("write a size such as 512MiB or 4GiB, or a number of bytes".to_owned()),
        Some(bytes) if bytes < MAX_WAL_SIZE_MIN => Err("it must be 32MiB or more".to_owned()),
        Some(bytes) => Ok(bytes),
    }
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged, to standard error.
#[derive(Args, Clone, Debug)]
pub struct LogOptions {
    /// How a log line looks
    #[arg(long, env = "TASKLATCH_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log_format: LogFormat,

    /// What to log: a level, or a filter such as info,tasklatch=debug [default: info; of dev: warn]
    #[arg(long, env = "TASKLATCH_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

/// The options of the service.
#[derive(Args, Clone, Debug)]
pub struct ServeOptions {
    /// Database file; made if it is not there
    #[arg(
        long,
        env = "TASKLATCH_DATABASE",
        default_value = "tasklatch.db",
        value_name = "FILE"
    )]
    pub database: PathBuf,

    /// How events are published: into the stream TASKLATCH_EVENTS, each stored once, or only to the subscribers that are there
    #[arg(long, env = "TASKLATCH_EVENTS", value_enum, default_value_t = EventsMode::default(), value_name = "MODE")]
    pub events: EventsMode,

    /// What becomes of events.
    #[command(flatten)]
    pub outbox: EventsOptions,

    /// Take reports from the stream TASKLATCH_REPORTS too
    #[arg(long, env = "TASKLATCH_DURABLE_REPORTS", value_parser = clap::builder::FalseyValueParser::new())]
    pub durable_reports: bool,

    /// Where to serve /live, /ready and /metrics, or off
    #[arg(long, env = "TASKLATCH_HTTP", default_value = DEFAULT_HTTP, value_name = "ADDRESS|off")]
    pub http: HttpAddress,

    /// Collector of OpenTelemetry that the spans of recorded traces are sent to by OTLP over HTTP [default: none]
    #[arg(
        long,
        env = "TASKLATCH_OTLP_ENDPOINT",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub otlp_endpoint: Option<OtlpEndpoint>,

    /// Serve although a service with another ledger answers under the same prefix: each then sees a part of the requests
    #[arg(
        long,
        env = "TASKLATCH_ALLOW_OTHER_LEDGERS",
        value_parser = clap::builder::FalseyValueParser::new()
    )]
    pub allow_other_ledgers: bool,

    /// Requests taken on at once; what is past that is answered `overloaded` [1 to 65536]
    #[arg(
        long,
        env = "TASKLATCH_MAX_IN_HAND",
        default_value_t = DEFAULT_MAX_IN_HAND,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_IN_HAND_LIMIT as u64),
        value_name = "REQUESTS"
    )]
    pub max_in_hand: usize,

    /// Length of the write-ahead log, which only a reader that stays makes it reach; past it, new work is answered
    /// `overloaded` [32MiB or more]
    #[arg(
        long,
        alias = "max-log-size",
        env = "TASKLATCH_MAX_WAL_SIZE",
        default_value = "4GiB",
        value_parser = parse_wal_size,
        value_name = "SIZE"
    )]
    pub max_wal_size: u64,

    /// What is logged.
    #[command(flatten)]
    pub log: LogOptions,
}
