//! The store. All SQL is here, and all of it in sets: one transaction for all that waits, few statements in it.
//!
//! [`open`] gives two handles. The [`Writer`] is the only road by which a ledger changes; one task owns it. The
//! [`Ledger`] reads, from as many tasks as like to. The model itself is told in `migrations/`.

mod backup;
mod desk;
mod fault;
mod fold;
mod fresh;
mod lock;
mod open;
mod read;
mod recent;
mod rows;
mod verify;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use sqlx::{SqliteConnection, SqlitePool};

pub use backup::copy_into;
pub use fault::{Fault, FaultKind};
pub use fold::Folder;
pub use lock::{HolderLock, LockError};
pub use open::{OpenError, open, open_beside, open_current, open_read_only, open_to_prune};
pub use read::{Found, Lag, OutboxReader, Outgoing, Page, Parked, Piece, SnapshotReader, unpark};
pub use verify::{Broken, find_broken};
pub use write::{Pruner, SnapshotWriter, Writer, count_prunable};

use crate::report::{Report, Selector};
use crate::task::Timestamp;
use crate::wire::{Change, EventKind, HEADERS_MAX_BYTES, Outcome, Refusal, Trace};
use fresh::Fresh;
use recent::Recent;

/// How many commands one transaction takes at most. Measured best by prototypes at about this size; past it a batch only
/// makes those wait who came first.
pub const BATCH_COMMANDS_MAX: usize = 1024;

/// How many tasks one command of the sweep expires at most, so that a sweep never holds up reports for long.
pub const SWEEP_TASKS_MAX: usize = 256;

/// What the writer can be asked to do.
#[derive(Clone, Debug)]
pub enum Command {
    /// A request that may change a task.
    Change(Change),
    /// The same for a report that belongs to a trace, which its events continue.
    Traced(Change, Box<Trace>),
    /// Read a task, after expiring it if its deadline has come.
    Get(Selector),
    /// Expire tasks whose deadline has come, [`SWEEP_TASKS_MAX`] at most.
    Sweep,
    /// All revisions up to this one have been published, but for events that were parked.
    Published(i64),
    /// An event can never be published as it is.
    Park(ParkedEvent),
    /// Published revisions that were made before a time leave the outbox.
    Prune {
        /// The first that is looked at.
        first: i64,
        /// The last.
        last: i64,
        /// The time.
        before: Timestamp,
    },
    /// Write something, to see whether the store can be written.
    Probe,
    /// Begin the write-ahead log anew, which has grown long.
    Fold,
    /// See whether the database is still under its name, which costs no statement.
    Look,
}

/// What became of a command. Durable on disk by the time anybody sees it.
#[derive(Clone, Debug)]
pub enum Applied {
    /// The request did what it should: the task's JSON, and for a report whether it was accepted or replayed.
    Task {
        /// The current task, as the protocol writes it.
        body: Bytes,
        /// For a report.
        outcome: Option<Outcome>,
    },
    /// The request was refused and changed nothing.
    Refused(Refusal),
    /// A sweep was made.
    Swept {
        /// How many tasks it expired.
        expired: usize,
        /// Whether more may be due.
        more: bool,
    },
    /// Noted.
    Published,
    /// Parked.
    Parked,
    /// Those that may go are gone.
    Pruned,
    /// The store can be written.
    Probed,
    /// The log was folded, as far as no reader stands in the way.
    Folded,
    /// The database is where it was.
    Looked,
}

/// An event that can never be published as it is: too large, for one. It stays in the outbox until somebody sends it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedEvent {
    /// The place of its revision in the outbox.
    pub seq: i64,
    /// Which event of the revision.
    pub kind: EventKind,
    /// Why, for people.
    pub reason: String,
}

/// The circumstances of a batch, which enter as arguments.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// The time.
    pub now: Timestamp,
    /// The server's `max_payload` in bytes: no answer or event larger than this may come to be.
    pub max_payload: usize,
}

impl Circumstances {
    /// Whether an answer or event with this body fits; if not, the limit and what it would have, in bytes.
    fn fit(&self, body: &[u8]) -> Result<(), (usize, usize)> {
        let limit = self.max_payload;
        let actual = body.len() + HEADERS_MAX_BYTES;
        match actual <= limit {
            true => Ok(()),
            false => Err((limit, actual)),
        }
    }
}

/// The reading side of an open ledger.
#[derive(Clone, Debug)]
pub struct Ledger {
    ledger_id: Arc<str>,
    readers: SqlitePool,
    recent: Recent,
    fresh: Fresh,
    is_pruned: bool,
}

impl Ledger {
    /// The identity of this ledger: part of the identity of its events.
    pub fn ledger_id(&self) -> &str {
        &self.ledger_id
    }

    /// What a report gets that is for a task whose result is remembered: a replay or a conflict, without going to the
    /// store. `None` says nothing: ask the writer.
    pub fn recall(
        &self,
        selector: &Selector,
        report: &Report,
        circumstances: Circumstances,
    ) -> Option<Applied> {
        self.recent.answer(selector, report, circumstances)
    }

    /// Closes the reading connections.
    pub async fn close(&self) {
        self.readers.close().await;
    }
}

async fn ledger_id_of(connection: &mut SqliteConnection) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("SELECT ledger_id FROM ledger")
        .fetch_one(connection)
        .await
}
