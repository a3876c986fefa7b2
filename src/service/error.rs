//! Why a service could not start, or ended.

use std::net::SocketAddr;

use crate::consumer::discovery::Other;
use crate::ledger::{Fault, OpenError};
use crate::nats::{ConnectFault, RoundTripError};
use crate::telemetry::TelemetryError;

/// Why a service could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The ledger.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The server.
    #[error(transparent)]
    Connect(#[from] ConnectFault),
    /// The address of `/live` and `/ready`.
    #[error(
        "cannot serve HTTP at {address}: {source}; give another address with --http, or --http off"
    )]
    Http {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Another ledger is served here.
    #[error(
        "another tasklatch service (instance {}, ledger {}) answers requests on {prefix}.> already, and each would get half of \
         them; stop it, use another --prefix, or pass --allow-other-ledgers if that is what you want",
        other.instance_id, other.ledger_id
    )]
    OtherLedger {
        /// The prefix.
        prefix: String,
        /// Who.
        other: Other,
    },
    /// The events cannot be stored.
    #[error(
        "the NATS server at {url} has no JetStream, which stores each event once: turn JetStream on (`nats-server -js`, or a \
         `jetstream` block in its configuration), or start with --events core, which sends events only to the subscribers that \
         are there, so that who is away misses them, and after a crash some come twice"
    )]
    NoJetstream {
        /// The server.
        url: String,
    },
    /// The client library has ended.
    #[error("the NATS client has ended: {0}; start the service again")]
    ClientEnded(async_nats::Error),
    /// The server did not confirm that requests come in.
    #[error("the NATS server does not answer: {0}")]
    NoRoundTrip(#[from] RoundTripError),
    /// The file or the disk is damaged.
    #[error(
        "the database is damaged or its disk fails, so nothing more is written to it: {0}; check the disk, and restore a snapshot if the file is broken"
    )]
    Damaged(Fault),
    /// Spans cannot be sent.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The operating system gives no thread.
    #[error("cannot start a thread: {0}; check the limits on processes and threads")]
    NoThread(std::io::Error),
    /// There is no second connection to the file.
    #[error("{0}; start the service again")]
    Fold(Fault),
    /// The outbox cannot be read.
    #[error("the database cannot be read: {0}; check the disk and start the service again")]
    Store(Fault),
    /// The store failed while the service was stopping.
    #[error("the database could not be closed: {0}; what was accepted is safe")]
    Close(Fault),
    /// A part of the service broke off.
    #[error(
        "the {0} broke off, which is a fault of tasklatch; start the service again and report the log above"
    )]
    BrokeOff(&'static str),
}

impl ServiceError {
    /// The exit code of a program that ends for this.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Open(_)
            | Self::Http { .. }
            | Self::OtherLedger { .. }
            | Self::NoJetstream { .. }
            | Self::ClientEnded(_)
            | Self::Damaged(_)
            | Self::Close(_)
            | Self::Store(_)
            | Self::Fold(_)
            | Self::NoThread(_)
            | Self::BrokeOff(_)
            | Self::Connect(ConnectFault::Refused { .. }) => 1,
            Self::Connect(ConnectFault::Config(_)) | Self::Telemetry(_) => 2,
            Self::NoRoundTrip(_) => 75,
        }
    }
}
