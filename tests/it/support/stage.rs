//! What happens on a stage besides requests: restarts, the command line, and hands in the database file.

use std::path::Path;
use std::process::{Output, Stdio};

use sqlx::{ConnectOptions, SqliteConnection};
use tokio::process::Command;
use tokio::time::timeout;

use super::service::BINARY;
use super::{DEADLINE, Observer, Service, Stage};

impl Stage {
    /// An observer from which nothing can come any more of what was committed before: events come after their commit.
    pub async fn observer_from_now(&self) -> Observer {
        let mut observer = self.observer().await;
        observer.all_so_far().await;
        observer
    }

    /// Kills the service as a power cut would, and starts it again on the same file.
    pub async fn crash_and_restart(&mut self) {
        self.service.kill().await;
        self.service = Service::start(&self.broker, &self.database(), &[]).await;
    }

    /// Saves a snapshot, restores it into a new ledger and serves that one from now on.
    pub async fn move_to_a_restored_ledger(&mut self) {
        let snapshot = self.folder.path().join("ledger.snapshot");
        let restored = self.folder.path().join("restored");
        std::fs::create_dir_all(&restored).unwrap();
        save(&snapshot, &self.database()).await;
        self.service.kill().await;
        restore(&snapshot, &restored.join("ledger.db")).await;
        self.service = Service::start(&self.broker, &restored.join("ledger.db"), &[]).await;
    }

    /// A connection of the test's own to the database file, past the service.
    pub async fn sqlite(&self) -> SqliteConnection {
        sqlx::sqlite::SqliteConnectOptions::new()
            .filename(self.database())
            .connect()
            .await
            .unwrap()
    }
}

/// `tasklatch snapshot save`.
pub async fn save(snapshot: &Path, database: &Path) {
    succeeds(&[
        "snapshot",
        "save",
        path(snapshot),
        "--database",
        path(database),
    ])
    .await;
}

/// `tasklatch snapshot restore`.
pub async fn restore(snapshot: &Path, database: &Path) {
    succeeds(&[
        "snapshot",
        "restore",
        path(snapshot),
        "--database",
        path(database),
    ])
    .await;
}

/// Runs the binary to its end.
pub async fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    timeout(DEADLINE, command.output())
        .await
        .expect("it ends in time")
        .unwrap()
}

async fn succeeds(arguments: &[&str]) {
    let output = run(arguments).await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "tasklatch {arguments:?} ended with {}: {stderr}",
        output.status
    );
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
