//! Reports that are stored in the report stream, to be applied when a service comes to it.

use async_nats::{HeaderMap, StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use super::{Client, ClientError, broken, checked_task_id, complaint_about, encode};
use crate::wire::StreamKind;

/// Has the server refuse a report that another stream would take, which no service reads.
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";

/// What has the service make the report stream.
const MADE_BY: &str = "--durable-reports";

/// Where a report is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// The stream.
    pub stream: String,
    /// Its number there.
    pub seq: u64,
}

impl Stored {
    /// One JSON object, as the stream says it.
    ///
    /// # Errors
    /// Only if it does not encode as JSON, which it does.
    pub fn encode(&self) -> Result<Bytes, ClientError> {
        encode(self)
    }
}

impl Client {
    /// Stores a payload as a report on a task. When this returns, the stream has it; whether it is accepted turns out when
    /// a service comes to it.
    ///
    /// # Errors
    /// [`ClientError`]. After a timeout it may have been stored, and storing the same again is safe.
    pub async fn store_report(&self, task_id: &str, payload: Bytes) -> Result<Stored, ClientError> {
        let subject = self.subjects.queued_report_of(checked_task_id(task_id)?);
        let stream = self.subjects.stream(StreamKind::Reports);
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_STREAM, stream.as_str());
        let inbox = self.nats.new_inbox();
        let mut complaints = self.complaints.subscribe();
        let about = [subject.as_str(), inbox.as_str()];
        let (limit, actual) = (self.nats.max_payload(), payload.len());
        let exchange = async {
            let mut answers = self.nats.subscribe(inbox.clone()).await.map_err(broken)?;
            let sent = self.nats.publish_with_reply_and_headers(
                subject.clone(),
                inbox.clone(),
                headers,
                payload,
            );
            sent.await.map_err(|error| match error.kind() {
                async_nats::PublishErrorKind::MaxPayloadExceeded => {
                    ClientError::TooLarge { limit, actual }
                }
                _ => broken(error),
            })?;
            tokio::select! {
                stored = stored_among(&mut answers, &stream) => stored,
                complaint = complaint_about(&mut complaints, &about) => {
                    Err(ClientError::Denied { complaint })
                }
            }
        };
        let ended = tokio::time::timeout(self.timeout, exchange).await;
        ended.unwrap_or_else(|_| {
            let (subject, after) = (subject.clone(), self.timeout);
            Err(ClientError::TimedOut { subject, after })
        })
    }
}

/// Reads messages until one is what the stream says. A service does not answer here.
async fn stored_among(answers: &mut Subscriber, stream: &str) -> Result<Stored, ClientError> {
    while let Some(message) = answers.next().await {
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return Err(ClientError::NoStream {
                stream: stream.to_owned(),
                made_by: MADE_BY,
            });
        }
        match serde_json::from_slice(&message.payload) {
            Ok(Said::Error { error }) => {
                return Err(ClientError::StreamFailed {
                    stream: stream.to_owned(),
                    what: error.description,
                });
            }
            Ok(Said::Stored { stream: said, seq }) if said == stream => {
                return Ok(Stored { stream: said, seq });
            }
            _ => {}
        }
    }
    Err(ClientError::Nats("the connection was closed".into()))
}

/// What a stream says of a message.
#[derive(Deserialize)]
#[serde(untagged)]
enum Said {
    Error { error: StreamError },
    Stored { stream: String, seq: u64 },
}

#[derive(Deserialize)]
struct StreamError {
    #[serde(default)]
    description: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stream_says_is_an_error_or_where_the_report_is() {
        let error =
            br#"{"error":{"code":503,"err_code":10077,"description":"full"},"stream":"S","seq":0}"#;
        assert!(matches!(
            serde_json::from_slice(error),
            Ok(Said::Error { error }) if error.description == "full"
        ));
        let stored = br#"{"stream":"S","seq":7,"duplicate":true}"#;
        assert!(matches!(
            serde_json::from_slice(stored),
            Ok(Said::Stored { stream, seq: 7 }) if stream == "S"
        ));
    }
}
