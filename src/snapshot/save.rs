//! Writing a snapshot.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::error::{Doing, SnapshotError};
use super::file::{folder_of, unnamed_file};
use super::format::{End, EventLine, FORMAT_VERSION, Head};
use super::{Phase, Summary, Watch, tell};
use crate::ledger::{self, SnapshotReader};
use crate::task::Timestamp;

const BUFFER_BYTES: usize = 256 * 1024;

/// What a new file may be, before the user's mask takes from it.
const NEW_FILE_MODE: u32 = 0o666;

/// Saves a snapshot of a ledger as a file. The file is there under its name when all of it is on the disk, and not
/// before; one that was there before stays until then. `now` is the time that the snapshot says it was made.
///
/// # Errors
/// [`SnapshotError`]; `file` is then as it was.
pub async fn save(
    database: &Path,
    file: &Path,
    now: Timestamp,
    watch: &mut Watch<'_>,
) -> Result<Summary, SnapshotError> {
    let wrong = |why: String| SnapshotError::WrongFile {
        action: "write",
        path: file.to_owned(),
        why,
    };
    let (path, there) = find(file).map_err(|error| wrong(error.to_string()))?;
    if belongs_to(database, &path) {
        return Err(wrong("it is a file of the database itself".to_owned()));
    }
    match &there {
        Some(there) if there.is_dir() => return Err(wrong("it is a folder".to_owned())),
        // A device or a pipe is not replaced, but written to.
        Some(there) if !there.is_file() => {
            let out = OpenOptions::new()
                .write(true)
                .open(&path)
                .map_err(|error| wrong(error.to_string()))?;
            return save_to(database, out, now, watch).await;
        }
        Some(_) if is_database(&path).map_err(|error| wrong(error.to_string()))? => {
            return Err(wrong(
                "it is a database, and would be lost; name another file".to_owned(),
            ));
        }
        _ => {}
    }
    let reader = begin(database).await?;
    let folder = folder_of(&path);
    let mut named = tempfile::Builder::new()
        .prefix(".tasklatch-snapshot-")
        .permissions(Permissions::from_mode(NEW_FILE_MODE))
        .tempfile_in(folder)
        .map_err(|error| wrong(error.to_string()))?;
    if let Some(there) = there {
        named
            .as_file()
            .set_permissions(there.permissions())
            .doing(|| format!("write {}", file.display()))?;
    }
    let summary = write_all(reader, named.as_file_mut(), now, watch).await?;
    finish(named, &path, folder).doing(|| format!("write {}", file.display()))?;
    Ok(summary)
}

/// Saves a snapshot of a ledger to wherever `out` leads. All of it is put on the disk first, so that a slow reader does
/// not keep the service's write-ahead log from being folded away.
///
/// # Errors
/// [`SnapshotError`], and [`SnapshotError::Output`] if `out` does not take it.
pub async fn save_to(
    database: &Path,
    out: impl Write,
    now: Timestamp,
    watch: &mut Watch<'_>,
) -> Result<Summary, SnapshotError> {
    let reader = begin(database).await?;
    let mut file =
        unnamed_file(Some(folder_of(database))).doing(|| "make a temporary file".to_owned())?;
    let summary = write_all(reader, &mut file, now, watch).await?;
    file.rewind()
        .doing(|| "read the temporary file".to_owned())?;
    copy(file, out, watch)?;
    Ok(summary)
}

