//! What the page of metrics says that nobody counts: it is read when the page is asked for.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::consumer::Consumer;
use crate::health::Health;
use crate::ledger::Ledger;
use crate::metrics::{ConnectionName, Readings};
use crate::nats::Happenings;
use crate::task::Timestamp;

/// Where it is read.
pub(super) struct Sources {
    pub ledger: Ledger,
    pub consumer: Consumer,
    pub health: Arc<Health>,
    pub connections: Vec<(ConnectionName, Arc<Happenings>)>,
    pub database: PathBuf,
    /// How many changes may wait to be published.
    pub unpublished_max: i64,
}

impl Sources {
    /// The page.
    pub(super) async fn page(&self) -> String {
        let load = self.consumer.load();
        let connections = self.connections.iter().map(|(name, happenings)| {
            let dropped = happenings.dropped.load(Ordering::Relaxed);
            let server_errors = happenings.server_errors.load(Ordering::Relaxed);
            (*name, dropped, server_errors)
        });
        let mut log = self.database.clone().into_os_string();
        log.push("-wal");
        let readings = Readings {
            // A store that cannot be read shows in /ready.
            lag: self.ledger.lag().await.ok(),
            is_ready: self.health.readiness().ready,
            queued: load.queued,
            in_hand: load.in_hand,
            in_hand_max: load.in_hand_max,
            unpublished_max: self.unpublished_max,
            database_bytes: size(&self.database).await,
            log_bytes: size(Path::new(&log)).await,
            connections: connections.collect(),
            resident_bytes: resident_bytes().await,
        };
        self.health.metrics().page(&readings, Timestamp::now())
    }
}

async fn size(path: &Path) -> Option<u64> {
    let metadata = tokio::fs::metadata(path).await;
    metadata.ok().map(|metadata| metadata.len())
}

/// What the process has in memory, in bytes, where the operating system says so in a file.
async fn resident_bytes() -> Option<u64> {
    let status = tokio::fs::read_to_string("/proc/self/status").await.ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}
