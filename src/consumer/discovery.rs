//! Service discovery (ADR-32): `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`, and the question who else serves here.
//!
//! async-nats has a service of its own, which is not used: its endpoints cannot be drained, its error answers have no
//! body, and its statistics count only what is answered through it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use async_nats::Message;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll, select_all, unfold};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::QUEUE_GROUP;
use crate::ids;
use crate::nats::{Connection, Lasting};
use crate::task::Timestamp;
use crate::wire::{Endpoint, Subjects};

const SERVICE_NAME: &str = "tasklatch";

/// How long other services have to say that they are there.
const OTHERS_WITHIN: Duration = Duration::from_millis(500);

/// What endpoints have done.
#[derive(Debug, Default)]
pub struct Statistics {
    endpoints: Mutex<[Counts; Endpoint::ALL.len()]>,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    requests: u64,
    errors: u64,
    last_error: String,
    processing_time: Duration,
}

impl Statistics {
    pub(super) fn count(&self, endpoint: Endpoint, took: Duration, error: Option<String>) {
        let mut endpoints = self
            .endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let counts = &mut endpoints[endpoint as usize];
        counts.requests += 1;
        counts.processing_time += took;
        if let Some(error) = error {
            counts.errors += 1;
            counts.last_error = error;
        }
    }

    fn of(&self, endpoint: Endpoint) -> Counts {
        let endpoints = self
            .endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        endpoints[endpoint as usize].clone()
    }
}

/// One running service in discovery.
pub struct Discovery {
    connection: Connection,
    verbs: SelectAll<BoxStream<'static, Message>>,
    identity: Identity,
    subjects: Subjects,
    started: Timestamp,
}

/// What every answer of discovery begins with.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Identity {
    name: String,
    id: String,
    version: String,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Response<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    identity: &'a Identity,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Rest {
    Ping {},
    Info {
        description: &'static str,
        endpoints: Vec<EndpointInfo>,
    },
    Stats {
        started: Timestamp,
        endpoints: Vec<EndpointStats>,
    },
}

#[derive(Serialize)]
struct EndpointInfo {
    name: &'static str,
    subject: String,
    queue_group: &'static str,
    metadata: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct EndpointStats {
    name: &'static str,
    subject: String,
    queue_group: &'static str,
    num_requests: u64,
    num_errors: u64,
    last_error: String,
    processing_time: u64,
    average_processing_time: u64,
}

/// Another service that answers requests under the same prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its ledger.
    pub ledger_id: String,
    /// Its identity in discovery.
    pub instance_id: String,
}

/// Looks for other services.
#[derive(Debug)]
pub struct Search {
    connection: Connection,
    instance_id: String,
    prefix: String,
}

impl Discovery {
    /// Begins to listen to questions. Two services that start at the same moment must each see the other, so this and
    /// [`run`](Self::run) come before [`Search::find_other`], and that before the endpoints.
    ///
    /// # Errors
    /// If the client has ended.
    pub async fn begin(
        connection: Connection,
        subjects: Subjects,
        ledger_id: &str,
    ) -> Result<Self, async_nats::SubscribeError> {
        let metadata = [("ledger_id", ledger_id), ("prefix", subjects.prefix())]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let identity = Identity {
            name: SERVICE_NAME.to_owned(),
            id: ids::new_instance_id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            metadata: metadata.into(),
        };
        let mut verbs = Vec::new();
        for verb in ["PING", "INFO", "STATS"] {
            for tail in [
                "",
                &format!(".{SERVICE_NAME}"),
                &format!(".{SERVICE_NAME}.{}", identity.id),
            ] {
                let subject = format!("$SRV.{verb}{tail}");
                let questions = connection.subscribe(subject, None).await?;
                let next = async |mut questions: Lasting| Some((questions.next().await, questions));
                verbs.push(unfold(questions, next).boxed());
            }
        }
        Ok(Self {
            connection,
            verbs: select_all(verbs),
            identity,
            subjects,
            started: Timestamp::now(),
        })
    }

    /// What it takes to look for another service while this one answers.
    pub fn search(&self) -> Search {
        Search {
            connection: self.connection.clone(),
            instance_id: self.identity.id.clone(),
            prefix: self.subjects.prefix().to_owned(),
        }
    }

