//! The database of the designs that have one of their own.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};

use crate::content::StoredTasks;
use crate::failure::{During, Result};

/// How long a transaction waits for another one.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// What a database is opened with: as durable as that of tasklatch.
pub fn options(database: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(database)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
}

/// Makes a database with this many open tasks.
///
/// # Errors
/// If it cannot be written.
pub async fn make(database: &Path, tasks: u64) -> Result<()> {
    let filled = async {
        let mut connection = options(database).create_if_missing(true).connect().await?;
        sqlx::raw_sql(include_str!("schema.sql"))
            .execute(&mut connection)
            .await?;
        connection.close().await
    };
    filled
        .await
        .during(format_args!("make the database {}", database.display()))?;
    fill(database, tasks).await
}

async fn fill(database: &Path, tasks: u64) -> Result<()> {
    let stored = StoredTasks::new(None)?;
    let filling = || format!("fill the database {}", database.display());
    let mut connection = options(database).connect().await.during(filling())?;
    let mut transaction = connection.begin().await.during(filling())?;
    for index in 0..tasks {
        let task = stored.at(index)?;
        sqlx::query("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?)")
            .bind(task.task_id)
            .bind(task.title)
            .bind(task.metadata.map(|metadata| metadata.get().to_owned()))
            .bind(task.lifecycle.as_str())
            .bind(task.revision)
            .bind(task.created_at.to_string())
            .bind(task.updated_at.to_string())
            .execute(&mut *transaction)
            .await
            .during(filling())?;
    }
    transaction.commit().await.during(filling())?;
    connection.close().await.during(filling())
}
