//! Requests: from payloads to values, strictly (docs/protocol.md, "Payloads"). Content that is not understood is refused, never
//! dropped.

mod fields;

use fields::Fields;

use super::{Code, Endpoint, Refusal};
use crate::content::{self, Json, JsonText, ParseErrorKind};
use crate::report::{Report, Selector};
use crate::task::{Lifecycle, ReviewVerdict, Status, Timestamp};

/// The limits of docs/protocol.md, "Limits". Sizes are bytes of UTF-8; sizes of JSON are of the text as the service writes it.
pub mod limits {
    /// A task ID.
    pub const TASK_ID_BYTES: usize = 128;
    /// A pane ID, in characters.
    pub const PANE_ID_CHARS: usize = 128;
    /// A report's summary.
    pub const SUMMARY_BYTES: usize = 16 * 1024;
    /// How many artifacts.
    pub const ARTIFACTS: usize = 256;
    /// One artifact.
    pub const ARTIFACT_BYTES: usize = 4 * 1024;
    /// Evidence, as JSON.
    pub const EVIDENCE_BYTES: usize = 256 * 1024;
    /// Nested levels of evidence, itself included.
    pub const EVIDENCE_LEVELS: usize = 64;
    /// The whole report, as JSON.
    pub const REPORT_BYTES: usize = 384 * 1024;
    /// A task's title.
    pub const TITLE_BYTES: usize = 1024;
    /// A task's metadata, as JSON.
    pub const METADATA_BYTES: usize = 64 * 1024;
    /// Nested levels of metadata, itself included.
    pub const METADATA_LEVELS: usize = 32;
    /// The reason of a cancellation.
    pub const REASON_BYTES: usize = 16 * 1024;
    /// The note of a review.
    pub const NOTE_BYTES: usize = 16 * 1024;
    /// The name of a reviewer.
    pub const REVIEWER_BYTES: usize = 256;
    /// Tasks in a list answer.
    pub const LIST_TASKS: usize = 1000;
    /// Tasks in a list answer, where the request does not say.
    pub const LIST_TASKS_DEFAULT: usize = 100;
}

/// Whether a byte may be part of a task ID (docs/protocol.md, "The task"): of these a task ID is one subject token.
pub fn may_be_in_task_id(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// A request that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// It may change a task.
    Change(Change),
    /// Read one task.
    Get(Selector),
    /// Read many tasks.
    List(ListQuery),
}

/// A request that may change a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A worker's report.
    Report {
        /// Which task.
        selector: Selector,
        /// How it ended.
        report: Report,
    },
    /// A new task.
    Create(NewTask),
    /// Work on a task has begun.
    Start(Selector),
    /// A task is called off.
    Cancel {
        /// Which task.
        selector: Selector,
        /// Why, if said.
        reason: Option<String>,
    },
    /// A result is reviewed.
    Review {
        /// Which task.
        selector: Selector,
        /// What the reviewer decided.
        verdict: ReviewVerdict,
        /// Why, if said.
        note: Option<String>,
        /// Who, if said.
        reviewer: Option<String>,
    },
}

/// A task to be created. That its deadline lies in the future is checked when it is, and only if it is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTask {
    /// The creator's ID, or one that was made for this request.
    pub task_id: String,
    /// The seat it is given to.
    pub pane_id: Option<String>,
    /// What is to be done.
    pub title: String,
    /// A JSON object of the creator's.
    pub metadata: Option<JsonText>,
    /// When it expires without a result.
    pub deadline: Option<Timestamp>,
}

/// Which tasks to list, newest created first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// Only these lifecycles.
    pub lifecycle: Option<Vec<Lifecycle>>,
    /// Only tasks given to this pane.
    pub pane_id: Option<String>,
    /// Only tasks with one of these verdicts; `None` in the list stands for tasks without a disposition.
    pub disposition: Option<Vec<Option<ReviewVerdict>>>,
    /// Only tasks updated at or after this instant.
    pub updated_since: Option<Timestamp>,
    /// At most so many; 1 to [`limits::LIST_TASKS`].
    pub limit: usize,
    /// Where an earlier answer ended.
    pub cursor: Option<String>,
}

