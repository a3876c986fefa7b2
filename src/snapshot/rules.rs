//! The rules of a task, on what a file says of one: its limits, what its fields say of each other, and that JSON inside
//! it has the one spelling that a service gives it.

use std::ops::RangeInclusive;

use serde::Serialize;

use crate::content::{JsonText, MAX_LEVELS, parse};
use crate::task::{Disposition, Lifecycle, Status, Task, TaskResult};
use crate::wire::{limits, may_be_in_task_id};

/// Checks a task by the rules of the protocol, also those that no schema holds.
///
/// # Errors
/// What is wrong with it.
pub fn check(task: &Task) -> Result<(), String> {
    check_identity(task)?;
    if let Some(metadata) = &task.metadata {
        is_object(
            "metadata",
            metadata,
            limits::METADATA_BYTES,
            limits::METADATA_LEVELS,
        )?;
    }
    if let Some(reason) = &task.reason {
        has_bytes("reason", reason, 0, limits::REASON_BYTES)?;
        holds(
            task.lifecycle == Lifecycle::Canceled,
            "a reason, on a task that is not canceled",
        )?;
    }
    check_result(task)?;
    check_disposition(task)?;
    check_times(task)?;
    let possible = possible_revisions(task);
    if !possible.contains(&task.revision) {
        let (least, most) = possible.into_inner();
        return Err(format!(
            "revision is {}; what has become of the task takes {least} to {most}",
            task.revision
        ));
    }
    holds(
        task.revision > 1 || task.created_at == task.updated_at,
        "updated_at is not created_at, though nothing was changed",
    )
}

fn check_identity(task: &Task) -> Result<(), String> {
    has_bytes("task_id", &task.task_id, 1, limits::TASK_ID_BYTES)?;
    holds(
        task.task_id.bytes().all(may_be_in_task_id),
        "task_id holds more than A-Z a-z 0-9 _ and -",
    )?;
    has_bytes("title", &task.title, 1, limits::TITLE_BYTES)?;
    let Some(pane_id) = &task.pane_id else {
        return Ok(());
    };
    let chars = pane_id.chars().count();
    if !(1..=limits::PANE_ID_CHARS).contains(&chars) {
        return Err(format!(
            "pane_id has {chars} characters; it must have 1 to {}",
            limits::PANE_ID_CHARS
        ));
    }
    holds(
        !pane_id.chars().any(char::is_control),
        "pane_id holds a control character",
    )
}

fn check_result(task: &Task) -> Result<(), String> {
    let reported = Status::ALL
        .iter()
        .any(|&status| task.lifecycle == status.into());
    let Some(result) = &task.result else {
        return match reported {
            true => Err(format!(
                "lifecycle is {}, but there is no result",
                task.lifecycle
            )),
            false => Ok(()),
        };
    };
    if task.lifecycle != result.status.into() {
        return Err(format!(
            "lifecycle is {}, but the result's status is {}",
            task.lifecycle, result.status
        ));
    }
    has_bytes("result/summary", &result.summary, 1, limits::SUMMARY_BYTES)?;
    holds(
        !result.summary.chars().all(char::is_whitespace),
        "result/summary is blank",
    )?;
    if result.artifacts.len() > limits::ARTIFACTS {
        let (count, limit) = (result.artifacts.len(), limits::ARTIFACTS);
        return Err(format!(
            "result/artifacts has {count} items; the limit is {limit}"
        ));
    }
    for (at, artifact) in result.artifacts.iter().enumerate() {
        has_bytes("an artifact", artifact, 1, limits::ARTIFACT_BYTES)
            .map_err(|what| format!("result/artifacts/{at}: {what}"))?;
    }
    is_object(
        "result/evidence",
        &result.evidence,
        limits::EVIDENCE_BYTES,
        limits::EVIDENCE_LEVELS,
    )?;
    fits_a_report(result)
}

/// The parts of a result that were in its report.
#[derive(Serialize)]
struct Reported<'r> {
    status: Status,
    summary: &'r str,
    artifacts: &'r [String],
    evidence: &'r JsonText,
}

