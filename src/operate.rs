//! What an operator does to a ledger and its events beside the service: verify the ledger, and send events again.

mod backup;

use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::{RetentionPolicy, Stream};
use async_nats::jetstream::{Context, context::GetStreamError};
use async_nats::{HeaderMap, PublishErrorKind};
use futures_util::stream::{self, StreamExt};

use crate::ledger::{
    self, Broken, Fault, OpenError, OutboxReader, Outgoing, Parked, SnapshotReader, find_broken,
    open_beside, open_current, open_to_prune,
};
use crate::nats::{Connection, ERROR_GRACE, RoundTrip, RoundTripError, header_map};
use crate::relay::{LookupError, has, is_too_large};
use crate::snapshot::check_task;
use crate::streams::JETSTREAM_WITHIN;
use crate::task::Timestamp;
use crate::wire::{Event, StreamKind, Subjects};
pub use backup::{BackedUp, BackupError, backup};

/// How many events are asked for at once.
const LOOKUPS_AT_ONCE: usize = 16;

/// How many offenders are named.
const NAMED_MAX: usize = 10;

/// Why an operation could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// The ledger.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The ledger, later.
    #[error("the database cannot be used: {0}")]
    Store(#[from] Fault),
    /// The stream.
    #[error("the event stream {name} cannot be used: {source}")]
    Stream {
        /// Its name.
        name: String,
        /// Why.
        source: GetStreamError,
    },
    /// What the stream has.
    #[error("the event stream cannot be asked what it has: {0}")]
    Lookup(#[from] LookupError),
    /// An event was not stored.
    #[error("event {id} was not stored: {source}")]
    Publish {
        /// Its ID.
        id: String,
        /// Why.
        source: PublishError,
    },
    /// An event could not be published in `core` mode.
    #[error("event {id} was not published: {source}")]
    PublishCore {
        /// Its ID.
        id: String,
        /// Why.
        source: async_nats::PublishError,
    },
    /// Events are for a stream.
    #[error("the stream {0} has the event subjects")]
    Covered(String),
    /// The stream does not keep events.
    #[error(
        "the event stream lets go of an event once all have it, so that it cannot tell which it was never given"
    )]
    NotKept,
    /// The server did not say that it has the events.
    #[error("the NATS server did not confirm the events: {0}")]
    RoundTrip(#[from] RoundTripError),
}

/// The event stream of a service.
pub struct EventStream {
    context: Context,
    stream: Stream,
    subjects: Subjects,
}

/// What became of events that were sent again.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Sent {
    /// Events that the stream lacked, and has now.
    pub sent: u64,
    /// Events that the stream had.
    pub present: u64,
    /// Events that the stream lacks, and takes for duplicates until its window is over.
    pub refused: u64,
    /// Events that are too large, as they were; each with the reason.
    pub too_large: Vec<String>,
}

impl Sent {
    /// How many events were not sent.
    fn not_sent(&self) -> u64 {
        self.refused + self.too_large.len() as u64
    }
}

impl EventStream {
    /// Finds the stream.
    ///
    /// # Errors
    /// [`OperateError::Stream`].
    pub async fn find(
        client: async_nats::Client,
        subjects: Subjects,
    ) -> Result<Self, OperateError> {
        let mut context = async_nats::jetstream::new(client);
        context.set_timeout(JETSTREAM_WITHIN);
        let name = subjects.stream(StreamKind::Events);
        let stream = context.get_stream(&name).await;
        let stream = stream.map_err(|source| OperateError::Stream { name, source })?;
        Ok(Self {
            context,
            stream,
            subjects,
        })
    }

    /// Since when the stream has kept all that it was given; `None` if it lets go of an event as soon as all have it. The
    /// number of messages it keeps may be limited too, which the operator knows.
    fn kept_since(&self, now: Timestamp) -> Option<Timestamp> {
        let config = &self.stream.cached_info().config;
        match (config.retention, config.max_age) {
            (RetentionPolicy::Limits, Duration::ZERO) => Timestamp::from_micros(0),
            (RetentionPolicy::Limits, max_age) => Some(now.before(max_age)),
            _ => None,
        }
    }

    /// Whether the stream has exactly this event.
    async fn has(&self, ledger_id: &str, event: &Event) -> Result<bool, OperateError> {
        Ok(has(&self.stream, &self.subjects, ledger_id, event).await?)
    }

    /// Sends an event if the stream lacks it.
    async fn send(
        &self,
        ledger_id: &str,
        event: &Event,
        sent: &mut Sent,
    ) -> Result<(), OperateError> {
        if self.has(ledger_id, event).await? {
            sent.present += 1;
            return Ok(());
        }
        let message = PublishMessage::build()
            .headers(headers_of(ledger_id, event))
            .payload(event.data.clone());
        let publish = async {
            let subject = event.subject(&self.subjects);
            self.context.send_publish(subject, message).await?.await
        };
        match publish.await {
            Ok(PublishAck {
                duplicate: true, ..
            }) => sent.refused += 1,
            Ok(_) => sent.sent += 1,
            Err(error) if is_too_large(&error) => {
                sent.too_large.push(format!("{}: {error}", event.id()));
            }
            Err(source) => {
                let id = event.id();
                return Err(OperateError::Publish { id, source });
            }
        }
        Ok(())
    }
}

