//! What is read without changing anything, on connections that cannot write.

mod list;
mod outbox;
mod snapshot;

use futures_util::TryStreamExt;
use sqlx::Row;

pub use list::Page;
pub use outbox::{Lag, OutboxReader, Parked, Piece, unpark};
pub use snapshot::SnapshotReader;

use super::desk::{Desk, Named, OutboxRoom};
use super::fault::{During, Fault};
use super::rows::{SEQ_COLUMN, task_as_of_columns, task_from};
use super::{Applied, Circumstances, Command, Ledger};
use crate::report::Selector;
use crate::task::Timestamp;
use crate::wire::{Event, HEADERS_USUAL_BYTES, Trace, events_of, events_with};

/// A revision with its events, on its way to observers.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Its place in the outbox.
    pub seq: i64,
    /// One or two events, in their order.
    pub events: Vec<Event>,
}

/// A task that was looked for.
#[derive(Clone, Debug)]
pub enum Found {
    /// The answer: the task, or a refusal.
    Answer(Applied),
    /// Its deadline has come, so it must be expired before it is shown: ask the writer.
    Due,
}

/// Revisions after a place in the outbox, each with its task as of then.
const OUTGOING_SQL: &str = concat!(
    "SELECT ",
    task_as_of_columns!(),
    ", w.traceparent, w.tracestate FROM revisions AS v JOIN tasks AS t ON t.task_key = v.task_key
      LEFT JOIN results AS r ON r.task_key = v.task_key LEFT JOIN revision_traces AS w ON w.seq = v.seq
      WHERE v.seq > ?1 ORDER BY v.seq LIMIT ?2"
);

impl Outgoing {
    /// How large its events are, headers included, roughly.
    pub fn bytes(&self) -> usize {
        let events = self.events.iter();
        events
            .map(|event| event.data.len() + HEADERS_USUAL_BYTES)
            .sum()
    }
}

/// How many revisions one reading of the outbox takes at most.
const OUTGOING_REVISIONS_MAX: i64 = 512;

impl Ledger {
    /// Reads one task.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn get(
        &self,
        selector: &Selector,
        circumstances: Circumstances,
    ) -> Result<Found, Fault> {
        let command = Command::Get(selector.clone());
        let named = Named::by(std::slice::from_ref(&command));
        // No task is made by reading one, so no key is that of a new one.
        let mut desk = Desk::new(circumstances, i64::MAX, OutboxRoom::UNUSED);
        if selector.pane_id().is_some() {
            let mut transaction = self.readers.begin().await.during("beginning to read")?;
            desk.load_by_id(&mut transaction, &named).await?;
            desk.load_others(&mut transaction, &named).await?;
            if self.is_pruned {
                desk.load_pruned(&mut transaction, &named).await?;
            }
        } else {
            // One statement sees one state of the database.
            let mut connection = self.readers.acquire().await.during("beginning to read")?;
            desk.load_by_id(&mut connection, &named).await?;
            // A pruned task does not come back.
            if self.is_pruned {
                desk.load_pruned(&mut connection, &named).await?;
            }
        }
        let applied = desk
            .apply(&command)
            .map_err(|error| Fault::new("encoding a task", sqlx::Error::Encode(error.into())))?;
        Ok(if desk.writes.is_empty() {
            Found::Answer(applied)
        } else {
            Found::Due
        })
    }

    /// Whether a task waits to be expired.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn is_any_due(&self, now: Timestamp) -> Result<bool, Fault> {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM tasks WHERE deadline <= ?1 AND lifecycle IN ('submitted', 'working'))",
        )
        .bind(now.micros())
        .fetch_one(&self.readers)
        .await
        .during("looking for due tasks")
    }

    /// How far the outbox is known to have been published.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn published_seq(&self) -> Result<i64, Fault> {
        sqlx::query_scalar("SELECT published_seq FROM ledger")
            .fetch_one(&self.readers)
            .await
            .during("reading the cursor")
    }

    /// The revisions after `seq` in commit order, one at least and up to about so many bytes of events; each with its events,
    /// which say the task as of that revision whatever has become of it since.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn outgoing(&self, seq: i64, bytes_max: usize) -> Result<Vec<Outgoing>, Fault> {
        let fresh = self.fresh.take(seq, bytes_max);
        if !fresh.is_empty() {
            let revisions = fresh.into_iter().map(|revision| {
                let mut events = events_with(&revision.task, revision.body).map_err(unencodable)?;
                add_trace(&mut events, revision.trace);
                Ok(Outgoing {
                    seq: revision.seq,
                    events,
                })
            });
            return revisions.collect();
        }
        let mut rows = sqlx::query(OUTGOING_SQL)
            .bind(seq)
            .bind(OUTGOING_REVISIONS_MAX)
            .fetch(&self.readers);
        let mut outgoing = Vec::new();
        let mut bytes = 0;
        while let Some(row) = rows.try_next().await.during("reading the outbox")? {
            let next = outgoing_from(&row)?;
            bytes += next.bytes();
            outgoing.push(next);
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(outgoing)
    }
}

/// A row of [`OUTGOING_SQL`].
fn outgoing_from(row: &sqlx::sqlite::SqliteRow) -> Result<Outgoing, Fault> {
    let read = "reading the outbox";
    let traceparent: Option<&str> = row.try_get(SEQ_COLUMN + 1).during(read)?;
    let tracestate: Option<&str> = row.try_get(SEQ_COLUMN + 2).during(read)?;
    let trace = traceparent.and_then(|traceparent| Trace::stored(traceparent, tracestate));
    let mut events = events_as_of(row)?;
    add_trace(&mut events, trace.map(Box::new));
    Ok(Outgoing {
        seq: row.try_get(SEQ_COLUMN).during(read)?,
        events,
    })
}

fn add_trace(events: &mut [Event], trace: Option<Box<Trace>>) {
    if trace.is_some() {
        for event in events {
            event.trace.clone_from(&trace);
        }
    }
}

fn events_as_of(row: &sqlx::sqlite::SqliteRow) -> Result<Vec<Event>, Fault> {
    let (_, task) = task_from(row).during("reading a revision")?;
    events_of(&task).map_err(unencodable)
}

fn unencodable(error: serde_json::Error) -> Fault {
    Fault::new("encoding an event", sqlx::Error::Encode(error.into()))
}
