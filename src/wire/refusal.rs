//! Refusals and their codes (docs/protocol.md, "Refusals").

use serde::{Deserialize, Serialize};

use crate::report::ContentField;
use crate::task::{Lifecycle, Timestamp, words};

words! {
    /// What a client should do about a refusal.
    Action {
        /// Correct the request; sending it again as it is gets the same answer.
        Fix = "fix",
        /// Refused for good.
        Stop = "stop",
        /// Send the same again later; that is always safe.
        Retry = "retry",
    }
}

words! {
    /// Why a request was refused.
    Code {
        /// A report that cannot be understood or is over a limit.
        InvalidReport = "invalid_report",
        /// Another request that cannot be understood or is over a limit.
        InvalidRequest = "invalid_request",
        /// No task by that selector.
        TaskNotFound = "task_not_found",
        /// Two selectors name different tasks.
        SelectorMismatch = "selector_mismatch",
        /// A pane that does not name one task safely.
        AmbiguousPane = "ambiguous_pane",
        /// A task of that ID exists with other content.
        TaskConflict = "task_conflict",
        /// Another report was accepted.
        ResultConflict = "result_conflict",
        /// The task ended without a result, or the move is not allowed.
        TaskTerminal = "task_terminal",
        /// A review of a task without a result.
        NoResult = "no_result",
        /// Too much work is waiting.
        Overloaded = "overloaded",
        /// The store cannot be written or the answer cannot be sent now.
        Unavailable = "unavailable",
        /// A fault of the service.
        Internal = "internal",
    }
}

impl Code {
    /// The number in the header `Nats-Service-Error-Code`.
    pub fn number(self) -> u16 {
        match self {
            Self::InvalidReport | Self::InvalidRequest => 400,
            Self::TaskNotFound => 404,
            Self::SelectorMismatch
            | Self::AmbiguousPane
            | Self::TaskConflict
            | Self::ResultConflict
            | Self::TaskTerminal
            | Self::NoResult => 409,
            Self::Overloaded | Self::Unavailable => 503,
            Self::Internal => 500,
        }
    }

    /// What the client should do.
    pub fn action(self) -> Action {
        match self {
            Self::InvalidReport
            | Self::InvalidRequest
            | Self::TaskNotFound
            | Self::SelectorMismatch
            | Self::AmbiguousPane => Action::Fix,
            Self::TaskConflict | Self::ResultConflict | Self::TaskTerminal | Self::NoResult => {
                Action::Stop
            }
            Self::Overloaded | Self::Unavailable | Self::Internal => Action::Retry,
        }
    }
}

