//! Why a snapshot could not be saved, checked or restored.

use std::io;
use std::path::PathBuf;

use super::damage::Damage;
use crate::ledger::{Fault, OpenError};

/// Why a snapshot could not be saved, checked or restored. Whatever it is, no snapshot file and no ledger is left half
/// written.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The snapshot file is not good.
    #[error("{0}")]
    BadFile(Damage),
    /// The ledger to restore into has tasks.
    #[error("the database {} has tasks already, and a snapshot is only restored into a new or empty one", .0.display())]
    NotEmpty(PathBuf),
    /// The snapshot file was changed between its check and its loading.
    #[error("{0} was changed by another process while it was being restored")]
    ChangedMeanwhile(String),
    /// The ledger cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The ledger cannot be read or written.
    #[error("the database failed: {0}")]
    Ledger(#[from] Fault),
    /// The file that was named cannot be read, or must not be written.
    #[error("cannot {action} {}: {why}", path.display())]
    WrongFile {
        /// What was to be done with it.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why that cannot be.
        why: String,
    },
    /// Reading or writing a file failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done, and with what.
        action: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// Whoever reads the snapshot as it is saved does not take it.
    #[error("cannot write the snapshot: {0}")]
    Output(io::Error),
    /// The caller ended the work.
    #[error("interrupted")]
    Interrupted,
}

impl From<Damage> for SnapshotError {
    fn from(damage: Damage) -> Self {
        Self::BadFile(damage)
    }
}

/// Says what was being done when a file could not be read or written.
pub(super) trait Doing<T> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, SnapshotError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, SnapshotError> {
        self.map_err(|source| SnapshotError::Io {
            action: action(),
            source,
        })
    }
}
