//! Opening a ledger: who holds it, whether it is one, how old it is, and how SQLite is set up for it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::fault::{is_cut_off, is_not_a_database};
use super::fold::LOG_BYTES_KEPT;
use super::fresh::Fresh;
use super::lock::{HolderLock, LockError};
use super::recent::Recent;
use super::write::{Pruner, Shared};
use super::{BATCH_COMMANDS_MAX, Ledger, Writer, ledger_id_of};
use crate::ids;
use crate::task::Timestamp;

static MIGRATOR: Migrator = sqlx::migrate!("./migrations");

/// How long a statement waits for another process that holds the database before it fails as busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The page cache of the writer: 16 MiB, written as SQLite takes KiB. Prototypes were slower with 64 MiB.
const WRITER_CACHE: &str = "-16384";

/// How many prepared statements the writer keeps. Batches have few shapes, as their rows are padded to powers of two.
const WRITER_STATEMENTS_MAX: usize = 64;

/// How many connections read at the same time.
const READERS_MAX: u32 = 4;

/// How long a request waits for one of them.
const READER_WITHIN: Duration = Duration::from_secs(5);

/// How a file of SQLite begins, <https://www.sqlite.org/fileformat2.html#magic_header_string>.
const SQLITE_MAGIC: &[u8] = b"SQLite format 3\0";

/// `application_id` of a ledger, set by its first migration.
const APPLICATION_ID: i64 = 0x7461_736b;

/// Why a ledger cannot be opened. Nothing in the file was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it, or its lock file is not to be had.
    #[error("cannot open the database {path}: {source}")]
    Lock {
        /// The database.
        path: PathBuf,
        /// Who, or why.
        source: LockError,
    },
    /// The file has several names.
    #[error(
        "the database {path} has {links} names (hard links), by which two services could have it at once; \
         remove all names but one"
    )]
    Linked {
        /// The database.
        path: PathBuf,
        /// How many names.
        links: u64,
    },
    /// A later version of tasklatch has migrated it.
    #[error(
        "the database {path} was written by a newer tasklatch (its schema is {found}, this program knows up to {known}); \
         use that version or a later one, the file was left as it is"
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema of this program.
        known: i64,
    },
    /// An earlier version of tasklatch wrote it, and no service of this one has been started on it.
    #[error(
        "the database {path} was written by an older tasklatch (its schema is {found}, this program works on {known}); \
         start the service of this version on it once, which brings it up to date, or use the version that wrote it"
    )]
    Older {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The schema of this program.
        known: i64,
    },
    /// The file holds something else.
    #[error(
        "{path} is no tasklatch database, and was left as it is; give another file with --database"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// There is no such file, where one is needed.
    #[error("there is no database {path}; give the file of a service with --database")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error(
        "cannot open the database {path}: {source}; check that its folder is there, and the permissions"
    )]
    Io {
        /// The database.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// A migration failed, or one that was applied is not the one of this program.
    #[error("cannot bring the database {path} to this version: {source}")]
    Migrate {
        /// The database.
        path: PathBuf,
        /// What went wrong.
        source: MigrateError,
    },
    /// SQLite refused.
    #[error("cannot open the database {path}: {source}")]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// What it says.
        source: sqlx::Error,
    },
}

