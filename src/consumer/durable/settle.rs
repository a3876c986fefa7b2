//! Settling what the report stream delivered: acknowledged, set aside, or to be delivered again.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_nats::jetstream::message::Acker;
use async_nats::jetstream::{self, AckKind, Context};
use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use tokio::sync::Mutex;

use super::dead::{self, DeadError, Letter};
use super::{ACK_WAIT, CONSUMER};
use crate::consumer::{Replier, Ticket};
use crate::health::Health;
use crate::metrics::Retried;
use crate::nats::LogPace;
use crate::streams::{StreamError, Wanted};
use crate::wire::{Action, Answer, Code, Subjects, header};

/// The pause before a report is delivered again that cannot be applied now; each one is twice as long, up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(250);

/// The longest pause before a report is delivered again.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The report stream as it is now: one that was made anew counts from the beginning.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) stream: String,
    /// When it was made, in nanoseconds since 1970.
    pub(super) created: i128,
}

impl Origin {
    /// Names a report of the stream, and no other, for ever.
    pub(super) fn id_of(&self, sequence: u64) -> String {
        let Self { stream, created } = self;
        format!("{stream}.{created}.{sequence}")
    }
}

/// A report that the report stream delivered, until it is settled.
pub struct Delivery {
    acker: Acker,
    /// The rest of the subject, which should be a task ID.
    task_id: String,
    headers: HeaderMap,
    payload: Bytes,
    origin: Arc<Origin>,
    sequence: u64,
    /// Which delivery of this report it is, from 1.
    delivered: u64,
    settler: Arc<Settler>,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.origin.id_of(self.sequence))
            .field("delivered", &self.delivered)
            .finish_non_exhaustive()
    }
}

impl Delivery {
    /// Takes a message on; `None` if it cannot be one of the stream's.
    pub(super) fn of(
        message: jetstream::Message,
        origin: &Arc<Origin>,
        settler: &Arc<Settler>,
    ) -> Option<Self> {
        let (sequence, delivered) = match message.info() {
            Ok(info) => (info.stream_sequence, info.delivered.max(1) as u64),
            Err(error) => {
                tracing::warn!(error = %error, "a message came that is not of the report stream; it is left alone");
                return None;
            }
        };
        if delivered > 1 {
            // The reason may be that acknowledgments are lost.
            settler.prove_again();
        }
        let (message, acker) = message.split();
        let task_id = message.subject.strip_prefix(&settler.queue);
        Some(Self {
            acker,
            task_id: task_id.unwrap_or_default().to_owned(),
            headers: message.headers.unwrap_or_default(),
            payload: message.payload,
            origin: origin.clone(),
            sequence,
            delivered,
            settler: settler.clone(),
        })
    }

    pub(super) fn task_id(&self) -> &str {
        &self.task_id
    }

    pub(in crate::consumer) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn letter(&self) -> Letter<'_> {
        Letter {
            task_id: &self.task_id,
            headers: Some(&self.headers),
            payload: self.payload.clone(),
            id: self.origin.id_of(self.sequence),
            is_again: self.delivered > 1,
        }
    }

    /// Where its answer shall go.
    pub(in crate::consumer) fn reply_to(&self) -> Option<Subject> {
        let subject = self.headers.get(header::REPLY_TO)?.as_str();
        Some(subject.into())
    }

    /// Does with it what its answer says, and answers. What takes more than a message is done beside.
    pub(in crate::consumer) async fn settle(
        self: Box<Self>,
        replier: &Replier,
        mut ticket: Ticket,
        answer: Answer,
    ) {
        match answer.refused.map(Code::action) {
            None => {
                if ticket.received.elapsed() > ACK_WAIT {
                    tracing::warn!(
                        report.after_s = ticket.received.elapsed().as_secs(),
                        "a report took longer than its stream waits, which delivers it again"
                    );
                }
                // In this order, so that a crash in between costs no answer.
                replier.answer(&mut ticket, answer).await;
                self.acknowledge(replier).await;
            }
            Some(Action::Retry) if !answer.is_over_limit() => self.put_off(&answer).await,
            Some(_) => {
                let beside = replier.clone();
                replier.settle_beside(async move { self.bury(beside, ticket, answer).await });
            }
        }
    }

    async fn acknowledge(self: Box<Self>, replier: &Replier) {
        if !self.settler.is_to_prove() {
            return note_unsent(self.acker.ack().await);
        }
        // Once in a while the stream has to confirm: it says nothing of an acknowledgment that it does not get.
        replier.settle_beside(async move {
            let confirmed = self.acker.double_ack_with(AckKind::Ack).await;
            self.settler.proved(&confirmed);
        });
    }

    /// It may be applied later.
    async fn put_off(&self, answer: &Answer) {
        self.settler
            .health
            .metrics()
            .retried(Retried::DurableReport);
        let delay = delay_after(self.delivered);
        let refusal = answer.refused.map(Code::as_str);
        tracing::trace!(task.id = %self.task_id, refusal, deliveries = self.delivered, again.after_ms = delay.as_millis() as u64, "a durable report cannot be applied now");
        note_unsent(self.acker.ack_with(AckKind::Nak(Some(delay))).await);
    }

    /// It can never be applied: sets it aside, and only then takes it out of the stream.
    async fn bury(&self, replier: Replier, mut ticket: Ticket, answer: Answer) {
        let settler = &self.settler;
        match dead::publish(&settler.context, &settler.subjects, self.letter(), &answer).await {
            Ok(()) => settler.health.dead_letters_ok(),
            Err(error) => return self.keep(error).await,
        }
        replier.answer(&mut ticket, answer).await;
        let confirmed = self.acker.double_ack_with(AckKind::Term).await;
        settler.proved(&confirmed);
    }

    async fn keep(&self, error: DeadError) {
        let settler = &self.settler;
        let delay = delay_after(self.delivered);
        tracing::warn!(error = %error, task.id = %self.task_id, again.after_ms = delay.as_millis() as u64, "a report that can never be applied is not set aside");
        settler.health.dead_letters_failed(&error.to_string());
        // It may have been removed; one look at a time is enough.
        if let Ok(_looking) = settler.looking.try_lock()
            && let Err(error) = settler.ensure_dead().await
        {
            settler.health.dead_letters_failed(&error.to_string());
        }
        note_unsent(self.acker.ack_with(AckKind::Nak(Some(delay))).await);
    }
}