/// Reads a request. `subject_task_id` is the last token of the subject of [`Endpoint::ReportOfTask`]; `new_task_id` is
/// asked for an ID when a task is created without one.
///
/// # Errors
/// A refusal with [`Code::InvalidReport`] for reports and [`Code::InvalidRequest`] for all else, or
/// [`Code::SelectorMismatch`] if subject and body name different tasks.
pub fn decode(
    endpoint: Endpoint,
    subject_task_id: Option<&str>,
    payload: &[u8],
    new_task_id: fn() -> String,
) -> Result<Request, Refusal> {
    let code = match endpoint {
        Endpoint::Report | Endpoint::ReportOfTask => Code::InvalidReport,
        _ => Code::InvalidRequest,
    };
    let mut fields = open(code, endpoint, payload)?;
    let request = match endpoint {
        Endpoint::Report => Request::Change(report(&mut fields, None, payload.len())?),
        Endpoint::ReportOfTask => {
            Request::Change(report(&mut fields, subject_task_id, payload.len())?)
        }
        Endpoint::Create => Request::Change(Change::Create(create(&mut fields, new_task_id)?)),
        Endpoint::Get => Request::Get(selector(&mut fields)?),
        Endpoint::List => Request::List(list(&mut fields)?),
        Endpoint::Start => Request::Change(Change::Start(selector(&mut fields)?)),
        Endpoint::Cancel => Request::Change(Change::Cancel {
            selector: selector(&mut fields)?,
            reason: fields.optional_text("reason", 0, limits::REASON_BYTES)?,
        }),
        Endpoint::Review => Request::Change(review(&mut fields)?),
    };
    fields.close()?;
    Ok(request)
}

/// Parses the payload as one JSON object. The whole may nest one level deeper than the deepest value it may hold.
fn open(code: Code, endpoint: Endpoint, payload: &[u8]) -> Result<Fields, Refusal> {
    let (deep_field, levels) = match endpoint {
        Endpoint::Create => ("/metadata", limits::METADATA_LEVELS),
        _ => ("/evidence", limits::EVIDENCE_LEVELS),
    };
    match content::parse(payload, levels + 1) {
        Ok(Json::Object(fields)) => Ok(Fields::new(code, fields)),
        Ok(_) => Err(Refusal::new(
            code,
            "the payload is JSON, but not an object; send one JSON object",
        )),
        Err(error) => {
            let deep = error.kind == ParseErrorKind::TooDeep
                && error
                    .pointer
                    .as_deref()
                    .is_some_and(|pointer| is_within(pointer, deep_field));
            let refusal = if deep {
                let message = format!("{} is nested deeper than {levels} levels", &deep_field[1..]);
                let refusal = Refusal::new(code, message);
                Refusal {
                    limit: Some(levels as u64),
                    ..refusal
                }
                .at(deep_field)
            } else {
                let refusal = Refusal::new(code, error.message);
                Refusal {
                    field: error.pointer,
                    ..refusal
                }
            };
            Err(refusal)
        }
    }
}

