//! What the event stream has.

use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};

use crate::task::Timestamp;
use crate::wire::{Event, Subjects};

/// Why the stream cannot be asked.
pub type LookupError = async_nats::jetstream::stream::LastRawMessageError;

/// What the stream has of an event.
pub(super) enum Come {
    /// Neither it nor a later one.
    No,
    /// It, or a later one of the same kind about the same task.
    Yes,
    /// One of the same identity that was made at another time: the ledger has lost what it had committed then.
    Otherwise,
}

/// What the stream has of an event, as the relay needs to know it, which stores events in their order: mostly the last message
/// on the event's subject tells. It does not if that is of somebody else, or of an earlier change that was sent again later.
///
/// # Errors
/// [`LookupError`] if the stream cannot be asked.
pub(super) async fn has_come_to(
    stream: &Stream,
    subjects: &Subjects,
    ledger_id: &str,
    event: &Event,
) -> Result<Come, LookupError> {
    let subject = event.subject(subjects);
    match last_on(stream, &subject).await? {
        Some(last) => come_by(stream, &subject, ledger_id, event, last).await,
        None => Ok(Come::No),
    }
}

/// The last message on a subject.
///
/// # Errors
/// [`LookupError`] if the stream cannot be asked.
pub(super) async fn last_on(
    stream: &Stream,
    subject: &str,
) -> Result<Option<StreamMessage>, LookupError> {
    found(stream.get_last_raw_message_by_subject(subject).await)
}

/// The same as [`has_come_to`], where the last message on the event's subject is known.
///
/// # Errors
/// [`LookupError`] if the stream cannot be asked.
pub(super) async fn come_by(
    stream: &Stream,
    subject: &str,
    ledger_id: &str,
    event: &Event,
    last: StreamMessage,
) -> Result<Come, LookupError> {
    let mut message = last.clone();
    let mut next = 1;
    loop {
        match revision_of(&message, ledger_id) {
            Some(revision) if revision > event.revision => return Ok(Come::Yes),
            Some(revision) if revision == event.revision => {
                let time = message.headers.get("ce-time").map(|time| time.as_str());
                let is_it = time == Some(event.time.to_string().as_str());
                return Ok(if is_it { Come::Yes } else { Come::Otherwise });
            }
            _ => {}
        }
        match next_on(stream, subject, next).await? {
            Some(found) if found.sequence < last.sequence => message = found,
            _ => return Ok(Come::No),
        }
        next = message.sequence + 1;
    }
}

/// Whether the stream has exactly this event: by all messages on its subject, of which there are as many as the task has
/// changes, at most.
///
/// # Errors
/// [`LookupError`] if the stream cannot be asked.
pub async fn has(
    stream: &Stream,
    subjects: &Subjects,
    ledger_id: &str,
    event: &Event,
) -> Result<bool, LookupError> {
    let subject = event.subject(subjects);
    let mut message = found(stream.get_last_raw_message_by_subject(&subject).await)?;
    let mut next = 1;
    while let Some(there) = message {
        if revision_of(&there, ledger_id) == Some(event.revision) {
            return Ok(true);
        }
        message = next_on(stream, &subject, next).await?;
        next = message
            .as_ref()
            .map_or(next, |message| message.sequence + 1);
    }
    Ok(false)
}

/// The first message on a subject from this sequence on.
async fn next_on(
    stream: &Stream,
    subject: &str,
    sequence: u64,
) -> Result<Option<StreamMessage>, LookupError> {
    let request = stream.raw_message_builder().sequence(sequence);
    found(request.next_by_subject(subject.to_owned()).send().await)
}

fn found(
    message: Result<StreamMessage, LookupError>,
) -> Result<Option<StreamMessage>, LookupError> {
    match message {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the last message of the stream says that this ledger has made, if it is one of its events: the task, its revision
/// and the time.
///
/// # Errors
/// [`LookupError`] if the stream cannot be asked.
pub(super) async fn last_made(
    stream: &Stream,
    ledger_id: &str,
    last_sequence: u64,
) -> Result<Option<(String, i64, Timestamp)>, LookupError> {
    if last_sequence == 0 {
        return Ok(None);
    }
    let Some(last) = found(stream.get_raw_message(last_sequence).await)? else {
        return Ok(None);
    };
    let header = |name| Some(last.headers.get(name)?.as_str());
    let made = || {
        let revision = revision_of(&last, ledger_id)?;
        let task_id = header("ce-subject")?.to_owned();
        Some((task_id, revision, Timestamp::parse(header("ce-time")?)?))
    };
    Ok(made())
}

/// Whether the stream may have later events of this ledger without earlier ones. It has not if it ends with one that was stored
/// on a condition on what is before it, as in `jetstream` mode.
///
/// # Errors
/// [`LookupError`] if the stream cannot be asked.
pub(super) async fn may_have_gaps(
    stream: &Stream,
    ledger_id: &str,
    last_sequence: u64,
) -> Result<bool, LookupError> {
    if last_sequence == 0 {
        return Ok(false);
    }
    let Some(last) = found(stream.get_raw_message(last_sequence).await)? else {
        return Ok(true);
    };
    let is_conditional = [EXPECTED_LAST_MSG_ID, EXPECTED_LAST_SEQUENCE]
        .into_iter()
        .any(|name| last.headers.get(name).is_some());
    Ok(revision_of(&last, ledger_id).is_none() || !is_conditional)
}

/// The subject of a message of the stream, if it is none of this ledger's events.
///
/// # Errors
/// [`LookupError`] if the stream cannot be asked.
pub(super) async fn stranger_at(
    stream: &Stream,
    ledger_id: &str,
    sequence: u64,
) -> Result<Option<String>, LookupError> {
    let message = found(stream.get_raw_message(sequence).await)?;
    let stranger = message.filter(|message| revision_of(message, ledger_id).is_none());
    Ok(stranger.map(|message| message.subject.to_string()))
}

/// The headers by which the relay says how the stream must end for an event to be stored.
const EXPECTED_LAST_MSG_ID: &str = "Nats-Expected-Last-Msg-Id";
const EXPECTED_LAST_SEQUENCE: &str = "Nats-Expected-Last-Sequence";

/// The revision that a message of the event stream speaks of, if it is an event of this ledger: one of another, from before a
/// restore, is another event.
fn revision_of(message: &StreamMessage, ledger_id: &str) -> Option<i64> {
    let header = |name| Some(message.headers.get(name)?.as_str());
    let source = header("ce-source")?;
    if source.strip_prefix("tasklatch/") != Some(ledger_id) {
        return None;
    }
    // `{task_id}.{revision}.{kind}`, and no task ID holds a dot.
    header("ce-id")?.split('.').nth(1)?.parse().ok()
}