/// A refusal: the body of an error answer. Only code, message and action are always there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Why.
    pub code: Code,
    /// For people: what happened, to what, and what to do next. One line.
    pub message: String,
    /// Follows from the code.
    pub action: Action,
    /// The task it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Where that task stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// The fields of content that differ from what was accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
    /// The offending field, as a JSON Pointer (RFC 6901).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The limit that was passed; its unit is in the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// What was found instead, in the same unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual: Option<u64>,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl Refusal {
    /// A refusal with its code and message alone. Control characters become spaces, so that it fits on a header line.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into().replace(char::is_control, " ");
        Self {
            code,
            message,
            action: code.action(),
            task_id: None,
            lifecycle: None,
            differs: Vec::new(),
            field: None,
            limit: None,
            actual: None,
        }
    }

    /// Names the offending field by its JSON Pointer.
    pub fn at(mut self, pointer: impl Into<String>) -> Self {
        self.field = Some(pointer.into());
        self
    }

    /// Says which limit was passed, and by what.
    pub fn over(mut self, limit: usize, actual: usize) -> Self {
        self.limit = Some(limit as u64);
        self.actual = Some(actual as u64);
        self
    }

    /// Names the task.
    pub fn about(mut self, task_id: &str) -> Self {
        self.task_id = Some(task_id.to_owned());
        self
    }

    /// No task by this ID.
    pub fn task_not_found(task_id: &str) -> Self {
        let message =
            format!("there is no task {task_id}; check the task ID, or create the task first");
        Self::new(Code::TaskNotFound, message).about(task_id)
    }

    /// The task of this ID was let go by an operator, with its result.
    pub fn task_pruned(task_id: &str, pruned_at: Timestamp) -> Self {
        let message = format!(
            "task {task_id} had ended, and was pruned at {pruned_at}; how it ended is no longer known, and a report on it is not \
             taken"
        );
        Self::new(Code::TaskNotFound, message).about(task_id)
    }

    /// A task cannot be made under the ID of one that was let go.
    pub fn pruned_id(task_id: &str, pruned_at: Timestamp) -> Self {
        let message = format!(
            "there was a task {task_id}, which was pruned at {pruned_at}; use another task ID for another task"
        );
        Self::new(Code::TaskConflict, message).about(task_id)
    }

    /// There is no task of this pane.
    pub fn pane_not_found() -> Self {
        let message = "no task of that pane is there: it was given none, or all were pruned; check the pane ID, or send the \
                       task ID";
        Self::new(Code::TaskNotFound, message)
    }

    /// Two selectors that do not agree.
    pub fn selector_mismatch(task_id: &str, other: &str) -> Self {
        let message =
            format!("the request names task {task_id}, but {other}; send the task ID alone");
        Self::new(Code::SelectorMismatch, message).about(task_id)
    }

    /// Another report was accepted.
    pub fn result_conflict(task_id: &str, lifecycle: Lifecycle, differs: &[ContentField]) -> Self {
        let fields: Vec<String> = differs.iter().map(ToString::to_string).collect();
        let message = format!(
            "task {task_id} already has another accepted report, which differs in {}; it stands, so stop",
            fields.join(", ")
        );
        let refusal = Self::new(Code::ResultConflict, message).about(task_id);
        Self {
            lifecycle: Some(lifecycle),
            differs: fields,
            ..refusal
        }
    }

    /// A task with that ID exists, with other content.
    pub fn task_conflict(task_id: &str, lifecycle: Lifecycle, differs: &[&str]) -> Self {
        let message = format!(
            "task {task_id} exists with another {}; it stands, so use another task ID for another task",
            differs.join(", ")
        );
        let refusal = Self::new(Code::TaskConflict, message).about(task_id);
        Self {
            lifecycle: Some(lifecycle),
            differs: differs.iter().map(ToString::to_string).collect(),
            ..refusal
        }
    }

    /// The task has ended, and this cannot follow.
    pub fn task_terminal(task_id: &str, lifecycle: Lifecycle, wanted: &str) -> Self {
        let message = format!("task {task_id} is {lifecycle}, which is final; {wanted}");
        let refusal = Self::new(Code::TaskTerminal, message).about(task_id);
        Self {
            lifecycle: Some(lifecycle),
            ..refusal
        }
    }

    /// A review of a task that has nothing to review.
    pub fn no_result(task_id: &str, lifecycle: Lifecycle) -> Self {
        let message = format!("task {task_id} is {lifecycle} and has no result to review");
        let refusal = Self::new(Code::NoResult, message).about(task_id);
        Self {
            lifecycle: Some(lifecycle),
            ..refusal
        }
    }

    /// More work is waiting than the service takes on.
    pub fn overloaded() -> Self {
        Self::new(
            Code::Overloaded,
            "too much work is waiting; nothing was done, so send the same again in a moment",
        )
    }

    /// More changes wait to be published than may.
    pub fn too_much_unpublished(limit: i64) -> Self {
        Self::new(
            Code::Overloaded,
            format!(
                "{limit} changes wait to be published, which is as many as may; nothing was done, so send the same again \
                 once events go out"
            ),
        )
    }

    /// The store's log has no room for more, since somebody has been reading the store for long.
    pub fn log_too_long() -> Self {
        Self::new(
            Code::Overloaded,
            "the store's log has grown to its limit under a reader of the database; nothing was done, so send the same again \
             once that reader is done",
        )
    }

    /// The store could not be written, or it is not known whether it was.
    pub fn unavailable() -> Self {
        Self::new(
            Code::Unavailable,
            "the store cannot be used now; send the same again in a moment, which is safe whatever became of it",
        )
    }

    /// So many bytes of replies wait for the connection that this one, of `bytes`, cannot be held.
    pub fn replies_wait(bytes: usize) -> Self {
        Self::new(
            Code::Unavailable,
            format!(
                "too many replies wait to be read, so that this one of {bytes} bytes cannot be held; send the same again in a \
                 moment, which is safe whatever became of it"
            ),
        )
    }

    /// A fault of the service, whose detail is in its log and never sent.
    pub fn internal() -> Self {
        Self::new(
            Code::Internal,
            "the service met a fault of its own, which is in its log; send the same again later",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_it_quotes() {
        let refusal = Refusal::new(Code::InvalidReport, "a\r\nb\tc\u{0}");
        assert_eq!(refusal.message, "a  b c ");
    }

    #[test]
    fn only_code_message_and_action_are_always_there() {
        let body = serde_json::to_string(&Refusal::overloaded()).unwrap();
        assert!(
            body.starts_with(r#"{"code":"overloaded","message":"#),
            "{body}"
        );
        assert!(body.ends_with(r#","action":"retry"}"#), "{body}");
    }
}
