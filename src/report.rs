//! What a worker sends, and the decision that the product exists for. Nothing here does I/O.

use crate::content::JsonText;
use crate::task::{Lifecycle, Status, Task, TaskResult, Timestamp, words};

/// Names one task (docs/protocol.md, "Naming a task"): by its ID, by the pane it was given to, or by both, which must then
/// agree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// The stable selector.
    TaskId(String),
    /// The task most recently associated with this pane.
    PaneId(String),
    /// Both must name the same task.
    Both {
        /// The task.
        task_id: String,
        /// The pane it must have been given to.
        pane_id: String,
    },
}

impl Selector {
    /// The task ID, where one was sent.
    pub fn task_id(&self) -> Option<&str> {
        match self {
            Self::TaskId(task_id) | Self::Both { task_id, .. } => Some(task_id),
            Self::PaneId(_) => None,
        }
    }

    /// The pane ID, where one was sent.
    pub fn pane_id(&self) -> Option<&str> {
        match self {
            Self::PaneId(pane_id) | Self::Both { pane_id, .. } => Some(pane_id),
            Self::TaskId(_) => None,
        }
    }
}

/// A worker's report: how a task ended. Optional content has its default here, so that omitted, `null` and the default
/// are one content (FR-008).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How the task ended.
    pub status: Status,
    /// What the worker says of it.
    pub summary: String,
    /// What the worker made, in its order.
    pub artifacts: Vec<String>,
    /// A JSON object.
    pub evidence: JsonText,
}

words! {
    /// A part of a report's content, as `differs` names it.
    ContentField {
        /// How the task ended.
        Status = "status",
        /// What the worker says of it.
        Summary = "summary",
        /// What the worker made.
        Artifacts = "artifacts",
        /// Decoded evidence.
        Evidence = "evidence",
    }
}

/// What a report gets, given the task as found in the transaction (docs/protocol.md, "Outcomes").
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The task was open: this report is its result from now on.
    Accepted,
    /// The task's result has the same content: nothing changes.
    Replayed,
    /// The task's result has other content: nothing changes.
    Conflicting {
        /// Every field that differs, in the order of the protocol; never empty.
        differs: Vec<ContentField>,
    },
    /// The task ended without a result.
    Terminal(Lifecycle),
}

/// Decides on a report. A pure function of the stored task and the report; the comparison with an accepted result comes
/// before every other check, so that a retry is a replay whatever has happened to the task since (FR-001 to FR-006).
///
/// The caller has expired a task whose deadline has come ([`Task::is_due`]).
pub fn decide(task: &Task, report: &Report) -> Verdict {
    match &task.result {
        Some(result) => match differing_fields(result, report) {
            differs if differs.is_empty() => Verdict::Replayed,
            differs => Verdict::Conflicting { differs },
        },
        None if task.lifecycle.is_terminal() => Verdict::Terminal(task.lifecycle),
        None => Verdict::Accepted,
    }
}

/// The fields of content in which a report differs from a result: status, summary, artifacts in order, and evidence as
/// decoded values; never the time (FR-002).
pub fn differing_fields(result: &TaskResult, report: &Report) -> Vec<ContentField> {
    [
        (ContentField::Status, result.status != report.status),
        (ContentField::Summary, result.summary != report.summary),
        (
            ContentField::Artifacts,
            result.artifacts != report.artifacts,
        ),
        (ContentField::Evidence, result.evidence != report.evidence),
    ]
    .into_iter()
    .filter_map(|(field, differs)| differs.then_some(field))
    .collect()
}

impl Report {
    /// The result that this report becomes when it is accepted; [`Task::accept`] gives it its time.
    pub fn into_result(self, reported_at: Timestamp) -> TaskResult {
        let Self {
            status,
            summary,
            artifacts,
            evidence,
        } = self;
        TaskResult {
            status,
            summary,
            artifacts,
            evidence,
            reported_at,
        }
    }
}

#[cfg(test)]
mod tests;
