//! Requests in, answers out.
//!
//! Each endpoint has a subscription and a task that takes its messages, decodes them and hands them on: what may change a
//! task goes to the [`Applier`](applier::Applier), the one task that writes; what only reads is read beside it. Work in
//! hand is bounded; past the bound the answer is `overloaded`, at once. Every request is answered.

pub mod applier;
pub mod discovery;
pub mod durable;
mod replies;
mod reply_bytes;

use std::sync::Arc;
use std::time::Duration;

use async_nats::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use replies::trace_of;
pub use replies::{Replier, Ticket};

use crate::health::Health;
use crate::ids;
use crate::ledger::{Applied, Circumstances, Command, Fault, FaultKind, Found, Ledger, Page};
use crate::nats::{Connection, Lasting};
use crate::report::Selector;
use crate::task::Timestamp;
use crate::wire::{Answer, Change, Endpoint, ListQuery, Refusal, Request, Subjects, decode};

/// The queue group of every endpoint (docs/protocol.md, "Names").
pub const QUEUE_GROUP: &str = "tasklatch";

/// How many bytes of requests are in hand at most. Each may have up to the server's `max_payload`, so their number alone
/// bounds nothing.
const IN_HAND_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long the server may take to confirm that a subscription has ended.
const END_WITHIN: Duration = Duration::from_secs(4);

/// How long a reply to an abandoned read may take.
const ABANDONED_WITHIN: Duration = Duration::from_secs(1);

/// How many requests are read at once. Their answers may be as large as the server's `max_payload`, however small the
/// requests are.
const READS_MAX: usize = 64;

/// Work for the applier.
#[derive(Debug)]
pub struct Work {
    /// What to do.
    pub command: Command,
    /// Who hears of it.
    pub then: Then,
}

/// Who hears what became of a command, once that is durable.
#[derive(Debug)]
pub enum Then {
    /// A client.
    Answer(Ticket),
    /// A task of the service.
    Tell(oneshot::Sender<Result<Applied, Fault>>),
    /// Nobody.
    Nothing,
}

/// Takes requests and hands them on.
#[derive(Clone)]
pub struct Consumer {
    ledger: Ledger,
    replier: Replier,
    work: mpsc::Sender<Work>,
    in_hand: Arc<InHand>,
    max_in_hand: usize,
    /// Requests that are read beside the applier.
    reads: TaskTracker,
    /// How many of them are read or answered at once.
    reading: Arc<Semaphore>,
    health: Arc<Health>,
    /// Ends reads that the store keeps waiting, and replies whose connection stands still.
    abandon: CancellationToken,
}

/// What came of a read beside the applier.
enum Read {
    /// The reply.
    Reply(Answer),
    /// The task's deadline has come, which the applier must write first.
    Due(Command),
}

/// How much is in hand.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Pieces of work that wait for the writer.
    pub queued: usize,
    /// Requests that are taken on and not answered.
    pub in_hand: usize,
    /// How many of those there may be.
    pub in_hand_max: usize,
}

#[derive(Debug)]
struct InHand {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// A share of the work in hand, given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    _request: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl InHand {
    fn new(requests: usize, bytes: usize) -> Self {
        Self {
            requests: Arc::new(Semaphore::new(requests)),
            bytes: Arc::new(Semaphore::new(bytes)),
        }
    }

    fn take(&self, bytes: usize) -> Option<Share> {
        // A request is never larger than the server's max_payload, which the permits of a semaphore can count.
        let bytes = u32::try_from(bytes.max(1)).ok()?;
        Some(Share {
            _request: self.requests.clone().try_acquire_owned().ok()?,
            _bytes: self.bytes.clone().try_acquire_many_owned(bytes).ok()?,
        })
    }
}

impl Consumer {
    /// A consumer that takes on up to `max_in_hand` requests at once.
    pub fn new(
        ledger: Ledger,
        replier: Replier,
        work: mpsc::Sender<Work>,
        max_in_hand: usize,
        health: Arc<Health>,
    ) -> Self {
        let in_hand = InHand::new(max_in_hand, IN_HAND_BYTES_MAX);
        Self {
            ledger,
            replier,
            work,
            in_hand: Arc::new(in_hand),
            max_in_hand,
            reads: TaskTracker::new(),
            reading: Arc::new(Semaphore::new(READS_MAX)),
            health,
            abandon: CancellationToken::new(),
        }
    }

