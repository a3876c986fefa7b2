//! Checking a file, and loading it.

use std::path::Path;

use super::check::{Purpose, read_into};
use super::error::{Doing, SnapshotError};
use super::file::{SnapshotFile, folder_of};
use super::{Summary, Watch};
use crate::ledger::{self, Writer};

/// What a second process is told of a restore.
const PURPOSE: &str = "tasklatch snapshot restore";

/// What becomes of events that had not been published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// They never will be.
    Drop,
    /// They are when a service runs on the restored ledger.
    Publish,
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// What the file held.
    pub snapshot: Summary,
    /// The new identity of the ledger.
    pub ledger_id: String,
}

/// Checks a whole file, by loading it into a ledger in a temporary folder that is thrown away.
///
/// # Errors
/// [`SnapshotError::BadFile`] says what is wrong with it, and where.
pub async fn verify(
    file: &mut SnapshotFile,
    watch: &mut Watch<'_>,
) -> Result<Summary, SnapshotError> {
    let making = || {
        format!(
            "make a folder in {} for the check (TMPDIR names another place)",
            std::env::temp_dir().display()
        )
    };
    let folder = tempfile::Builder::new()
        .prefix("tasklatch-check-")
        .tempdir()
        .doing(making)?;
    let mut scratch = open(&folder.path().join("scratch.db")).await?;
    let checked = check(&mut scratch, file, watch).await;
    close(scratch).await;
    checked
}

async fn check(
    scratch: &mut Writer,
    file: &mut SnapshotFile,
    watch: &mut Watch<'_>,
) -> Result<Summary, SnapshotError> {
    scratch.make_disposable().await?;
    let mut into = scratch.restore().await?;
    read_into(&mut into, Purpose::Check, file, watch).await
}

/// Checks a whole file and loads it into a ledger that is new or empty: all of it, or nothing at all. A database is
/// only made once the file is known to be good.
///
/// # Errors
/// [`SnapshotError`]; the ledger is then empty, or not there, as before.
pub async fn restore(
    file: &mut SnapshotFile,
    database: &Path,
    pending: Pending,
    watch: &mut Watch<'_>,
) -> Result<Restored, SnapshotError> {
    // What is there is held from here on, so that no service starts on it during the check. What cannot be made fails
    // before it.
    let is_there = database.metadata().is_ok_and(|metadata| metadata.len() > 0);
    let there = match is_there || !folder_of(database).is_dir() {
        true => Some(open_empty(database).await?),
        false => None,
    };
    let checked = verify(file, watch).await;
    let (checked, mut writer) = match (checked, there) {
        (Ok(checked), Some(writer)) => (checked, writer),
        (Ok(checked), None) => (checked, open_empty(database).await?),
        (Err(error), Some(writer)) => {
            close(writer).await;
            return Err(error);
        }
        (Err(error), None) => return Err(error),
    };
    let restored = fill(&mut writer, file, &checked, pending, watch).await;
    close(writer).await;
    Ok(Restored {
        ledger_id: restored?,
        snapshot: checked,
    })
}

/// Loads a file that has been checked. Its checksum is compared again, as it may have been changed in between.
async fn fill(
    writer: &mut Writer,
    file: &mut SnapshotFile,
    checked: &Summary,
    pending: Pending,
    watch: &mut Watch<'_>,
) -> Result<String, SnapshotError> {
    let mut into = writer.restore().await?;
    match read_into(&mut into, Purpose::Load(pending), file, watch).await {
        Ok(loaded) if loaded == *checked => {}
        Ok(_) | Err(SnapshotError::BadFile(_)) => {
            return Err(SnapshotError::ChangedMeanwhile(file.name().to_owned()));
        }
        Err(error) => return Err(error),
    }
    let ledger_id = into.ledger_id().to_owned();
    into.commit().await?;
    Ok(ledger_id)
}

async fn open_empty(database: &Path) -> Result<Writer, SnapshotError> {
    let mut writer = open(database).await?;
    let empty = writer.is_empty().await;
    match empty {
        Ok(true) => Ok(writer),
        Ok(false) => {
            close(writer).await;
            Err(SnapshotError::NotEmpty(database.to_owned()))
        }
        Err(fault) => Err(fault.into()),
    }
}

async fn open(database: &Path) -> Result<Writer, SnapshotError> {
    let (ledger, writer) = ledger::open(database, PURPOSE).await?;
    ledger.close().await;
    Ok(writer)
}

async fn close(writer: Writer) {
    // What was committed is durable, and what was not is gone, whether or not the files are tidied up now.
    let _ = writer.close().await;
}
