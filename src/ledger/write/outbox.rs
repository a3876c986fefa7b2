//! What is written about the outbox itself: how far it is published, what is parked, and what may leave it.

use sqlx::SqliteConnection;

use super::statements::Rows;
use crate::ledger::ParkedEvent;
use crate::ledger::fault::{During, Fault};
use crate::task::Timestamp;

pub(super) async fn move_cursor(connection: &mut SqliteConnection, seq: i64) -> Result<(), Fault> {
    sqlx::query("UPDATE ledger SET published_seq = ?1 WHERE published_seq < ?1")
        .bind(seq)
        .execute(connection)
        .await
        .during("moving the cursor")
        .map(drop)
}

/// Parks events. One that is parked already stays as it is.
pub(super) async fn park(
    connection: &mut SqliteConnection,
    events: &[ParkedEvent],
    now: Timestamp,
) -> Result<(), Fault> {
    let rows = Rows {
        what: "parking events",
        head: "INSERT INTO parked_events (seq, kind, reason, parked_at) SELECT * FROM (",
        columns: 4,
        tail: ") WHERE column1 IS NOT NULL ON CONFLICT (seq, kind) DO NOTHING",
    };
    let done = rows.execute(connection, events, |row, event| {
        row.bind(event.seq)
            .bind(event.kind.word())
            .bind(event.reason.as_str())
            .bind(now.micros());
        Ok(())
    });
    done.await.map(drop)
}

/// Takes published revisions out of the outbox, other than those of parked events. Never the newest, whose `seq` must not
/// be given twice.
pub(super) async fn prune(
    connection: &mut SqliteConnection,
    first: i64,
    last: i64,
    before: Timestamp,
) -> Result<(), Fault> {
    sqlx::query(
        "DELETE FROM revisions WHERE seq BETWEEN ?1 AND ?2
           AND updated_at < ?3
           AND seq <= (SELECT published_seq FROM ledger)
           AND seq < (SELECT max(seq) FROM revisions)
           AND NOT EXISTS (SELECT 1 FROM parked_events AS p WHERE p.seq = revisions.seq)",
    )
    .bind(first)
    .bind(last)
    .bind(before.micros())
    .execute(connection)
    .await
    .during("taking published revisions out of the outbox")
    .map(drop)
}
