//! Faults of the store, by what a caller can do about them.

use std::sync::Arc;

/// What a caller can do about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Another process holds the write lock, or the disk is full: it may pass.
    Passing,
    /// A constraint or trigger refused the write: a fault of ours in one of the commands, which must not harm the others.
    Refused,
    /// The disk or the file is damaged (I/O error, corruption, not a database): stop writing to it.
    Damaged,
    /// Anything else.
    Other,
}

/// A fault of the store. Its detail is for the log, never for a client.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct Fault {
    what: &'static str,
    /// Shared, as one fault may strike a whole batch.
    #[source]
    source: Arc<sqlx::Error>,
}

/// Primary result codes of SQLite, <https://www.sqlite.org/rescode.html>.
mod primary {
    pub const BUSY: i32 = 5;
    pub const LOCKED: i32 = 6;
    pub const IOERR: i32 = 10;
    pub const CORRUPT: i32 = 11;
    pub const FULL: i32 = 13;
    pub const CONSTRAINT: i32 = 19;
    pub const NOTADB: i32 = 26;
}

impl Fault {
    pub(super) fn new(what: &'static str, source: sqlx::Error) -> Self {
        Self {
            what,
            source: Arc::new(source),
        }
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> FaultKind {
        match primary_code(&self.source) {
            Some(primary::BUSY | primary::LOCKED | primary::FULL) => FaultKind::Passing,
            Some(primary::CONSTRAINT) => FaultKind::Refused,
            Some(primary::IOERR | primary::CORRUPT | primary::NOTADB) => FaultKind::Damaged,
            _ => FaultKind::Other,
        }
    }
}

/// The primary result code of an error of SQLite. sqlx gives the extended code as text.
fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?;
    code.parse::<i32>().ok().map(|extended| extended & 0xff)
}

pub(super) fn is_not_a_database(error: &sqlx::Error) -> bool {
    primary_code(error) == Some(primary::NOTADB)
}

/// Says what was being done when the store failed.
pub(super) trait During<T> {
    fn during(self, what: &'static str) -> Result<T, Fault>;
}

impl<T> During<T> for Result<T, sqlx::Error> {
    fn during(self, what: &'static str) -> Result<T, Fault> {
        self.map_err(|source| Fault::new(what, source))
    }
}