    /// Takes the messages of one endpoint until `drain` is cancelled; then those that the server has sent already, and
    /// ends.
    pub async fn take(
        self,
        endpoint: Endpoint,
        connection: Connection,
        mut messages: Lasting,
        drain: CancellationToken,
    ) {
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                () = drain.cancelled() => break,
            };
            self.accept(endpoint, message).await;
        }
        let mut ending = messages.end(&connection, END_WITHIN).await;
        while let Some(message) = ending.next().await {
            self.accept(endpoint, message).await;
        }
        if let Err(error) = ending.proved() {
            tracing::warn!(endpoint = endpoint.name(), error = %error, "the NATS server did not confirm that a subscription has ended");
        }
    }

    /// How much is in hand now.
    pub fn load(&self) -> Load {
        let in_hand = self.in_hand.requests.available_permits();
        Load {
            queued: self.work.max_capacity() - self.work.capacity(),
            in_hand: self.max_in_hand.saturating_sub(in_hand),
            in_hand_max: self.max_in_hand,
        }
    }

    /// Waits until the reads that were begun have been answered.
    pub async fn finish_reads(&self) {
        self.reads.close();
        self.reads.wait().await;
    }

    /// Replies `unavailable` to the reads that are not done, and waits until that is sent, or cannot be.
    pub async fn abandon_reads(&self) {
        self.abandon.cancel();
        self.reads.wait().await;
    }

    async fn accept(&self, endpoint: Endpoint, message: Message) {
        let mut ticket = self.replier.ticket(endpoint, message.reply.as_ref());
        if let Some(headers) = &message.headers
            && endpoint.is_report()
        {
            ticket.trace = trace_of(headers);
        }
        let subject_task_id = match endpoint {
            Endpoint::ReportOfTask => message.subject.rsplit('.').next(),
            _ => None,
        };
        let Some(share) = self.in_hand.take(message.payload.len()) else {
            return self.refuse(ticket, &Refusal::overloaded()).await;
        };
        let ticket = ticket.with(share);
        match decode(
            endpoint,
            subject_task_id,
            &message.payload,
            ids::new_task_id,
        ) {
            Err(refusal) => self.refuse(ticket, &refusal).await,
            Ok(Request::Change(change)) => self.change(change, ticket).await,
            Ok(Request::Get(selector)) => {
                self.read(
                    ticket,
                    |consumer| async move { consumer.get(selector).await },
                );
            }
            Ok(Request::List(query)) => {
                self.read(ticket, |consumer| async move { consumer.list(query).await });
            }
        }
    }

    async fn change(&self, change: Change, mut ticket: Ticket) {
        if let Change::Report { selector, .. } = &change {
            ticket.name_task(selector);
        }
        match self.recall(&change) {
            Some(applied) => {
                let applied = self.replier.hold(&mut ticket, Ok(applied));
                self.replier.send(ticket, answer_to(applied)).await;
            }
            None => {
                let command = match ticket.trace.clone() {
                    Some(trace) => Command::Traced(change, trace),
                    None => Command::Change(change),
                };
                self.enqueue(command, ticket).await;
            }
        }
    }

    /// Answers a report for a task whose result is remembered, which changes nothing, without the applier.
    fn recall(&self, change: &Change) -> Option<Applied> {
        match change {
            Change::Report { selector, report } => {
                self.ledger.recall(selector, report, self.circumstances())
            }
            _ => None,
        }
    }

    /// Reads beside the applier, and replies.
    fn read<F: Future<Output = Read> + Send>(
        &self,
        ticket: Ticket,
        read: impl FnOnce(Self) -> F + Send + 'static,
    ) {
        let consumer = self.clone();
        self.reads.spawn(async move {
            let abandon = consumer.abandon.clone();
            let reading = consumer.reading.clone();
            // Held until the reply is on its way.
            let mut place = None;
            let get = async {
                place = reading.acquire().await.ok();
                read(consumer.clone()).await
            };
            let read = abandon.run_until_cancelled(get).await;
            let read =
                read.unwrap_or_else(|| Read::Reply(Answer::refused(&Refusal::unavailable())));
            let reply = async {
                match read {
                    Read::Reply(answer) => consumer.replier.send_in_turn(ticket, answer).await,
                    Read::Due(command) => consumer.enqueue(command, ticket).await,
                }
            };
            let late = async {
                abandon.cancelled().await;
                tokio::time::sleep(ABANDONED_WITHIN).await;
            };
            tokio::select! {
                () = reply => {}
                () = late => {}
            }
            drop(place);
        });
    }

    async fn refuse(&self, ticket: Ticket, refusal: &Refusal) {
        self.replier.send(ticket, Answer::refused(refusal)).await;
    }

    /// The queue has room for all shares of the work in hand, so that this does not wait.
    async fn enqueue(&self, command: Command, ticket: Ticket) {
        let work = Work {
            command,
            then: Then::Answer(ticket),
        };
        if let Err(mpsc::error::SendError(Work {
            then: Then::Answer(ticket),
            ..
        })) = self.work.send(work).await
        {
            self.refuse(ticket, &Refusal::unavailable()).await;
        }
    }

    async fn get(&self, selector: Selector) -> Read {
        match self.ledger.get(&selector, self.circumstances()).await {
            Ok(Found::Answer(applied)) => Read::Reply(answer_to(Ok(applied))),
            Ok(Found::Due) => Read::Due(Command::Get(selector)),
            Err(fault) => self.failed(fault),
        }
    }

    /// The reply to a request that could not be read.
    fn failed(&self, fault: Fault) -> Read {
        tracing::error!(error = %fault, "the store could not be read");
        if fault.kind() == FaultKind::Damaged {
            self.health.store_failed(&fault.to_string());
        }
        Read::Reply(answer_to(Err(fault)))
    }

    async fn list(&self, query: ListQuery) -> Read {
        let page = match expire_due(&self.ledger, &self.work).await {
            Ok(()) => self.ledger.list(&query, self.circumstances()).await,
            Err(fault) => Err(fault),
        };
        match page {
            Ok(Page::Body(body)) => Read::Reply(Answer::done(body.into(), None)),
            Ok(Page::Refused(refusal)) => Read::Reply(Answer::refused(&refusal)),
            Err(fault) => self.failed(fault),
        }
    }

    fn circumstances(&self) -> Circumstances {
        Circumstances {
            now: Timestamp::now(),
            max_payload: self.replier.max_payload(),
        }
    }
}