fn headers_of(ledger_id: &str, event: &Event) -> HeaderMap {
    header_map(event.headers(ledger_id))
}

/// Sends the published events of changes since `since`, or of all that the outbox has kept, which the stream lacks: after the
/// stream was lost or set back, for one; but not what the stream lets go of by its age. Events that wait to be published, or are parked, are left to others.
///
/// # Errors
/// [`OperateError`]. What was sent by then is in the stream, and is not sent again by another run.
pub async fn republish(
    database: &Path,
    since: Option<Timestamp>,
    events: &EventStream,
    now: Timestamp,
) -> Result<Sent, OperateError> {
    let kept_since = events.kept_since(now).ok_or(OperateError::NotKept)?;
    let since = since.map_or(kept_since, |since| since.max(kept_since));
    let mut outbox = OutboxReader::new(open_current(database).await?);
    let ledger_id = outbox.ledger_id().await?;
    // Before what is parked is read: of what the cursor has passed by now, all is parked that was not published.
    let until = outbox.published_seq().await?;
    let parked = outbox.parked().await?;
    let is_parked = |seq: i64, event: &Event| {
        let is_it = |parked: &Parked| parked.event.seq == seq && parked.event.kind == event.kind;
        parked.iter().any(is_it)
    };
    let mut sent = Sent::default();
    let mut after = 0;
    loop {
        let page = published(outbox.next_after(after).await?, until);
        let Some(last) = page.last() else {
            return Ok(sent);
        };
        after = last.seq;
        for Outgoing { seq, events: pair } in &page {
            for event in pair {
                if event.time >= since && !is_parked(*seq, event) {
                    events.send(&ledger_id, event, &mut sent).await?;
                }
            }
        }
    }
}

fn published(mut page: Vec<Outgoing>, until: i64) -> Vec<Outgoing> {
    page.retain(|outgoing| outgoing.seq <= until);
    page
}

/// All parked events of a ledger.
///
/// # Errors
/// [`OperateError`].
pub async fn parked(database: &Path) -> Result<Vec<Parked>, OperateError> {
    let mut outbox = OutboxReader::new(open_current(database).await?);
    Ok(outbox.parked().await?)
}

/// Where parked events are sent.
pub enum To<'t> {
    /// To the subscribers that are there.
    Core(&'t Connection, &'t Subjects),
    /// Into the event stream.
    Stream(&'t EventStream),
}

/// Counts the tasks that [`prune`] would let go, beside a service that may be running.
///
/// # Errors
/// [`OperateError`].
pub async fn count_prunable(database: &Path, before: Timestamp) -> Result<u64, OperateError> {
    let mut connection = open_current(database).await?;
    Ok(ledger::count_prunable(&mut connection, before).await?)
}

/// Lets go of the tasks that ended and were last changed before a time, with no service running on the ledger. Gives how many.
///
/// # Errors
/// [`OperateError`]. Some tasks may have gone by then; the rest go when this is done again.
pub async fn prune(
    database: &Path,
    before: Timestamp,
    now: Timestamp,
) -> Result<u64, OperateError> {
    let mut pruner = open_to_prune(database, "tasklatch ledger prune").await?;
    let pruned = pruner.prune(before, now).await?;
    pruner.close().await?;
    Ok(pruned)
}

/// Sends parked events, and takes them off the list once the stream or the server has them.
///
/// # Errors
/// [`OperateError`]. What was sent by then is off the list.
pub async fn resend(database: &Path, parked: &[Parked], to: To<'_>) -> Result<Sent, OperateError> {
    let mut connection = open_beside(database).await?;
    let ledger_id = OutboxReader::new(open_current(database).await?)
        .ledger_id()
        .await?;
    let mut sent = Sent::default();
    for Parked { event, content, .. } in parked {
        let before = sent.not_sent();
        match &to {
            To::Stream(events) => events.send(&ledger_id, content, &mut sent).await?,
            To::Core(connection, subjects) => {
                publish_core(connection, subjects, &ledger_id, content, &mut sent).await?;
            }
        }
        if sent.not_sent() == before {
            ledger::unpark(&mut connection, event.seq, event.kind).await?;
        }
    }
    Ok(sent)
}

