//! The one road by which a ledger changes.

mod restore;
mod statements;

use std::fs::File;
use std::path::PathBuf;

use sqlx::{Connection, Sqlite, SqliteConnection, Transaction};

pub use restore::SnapshotWriter;

use super::desk::{Desk, Key};
use super::fault::{During, Fault, FaultKind};
use super::lock::{HolderLock, same_file};
use super::open::{connect_writer, settle_on_disk};
use super::{Applied, Circumstances, Command};
use statements::write_all;

/// The writing side of an open ledger. One task owns it and is never cancelled; while it lives, no other process can
/// open the ledger for writing.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    /// `None` after a fault, until a new connection is had.
    connection: Option<SqliteConnection>,
    next: Next,
    /// The database as it was opened. Only looked at: SQLite has its own, and closing this one while that is open would take
    /// away its locks. So it stands behind the connection, as fields are dropped in their order.
    file: File,
    lock: HolderLock,
}

/// The numbers that the next rows get.
#[derive(Clone, Copy, Debug)]
struct Next {
    key: Key,
    seq: i64,
}

impl Next {
    async fn load(connection: &mut SqliteConnection) -> Result<Self, sqlx::Error> {
        let (key, seq): (i64, i64) = sqlx::query_as(
            "SELECT (SELECT coalesce(max(task_key), 0) FROM tasks) + 1,
                    max((SELECT coalesce(max(seq), 0) FROM revisions),
                        (SELECT published_seq FROM ledger)) + 1",
        )
        .fetch_one(connection)
        .await?;
        Ok(Self { key, seq })
    }
}

impl Writer {
    pub(super) async fn new(
        path: PathBuf,
        file: File,
        mut connection: SqliteConnection,
        lock: HolderLock,
    ) -> Result<Self, sqlx::Error> {
        let next = Next::load(&mut connection).await?;
        Ok(Self {
            path,
            file,
            connection: Some(connection),
            next,
            lock,
        })
    }

    /// The last revision in the outbox.
    pub fn last_seq(&self) -> i64 {
        self.next.seq - 1
    }

    /// Applies commands in one transaction and gives what became of each, in order, once that is durable on disk.
    ///
    /// A command that a constraint refuses, or that names a row which cannot be decoded, must not harm the others: the
    /// batch is then applied one by one, and only the culprit fails.
    ///
    /// # Errors
    /// For each command its own fault. Where the outcome of the commit is not known, sending the request again finds out.
    pub async fn apply(
        &mut self,
        commands: &[Command],
        circumstances: Circumstances,
    ) -> Vec<Result<Applied, Fault>> {
        match self.apply_together(commands, circumstances).await {
            Ok(applied) => applied.into_iter().map(Ok).collect(),
            Err(fault) if commands.len() == 1 => vec![Err(fault)],
            Err(fault) if fault.kind() == FaultKind::Refused => {
                let mut results: Vec<Result<Applied, Fault>> = Vec::with_capacity(commands.len());
                for command in commands {
                    let alone = match results.last() {
                        Some(Err(fault)) if fault.kind() == FaultKind::Damaged => {
                            Err(fault.clone())
                        }
                        _ => self
                            .apply_together(std::slice::from_ref(command), circumstances)
                            .await
                            .map(|mut applied| applied.remove(0)),
                    };
                    results.push(alone);
                }
                results
            }
            Err(fault) => vec![Err(fault); commands.len()],
        }
    }

    async fn apply_together(
        &mut self,
        commands: &[Command],
        circumstances: Circumstances,
    ) -> Result<Vec<Applied>, Fault> {
        // A new connection finds the next numbers anew, so it comes first.
        self.connection().await?;
        let next = self.next;
        let connection = self.connection().await?;
        // IMMEDIATE: what is read must still be true when it is written, and a lock that is had now can be refused later.
        let (outcome, begun) = match connection.begin_with("BEGIN IMMEDIATE").await {
            Err(source) => (Err(Fault::new("beginning a transaction", source)), false),
            Ok(transaction) => (
                transact(transaction, commands, circumstances, next).await,
                true,
            ),
        };
        match outcome {
            Ok((applied, next)) => {
                self.next = next;
                // After the commit, so that nothing is answered that a removed file has taken with it.
                self.check_in_place()?;
                Ok(applied)
            }
            Err(fault) => {
                // Where another process holds the lock nothing has begun, so nothing is wrong with the connection. All else
                // leaves behind what is not worth guessing at, and a new connection starts clean.
                if begun || fault.kind() != FaultKind::Passing {
                    self.connection = None;
                }
                Err(fault)
            }
        }
    }

    async fn connection(&mut self) -> Result<&mut SqliteConnection, Fault> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.reconnect().await?,
        };
        Ok(self.connection.insert(connection))
    }

    async fn reconnect(&mut self) -> Result<SqliteConnection, Fault> {
        self.check_in_place()?;
        let mut connection = connect_writer(&self.path, false)
            .await
            .during("opening the database again")?;
        settle_on_disk(&mut connection, &self.path)
            .await
            .map_err(|error| {
                Fault::new(
                    "settling the database",
                    sqlx::Error::AnyDriverError(error.into()),
                )
            })?;
        self.next = Next::load(&mut connection)
            .await
            .during("reading the last rows")?;
        Ok(connection)
    }

    /// A file that was removed or replaced is still written to, and lost when it is closed.
    fn check_in_place(&self) -> Result<(), Fault> {
        match same_file(&self.file, &self.path) && self.lock.is_in_place() {
            true => Ok(()),
            false => Err(Fault::file_is_gone()),
        }
    }

    /// Folds the write-ahead log into the database and closes it.
    ///
    /// # Errors
    /// If SQLite fails; what was applied is durable all the same.
    pub async fn close(mut self) -> Result<(), Fault> {
        match self.connection.take() {
            Some(connection) => connection.close().await.during("closing the database"),
            None => Ok(()),
        }
    }
}

/// One transaction: load, decide, write, commit.
async fn transact(
    mut transaction: Transaction<'_, Sqlite>,
    commands: &[Command],
    circumstances: Circumstances,
    next: Next,
) -> Result<(Vec<Applied>, Next), Fault> {
    let mut desk = Desk::load(&mut transaction, commands, circumstances, next.key).await?;
    let applied = commands
        .iter()
        .map(|command| desk.apply(command))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Fault::new("encoding a task", sqlx::Error::Encode(error.into())))?;
    let mut after = next;
    if !desk.writes.is_empty() {
        after = write_all(&mut transaction, &desk, next).await?;
    }
    transaction.commit().await.during("committing")?;
    Ok((applied, after))
}
