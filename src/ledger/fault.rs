//! Faults of the store, by what a caller can do about them.

use std::sync::Arc;

/// What a caller can do about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Another process holds the write lock, or the disk is full: it may pass.
    Passing,
    /// A constraint or trigger refused the write, or a row cannot be decoded: one of the commands is to blame, and must not
    /// harm the others.
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
    /// Where the source does not tell.
    kind: Option<FaultKind>,
}

/// Primary result codes of SQLite, <https://www.sqlite.org/rescode.html>.
mod primary {
    pub const BUSY: i32 = 5;
    pub const LOCKED: i32 = 6;
    pub const READONLY: i32 = 8;
    pub const IOERR: i32 = 10;
    pub const CORRUPT: i32 = 11;
    pub const FULL: i32 = 13;
    pub const CONSTRAINT: i32 = 19;
    pub const NOTADB: i32 = 26;
}

impl Fault {
    /// The file that was opened is not the one that its name leads to any more: what is written is lost to the next start.
    pub(super) fn file_is_gone() -> Self {
        let source = sqlx::Error::Io(std::io::ErrorKind::NotFound.into());
        Self {
            kind: Some(FaultKind::Damaged),
            ..Self::new(
                "the database or its lock file was removed or replaced",
                source,
            )
        }
    }

    pub(super) fn new(what: &'static str, source: sqlx::Error) -> Self {
        Self {
            what,
            source: Arc::new(source),
            kind: None,
        }
    }

    /// Whether another process has the database locked, which shows where a transaction would begin: none has.
    pub(super) fn is_locked_out(&self) -> bool {
        matches!(
            primary_code(&self.source),
            Some(primary::BUSY | primary::LOCKED)
        )
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> FaultKind {
        if let Some(kind) = self.kind {
            return kind;
        }
        match primary_code(&self.source) {
            Some(primary::BUSY | primary::LOCKED | primary::FULL) => FaultKind::Passing,
            Some(primary::CONSTRAINT) => FaultKind::Refused,
            Some(primary::IOERR | primary::CORRUPT | primary::NOTADB) => FaultKind::Damaged,
            None if matches!(*self.source, sqlx::Error::ColumnDecode { .. }) => FaultKind::Refused,
            _ => FaultKind::Other,
        }
    }
}

/// The primary result code of an error of SQLite. sqlx gives the extended code as text.
fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?;
    code.parse::<i32>().ok().map(|extended| extended & 0xff)
}

/// Whether a reading connection found a transaction that was cut off, and that it cannot roll back.
pub(super) fn is_cut_off(error: &sqlx::Error) -> bool {
    primary_code(error) == Some(primary::READONLY)
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
