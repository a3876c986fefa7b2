//! Protocol version 1 as it stands on the wire: subjects, headers, JSON and error codes. Encoding and decoding only;
//! nothing here does I/O.

mod answer;
mod event;
mod refusal;
mod request;
mod subjects;
mod trace;

pub use answer::{Answer, Outcome};
pub use event::{
    CloudEvent, Event, EventKind, HEADERS_MAX_BYTES, HEADERS_USUAL_BYTES, events_of, events_with,
};
pub use refusal::{Action, Code, Refusal};
pub use request::{Change, ListQuery, NewTask, Request, decode, limits, may_be_in_task_id};
pub use subjects::{Endpoint, PrefixError, StreamKind, Subjects};
pub use trace::{TRACE_HEADERS_MAX_BYTES, TRACEPARENT, TRACESTATE, Trace};

/// The version of the protocol, as the header [`header::PROTOCOL`] says it.
pub const PROTOCOL_VERSION: &str = "1";

/// Names of headers (protocol sections 4 to 6).
pub mod header {
    /// On every answer of the service; an answer without it is somebody else's.
    pub const PROTOCOL: &str = "Tasklatch-Protocol";
    /// `accepted` or `replayed`, on the answer to a report.
    pub const OUTCOME: &str = "Tasklatch-Outcome";
    /// The number of a refusal (ADR-32).
    pub const SERVICE_ERROR_CODE: &str = "Nats-Service-Error-Code";
    /// `{code}: {message}` of a refusal, on one line (ADR-32).
    pub const SERVICE_ERROR: &str = "Nats-Service-Error";
    /// Where the answer to a report from the report stream goes.
    pub const REPLY_TO: &str = "Tasklatch-Reply-To";
    /// On a dead letter that did not fit: what of the report was left out.
    pub const LEFT_OUT: &str = "Tasklatch-Left-Out";
    /// Tells an event apart from its own repetition.
    pub const MSG_ID: &str = "Nats-Msg-Id";
}