fn is_within(pointer: &str, field: &str) -> bool {
    pointer
        .strip_prefix(field)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn report(
    fields: &mut Fields,
    subject_task_id: Option<&str>,
    payload_bytes: usize,
) -> Result<Change, Refusal> {
    // The text as the service writes it is never longer than what was sent, so most need no second look.
    if payload_bytes > limits::REPORT_BYTES {
        fields.check_size("the report", limits::REPORT_BYTES)?;
    }
    let body_task_id = fields.task_id()?;
    let body_pane_id = fields.pane_id()?;
    let task_id = match (subject_task_id, body_task_id) {
        (Some(subject), None) => Some(fields.checked_task_id(subject.to_owned())?),
        (Some(subject), Some(body)) if subject != body => {
            return Err(Refusal::selector_mismatch(
                &body,
                &format!("its subject names {subject:?}"),
            ));
        }
        (_, body) => body,
    };
    let selector = one_or_both(fields, task_id, body_pane_id)?;
    let status = fields.word("status", Status::from_word, Status::ALL)?;
    let status = fields.required("status", status)?;
    let summary = fields.optional_text("summary", 1, limits::SUMMARY_BYTES)?;
    let summary = fields.required("summary", summary)?;
    if summary.chars().all(char::is_whitespace) {
        return Err(fields.refuse(
            "summary",
            "summary is blank; say in a few words how the task ended",
        ));
    }
    let artifacts = fields.artifacts()?;
    let evidence = fields.object("evidence", limits::EVIDENCE_BYTES, limits::EVIDENCE_LEVELS)?;
    let evidence = evidence.unwrap_or_else(|| JsonText::from(&Json::Object(Vec::new())));
    let report = Report {
        status,
        summary,
        artifacts,
        evidence,
    };
    Ok(Change::Report { selector, report })
}

fn selector(fields: &mut Fields) -> Result<Selector, Refusal> {
    let task_id = fields.task_id()?;
    let pane_id = fields.pane_id()?;
    one_or_both(fields, task_id, pane_id)
}

fn one_or_both(
    fields: &Fields,
    task_id: Option<String>,
    pane_id: Option<String>,
) -> Result<Selector, Refusal> {
    match (task_id, pane_id) {
        (Some(task_id), Some(pane_id)) => Ok(Selector::Both { task_id, pane_id }),
        (Some(task_id), None) => Ok(Selector::TaskId(task_id)),
        (None, Some(pane_id)) => Ok(Selector::PaneId(pane_id)),
        (None, None) => Err(fields.refuse_whole("no task is named; send task_id, or pane_id")),
    }
}

fn create(fields: &mut Fields, new_task_id: fn() -> String) -> Result<NewTask, Refusal> {
    let task_id = fields.task_id()?.unwrap_or_else(new_task_id);
    let pane_id = fields.pane_id()?;
    let title = fields.optional_text("title", 1, limits::TITLE_BYTES)?;
    let title = fields.required("title", title)?;
    let metadata = fields.object("metadata", limits::METADATA_BYTES, limits::METADATA_LEVELS)?;
    let deadline = fields.time("deadline")?;
    Ok(NewTask {
        task_id,
        pane_id,
        title,
        metadata,
        deadline,
    })
}

fn review(fields: &mut Fields) -> Result<Change, Refusal> {
    let selector = selector(fields)?;
    let verdict = fields.word("verdict", ReviewVerdict::from_word, ReviewVerdict::ALL)?;
    Ok(Change::Review {
        selector,
        verdict: fields.required("verdict", verdict)?,
        note: fields.optional_text("note", 0, limits::NOTE_BYTES)?,
        reviewer: fields.optional_text("reviewer", 0, limits::REVIEWER_BYTES)?,
    })
}

fn list(fields: &mut Fields) -> Result<ListQuery, Refusal> {
    let verdict_or_none = |word: &str| match word {
        "none" => Some(None),
        word => ReviewVerdict::from_word(word).map(Some),
    };
    let mut verdicts: Vec<&str> = ReviewVerdict::ALL
        .iter()
        .map(|verdict| verdict.as_str())
        .collect();
    verdicts.push("none");
    let lifecycles: Vec<&str> = Lifecycle::ALL
        .iter()
        .map(|lifecycle| lifecycle.as_str())
        .collect();
    Ok(ListQuery {
        lifecycle: fields.words("lifecycle", Lifecycle::from_word, &lifecycles)?,
        pane_id: fields.pane_id()?,
        disposition: fields.words("disposition", verdict_or_none, &verdicts)?,
        updated_since: fields.time("updated_since")?,
        limit: fields
            .number("limit", 1, limits::LIST_TASKS)?
            .unwrap_or(limits::LIST_TASKS_DEFAULT),
        cursor: fields.optional_text("cursor", 1, limits::TASK_ID_BYTES)?,
    })
}

#[cfg(test)]
mod tests;
