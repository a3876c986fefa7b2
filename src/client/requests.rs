//! Requests as they are sent.

use bytes::Bytes;
use serde::Serialize;

use super::{ClientError, encode};
use crate::content::JsonText;
use crate::report::Selector;
use crate::task::{Lifecycle, ReviewVerdict, Status, Timestamp};

/// A worker's report and the task that it is about.
#[derive(Clone, Debug, Serialize)]
pub struct ReportRequest {
    /// Which task.
    #[serde(flatten)]
    pub which: Which,
    /// How the task ended.
    pub status: Status,
    /// What the worker says of it.
    pub summary: String,
    /// What the worker made, in its order.
    pub artifacts: Vec<String>,
    /// A JSON object, sent with its numbers as they are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<JsonText>,
}

impl ReportRequest {
    /// The payload. A retry sends the same one.
    ///
    /// # Errors
    /// Only if a value does not encode as JSON, which none does.
    pub fn encode(&self) -> Result<Bytes, ClientError> {
        encode(self)
    }
}

/// A selector as it is sent.
#[derive(Clone, Debug, Serialize)]
pub struct Which {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) task_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pane_id: Option<String>,
}

impl From<&Selector> for Which {
    fn from(selector: &Selector) -> Self {
        Self {
            task_id: selector.task_id().map(str::to_owned),
            pane_id: selector.pane_id().map(str::to_owned),
        }
    }
}

/// A task to be created.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CreateRequest {
    /// The creator's ID; the service makes one if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The seat it is given to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pane_id: Option<String>,
    /// What is to be done.
    pub title: String,
    /// A JSON object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<JsonText>,
    /// When it expires without a result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

/// Which tasks to list. What is left out does not narrow.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ListRequest {
    /// Only these lifecycles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Vec<Lifecycle>>,
    /// Only tasks given to this pane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pane_id: Option<String>,
    /// Only tasks with one of these verdicts; `none` stands for tasks without a review.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disposition: Option<Vec<String>>,
    /// Only tasks updated at or after this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_since: Option<Timestamp>,
    /// At most so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Where an earlier answer ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A review of a result.
#[derive(Clone, Debug, Serialize)]
pub struct ReviewRequest {
    /// Which task.
    #[serde(flatten)]
    pub which: Which,
    /// What the reviewer decided.
    pub verdict: ReviewVerdict,
    /// Why, if said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Who, if said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reviewer: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(evidence: Option<&str>) -> ReportRequest {
        ReportRequest {
            which: Which::from(&Selector::TaskId("t-1".to_owned())),
            status: Status::Completed,
            summary: "done".to_owned(),
            artifacts: vec!["b".to_owned(), "a".to_owned()],
            evidence: evidence.map(|text| JsonText::from_stored(text.to_owned()).unwrap()),
        }
    }

    #[test]
    fn evidence_is_sent_with_its_numbers_as_they_are_written() {
        let payload = report(Some(r#"{"n":1.0e0,"big":9007199254740993}"#))
            .encode()
            .unwrap();
        let expected = concat!(
            r#"{"task_id":"t-1","status":"completed","summary":"done","artifacts":["b","a"],"#,
            r#""evidence":{"n":1.0e0,"big":9007199254740993}}"#
        );
        assert_eq!(payload, expected);
    }

    #[test]
    fn what_is_left_out_is_not_sent() {
        let payload = report(None).encode().unwrap();
        assert!(
            payload.ends_with(br#""artifacts":["b","a"]}"#),
            "{payload:?}"
        );
        assert_eq!(encode(&ListRequest::default()).unwrap(), "{}");
    }
}
