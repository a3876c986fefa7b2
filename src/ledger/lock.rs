//! One service a file: a lock beside the database that says who holds it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Held for as long as this value lives, also if the process is killed: the operating system releases it.
#[derive(Debug)]
pub struct HolderLock {
    _file: File,
}

/// Why a lock was not had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody has it.
    #[error("it is in use by {holder}")]
    Held {
        /// Who, as they wrote themselves down.
        holder: String,
    },
    /// The lock file could not be opened or written.
    #[error("its lock file {path}: {source}")]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

impl HolderLock {
    /// Takes the lock of a database and writes down who holds it: `purpose`, process and host.
    ///
    /// # Errors
    /// [`LockError::Held`](LockError) with what the holder wrote.
    pub fn take(database: &Path, purpose: &str) -> Result<Self, LockError> {
        let path = lock_path(database);
        let io = |source| LockError::Io {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // A holder that was killed while it wrote leaves no text; that it holds the lock is known all the same.
                let _ = file.take(HOLDER_TEXT_MAX).read_to_string(&mut holder);
                let holder = holder.trim();
                let holder = if holder.is_empty() {
                    "another process"
                } else {
                    holder
                };
                return Err(LockError::Held {
                    holder: holder.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let holder = format!(
            "{purpose} with process ID {} on {}\n",
            std::process::id(),
            host_name()
        );
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(holder.as_bytes()))
            .map_err(io)?;
        Ok(Self { _file: file })
    }
}

const HOLDER_TEXT_MAX: u64 = 512;

fn lock_path(database: &Path) -> PathBuf {
    let mut name = OsString::from(database);
    name.push(".lock");
    name.into()
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_else(|_| "this host".to_owned())
}