/// Opens a ledger for writing and reading, and makes it if there is none. `purpose` is what a second process is told of
/// this one.
///
/// # Errors
/// [`OpenError`]; the file is then as it was.
pub async fn open(path: &Path, purpose: &str) -> Result<(Ledger, Writer), OpenError> {
    let path = resolve(path)?;
    let lock = HolderLock::take(&path, purpose).map_err(|source| OpenError::Lock {
        path: path.clone(),
        source,
    })?;
    check_what_it_is(&path).await?;
    let sqlite = |source| OpenError::Sqlite {
        path: path.clone(),
        source,
    };
    let mut connection = connect_writer(&path, true).await.map_err(sqlite)?;
    migrate(&mut connection)
        .await
        .map_err(|source| OpenError::Migrate {
            path: path.clone(),
            source,
        })?;
    make_identity(&mut connection).await.map_err(sqlite)?;
    settle_on_disk(&mut connection, &path).await?;
    sync_folder(&path).map_err(|source| OpenError::Io {
        path: path.clone(),
        source,
    })?;
    let ledger_id = ledger_id_of(&mut connection).await.map_err(sqlite)?;
    let io = |source| OpenError::Io {
        path: path.clone(),
        source,
    };
    let file = File::open(&path).map_err(io)?;
    let is_pruned = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pruned_tasks)")
        .fetch_one(&mut connection)
        .await
        .map_err(sqlite)?;
    let shared = Shared {
        recent: Recent::new(),
        fresh: Fresh::default(),
        is_pruned,
    };
    let writer = Writer::new(path.clone(), file, connection, lock, shared.clone())
        .await
        .map_err(sqlite)?;
    let readers = reader_pool(&path).await.map_err(sqlite)?;
    let ledger = Ledger {
        ledger_id: ledger_id.into(),
        readers,
        recent: shared.recent,
        fresh: shared.fresh,
        is_pruned,
    };
    Ok((ledger, writer))
}

/// Opens an existing ledger for reading beside a service that may be running on it.
///
/// # Errors
/// [`OpenError`], also if there is no such file.
pub async fn open_read_only(path: &Path) -> Result<SqliteConnection, OpenError> {
    let (path, _) = find_ledger(path).await?;
    connect_reader(path).await
}

async fn connect_reader(path: PathBuf) -> Result<SqliteConnection, OpenError> {
    reader_options(&path)
        .connect()
        .await
        .map_err(|source| OpenError::Sqlite { path, source })
}

/// The same, but only a ledger of this program's schema.
///
/// # Errors
/// [`OpenError`], also if there is no such file or it is of an older schema.
pub async fn open_current(path: &Path) -> Result<SqliteConnection, OpenError> {
    let (path, schema) = find_ledger(path).await?;
    check_current(&path, schema)?;
    connect_reader(path).await
}

/// Opens an existing ledger for a small write of an operator's, beside a service that may be running on it. Only what the
/// service does not keep in memory may be written so.
///
/// # Errors
/// [`OpenError`], also if there is no such file.
pub async fn open_beside(path: &Path) -> Result<SqliteConnection, OpenError> {
    let (path, schema) = find_ledger(path).await?;
    check_current(&path, schema)?;
    common_options(&path)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .connect()
        .await
        .map_err(|source| OpenError::Sqlite { path, source })
}

/// Opens an existing ledger that no service has, to let tasks go; none can be started on it meanwhile. `purpose` is what a second
/// process is told of this one.
///
/// # Errors
/// [`OpenError`], also if there is no such file or it is of an older schema.
pub async fn open_to_prune(path: &Path, purpose: &str) -> Result<Pruner, OpenError> {
    let (path, schema) = find_ledger(path).await?;
    let lock = HolderLock::take(&path, purpose).map_err(|source| OpenError::Lock {
        path: path.clone(),
        source,
    })?;
    check_current(&path, schema)?;
    let connection = common_options(&path)
        .synchronous(SqliteSynchronous::Full)
        // A task goes last, after all that refers to it; to have that checked would take a look at the whole outbox for each.
        .foreign_keys(false)
        .connect()
        .await
        .map_err(|source| OpenError::Sqlite { path, source })?;
    Ok(Pruner::new(connection, lock))
}

/// The one path of a ledger that is there, and its schema.
async fn find_ledger(path: &Path) -> Result<(PathBuf, i64), OpenError> {
    if !path.exists() {
        return Err(OpenError::Missing {
            path: path.to_owned(),
        });
    }
    let path = resolve(path)?;
    match check_what_it_is(&path).await? {
        Some(schema) => Ok((path, schema)),
        None => Err(OpenError::Foreign { path }),
    }
}

