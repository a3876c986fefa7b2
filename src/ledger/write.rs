//! The one road by which a ledger changes.

mod outbox;
mod prune;
mod restore;
mod statements;

use std::fs::File;
use std::path::PathBuf;

use sqlx::{Connection, SqliteConnection};

pub use prune::{Pruner, count_prunable};
pub use restore::SnapshotWriter;

use super::desk::{Desk, Key, Named, OutboxRoom};
use super::fault::{During, Fault, FaultKind};
use super::fold::{Folder, log_bytes};
use super::fresh::Fresh;
use super::lock::{HolderLock, same_file};
use super::open::{connect_writer, settle_on_disk};
use super::recent::Recent;
use super::{Applied, Circumstances, Command};
use crate::faults::{self, Point};
use statements::{execute, make_views, write_all};

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
    /// What is left to others.
    shared: Shared,
    /// How many changes may wait to be published.
    unpublished_max: i64,
    /// How long the write-ahead log may be for new work, in bytes.
    log_bytes_max: u64,
}

/// What the writer leaves in memory for those who read.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    /// For retries, and for the writer itself.
    pub recent: Recent,
    /// For the relay.
    pub fresh: Fresh,
    /// Whether tasks were pruned, of which something is left; nobody prunes while the ledger is open.
    pub is_pruned: bool,
}

/// The numbers that the next rows get.
#[derive(Clone, Copy, Debug)]
struct Next {
    key: Key,
    seq: i64,
    /// The cursor, which is not given but known by this.
    published: i64,
}

impl Next {
    async fn load(connection: &mut SqliteConnection) -> Result<Self, sqlx::Error> {
        let (key, seq, published) = sqlx::query_as(
            "SELECT (SELECT coalesce(max(task_key), 0) FROM tasks) + 1,
                    max((SELECT coalesce(max(seq), 0) FROM revisions),
                        (SELECT published_seq FROM ledger)) + 1,
                    (SELECT published_seq FROM ledger)",
        )
        .fetch_one(connection)
        .await?;
        Ok(Self {
            key,
            seq,
            published,
        })
    }
}

impl Writer {
    pub(super) async fn new(
        path: PathBuf,
        file: File,
        mut connection: SqliteConnection,
        lock: HolderLock,
        shared: Shared,
    ) -> Result<Self, sqlx::Error> {
        make_views(&mut connection).await?;
        let next = Next::load(&mut connection).await?;
        Ok(Self {
            path,
            file,
            connection: Some(connection),
            next,
            lock,
            shared,
            unpublished_max: i64::MAX,
            log_bytes_max: u64::MAX,
        })
    }

    /// Refuses new work once so many changes wait to be published.
    pub fn limit_unpublished(&mut self, changes: i64) {
        self.unpublished_max = changes;
    }

    /// Whether new work is refused since too much waits to be published.
    pub fn is_outbox_full(&self) -> bool {
        self.outbox_room().left <= 0
    }

    /// Refuses new work once the write-ahead log is so many bytes long, which it gets only under a reader that stays.
    pub fn limit_log(&mut self, bytes: u64) {
        self.log_bytes_max = bytes;
    }

    /// How long the write-ahead log is in bytes, if that is so long that new work is refused.
    pub fn overlong_log(&self) -> Option<u64> {
        Some(log_bytes(&self.path)).filter(|bytes| *bytes >= self.log_bytes_max)
    }

    fn outbox_room(&self) -> OutboxRoom {
        let limit = self.unpublished_max;
        let left = limit - (self.last_seq() - self.next.published);
        OutboxRoom { limit, left }
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
        let results = match self.apply_together(commands, circumstances).await {
            Ok(applied) => applied.into_iter().map(Ok).collect(),
            Err(fault) if fault.kind() == FaultKind::Refused => {
                self.apply_one_by_one(commands, circumstances).await
            }
            Err(fault) => vec![Err(fault); commands.len()],
        };
        let is_fold = |command: &Command| matches!(command, Command::Fold);
        // What was applied is durable, whatever becomes of the log.
        if commands.iter().any(is_fold)
            && results.iter().all(Result::is_ok)
            && let Err(fault) = self.fold().await
        {
            tracing::warn!(error = %fault, "the write-ahead log could not be begun anew; it grows on");
            self.give_up_connection();
        }
        results
    }

