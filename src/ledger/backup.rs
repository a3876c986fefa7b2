//! A copy of a ledger as of one moment, beside a service that may be running on it.

use sqlx::{Connection, SqliteConnection};

use super::fault::{During, Fault};
use super::ledger_id_of;

/// Writes a copy of the ledger, as of the moment at which this begins, to `file`, which must not be there, and gives the
/// identity of the ledger. `connection` only reads. While it copies, what the service commits stays in the write-ahead log.
///
/// # Errors
/// If the ledger cannot be read or the copy not be written; what is there of it then is no copy. It is not on the disk
/// before somebody syncs it.
pub async fn copy_into(mut connection: SqliteConnection, file: &str) -> Result<String, Fault> {
    let ledger_id = ledger_id_of(&mut connection)
        .await
        .during("reading the identity of the ledger")?;
    // SQLite's own way: one read transaction, no lock that a writer would meet, and pages without holes.
    sqlx::query("VACUUM INTO ?1")
        .bind(file)
        .execute(&mut connection)
        .await
        .during("copying the database")?;
    connection
        .close()
        .await
        .during("closing the database after copying")?;
    Ok(ledger_id)
}
