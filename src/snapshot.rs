//! Snapshots: all tasks of a ledger as a file of JSON Lines, and back (docs/protocol.md, "Snapshot files").
//!
//! [`save`] and [`save_to`] take a consistent picture beside a service that goes on. [`verify`] checks a whole file:
//! that every line is exactly what a service would write, that it can be loaded, and that nothing is missing.
//! [`restore`] does the same check, and then loads the file into an empty ledger in one transaction.
//!
//! Everything streams: memory grows with the largest task, not with their number.

mod check;
mod damage;
mod error;
mod events;
mod file;
mod format;
mod lines;
mod restore;
mod rules;
mod save;

use std::ops::ControlFlow;

pub use damage::{Damage, DamageKind, Place};
pub use error::SnapshotError;
pub use file::SnapshotFile;
pub use format::{FORMAT_VERSION, LINE_BYTES_MAX};
pub use restore::{Pending, Restored, restore, verify};
pub use rules::check as check_task;
pub use save::{save, save_to};

use crate::task::Timestamp;

/// What a snapshot file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How many tasks.
    pub tasks: u64,
    /// How many events had not been published when it was saved.
    pub unpublished_events: u64,
    /// The checksum in its last line, in hexadecimal.
    pub sha256: String,
    /// When it was saved.
    pub created_at: Timestamp,
    /// The ledger that it was saved from.
    pub ledger_id: String,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Tasks are written to a file; counted in tasks.
    Saving,
    /// A file is checked; counted in bytes.
    Checking,
    /// A file is loaded; counted in bytes.
    Loading,
    /// A file is copied to where it was wanted; counted in bytes.
    Copying,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// So much of it is done.
    pub done: u64,
    /// So much there is in all.
    pub total: u64,
}

/// Is told of progress again and again, and may end the work, which then fails with [`SnapshotError::Interrupted`].
pub type Watch<'w> = dyn FnMut(Progress) -> ControlFlow<()> + Send + 'w;

fn tell(watch: &mut Watch<'_>, phase: Phase, done: u64, total: u64) -> Result<(), SnapshotError> {
    match watch(Progress { phase, done, total }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(SnapshotError::Interrupted),
    }
}

#[cfg(test)]
mod tests;
