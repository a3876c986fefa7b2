//! The one task that writes, and is never cancelled.
//!
//! It takes all that waits, applies it in one transaction, and hands on what became of it. It does not linger for more to come:
//! while one batch is on its way to the disk, the next gathers by itself.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, watch};

use super::{Replier, Then, Work, answer_to};
use crate::health::Health;
use crate::ledger::{
    Applied, BATCH_COMMANDS_MAX, Circumstances, Command, Fault, FaultKind, Writer,
};
use crate::nats::Trouble;
use crate::task::Timestamp;
use crate::telemetry::Period;

/// A batch that was applied: who listens, and what became of each command.
pub struct AppliedBatch {
    listeners: Vec<Then>,
    results: Vec<Result<Applied, Fault>>,
    /// When it was applied.
    applied: Period,
    /// Only to be dropped, beside the applier.
    _commands: Vec<Command>,
}

impl AppliedBatch {
    fn new(
        commands: Vec<Command>,
        mut listeners: Vec<Then>,
        mut results: Vec<Result<Applied, Fault>>,
        applied: Period,
        replier: &Replier,
    ) -> Self {
        for (then, result) in listeners.iter_mut().zip(&mut results) {
            match then {
                // The service's own tasks are told at once: replies may have to wait for the server.
                Then::Tell(_) => {
                    if let Then::Tell(tell) = std::mem::replace(then, Then::Nothing) {
                        drop(tell.send(result.clone()));
                    }
                }
                Then::Answer(ticket) => {
                    let held = std::mem::replace(result, Ok(Applied::Looked));
                    *result = replier.hold(ticket, held);
                }
                Then::Nothing => {}
            }
        }
        Self {
            listeners,
            results,
            applied,
            _commands: commands,
        }
    }
}

/// The state of the task.
pub struct Applier {
    /// The only road to the store.
    pub writer: Writer,
    /// What is to be done.
    pub work: mpsc::Receiver<Work>,
    /// What was applied, for [`send_all`]. Unbounded, since each listener holds its share of the work in hand, which is
    /// bounded.
    pub applied: mpsc::UnboundedSender<AppliedBatch>,
    /// Tells the relay that there is something to publish.
    pub committed: watch::Sender<i64>,
    /// For the server's limit on messages.
    pub replier: Replier,
    /// Where trouble shows.
    pub health: Arc<Health>,
    /// What is logged of it.
    pub trouble: Trouble,
}

impl Applier {
    /// Applies work until all senders are gone, and gives the writer back.
    ///
    /// # Errors
    /// If the disk or the file is damaged: nothing more must be written then.
    pub async fn run(mut self) -> Result<Writer, Fault> {
        let mut batch = Vec::with_capacity(BATCH_COMMANDS_MAX);
        while self.work.recv_many(&mut batch, BATCH_COMMANDS_MAX).await > 0 {
            let (commands, listeners): (Vec<_>, Vec<_>) = batch
                .drain(..)
                .map(|work| (work.command, work.then))
                .unzip();
            let circumstances = Circumstances {
                now: Timestamp::now(),
                max_payload: self.replier.max_payload(),
            };
            let (begun, before) = (Instant::now(), self.writer.last_seq());
            let results = self.writer.apply(&commands, circumstances).await;
            let took = begun.elapsed();
            let has_changed = self.writer.last_seq() > before;
            let count = commands.len();
            self.health
                .metrics()
                .applied(count, has_changed.then_some(took));
            let applied = Period::of_last(took);
            let damage = self.take_note(&results);
            self.health.outbox_full(self.writer.is_outbox_full());
            self.health.overlong_log(self.writer.overlong_log());
            // Before anybody hears of the batch: a relay that is asked to finish must know of it.
            self.committed.send_replace(self.writer.last_seq());
            // Whoever sends the answers may be gone; what was applied is applied.
            let _ = self.applied.send(AppliedBatch::new(
                commands,
                listeners,
                results,
                applied,
                &self.replier,
            ));
            if let Some(fault) = damage {
                self.work.close();
                let mut listeners = Vec::new();
                while let Some(work) = self.work.recv().await {
                    listeners.push(work.then);
                }
                let results = vec![Err(fault.clone()); listeners.len()];
                let _ = self.applied.send(AppliedBatch::new(
                    Vec::new(),
                    listeners,
                    results,
                    applied,
                    &self.replier,
                ));
                return Err(fault);
            }
        }
        Ok(self.writer)
    }

    fn store_works(&mut self) {
        self.health.store_ok();
        if let Some((took, failures)) = self.trouble.over() {
            tracing::info!(
                trouble.seconds = took.as_secs_f64(),
                trouble.failures = failures,
                "the store works again"
            );
        }
    }

    /// Logs what failed, and returns a fault that must end the service.
    fn take_note(&mut self, results: &[Result<Applied, Fault>]) -> Option<Fault> {
        let faults: Vec<&Fault> = results
            .iter()
            .filter_map(|result| result.as_ref().err())
            .collect();
        // Where it was one of the commands, the store works.
        let of_the_store = faults
            .iter()
            .find(|fault| fault.kind() != FaultKind::Refused);
        match of_the_store {
            None => self.store_works(),
            Some(fault) => self.health.store_failed(&fault.to_string()),
        }
        let worst = of_the_store.or(faults.first())?;
        if of_the_store.is_none() || self.trouble.failed(&worst.to_string()) {
            tracing::error!(error = %worst, commands.failed = faults.len(), commands.all = results.len(), "the store failed");
        }
        faults
            .into_iter()
            .find(|fault| fault.kind() == FaultKind::Damaged)
            .cloned()
    }
}

/// Tells the listeners of each batch until the applier is gone. Not the applier does it, so that the next batch is on its
/// way to the disk meanwhile.
pub async fn send_all(mut applied: mpsc::UnboundedReceiver<AppliedBatch>, replier: Replier) {
    while let Some(batch) = applied.recv().await {
        for (then, result) in batch.listeners.into_iter().zip(batch.results) {
            if let Then::Answer(mut ticket) = then {
                ticket.transaction = Some(batch.applied);
                replier.send(ticket, answer_to(result)).await;
            }
        }
    }
    replier.until_settled().await;
}
