//! Whether a service writes to its database while it is watched. Nothing here knows the tables of the service.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tokio::time::sleep;

use crate::failure::{During, Failure, Result};
use crate::proc::written_bytes;

/// A service that is at rest still notes down, a little later, what it has published. Longer than that.
const SETTLED_AFTER: Duration = Duration::from_millis(1200);

/// How long that may take.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);

/// What was written to a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// SQLite says that another connection has committed a change.
    pub committed: bool,
    /// Files of the database whose size or time of change is another.
    pub files: Vec<String>,
    /// What the process has had written to disks in all. It may be a page or two of the index of the log (`-shm`): memory
    /// that connections share, also to say that they read, and no part of the database.
    pub bytes: u64,
}

impl Written {
    /// Whether the database is as it was.
    pub fn is_nothing(&self) -> bool {
        !self.committed && self.files.is_empty()
    }
}

/// A database that is watched.
pub struct Watched {
    /// Stays open, as SQLite only tells one connection whether others have changed something since it last asked.
    connection: SqliteConnection,
    version: i64,
    files: Vec<(PathBuf, State)>,
    pid: u32,
    bytes: u64,
}

/// The size of a file and when it was changed, or that it is not there.
type State = Option<(u64, SystemTime)>;

impl Watched {
    /// Begins to watch, once nothing has been written for a while.
    ///
    /// # Errors
    /// If the database cannot be read, or the service goes on writing.
    pub async fn begin(database: &Path, pid: u32) -> Result<Self> {
        let started = Instant::now();
        let mut files = states(database)?;
        loop {
            sleep(SETTLED_AFTER).await;
            let now = states(database)?;
            if now == files {
                break;
            }
            files = now;
            if started.elapsed() > SETTLED_WITHIN {
                return Err(Failure::new(
                    "the service goes on writing to its database, though nothing is asked of it",
                ));
            }
        }
        let mut connection = SqliteConnectOptions::new()
            .filename(database)
            .read_only(true)
            .connect()
            .await
            .during(format_args!("read {}", database.display()))?;
        let version = version(&mut connection).await?;
        Ok(Self {
            connection,
            version,
            files,
            pid,
            bytes: written_bytes(pid)?,
        })
    }

    /// What was written since.
    ///
    /// # Errors
    /// If the database cannot be read any more.
    pub async fn end(mut self) -> Result<Written> {
        let bytes = written_bytes(self.pid)? - self.bytes;
        let committed = version(&mut self.connection).await? != self.version;
        let mut files = Vec::new();
        for (path, before) in &self.files {
            if state(path)? != *before {
                files.push(path.display().to_string());
            }
        }
        self.connection.close().await.during("close the database")?;
        Ok(Written {
            committed,
            files,
            bytes,
        })
    }
}

async fn version(connection: &mut SqliteConnection) -> Result<i64> {
    sqlx::query_scalar("PRAGMA data_version")
        .fetch_one(connection)
        .await
        .during("ask SQLite whether anything was written")
}

fn states(database: &Path) -> Result<Vec<(PathBuf, State)>> {
    let mut log = database.as_os_str().to_owned();
    log.push("-wal");
    [database.to_owned(), log.into()]
        .into_iter()
        .map(|path| Ok((path.clone(), state(&path)?)))
        .collect()
}

fn state(path: &Path) -> Result<State> {
    match path.metadata() {
        Ok(metadata) => {
            let changed = metadata
                .modified()
                .during(format_args!("look at {}", path.display()))?;
            Ok(Some((metadata.len(), changed)))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).during(format_args!("look at {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn database(path: &Path) -> SqliteConnection {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
        let mut connection = options.connect().await.unwrap();
        sqlx::query("CREATE TABLE t (a INTEGER)")
            .execute(&mut connection)
            .await
            .unwrap();
        connection
    }

    #[tokio::test]
    async fn a_write_is_seen_and_a_read_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let mut writer = database(&path).await;
        let watched = Watched::begin(&path, std::process::id()).await.unwrap();
        sqlx::query("SELECT * FROM t")
            .fetch_all(&mut writer)
            .await
            .unwrap();
        let written = watched.end().await.unwrap();
        assert!(!written.committed && written.files.is_empty());
        let watched = Watched::begin(&path, std::process::id()).await.unwrap();
        sqlx::query("INSERT INTO t VALUES (1)")
            .execute(&mut writer)
            .await
            .unwrap();
        let written = watched.end().await.unwrap();
        assert!(written.committed && written.files.len() == 1 && !written.is_nothing());
    }
}