    /// Answers questions for as long as it is let.
    pub async fn run(
        mut self,
        statistics: std::sync::Arc<Statistics>,
        served: std::sync::Arc<std::sync::atomic::AtomicBool>,
    ) {
        while let Some(question) = self.verbs.next().await {
            let Some(reply) = question
                .reply
                .filter(|reply| self.subjects.may_answer_to(reply))
            else {
                continue;
            };
            let endpoints = if served.load(std::sync::atomic::Ordering::Acquire) {
                &Endpoint::ALL[..]
            } else {
                &[]
            };
            let verb = question.subject.split('.').nth(1).unwrap_or_default();
            let response = self.response(verb, endpoints, &statistics);
            // Strings and numbers always encode.
            let Ok(body) = serde_json::to_vec(&response) else {
                continue;
            };
            if let Err(error) = self.connection.client().publish(reply, body.into()).await {
                tracing::warn!(error = %error, "a question of service discovery could not be answered");
            }
        }
    }

    fn response(
        &self,
        verb: &str,
        endpoints: &[Endpoint],
        statistics: &Statistics,
    ) -> Response<'_> {
        let (kind, rest) = match verb {
            "INFO" => {
                let endpoints = endpoints
                    .iter()
                    .map(|&endpoint| self.info(endpoint))
                    .collect();
                let description = "Latches the first accepted report of a task";
                (
                    "io.nats.micro.v1.info_response",
                    Rest::Info {
                        description,
                        endpoints,
                    },
                )
            }
            "STATS" => {
                let endpoints = endpoints
                    .iter()
                    .map(|&endpoint| self.stats(endpoint, &statistics.of(endpoint)))
                    .collect();
                (
                    "io.nats.micro.v1.stats_response",
                    Rest::Stats {
                        started: self.started,
                        endpoints,
                    },
                )
            }
            _ => ("io.nats.micro.v1.ping_response", Rest::Ping {}),
        };
        Response {
            r#type: kind,
            identity: &self.identity,
            rest,
        }
    }

    fn info(&self, endpoint: Endpoint) -> EndpointInfo {
        EndpointInfo {
            name: endpoint.name(),
            subject: self.subjects.of(endpoint),
            queue_group: QUEUE_GROUP,
            metadata: BTreeMap::new(),
        }
    }

    fn stats(&self, endpoint: Endpoint, counts: &Counts) -> EndpointStats {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let processing_time = nanoseconds(counts.processing_time);
        EndpointStats {
            name: endpoint.name(),
            subject: self.subjects.of(endpoint),
            queue_group: QUEUE_GROUP,
            num_requests: counts.requests,
            num_errors: counts.errors,
            last_error: counts.last_error.clone(),
            processing_time,
            average_processing_time: processing_time.checked_div(counts.requests).unwrap_or(0),
        }
    }
}

/// Whether requests on the prefix `outer` can be requests on `inner` too: if they are the same, or `inner` goes on with a
/// token that tasklatch itself puts after a prefix.
fn overlap(outer: &str, inner: &str) -> bool {
    let Some(rest) = inner.strip_prefix(outer) else {
        return false;
    };
    match rest.strip_prefix('.') {
        None => rest.is_empty(),
        Some(rest) => {
            let next = rest.split('.').next().unwrap_or_default();
            matches!(next, "report" | "task" | "event" | "queue" | "dead")
        }
    }
}

impl Search {
    /// Looks for another service under the same or an overlapping prefix: each would get a part of the requests.
    ///
    /// # Errors
    /// If the client has ended.
    pub async fn find_other(&self) -> Result<Option<Other>, async_nats::Error> {
        let client = self.connection.client();
        let inbox = client.new_inbox();
        let mut answers = client.subscribe(inbox.clone()).await?;
        client
            .publish_with_reply(format!("$SRV.PING.{SERVICE_NAME}"), inbox, "".into())
            .await?;
        let until = Instant::now() + OTHERS_WITHIN;
        while let Ok(Some(answer)) = timeout_at(until, answers.next()).await {
            let Ok(identity) = serde_json::from_slice::<Identity>(&answer.payload) else {
                continue;
            };
            let overlaps = identity
                .metadata
                .get("prefix")
                .is_some_and(|other| overlap(other, &self.prefix) || overlap(&self.prefix, other));
            if overlaps && identity.id != self.instance_id {
                let ledger_id = identity
                    .metadata
                    .get("ledger_id")
                    .cloned()
                    .unwrap_or_default();
                return Ok(Some(Other {
                    ledger_id,
                    instance_id: identity.id,
                }));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_overlap_if_one_goes_on_with_a_word_of_the_protocol() {
        for (outer, inner) in [("a", "a"), ("a", "a.report"), ("a.b", "a.b.task.x")] {
            assert!(overlap(outer, inner), "{outer} {inner}");
        }
        for (outer, inner) in [
            ("a", "ab"),
            ("a", "a.b"),
            ("a.report", "a"),
            ("a", "a.reports"),
        ] {
            assert!(!overlap(outer, inner), "{outer} {inner}");
        }
    }
}
