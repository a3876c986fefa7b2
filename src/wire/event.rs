//! Events: CloudEvents 1.0 over NATS (docs/protocol.md, "Events").

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Subjects, TRACE_HEADERS_MAX_BYTES, TRACEPARENT, TRACESTATE, Trace, header};
use crate::task::{Task, TaskResult, Timestamp, words};

words! {
    /// The two kinds of events, by their `ce-type`.
    EventKind {
        /// A report was accepted.
        Result = "tasklatch.result.accepted",
        /// A task changed.
        Task = "tasklatch.task.updated",
    }
}

impl EventKind {
    /// The word for it in subjects and event IDs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Task => "task",
        }
    }

    /// The kind with this [`word`](Self::word).
    pub fn from_short(word: &str) -> Option<Self> {
        [Self::Result, Self::Task]
            .into_iter()
            .find(|kind| kind.word() == word)
    }
}

/// What the headers of an event take, roughly, in bytes.
pub const HEADERS_USUAL_BYTES: usize = 400;

/// At most what the headers of an event or answer take, in bytes, but for those of a trace. They hold the task ID three times
/// (128 each), the ledger ID twice (64 each) and fixed text of under 400.
pub const HEADERS_MAX_BYTES: usize = 1024;

/// An event about one revision of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which of the two.
    pub kind: EventKind,
    /// The task.
    pub task_id: String,
    /// The revision that it speaks of.
    pub revision: i64,
    /// When that revision came to be.
    pub time: Timestamp,
    /// The payload, as JSON.
    pub data: Bytes,
    /// The trace that it belongs to.
    pub trace: Option<Box<Trace>>,
}

/// The payload of a result event, in the order of the protocol.
#[derive(Serialize)]
struct ResultData<'a> {
    task_id: &'a str,
    pane_id: Option<&'a str>,
    revision: i64,
    result: &'a TaskResult,
}

/// The events of a task as of one revision, in the order they are published: a result event first if that revision is
/// the one that accepted the report, which is the one with a result and no review.
///
/// # Errors
/// Only if the task does not encode as JSON.
pub fn events_of(task: &Task) -> Result<Vec<Event>, serde_json::Error> {
    events_with(task, serde_json::to_vec(task)?.into())
}

/// The same where the task was encoded already.
///
/// # Errors
/// Only if the task does not encode as JSON.
pub fn events_with(task: &Task, body: Bytes) -> Result<Vec<Event>, serde_json::Error> {
    let event = |kind, data| Event {
        kind,
        task_id: task.task_id.clone(),
        revision: task.revision,
        time: task.updated_at,
        data,
        trace: None,
    };
    let mut events = Vec::with_capacity(2);
    if let (Some(result), None) = (&task.result, &task.disposition) {
        let data = ResultData {
            task_id: &task.task_id,
            pane_id: task.pane_id.as_deref(),
            revision: task.revision,
            result,
        };
        events.push(event(EventKind::Result, serde_json::to_vec(&data)?.into()));
    }
    events.push(event(EventKind::Task, body));
    Ok(events)
}

impl Event {
    /// `ce-id`: the same for the same event, also after a crash.
    pub fn id(&self) -> String {
        format!("{}.{}.{}", self.task_id, self.revision, self.kind.word())
    }

    /// Where it is published.
    pub fn subject(&self, subjects: &Subjects) -> String {
        subjects.event(self.kind, &self.task_id)
    }

    /// The headers of the binary mode of the CloudEvents NATS binding, and `Nats-Msg-Id`. Without those of its trace, to
    /// which an event that somebody sends again later does not belong.
    pub fn headers(&self, ledger_id: &str) -> Vec<(&'static str, String)> {
        let id = self.id();
        vec![
            ("ce-specversion", "1.0".to_owned()),
            (header::MSG_ID, format!("{ledger_id}.{id}")),
            ("ce-id", id),
            ("ce-source", source(ledger_id)),
            ("ce-type", self.kind.to_string()),
            ("ce-time", self.time.to_string()),
            ("ce-subject", self.task_id.clone()),
            ("content-type", "application/json".to_owned()),
        ]
    }

    /// The same with the headers of its trace, if that is sure to fit into a message of `message_max` bytes: no event is
    /// too large since somebody traces it.
    pub fn traced_headers(
        &self,
        ledger_id: &str,
        message_max: usize,
    ) -> Vec<(&'static str, String)> {
        let mut headers = self.headers(ledger_id);
        let traced = self.data.len() + HEADERS_MAX_BYTES + TRACE_HEADERS_MAX_BYTES;
        if let Some(trace) = &self.trace
            && traced <= message_max
        {
            headers.push((TRACEPARENT, trace.traceparent()));
            headers.extend(trace.state.clone().map(|state| (TRACESTATE, state)));
        }
        headers
    }

    /// The event in the JSON format of CloudEvents, for files and terminals.
    ///
    /// # Errors
    /// If the payload is not JSON, which an event built by [`events_of`] always is.
    pub fn to_cloud_event(&self, ledger_id: &str) -> Result<CloudEvent, serde_json::Error> {
        Ok(CloudEvent {
            specversion: "1.0".to_owned(),
            id: self.id(),
            source: source(ledger_id),
            kind: self.kind,
            time: self.time,
            subject: self.task_id.clone(),
            datacontenttype: "application/json".to_owned(),
            data: serde_json::from_slice(&self.data)?,
        })
    }
}

fn source(ledger_id: &str) -> String {
    format!("tasklatch/{ledger_id}")
}

/// An event in the JSON format of CloudEvents 1.0.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloudEvent {
    /// `1.0`.
    pub specversion: String,
    /// As [`Event::id`].
    pub id: String,
    /// The ledger that it comes from.
    pub source: String,
    /// Which of the two.
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// When the revision came to be.
    pub time: Timestamp,
    /// The task ID.
    pub subject: String,
    /// `application/json`.
    pub datacontenttype: String,
    /// The payload.
    pub data: Box<RawValue>,
}
