//! The service's file and pages as other processes see them.

use std::path::Path;

use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, SqliteConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::service::signal;
use super::{Broker, DEADLINE, Worker, eventually};

/// A connection of another process to the database file.
pub struct Outside {
    pub connection: SqliteConnection,
}

impl Outside {
    /// To look.
    pub async fn read(database: &Path) -> Self {
        Self::connect(
            SqliteConnectOptions::new()
                .filename(database)
                .read_only(true),
        )
        .await
    }

    /// To change or to be in the way, with nothing that the service sets up for itself.
    pub async fn write(database: &Path) -> Self {
        Self::connect(
            SqliteConnectOptions::new()
                .filename(database)
                .foreign_keys(false),
        )
        .await
    }

    async fn connect(options: SqliteConnectOptions) -> Self {
        Self {
            connection: options.connect().await.unwrap(),
        }
    }

    /// Runs a statement.
    pub async fn run(&mut self, sql: &str) -> Result<u64, sqlx::Error> {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::query(sql)
            .execute(&mut self.connection)
            .await
            .map(|done| done.rows_affected())
    }

    /// Reads one number.
    pub async fn number(&mut self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&mut self.connection)
            .await
            .unwrap()
    }

    /// Reads one column.
    pub async fn texts(&mut self, sql: &str) -> Vec<String> {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_all(&mut self.connection)
            .await
            .unwrap()
    }

    /// Takes the write lock.
    pub async fn hold(&mut self) {
        self.run("BEGIN IMMEDIATE").await.unwrap();
    }

    /// Gives the write lock back.
    pub async fn release(&mut self) {
        self.run("ROLLBACK").await.unwrap();
    }

    /// Waits until the cursor says that all that was committed is published.
    pub async fn until_published(&mut self) {
        eventually("all that was committed is published", async || {
            let left = "SELECT (SELECT max(seq) FROM revisions) - published_seq FROM ledger";
            (self.number(left).await == 0).then_some(())
        })
        .await;
    }

    /// Closes the connection.
    pub async fn close(self) {
        self.connection.close().await.unwrap();
    }
}

/// Has the service commit these reports while it is cut off: nats-server stands still when this returns, and no answer
/// and no event has passed it. The service must not have written another result before.
pub async fn commit_cut_off(broker: &Broker, worker: &Worker, database: &Path, reports: &[Value]) {
    let mut outside = Outside::write(database).await;
    outside.hold().await;
    let inbox = worker.client.new_inbox();
    for report in reports {
        let payload = report.to_string().into();
        let subject = "tasklatch.report";
        worker
            .client
            .publish_with_reply(subject, inbox.clone(), payload)
            .await
            .unwrap();
    }
    // A connection's messages stay in order, so that an answer to this means that the service has those before it.
    worker.get("nobody").await;
    signal(broker.pid(), "STOP").await;
    outside.release().await;
    eventually("the reports are committed", async || {
        let results = outside.number("SELECT count(*) FROM results").await;
        (results == reports.len() as i64).then_some(())
    })
    .await;
    outside.close().await;
}

/// Asks a page of the service, at the address that its ready line ends with; gives the status and the body.
pub async fn http_get(ready_line: &str, path: &str) -> (u16, String) {
    let address = ready_line.split_whitespace().last().unwrap();
    let ask = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = timeout(DEADLINE, ask).await.expect("a page in time");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        body.to_owned(),
    )
}