    /// Also a command that was alone is decided once more: nothing is remembered by now, and it may have been refused since
    /// its task was not in the store as it was remembered.
    async fn apply_one_by_one(
        &mut self,
        commands: &[Command],
        circumstances: Circumstances,
    ) -> Vec<Result<Applied, Fault>> {
        let mut results: Vec<Result<Applied, Fault>> = Vec::with_capacity(commands.len());
        for command in commands {
            let alone = match results.last() {
                Some(Err(fault)) if fault.kind() == FaultKind::Damaged => Err(fault.clone()),
                _ => self
                    .apply_together(std::slice::from_ref(command), circumstances)
                    .await
                    .map(|mut applied| applied.remove(0)),
            };
            results.push(alone);
        }
        results
    }

    async fn apply_together(
        &mut self,
        commands: &[Command],
        circumstances: Circumstances,
    ) -> Result<Vec<Applied>, Fault> {
        // A new connection finds the next numbers anew, so it comes first.
        self.connection().await?;
        let next = self.next;
        let room = self.outbox_room();
        let is_overlong = self.overlong_log().is_some();
        let shared = self.shared.clone();
        let recent = &shared.recent;
        let connection = self.connection().await?;
        let named = Named::by(commands);
        let mut desk = Desk::new(circumstances, next.key, room);
        desk.log_is_overlong = is_overlong;
        desk.recall(recent, &named);
        let mut begun = false;
        let done = transact(
            connection, commands, &named, &mut desk, next, &shared, &mut begun,
        );
        match done.await {
            Ok((applied, after)) => {
                faults::pass(Point::AfterCommit);
                // After the commit, so that nothing is answered that a removed file has taken with it.
                if let Err(gone) = self.check_in_place() {
                    recent.forget_all();
                    return Err(gone);
                }
                self.next = after;
                self.shared.fresh.leave(desk.fresh(next.seq));
                desk.leave_tasks(&self.shared.recent);
                Ok(applied)
            }
            // Nothing is wrong with the connection. A transaction left open would take the next statement in, and not commit it.
            Err(fault) if fault.is_locked_out() && !begun => Err(fault),
            Err(fault) => {
                self.give_up_connection();
                Err(fault)
            }
        }
    }

    /// A transaction that failed leaves behind what is not worth guessing at; a new connection starts clean. Whether it
    /// was committed may not be known, so nothing that is remembered of its tasks can be relied on.
    fn give_up_connection(&mut self) {
        self.connection = None;
        self.shared.recent.forget_all();
    }

    /// Begins the write-ahead log anew, which the folder beside the writer cannot: in its way is only what the writer adds
    /// meanwhile. A reader in the way is not waited for; then the log grows on. One that is too long for new work is cut off,
    /// as nothing is written that would do it later.
    async fn fold(&mut self) -> Result<(), Fault> {
        let anew = match self.overlong_log() {
            None => "PRAGMA wal_checkpoint(RESTART)",
            Some(_) => "PRAGMA wal_checkpoint(TRUNCATE)",
        };
        let connection = self.connection().await?;
        for pragma in [
            "PRAGMA busy_timeout = 50",
            anew,
            // As it was: BUSY_TIMEOUT.
            "PRAGMA busy_timeout = 2000",
        ] {
            execute(connection, pragma).await?;
        }
        Ok(())
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
        make_views(&mut connection)
            .await
            .during("preparing to write")?;
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

    /// A connection that folds the log beside this writer. It is closed before the writer is.
    ///
    /// # Errors
    /// If it cannot be had.
    pub async fn folder(&self) -> Result<Folder, Fault> {
        Folder::new(&self.path).await
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

/// One transaction: load, decide, write, commit. IMMEDIATE, whether it begins with the reading or with the writing: what is
/// read must still be true when it is written, and a lock that is had now can be refused later. `begun` says whether one was
/// begun that is not a single statement, if this fails.
async fn transact(
    connection: &mut SqliteConnection,
    commands: &[Command],
    named: &Named<'_>,
    desk: &mut Desk,
    next: Next,
    shared: &Shared,
    begun: &mut bool,
) -> Result<(Vec<Applied>, Next), Fault> {
    *begun = desk.begin(connection, named).await?;
    if *begun {
        desk.load_others(connection, named).await?;
        if shared.is_pruned {
            desk.load_pruned(connection, named).await?;
        }
    }
    let applied = commands
        .iter()
        .map(|command| desk.apply(command))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Fault::new("encoding a task", sqlx::Error::Encode(error.into())))?;
    if !desk.writes.is_empty() {
        desk.forget_changed(&shared.recent);
        let after = write_all(connection, desk, desk.now(), next, begun).await?;
        return Ok((applied, after));
    }
    if *begun {
        execute(connection, "COMMIT").await?;
    }
    Ok((applied, next))
}
