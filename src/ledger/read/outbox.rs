//! What is read about the outbox: how far behind its events are, what is parked, and what may leave it.

use sqlx::{Row, SqliteConnection};

use super::{OUTGOING_SQL, Outgoing, events_as_of, outgoing_from};
use crate::ledger::fault::{During, Fault};
use crate::ledger::rows::{SEQ_COLUMN, task_as_of_columns};
use crate::ledger::{Ledger, ParkedEvent, ledger_id_of};
use crate::task::Timestamp;
use crate::wire::{Event, EventKind};

/// How many revisions are looked at in one go for what may leave the outbox, and go in one write at most: so few that no
/// report waits for it.
const PRUNE_REVISIONS_MAX: i64 = 512;

/// How many revisions a page of [`OutboxReader`] has at most.
const PAGE_ROWS: i64 = 256;

/// How far events are behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// How many changes wait to be published. Each has one event, an accepted report two.
    pub changes: i64,
    /// When the oldest of them was made.
    pub oldest: Option<Timestamp>,
    /// How many events are parked.
    pub parked: i64,
}

impl Lag {
    /// How long the oldest change has waited, in seconds; 0 if none waits.
    pub fn seconds(&self, now: Timestamp) -> f64 {
        let waits = self
            .oldest
            .map_or(0, |oldest| now.micros() - oldest.micros());
        waits.max(0) as f64 / 1e6
    }
}

/// A piece of the outbox that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its last revision.
    pub last: i64,
    /// Whether some of it may go.
    pub is_any_old: bool,
}

impl Ledger {
    /// How far events are behind.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn lag(&self) -> Result<Lag, Fault> {
        let mut connection = self.readers.acquire().await.during("reading the outbox")?;
        lag_of(&mut connection).await
    }

    /// The parked events whose revisions come after `seq`.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn parked_after(&self, seq: i64) -> Result<Vec<(i64, EventKind)>, Fault> {
        let rows: Vec<(i64, String)> =
            sqlx::query_as("SELECT seq, kind FROM parked_events WHERE seq > ?1")
                .bind(seq)
                .fetch_all(&self.readers)
                .await
                .during("reading parked events")?;
        let known = |(seq, word): (i64, String)| Some((seq, EventKind::from_short(&word)?));
        Ok(rows.into_iter().filter_map(known).collect())
    }

    /// Whether this ledger made a revision of a task at a time, as far as it can still tell: not if the task has not come so
    /// far, or came there at another time.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn has_made(
        &self,
        task_id: &str,
        revision: i64,
        time: Timestamp,
    ) -> Result<bool, Fault> {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM tasks
             WHERE task_id = ?1 AND (revision > ?2 OR (revision = ?2 AND updated_at = ?3)))",
        )
        .bind(task_id.to_owned())
        .bind(revision)
        .bind(time.micros())
        .fetch_one(&self.readers)
        .await
        .during("looking for a revision")
    }

    /// Looks at the next published revisions after `seq` for any that were made before `before`; `None` if there are no
    /// more. One from the future, whose clock was wrong, must not hide what comes after it.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn next_piece(
        &self,
        seq: i64,
        before: Timestamp,
        now: Timestamp,
    ) -> Result<Option<Piece>, Fault> {
        let (last, is_any_old): (Option<i64>, Option<bool>) = sqlx::query_as(
            "SELECT max(seq), max(updated_at < ?2 OR updated_at > ?3)
             FROM (SELECT seq, updated_at FROM revisions
                   WHERE seq > ?1 AND seq <= (SELECT published_seq FROM ledger) ORDER BY seq LIMIT ?4)",
        )
        .bind(seq)
        .bind(before.micros())
        .bind(now.micros())
        .bind(PRUNE_REVISIONS_MAX)
        .fetch_one(&self.readers)
        .await
        .during("looking for what may leave the outbox")?;
        Ok(last.map(|last| Piece {
            last,
            is_any_old: is_any_old == Some(true),
        }))
    }
}

/// Reads the outbox of a ledger beside a service that may be running on it.
#[derive(Debug)]
pub struct OutboxReader {
    connection: SqliteConnection,
}