fn check_current(path: &Path, found: i64) -> Result<(), OpenError> {
    let known = newest_schema();
    match found == known {
        true => Ok(()),
        false => Err(OpenError::Older {
            path: path.to_owned(),
            found,
            known,
        }),
    }
}

fn newest_schema() -> i64 {
    let versions = MIGRATOR.iter().map(|migration| migration.version);
    versions.max().unwrap_or(0)
}

pub(super) async fn connect_writer(
    path: &Path,
    make: bool,
) -> Result<SqliteConnection, sqlx::Error> {
    common_options(path)
        .create_if_missing(make)
        .journal_mode(SqliteJournalMode::Wal)
        // An accepted report is on disk before its answer: nothing less than FULL promises that in WAL mode.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        // Folding the log is left to the folder, which does it beside the writer.
        .pragma("wal_autocheckpoint", "0")
        .pragma("journal_size_limit", LOG_BYTES_KEPT)
        .pragma("cache_size", WRITER_CACHE)
        .pragma("temp_store", "memory")
        .statement_cache_capacity(WRITER_STATEMENTS_MAX)
        // All rows of a batch come over in one go.
        .row_buffer_size(BATCH_COMMANDS_MAX)
        .connect()
        .await
}

/// A connection that folds the log beside the writer. FULL, since what is folded must be on disk in the log first.
pub(super) async fn connect_folder(path: &Path) -> Result<SqliteConnection, sqlx::Error> {
    common_options(path)
        .synchronous(SqliteSynchronous::Full)
        .pragma("wal_autocheckpoint", "0")
        .connect()
        .await
}

/// Makes durable what is in the write-ahead log. After a crash the log may hold commits that the disk has never been asked
/// to keep; to answer `replayed` for one of those, it must be asked first.
pub(super) async fn settle_on_disk(
    connection: &mut SqliteConnection,
    path: &Path,
) -> Result<(), OpenError> {
    let sqlite = |source| OpenError::Sqlite {
        path: path.to_owned(),
        source,
    };
    let (busy, _, _): (i64, i64, i64) = sqlx::query_as("PRAGMA wal_checkpoint(TRUNCATE)")
        .fetch_one(connection)
        .await
        .map_err(sqlite)?;
    if busy != 0 {
        // A reader is in the way of folding the log; the disk can be asked to keep it all the same.
        let io = |source| OpenError::Io {
            path: path.to_owned(),
            source,
        };
        File::open(beside(path, "-wal"))
            .and_then(|log| log.sync_all())
            .map_err(io)?;
    }
    Ok(())
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn common_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
}

fn reader_options(path: &Path) -> SqliteConnectOptions {
    common_options(path).read_only(true)
}

async fn reader_pool(path: &Path) -> Result<SqlitePool, sqlx::Error> {
    SqlitePoolOptions::new()
        .max_connections(READERS_MAX)
        .acquire_timeout(READER_WITHIN)
        // A connection to a file does not go away by itself, and asking costs a trip to its thread.
        .test_before_acquire(false)
        .connect_with(reader_options(path))
        .await
}

/// The one path of a database, so that two names of one file meet at one lock.
fn resolve(path: &Path) -> Result<PathBuf, OpenError> {
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    match path.canonicalize() {
        Ok(path) if path.is_dir() => Err(io(io::ErrorKind::IsADirectory.into())),
        Ok(path) => Ok(path),
        // A link that leads nowhere would be locked by its own name, and by that of its target later.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            let folder = match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            };
            let name = path
                .file_name()
                .ok_or_else(|| io(io::ErrorKind::InvalidInput.into()))?;
            Ok(folder.canonicalize().map_err(io)?.join(name))
        }
        Err(error) => Err(io(error)),
    }
}