/// The file that a path leads to, and what is there.
fn find(path: &Path) -> io::Result<(PathBuf, Option<Metadata>)> {
    match path.metadata() {
        Ok(there) => Ok((path.canonicalize()?, Some(there))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((path.to_owned(), None)),
        Err(error) => Err(error),
    }
}

/// Whether a file is one of those that a ledger has beside it.
fn belongs_to(database: &Path, path: &Path) -> bool {
    let database = database
        .canonicalize()
        .unwrap_or_else(|_| database.to_owned());
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    ["-wal", "-shm", "-journal", ".lock"].iter().any(|suffix| {
        let mut name = database.clone().into_os_string();
        name.push(suffix);
        path.as_os_str() == name
    })
}

fn is_database(path: &Path) -> io::Result<bool> {
    let mut beginning = Vec::new();
    File::open(path)?.take(16).read_to_end(&mut beginning)?;
    Ok(beginning == b"SQLite format 3\0")
}

async fn begin(database: &Path) -> Result<SnapshotReader, SnapshotError> {
    let connection = ledger::open_read_only(database).await?;
    Ok(SnapshotReader::begin(connection).await?)
}

/// Puts the file on the disk, gives it its name, and puts that on the disk too.
fn finish(named: tempfile::NamedTempFile, path: &Path, folder: &Path) -> io::Result<()> {
    named.as_file().sync_all()?;
    named.persist(path)?;
    File::open(folder)?.sync_all()
}

async fn write_all(
    mut reader: SnapshotReader,
    to: &mut File,
    now: Timestamp,
    watch: &mut Watch<'_>,
) -> Result<Summary, SnapshotError> {
    let mut out = Out {
        to: BufWriter::with_capacity(BUFFER_BYTES, to),
        sha256: Sha256::new(),
        line: Vec::new(),
    };
    let total = u64::try_from(reader.count().await?).unwrap_or(0);
    let ledger_id = reader.ledger_id().await?;
    let head = Head {
        tasklatch_snapshot: FORMAT_VERSION,
        created_at: now,
        ledger_id,
    };
    out.write(&head)?;
    let mut tasks = 0;
    loop {
        tell(watch, Phase::Saving, tasks, total)?;
        let page = reader.next_tasks().await?;
        if page.is_empty() {
            break;
        }
        for task in &page {
            out.write(task)?;
            tasks += 1;
        }
    }
    let unpublished_events = write_events(&mut reader, &mut out, &head.ledger_id, watch).await?;
    reader.close().await?;
    let end = End {
        end: true,
        tasks,
        sha256: hex::encode(out.sha256.clone().finalize()),
    };
    out.write(&end)?;
    out.to.flush().map_err(writing)?;
    let Head {
        created_at,
        ledger_id,
        ..
    } = head;
    Ok(Summary {
        tasks,
        unpublished_events,
        sha256: end.sha256,
        created_at,
        ledger_id,
    })
}

async fn write_events(
    reader: &mut SnapshotReader,
    out: &mut Out<'_>,
    ledger_id: &str,
    watch: &mut Watch<'_>,
) -> Result<u64, SnapshotError> {
    let mut count = 0;
    loop {
        tell(watch, Phase::Saving, 1, 1)?;
        let page = reader.next_unpublished().await?;
        if page.is_empty() {
            return Ok(count);
        }
        for event in page.iter().flat_map(|outgoing| &outgoing.events) {
            let unpublished_event = event
                .to_cloud_event(ledger_id)
                .map_err(|error| writing(error.into()))?;
            out.write(&EventLine { unpublished_event })?;
            count += 1;
        }
    }
}

/// Lines on their way to a file.
struct Out<'f> {
    to: BufWriter<&'f mut File>,
    sha256: Sha256,
    line: Vec<u8>,
}

impl Out<'_> {
    fn write(&mut self, value: &impl Serialize) -> Result<(), SnapshotError> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, value).map_err(|error| writing(error.into()))?;
        self.line.push(b'\n');
        self.sha256.update(&self.line);
        self.to.write_all(&self.line).map_err(writing)
    }
}

fn writing(source: io::Error) -> SnapshotError {
    SnapshotError::Io {
        action: "write the snapshot".to_owned(),
        source,
    }
}

fn copy(mut file: File, mut out: impl Write, watch: &mut Watch<'_>) -> Result<(), SnapshotError> {
    let total = file.metadata().map_or(0, |metadata| metadata.len());
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut done = 0;
    loop {
        tell(watch, Phase::Copying, done, total)?;
        let read = file
            .read(&mut buffer)
            .doing(|| "read the temporary file".to_owned())?;
        if read == 0 {
            return out.flush().map_err(SnapshotError::Output);
        }
        out.write_all(&buffer[..read])
            .map_err(SnapshotError::Output)?;
        done += read as u64;
    }
}
