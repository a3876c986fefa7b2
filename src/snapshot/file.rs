//! A snapshot file that is read, from its beginning and more than once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use super::error::{Doing, SnapshotError};
use super::format::may_begin_with;

const BUFFER_BYTES: usize = 64 * 1024;

/// A snapshot file that is read, from its beginning and more than once. What cannot be read twice, such as a pipe, is
/// kept in a file without a name, which is gone with the process.
#[derive(Debug)]
pub struct SnapshotFile {
    name: String,
    file: File,
    bytes: u64,
}

impl SnapshotFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`SnapshotError::WrongFile`] if it cannot be read.
    pub fn open(path: &Path) -> Result<Self, SnapshotError> {
        let wrong = |why: String| SnapshotError::WrongFile {
            action: "read",
            path: path.to_owned(),
            why,
        };
        let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let metadata = file.metadata().map_err(|error| wrong(error.to_string()))?;
        let name = path.display().to_string();
        if metadata.is_dir() {
            return Err(wrong("it is a folder".to_owned()));
        }
        if !metadata.is_file() {
            return Self::keep(file, &name, None);
        }
        Ok(Self {
            name,
            file,
            bytes: metadata.len(),
        })
    }

    /// Keeps what can be read once. `name` is what messages call it; `folder` is where there is room for it, in place
    /// of the system's folder for temporary files.
    ///
    /// # Errors
    /// If it cannot be read, or not be kept.
    pub fn keep(from: impl Read, name: &str, folder: Option<&Path>) -> Result<Self, SnapshotError> {
        let mut file = unnamed_file(folder).doing(|| "make a temporary file".to_owned())?;
        let bytes =
            copy_what_may_be_good(from, &mut file).doing(|| format!("keep a copy of {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            file,
            bytes,
        })
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn parts(&mut self) -> (&str, &mut File) {
        (&self.name, &mut self.file)
    }
}

/// The folder that a file is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// A file without a name, in `folder` if that can be written.
pub(super) fn unnamed_file(folder: Option<&Path>) -> io::Result<File> {
    folder
        .map(tempfile::tempfile_in)
        .and_then(Result::ok)
        .map_or_else(tempfile::tempfile, Ok)
}

/// Copies all of it, unless its beginning shows that it is no snapshot: something endless must not fill the disk.
fn copy_what_may_be_good(mut from: impl Read, to: &mut File) -> io::Result<u64> {
    let mut first = Vec::with_capacity(BUFFER_BYTES);
    from.by_ref()
        .take(BUFFER_BYTES as u64)
        .read_to_end(&mut first)?;
    to.write_all(&first)?;
    let rest = if may_begin_with(&first) {
        io::copy(&mut from, to)?
    } else {
        0
    };
    Ok(first.len() as u64 + rest)
}