/// How long a report waits after so many deliveries.
fn delay_after(delivered: u64) -> Duration {
    let doublings = delivered.saturating_sub(1).min(16) as u32;
    (RETRY_FIRST * 2_u32.pow(doublings)).min(RETRY_MAX)
}

fn note_unsent(sent: Result<(), async_nats::Error>) {
    if let Err(error) = sent {
        tracing::debug!(error = %error, "the report stream is not told what became of a report; it delivers it again");
    }
}

/// What settling needs.
#[derive(Debug)]
pub(super) struct Settler {
    context: Context,
    subjects: Subjects,
    /// What the subjects of all queued reports begin with.
    queue: String,
    dead: Wanted,
    health: Arc<Health>,
    /// Whether the stream is known to hear acknowledgments.
    proof: AtomicU8,
    unconfirmed: LogPace,
    looking: Mutex<()>,
}

const PROVED: u8 = 0;
const TO_PROVE: u8 = 1;
const PROVING: u8 = 2;

impl Settler {
    pub(super) fn new(context: Context, subjects: &Subjects, health: Arc<Health>) -> Self {
        Self {
            context,
            queue: subjects.queued_report_of(""),
            dead: Wanted::dead(subjects),
            subjects: subjects.clone(),
            health,
            proof: AtomicU8::new(TO_PROVE),
            unconfirmed: LogPace::default(),
            looking: Mutex::new(()),
        }
    }

    /// Sees to the stream of dead letters.
    pub(super) async fn ensure_dead(&self) -> Result<(), StreamError> {
        self.dead.ensure(&self.context).await.map(drop)
    }

    /// Has the stream confirm the next acknowledgment.
    pub(super) fn prove_again(&self) {
        let _ = self
            .proof
            .compare_exchange(PROVED, TO_PROVE, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn is_to_prove(&self) -> bool {
        self.proof
            .compare_exchange(TO_PROVE, PROVING, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    fn proved(&self, confirmed: &Result<(), async_nats::Error>) {
        match confirmed {
            Ok(()) => {
                self.proof.store(PROVED, Ordering::Relaxed);
                self.health.acknowledgments_ok();
            }
            Err(error) => {
                self.proof.store(TO_PROVE, Ordering::Relaxed);
                let why = format!(
                    "{error}; if the server is not merely busy, check the permissions on $JS.ACK.>"
                );
                if self.unconfirmed.is_due() {
                    tracing::warn!(consumer.name = CONSUMER, error = %why, "the report stream confirms no acknowledgment");
                }
                self.health.acknowledgments_failed(&why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_waits_longer_after_each_delivery_up_to_a_limit() {
        assert_eq!(delay_after(1), RETRY_FIRST);
        assert_eq!(delay_after(3), RETRY_FIRST * 4);
        assert_eq!(delay_after(1_000), RETRY_MAX);
        assert_eq!(delay_after(u64::MAX), RETRY_MAX);
    }
}
