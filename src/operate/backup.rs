//! A backup of a ledger: a database file of its own, checked before it gets its name.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::{OperateError, verify};
use crate::ledger::{Broken, copy_into, open_current};
use crate::task::Timestamp;

/// Why a backup was not made. There is nothing under its name then but what was there before.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The ledger, or the copy of it, cannot be read.
    #[error(transparent)]
    Ledger(#[from] OperateError),
    /// There is a file of that name.
    #[error("{} is there already, and a backup replaces nothing", .0.display())]
    Exists(PathBuf),
    /// The file cannot be written.
    #[error("the backup {} cannot be written: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The copy breaks rules, as the ledger then does too.
    #[error("the copy does not hold {} of the rules of a ledger, the first being: {}", .0.len(), .0[0].rule)]
    Broken(Vec<Broken>),
}

/// A backup that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackedUp {
    /// How many tasks it has.
    pub tasks: u64,
    /// Its size.
    pub bytes: u64,
    /// The identity of the ledger, which the backup has too.
    pub ledger_id: String,
}

/// Copies a ledger into a new file, beside a service that may be running on it. The copy shows one moment. It is written in a
/// folder of its own beside `file`, checked as by [`verify`], put on the disk, and only then given its name. It gets the
/// permissions of the database.
///
/// # Errors
/// [`BackupError`].
pub async fn backup(database: &Path, file: &Path, now: Timestamp) -> Result<BackedUp, BackupError> {
    let failed = |source| BackupError::Io {
        path: file.to_owned(),
        source,
    };
    // A link that leads nowhere counts too.
    if file.symlink_metadata().is_ok() {
        return Err(BackupError::Exists(file.to_owned()));
    }
    let connection = open_current(database).await.map_err(OperateError::from)?;
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // A file that is half written has companions, which go with the folder.
    let room = tempfile::Builder::new()
        .prefix(".tasklatch-backup-")
        .tempdir_in(folder)
        .map_err(failed)?;
    let copy = room.path().join("ledger.db");
    let path = copy.to_str().ok_or_else(|| {
        let why = "SQLite writes only to a path that is UTF-8";
        failed(io::Error::new(io::ErrorKind::InvalidInput, why))
    })?;
    let ledger_id = copy_into(connection, path)
        .await
        .map_err(OperateError::from)?;
    let verified = verify(&copy, None, now).await?;
    if !verified.broken.is_empty() {
        return Err(BackupError::Broken(verified.broken));
    }
    let bytes = put(&copy, database, file, folder).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => BackupError::Exists(file.to_owned()),
        _ => failed(source),
    })?;
    Ok(BackedUp {
        tasks: verified.tasks,
        bytes,
        ledger_id,
    })
}

/// Puts the copy on the disk, gives it its name, and puts that on the disk too. Gives its size in bytes.
fn put(copy: &Path, database: &Path, file: &Path, folder: &Path) -> io::Result<u64> {
    let mode = database.metadata()?.permissions().mode() & 0o777;
    std::fs::set_permissions(copy, Permissions::from_mode(mode))?;
    let written = File::open(copy)?;
    written.sync_all()?;
    let bytes = written.metadata()?.len();
    TempPath::try_from_path(copy)?
        .persist_noclobber(file)
        .map_err(|error| error.error)?;
    File::open(folder)?.sync_all()?;
    Ok(bytes)
}
