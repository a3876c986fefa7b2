//! One service a file: a lock beside the database that says who holds it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Held for as long as this value lives, also if the process is killed: the operating system releases it.
#[derive(Debug)]
pub struct HolderLock {
    path: PathBuf,
    file: File,
}

/// How the text in a lock file begins, so that somebody else's file of that name is not overwritten.
const MARK: &str = "tasklatch lock: ";

/// Why a lock was not had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody has it.
    #[error("it is in use by {holder}; stop that process first, or use another --database")]
    Held {
        /// Who, as they wrote themselves down.
        holder: String,
    },
    /// A file of that name is there, and is not ours.
    #[error(
        "{path} is in the way, as it is no lock file of tasklatch; move it, or use another --database"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The lock file could not be opened or written.
    #[error("its lock file {path}: {source}; check its permissions, and those of its folder")]
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
        let taken = file.try_lock();
        let mut text = String::new();
        // What is not text is not ours, and neither is what does not begin as ours does.
        let read = (&mut file).take(HOLDER_TEXT_MAX).read_to_string(&mut text);
        let holder = text.strip_prefix(MARK).map(str::trim);
        match taken {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                // A holder that was killed while it wrote leaves no text; that it holds the lock is known all the same.
                let holder = holder
                    .filter(|holder| !holder.is_empty())
                    .unwrap_or("another process");
                return Err(LockError::Held {
                    holder: holder.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        if read.is_err() || (holder.is_none() && !MARK.starts_with(&text)) {
            return Err(LockError::Foreign { path });
        }
        let host = host_name();
        let holder = format!(
            "{MARK}{purpose} with process ID {} on {host}\n",
            std::process::id()
        );
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(holder.as_bytes()))
            .map_err(io)?;
        Ok(Self { path, file })
    }

    /// Whether the lock file is still the one that was locked: another under its name would be had by somebody else.
    pub fn is_in_place(&self) -> bool {
        same_file(&self.file, &self.path)
    }
}

/// Whether a path still leads to an open file.
pub(super) fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.metadata()) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
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