fn fits_a_report(result: &TaskResult) -> Result<(), String> {
    let TaskResult {
        status,
        summary,
        artifacts,
        evidence,
        ..
    } = result;
    let reported = Reported {
        status: *status,
        summary,
        artifacts,
        evidence,
    };
    let bytes = serde_json::to_vec(&reported)
        .map_err(|error| error.to_string())?
        .len();
    match bytes > limits::REPORT_BYTES {
        true => Err(format!(
            "result has {bytes} bytes of JSON; the limit of a report is {}",
            limits::REPORT_BYTES
        )),
        false => Ok(()),
    }
}

fn check_disposition(task: &Task) -> Result<(), String> {
    let Some(Disposition { note, reviewer, .. }) = &task.disposition else {
        return Ok(());
    };
    holds(
        task.result.is_some(),
        "a disposition, on a task without a result",
    )?;
    if let Some(note) = note {
        has_bytes("disposition/note", note, 0, limits::NOTE_BYTES)?;
    }
    reviewer.as_ref().map_or(Ok(()), |name| {
        has_bytes("disposition/reviewer", name, 0, limits::REVIEWER_BYTES)
    })
}

fn check_times(task: &Task) -> Result<(), String> {
    let (created, updated) = (task.created_at, task.updated_at);
    holds(created <= updated, "updated_at is before created_at")?;
    if let Some(deadline) = task.deadline {
        holds(created < deadline, "deadline is not after created_at")?;
    }
    if task.lifecycle == Lifecycle::Expired {
        let due = task.deadline.is_some_and(|deadline| deadline <= updated);
        holds(due, "lifecycle is expired, but no deadline had come")?;
    }
    let Some(result) = &task.result else {
        return Ok(());
    };
    let reported = result.reported_at;
    holds(
        created <= reported && reported <= updated,
        "reported_at is not between created_at and updated_at",
    )?;
    let in_time = task.deadline.is_none_or(|deadline| reported < deadline);
    holds(in_time, "reported_at is not before the deadline")?;
    let Some(disposition) = &task.disposition else {
        return Ok(());
    };
    let reviewed = disposition.reviewed_at;
    holds(
        reported <= reviewed && reviewed <= updated,
        "reviewed_at is not between reported_at and updated_at",
    )
}

/// More reviews than this nobody has made of one task.
const REVISION_MAX: i64 = 1 << 53;

/// The revisions that a task can have where it stands: one for its creation, one if it was started, one for its end, and
/// one for each review.
fn possible_revisions(task: &Task) -> RangeInclusive<i64> {
    match task.lifecycle {
        Lifecycle::Submitted => 1..=1,
        Lifecycle::Working => 2..=2,
        _ if task.disposition.is_some() => 3..=REVISION_MAX,
        _ => 2..=3,
    }
}

fn holds(rule: bool, otherwise: &str) -> Result<(), String> {
    if rule {
        Ok(())
    } else {
        Err(otherwise.to_owned())
    }
}

fn has_bytes(name: &str, text: &str, min: usize, max: usize) -> Result<(), String> {
    match text.len() {
        bytes if (min..=max).contains(&bytes) => Ok(()),
        bytes => Err(format!(
            "{name} has {bytes} bytes; it must have {min} to {max}"
        )),
    }
}

fn is_object(
    name: &str,
    text: &JsonText,
    max_bytes: usize,
    max_levels: usize,
) -> Result<(), String> {
    if !text.get().starts_with('{') {
        return Err(format!("{name} is not an object"));
    }
    has_bytes(name, text.get(), 2, max_bytes)?;
    let json =
        parse(text.get().as_bytes(), MAX_LEVELS).map_err(|error| format!("{name}: {error}"))?;
    if json.to_text() != text.get() {
        return Err(format!("{name} is not as tasklatch writes it"));
    }
    match json.levels() {
        levels if levels <= max_levels => Ok(()),
        levels => Err(format!(
            "{name} has {levels} levels; the limit is {max_levels}"
        )),
    }
}