/// Publishes an event to the subscribers that are there, and sees that the server has taken and allowed it.
async fn publish_core(
    connection: &Connection,
    subjects: &Subjects,
    ledger_id: &str,
    event: &Event,
    sent: &mut Sent,
) -> Result<(), OperateError> {
    let mut round_trip = RoundTrip::new(connection)
        .await
        .map_err(RoundTripError::Ended)?;
    let mark = connection.mark();
    let headers = headers_of(ledger_id, event);
    let published = connection
        .client()
        .publish_with_headers(event.subject(subjects), headers, event.data.clone())
        .await;
    match published {
        Ok(()) => {}
        Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
            sent.too_large.push(format!("{}: {error}", event.id()));
            return Ok(());
        }
        Err(source) => {
            let id = event.id();
            return Err(OperateError::PublishCore { id, source });
        }
    }
    round_trip.begin().await.map_err(RoundTripError::Ended)?;
    round_trip.wait(mark, JETSTREAM_WITHIN).await?;
    tokio::time::sleep(ERROR_GRACE).await;
    match connection.has_errors_since(mark) {
        true => Err(RoundTripError::ServerError.into()),
        false => {
            sent.sent += 1;
            Ok(())
        }
    }
}

/// The stream that has the event subjects, if there is one and it can be asked for: then events are not for plain NATS.
///
/// # Errors
/// [`OperateError::Covered`] if there is.
pub async fn refuse_covered(
    client: &async_nats::Client,
    subjects: &Subjects,
) -> Result<(), OperateError> {
    let mut context = async_nats::jetstream::new(client.clone());
    context.set_timeout(JETSTREAM_WITHIN);
    let subject = subjects.event(crate::wire::EventKind::Task, "any");
    match context.stream_by_subject(&subject).await {
        Ok(stream) => Err(OperateError::Covered(stream)),
        Err(_) => Ok(()),
    }
}

/// What was found about a ledger.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// How many tasks it has.
    pub tasks: u64,
    /// How many published events were looked for in the stream, if there is one.
    pub events: Option<u64>,
    /// Rules that do not hold.
    pub broken: Vec<Broken>,
}

/// Checks a ledger, beside a service that may be running on it: the file, every rule between its tables, every task by the
/// rules of the protocol, and, with a stream, that it has each event that the cursor has passed and the outbox has kept, unless
/// the stream lets go of it by now.
///
/// # Errors
/// [`OperateError`] if it cannot be checked.
pub async fn verify(
    database: &Path,
    events: Option<&EventStream>,
    now: Timestamp,
) -> Result<Verified, OperateError> {
    let mut connection = open_current(database).await?;
    let mut verified = Verified {
        broken: find_broken(&mut connection).await?,
        ..Verified::default()
    };
    let mut reader = SnapshotReader::begin(connection).await?;
    let mut wrong = Offenders::default();
    loop {
        let page = match reader.next_tasks().await {
            Ok(page) if page.is_empty() => break,
            Ok(page) => page,
            // What cannot be read is what verifying is for.
            Err(fault) => {
                wrong.push(fault.to_string());
                break;
            }
        };
        for task in &page {
            if let Err(what) = check_task(task) {
                wrong.push(format!("{}: {what}", task.task_id));
            }
        }
        verified.tasks += page.len() as u64;
    }
    reader.close().await?;
    wrong.of("a task is as the protocol has it", &mut verified.broken);
    if let Some(events) = events {
        let (count, missing) = find_missing(database, events, now).await?;
        verified.events = Some(count);
        missing.of(
            "the event stream has what the cursor has passed",
            &mut verified.broken,
        );
    }
    Ok(verified)
}

/// Those that break a rule: some by name, the rest by number.
#[derive(Default)]
struct Offenders {
    named: Vec<String>,
    more: u64,
}

impl Offenders {
    fn push(&mut self, offender: String) {
        match self.named.len() < NAMED_MAX {
            true => self.named.push(offender),
            false => self.more += 1,
        }
    }

    /// Adds the rule to those that are broken, if it is.
    fn of(mut self, rule: &str, broken: &mut Vec<Broken>) {
        if self.more > 0 {
            self.named.push(format!("and {} more", self.more));
        }
        if !self.named.is_empty() {
            broken.push(Broken {
                rule: rule.to_owned(),
                offenders: self.named,
            });
        }
    }
}

async fn find_missing(
    database: &Path,
    events: &EventStream,
    now: Timestamp,
) -> Result<(u64, Offenders), OperateError> {
    let mut outbox = OutboxReader::new(open_current(database).await?);
    let ledger_id = outbox.ledger_id().await?;
    // As in `republish`.
    let until = outbox.published_seq().await?;
    let parked = outbox.parked().await?;
    let kept_since = events.kept_since(now);
    let mut count = 0;
    let mut missing = Offenders::default();
    let mut after = 0;
    loop {
        let page = published(outbox.next_after(after).await?, until);
        let Some(last) = page.last() else {
            return Ok((count, missing));
        };
        after = last.seq;
        let is_parked = |event: &Event| parked.iter().any(|parked| parked.content == *event);
        let all = page
            .iter()
            .flat_map(|outgoing| &outgoing.events)
            .filter(|event| kept_since.is_some_and(|since| event.time >= since));
        let looked: Vec<_> = stream::iter(all.filter(|event| !is_parked(event)))
            .map(|event| async { (event.id(), events.has(&ledger_id, event).await) })
            .buffered(LOOKUPS_AT_ONCE)
            .collect()
            .await;
        for (id, has) in looked {
            count += 1;
            if !has? {
                missing.push(id);
            }
        }
    }
}