/// Has every task expired whose deadline has come: so that no list shows one as open, and for observers.
///
/// # Errors
/// If the store fails.
pub async fn expire_due(ledger: &Ledger, work: &mpsc::Sender<Work>) -> Result<(), Fault> {
    while ledger.is_any_due(Timestamp::now()).await? {
        let (tell, told) = oneshot::channel();
        let sweep = Work {
            command: Command::Sweep,
            then: Then::Tell(tell),
        };
        if work.send(sweep).await.is_err() {
            return Ok(());
        }
        match told.await {
            Ok(Ok(Applied::Swept { more: true, .. })) => {}
            Ok(Err(fault)) => return Err(fault),
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// The one place where what became of a command turns into an answer.
pub fn answer_to(result: Result<Applied, Fault>) -> Answer {
    match result {
        Ok(Applied::Task { body, outcome }) => Answer::done(body, outcome),
        Ok(Applied::Refused(refusal)) => Answer::refused(&refusal),
        // No client can ask for these.
        Ok(
            Applied::Swept { .. }
            | Applied::Published
            | Applied::Parked
            | Applied::Pruned
            | Applied::Probed
            | Applied::Folded
            | Applied::Looked,
        ) => Answer::refused(&Refusal::internal()),
        Err(fault) => match fault.kind() {
            FaultKind::Passing | FaultKind::Damaged | FaultKind::Other => {
                Answer::refused(&Refusal::unavailable())
            }
            FaultKind::Refused => Answer::refused(&Refusal::internal()),
        },
    }
}

/// Subscribes to every endpoint.
///
/// # Errors
/// If the client has ended.
pub async fn subscribe(
    connection: &Connection,
    subjects: &Subjects,
) -> Result<Vec<(Endpoint, Lasting)>, async_nats::SubscribeError> {
    let mut subscriptions = Vec::with_capacity(Endpoint::ALL.len());
    for endpoint in Endpoint::ALL {
        let messages = connection
            .subscribe(subjects.of(endpoint), Some(QUEUE_GROUP))
            .await?;
        subscriptions.push((endpoint, messages));
    }
    Ok(subscriptions)
}