/// Looks at a file without changing it: the schema of the ledger in it; `None` if it is new or empty.
async fn check_what_it_is(path: &Path) -> Result<Option<i64>, OpenError> {
    let foreign = || OpenError::Foreign {
        path: path.to_owned(),
    };
    let sqlite = |source| match is_not_a_database(&source) {
        true => foreign(),
        false => OpenError::Sqlite {
            path: path.to_owned(),
            source,
        },
    };
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    let metadata = match File::open(path).and_then(|file| file.metadata()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(io)?,
    };
    if metadata.nlink() > 1 {
        return Err(OpenError::Linked {
            path: path.to_owned(),
            links: metadata.nlink(),
        });
    }
    if metadata.len() == 0 {
        return Ok(None);
    }
    // SQLite takes a file that is too short for a database for an empty one, and would write over it.
    if !begins_as_sqlite(path).map_err(io)? {
        return Err(foreign());
    }
    let what = match look_at(path).await {
        Err(error) if is_cut_off(&error) => roll_back(path).await,
        looked => looked,
    };
    let what = what.map_err(sqlite);
    let known = newest_schema();
    match what? {
        What::Empty => Ok(None),
        What::Foreign => Err(foreign()),
        What::Ledger { schema } if schema > known => Err(OpenError::Newer {
            path: path.to_owned(),
            found: schema,
            known,
        }),
        What::Ledger { schema } => Ok(Some(schema)),
    }
}

enum What {
    Empty,
    Foreign,
    Ledger { schema: i64 },
}

fn begins_as_sqlite(path: &Path) -> io::Result<bool> {
    let mut beginning = Vec::with_capacity(SQLITE_MAGIC.len());
    File::open(path)?
        .take(SQLITE_MAGIC.len() as u64)
        .read_to_end(&mut beginning)?;
    Ok(beginning == SQLITE_MAGIC)
}

/// Looks without leaving a trace: without a write-ahead log nobody has the file open, so that it may be read as one that
/// cannot change. With one, SQLite needs its index beside it, which is there or is made anew by whoever opens it.
async fn look_at(path: &Path) -> Result<What, sqlx::Error> {
    let at_rest = !beside(path, "-wal").exists() && !beside(path, "-journal").exists();
    let mut connection = reader_options(path).immutable(at_rest).connect().await?;
    let what = look(&mut connection).await;
    connection.close().await?;
    what
}

/// A process that was killed in its first transaction left a journal, which only a connection that can write rolls back.
async fn roll_back(path: &Path) -> Result<What, sqlx::Error> {
    let mut connection = common_options(path).connect().await?;
    let what = look(&mut connection).await;
    connection.close().await?;
    what
}

async fn look(connection: &mut SqliteConnection) -> Result<What, sqlx::Error> {
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'table'")
            .fetch_all(&mut *connection)
            .await?;
    let application_id: i64 = sqlx::query_scalar("PRAGMA application_id")
        .fetch_one(&mut *connection)
        .await?;
    let migrated = tables.iter().any(|table| table == "_sqlx_migrations");
    if application_id != APPLICATION_ID {
        // A first start that was killed leaves no table, or the one of the migrations without a migration in it.
        let begun = tables.iter().all(|table| table == "_sqlx_migrations");
        return Ok(if begun { What::Empty } else { What::Foreign });
    }
    if !migrated {
        return Ok(What::Foreign);
    }
    let schema = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations")
        .fetch_one(&mut *connection)
        .await?;
    Ok(What::Ledger { schema })
}

/// Brings the schema up to date wholly or not at all: after a step that failed, the version that wrote the file must still
/// know it.
async fn migrate(connection: &mut SqliteConnection) -> Result<(), MigrateError> {
    let mut transaction = connection.begin().await?;
    MIGRATOR.run(&mut *transaction).await?;
    Ok(transaction.commit().await?)
}

async fn make_identity(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO ledger (only_row, ledger_id, created_at) VALUES (1, ?, ?)
         ON CONFLICT (only_row) DO NOTHING",
    )
    .bind(ids::new_ledger_id())
    .bind(Timestamp::now().micros())
    .execute(connection)
    .await
    .map(drop)
}

/// A new file is only safe once its folder knows of it.
fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent()
        .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
