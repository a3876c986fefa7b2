//! Answers (docs/protocol.md, "Answers").

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Code, PROTOCOL_VERSION, Refusal, header};
use crate::task::words;

words! {
    /// What became of a report, as the header `Tasklatch-Outcome` says it.
    Outcome {
        /// This report is the task's result from now on.
        Accepted = "accepted",
        /// The task already had this result.
        Replayed = "replayed",
    }
}

/// An answer as it is published: headers and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// In the order they are sent.
    pub headers: Vec<(&'static str, String)>,
    /// One JSON object.
    pub body: Bytes,
    /// Why it is a refusal, if it is one.
    pub refused: Option<Code>,
    /// What became of a report, if it is none.
    pub outcome: Option<Outcome>,
}

impl Answer {
    /// The body of a request that did what it should; `outcome` for a report.
    pub fn done(body: Bytes, outcome: Option<Outcome>) -> Self {
        let mut headers = vec![(header::PROTOCOL, PROTOCOL_VERSION.to_owned())];
        headers.extend(outcome.map(|outcome| (header::OUTCOME, outcome.to_string())));
        Self {
            headers,
            body,
            refused: None,
            outcome,
        }
    }

    /// Whether it is refused as `unavailable` since its reply is larger than the server carries: that does not pass by itself.
    pub fn is_over_limit(&self) -> bool {
        #[derive(Deserialize)]
        struct Body {
            error: Refusal,
        }
        self.refused == Some(Code::Unavailable)
            && serde_json::from_slice::<Body>(&self.body)
                .is_ok_and(|body| body.error.limit.is_some())
    }

    /// A refusal.
    pub fn refused(refusal: &Refusal) -> Self {
        #[derive(Serialize)]
        struct Body<'a> {
            error: &'a Refusal,
        }
        // A refusal holds strings and numbers only, which always encode.
        #[allow(clippy::expect_used)]
        let body = serde_json::to_vec(&Body { error: refusal }).expect("a refusal encodes as JSON");
        let headers = vec![
            (header::PROTOCOL, PROTOCOL_VERSION.to_owned()),
            (
                header::SERVICE_ERROR_CODE,
                refusal.code.number().to_string(),
            ),
            (header::SERVICE_ERROR, refusal.to_string()),
        ];
        Self {
            headers,
            body: body.into(),
            refused: Some(refusal.code),
            outcome: None,
        }
    }
}
