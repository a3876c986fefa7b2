//! The one task that writes, and is never cancelled.
//!
//! It takes all that waits, applies it in one transaction, and hands the answers on. It does not linger for more to come:
//! while one batch is on its way to the disk, the next gathers by itself.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::{Replier, Then, Ticket, Work, answer_to};
use crate::health::Health;
use crate::ledger::{Applied, BATCH_COMMANDS_MAX, Circumstances, Fault, FaultKind, Writer};
use crate::task::Timestamp;
use crate::wire::Answer;

/// An answer with the request it belongs to.
pub type Reply = (Ticket, Answer);

/// The state of the task.
pub struct Applier {
    /// The only road to the store.
    pub writer: Writer,
    /// What is to be done.
    pub work: mpsc::Receiver<Work>,
    /// Answers, for [`send_all`]. Unbounded, since each holds its share of the work in hand, which is bounded.
    pub answers: mpsc::UnboundedSender<Reply>,
    /// Tells the relay that there is something to publish.
    pub committed: watch::Sender<i64>,
    /// For the server's limit on messages.
    pub replier: Replier,
    /// Where trouble shows.
    pub health: Arc<Health>,
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
            let results = self.writer.apply(&commands, circumstances).await;
            let damage = self.take_note(&results);
            self.committed.send_replace(self.writer.last_seq());
            for (then, result) in listeners.into_iter().zip(results) {
                self.hand_on(then, result);
            }
            if let Some(fault) = damage {
                self.work.close();
                while let Some(work) = self.work.recv().await {
                    self.hand_on(work.then, Err(fault.clone()));
                }
                return Err(fault);
            }
        }
        Ok(self.writer)
    }

    fn hand_on(&self, then: Then, result: Result<Applied, Fault>) {
        match then {
            // Whoever listened may be gone; what was applied is applied.
            Then::Answer(ticket) => drop(self.answers.send((ticket, answer_to(result)))),
            Then::Tell(tell) => drop(tell.send(result)),
            Then::Nothing => {}
        }
    }

    /// Logs what failed, once a batch, and returns a fault that must end the service.
    fn take_note(&self, results: &[Result<Applied, Fault>]) -> Option<Fault> {
        let faults: Vec<&Fault> = results
            .iter()
            .filter_map(|result| result.as_ref().err())
            .collect();
        // Where it was one of the commands, the store works.
        let of_the_store = faults
            .iter()
            .find(|fault| fault.kind() != FaultKind::Refused);
        match of_the_store {
            None => self.health.store_ok(),
            Some(fault) => self.health.store_failed(&fault.to_string()),
        }
        let worst = of_the_store.or(faults.first())?;
        tracing::error!(error = %worst, commands.failed = faults.len(), commands.all = results.len(), "the store failed");
        faults
            .into_iter()
            .find(|fault| fault.kind() == FaultKind::Damaged)
            .cloned()
    }
}

/// Sends answers until the applier is gone.
pub async fn send_all(mut answers: mpsc::UnboundedReceiver<Reply>, replier: Replier) {
    while let Some((ticket, answer)) = answers.recv().await {
        replier.send(ticket, answer).await;
    }
}
