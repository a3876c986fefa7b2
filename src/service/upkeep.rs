//! What the service does by itself, beside requests and events.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::consumer::{self, Then, Work};
use crate::health::Health;
use crate::ledger::{Command, Fault, Folder, Ledger};
use crate::task::Timestamp;

/// How often tasks are expired for observers, whose deadline has come. Reports and reads do not wait for it.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// After how many sweeps the writer looks whether its file is still there: every five seconds.
const LOOK_TICKS: u32 = 10;

/// How often old changes are taken out of the outbox.
const PRUNE_INTERVAL: Duration = Duration::from_secs(5);

/// How often the write-ahead log is folded into the database while something is committed.
const FOLD_INTERVAL: Duration = Duration::from_millis(100);

/// Expires tasks for observers, so that they hear of it though nobody asks. While the store is in trouble it also looks
/// whether that has passed; while its log is too long it only has that begun anew.
pub(super) async fn sweep(
    ledger: Ledger,
    work: mpsc::Sender<Work>,
    health: Arc<Health>,
    stop: CancellationToken,
) {
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ticks = 0;
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = stop.cancelled() => return,
        }
        ticks = (ticks + 1) % LOOK_TICKS;
        if health.is_log_overlong() {
            // Nothing new is written meanwhile, so that nobody else tries whether the reader is gone.
            have_applied(&work, Command::Fold).await;
            if ticks == 0 {
                have_applied(&work, Command::Look).await;
            }
            continue;
        }
        if health.is_store_in_trouble() {
            have_applied(&work, Command::Probe).await;
        } else if ticks == 0 {
            // Retries are answered from memory; with nothing else to do, the writer must still notice if its file is gone.
            have_applied(&work, Command::Look).await;
        }
        if let Err(fault) = consumer::expire_due(&ledger, &work).await {
            tracing::warn!(error = %fault, "tasks whose deadline has come could not be expired; trying again");
        }
    }
}

/// Takes published changes out of the outbox once they are older than `keep`: a few at a time, so that no report waits for
/// it, and never one that is not published.
pub(super) async fn prune(
    ledger: Ledger,
    work: mpsc::Sender<Work>,
    keep: Duration,
    health: Arc<Health>,
    stop: CancellationToken,
) {
    let mut interval = tokio::time::interval(PRUNE_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while stop.run_until_cancelled(interval.tick()).await.is_some() {
        if health.is_log_overlong() {
            continue;
        }
        let pruned = prune_all(&ledger, &work, keep, &health);
        if let Some(Err(fault)) = stop.run_until_cancelled(pruned).await {
            tracing::warn!(error = %fault, "published changes could not be taken out of the outbox; trying again");
        }
    }
}

async fn prune_all(
    ledger: &Ledger,
    work: &mpsc::Sender<Work>,
    keep: Duration,
    health: &Health,
) -> Result<(), Fault> {
    let now = Timestamp::now();
    let before = now.before(keep);
    let mut after = 0;
    while let Some(piece) = ledger.next_piece(after, before, now).await? {
        if !piece.is_any_old || health.is_log_overlong() {
            return Ok(());
        }
        have_applied(
            work,
            Command::Prune {
                first: after + 1,
                last: piece.last,
                before,
            },
        )
        .await;
        after = piece.last;
    }
    Ok(())
}

/// Folds the write-ahead log beside the writer until `finish` is called for, and closes its connection.
pub(super) async fn fold(
    mut folder: Folder,
    work: mpsc::Sender<Work>,
    mut committed: watch::Receiver<i64>,
    finish: CancellationToken,
) -> Result<(), Fault> {
    let mut is_failing = false;
    loop {
        let again = async {
            let more = committed.changed().await;
            tokio::time::sleep(FOLD_INTERVAL).await;
            more.is_ok()
        };
        // Without a writer the file may be somebody else's by now.
        if finish.run_until_cancelled(again).await != Some(true) || committed.has_changed().is_err()
        {
            return folder.close().await;
        }
        match folder.fold().await {
            Ok(is_long) => {
                is_failing = false;
                if is_long {
                    let command = Command::Fold;
                    let then = Then::Nothing;
                    let _ = work.send(Work { command, then }).await;
                }
            }
            // The log is whole and grows on; the writer finds out what is wrong with the disk.
            Err(fault) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(error = %fault, "the write-ahead log cannot be folded; it grows until it can");
                }
            }
        }
    }
}

/// Has a command applied and waits for that. Work is applied in order, so all that was queued before is applied then too.
pub(super) async fn have_applied(work: &mpsc::Sender<Work>, command: Command) {
    let (tell, told) = oneshot::channel();
    let then = Then::Tell(tell);
    if work.send(Work { command, then }).await.is_ok() {
        let _ = told.await;
    }
}