async fn lag_of(connection: &mut SqliteConnection) -> Result<Lag, Fault> {
    let (changes, oldest, parked): (i64, Option<i64>, i64) = sqlx::query_as(
        "SELECT max(coalesce((SELECT max(seq) FROM revisions), 0) - published_seq, 0),
                (SELECT updated_at FROM revisions WHERE seq > published_seq ORDER BY seq LIMIT 1),
                (SELECT count(*) FROM parked_events)
         FROM ledger",
    )
    .fetch_one(connection)
    .await
    .during("reading the outbox")?;
    Ok(Lag {
        changes,
        oldest: oldest.and_then(Timestamp::from_micros),
        parked,
    })
}

/// A parked event, and what it says.
#[derive(Clone, Debug)]
pub struct Parked {
    /// Which, and why.
    pub event: ParkedEvent,
    /// Since when.
    pub parked_at: Timestamp,
    /// The event itself.
    pub content: Event,
}

impl OutboxReader {
    /// Reads on a connection from [`open_read_only`](crate::ledger::open_read_only).
    pub fn new(connection: SqliteConnection) -> Self {
        Self { connection }
    }

    /// The identity of the ledger.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn ledger_id(&mut self) -> Result<String, Fault> {
        ledger_id_of(&mut self.connection)
            .await
            .during("reading the ledger's identity")
    }

    /// How far events are behind.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn lag(&mut self) -> Result<Lag, Fault> {
        lag_of(&mut self.connection).await
    }

    /// The cursor.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn published_seq(&mut self) -> Result<i64, Fault> {
        sqlx::query_scalar("SELECT published_seq FROM ledger")
            .fetch_one(&mut self.connection)
            .await
            .during("reading the cursor")
    }

    /// The next revisions after `seq`, in commit order; empty at the end.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn next_after(&mut self, seq: i64) -> Result<Vec<Outgoing>, Fault> {
        let rows = sqlx::query(OUTGOING_SQL)
            .bind(seq)
            .bind(PAGE_ROWS)
            .fetch_all(&mut self.connection)
            .await
            .during("reading the outbox")?;
        rows.iter().map(outgoing_from).collect()
    }

    /// All parked events, in commit order.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn parked(&mut self) -> Result<Vec<Parked>, Fault> {
        let sql = concat!(
            "SELECT ",
            task_as_of_columns!(),
            ", p.kind, p.reason, p.parked_at
             FROM parked_events AS p JOIN revisions AS v ON v.seq = p.seq JOIN tasks AS t ON t.task_key = v.task_key
             LEFT JOIN results AS r ON r.task_key = v.task_key ORDER BY p.seq, p.kind"
        );
        let rows = sqlx::query(sql)
            .fetch_all(&mut self.connection)
            .await
            .during("reading parked events")?;
        let mut parked = Vec::with_capacity(rows.len());
        for row in &rows {
            let read = "reading a parked event";
            let word: String = row.try_get(SEQ_COLUMN + 1).during(read)?;
            let micros = row.try_get(SEQ_COLUMN + 3).during(read)?;
            let content = events_as_of(row)?
                .into_iter()
                .find(|event| event.kind.word() == word);
            let (Some(content), Some(parked_at)) = (content, Timestamp::from_micros(micros)) else {
                return Err(Fault::new(read, sqlx::Error::RowNotFound));
            };
            parked.push(Parked {
                event: ParkedEvent {
                    seq: row.try_get(SEQ_COLUMN).during(read)?,
                    kind: content.kind,
                    reason: row.try_get(SEQ_COLUMN + 2).during(read)?,
                },
                parked_at,
                content,
            });
        }
        Ok(parked)
    }
}

/// Takes note that a parked event was sent after all, beside a service that may be running on the ledger.
///
/// # Errors
/// If the store cannot be written.
pub async fn unpark(
    connection: &mut SqliteConnection,
    seq: i64,
    kind: EventKind,
) -> Result<(), Fault> {
    sqlx::query("DELETE FROM parked_events WHERE seq = ?1 AND kind = ?2")
        .bind(seq)
        .bind(kind.word())
        .execute(connection)
        .await
        .during("taking note of a sent event")
        .map(drop)
}
