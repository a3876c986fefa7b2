//! Events as they came, from the stream or to a witness, and what must hold of them.
//!
//! Each says what was committed, under the names that the protocol gives it. Of a task there is one event for each revision
//! and one more for its result, before the task event of that revision. In the stream each is once; to a witness of plain
//! messages it may come twice, and is lost only with a server.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::{Client, HeaderMap, jetstream};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::Value;
use tokio::time::timeout;

use crate::answers::result_text;
use crate::model::{Failure, Shared, count, holds};
use crate::stage::{EVENTS_STREAM, SERVICE_STORES_EVENTS};

/// How long the server may take for the next event, or for a round trip.
const NEXT_WITHIN: Duration = Duration::from_secs(10);

/// An event as it came.
pub struct Came {
    subject: String,
    headers: HeaderMap,
    payload: Bytes,
}

/// Where events come from.
pub enum Source {
    /// A subscriber of plain messages that is always there.
    Witness {
        client: Client,
        came: Arc<Mutex<Vec<Came>>>,
    },
    /// The stream, and how far it has been read.
    Stream { client: Client, read: u64 },
}

impl Source {
    pub async fn witness(client: Client) -> Self {
        let mut events = client.subscribe("tasklatch.event.>").await.unwrap();
        let came = Arc::<Mutex<Vec<Came>>>::default();
        let noted = came.clone();
        tokio::spawn(async move {
            while let Some(message) = events.next().await {
                let subject = message.subject.to_string();
                let headers = message.headers.unwrap_or_default();
                noted.lock().unwrap().push(Came {
                    subject,
                    headers,
                    payload: message.payload,
                });
            }
        });
        Self::Witness { client, came }
    }

    pub fn stream(client: Client) -> Self {
        Self::Stream { client, read: 0 }
    }

    /// All that has come since it was asked last.
    pub async fn more(&mut self) -> Result<Vec<Came>, Failure> {
        let slow = |what: &str| {
            Failure::new(
                "events can be read",
                "-",
                format!("{what} within {NEXT_WITHIN:?}"),
                "nothing",
            )
        };
        match self {
            Self::Witness { client, came } => {
                // What the server had for the witness has come when this has.
                let inbox = client.new_inbox();
                let mut echo = client.subscribe(inbox.clone()).await.unwrap();
                client.publish(inbox, "".into()).await.unwrap();
                timeout(NEXT_WITHIN, echo.next())
                    .await
                    .map_err(|_| slow("a round trip"))?;
                Ok(std::mem::take(&mut *came.lock().unwrap()))
            }
            Self::Stream { client, read } => {
                let stream = jetstream::new(client.clone())
                    .get_stream(EVENTS_STREAM)
                    .await;
                let stream = stream.map_err(|error| {
                    Failure::new("there is a stream of events", "-", EVENTS_STREAM, error)
                })?;
                let end = stream.cached_info().state.last_sequence;
                let mut came = Vec::new();
                if *read >= end {
                    return Ok(came);
                }
                let config = pull::OrderedConfig {
                    deliver_policy: DeliverPolicy::ByStartSequence {
                        start_sequence: *read + 1,
                    },
                    ..Default::default()
                };
                let consumer = stream.create_consumer(config).await.unwrap();
                let mut messages = consumer.messages().await.unwrap();
                while *read < end {
                    let next = timeout(NEXT_WITHIN, messages.next())
                        .await
                        .map_err(|_| slow("the next event"))?;
                    let message = next.unwrap().unwrap();
                    *read = message.info().unwrap().stream_sequence;
                    let message = message.message;
                    let headers = message.headers.unwrap_or_default();
                    came.push(Came {
                        subject: message.subject.to_string(),
                        headers,
                        payload: message.payload,
                    });
                }
                Ok(came)
            }
        }
    }
}

/// What has come of a task.
#[derive(Default)]
struct OfTask {
    /// A hash of each event's content, by revision and kind; `r` (the result) sorts before `t` (the task).
    seen: HashMap<(u64, char), u64>,
    last: (u64, char),
    /// The task as of the highest revision.
    newest: (u64, Bytes),
    result: Option<(u64, String)>,
    /// The first revision with a result.
    ended_at: Option<u64>,
    /// Revisions up to this were looked at by an earlier check.
    settled: u64,
}

/// A task as the database has it.
pub struct Row {
    pub task_id: String,
    pub revision: u64,
    /// Status, summary, artifacts and evidence, as they are stored.
    pub result: Option<[String; 4]>,
}

/// All that has come.
pub struct Archive {
    ledger_id: String,
    is_stream: bool,
    shared: Arc<Shared>,
    tasks: HashMap<String, OfTask>,
}

impl Archive {
    pub fn new(ledger_id: &str, is_stream: bool, shared: Arc<Shared>) -> Self {
        Self {
            ledger_id: ledger_id.to_owned(),
            is_stream,
            shared,
            tasks: HashMap::new(),
        }
    }

    /// Whether what an acknowledging stream promises is to be judged.
    fn is_strict(&self) -> bool {
        self.is_stream && SERVICE_STORES_EVENTS
    }

    /// Files an event.
    pub fn file(&mut self, event: &Came) -> Result<(), Failure> {
        count(&self.shared.counts.events);
        let header = |name: &str| {
            event
                .headers
                .get(name)
                .map(|value| value.as_str())
                .unwrap_or_default()
        };
        let id = header("ce-id").to_owned();
        let parts: Vec<&str> = id.split('.').collect();
        let (task_id, revision, kind) = match parts[..] {
            [task_id, revision, kind @ ("result" | "task")] => {
                (task_id, revision.parse::<u64>().unwrap_or(0), kind)
            }
            _ => {
                return Err(Failure::new(
                    "an event has a ce-id",
                    &event.subject,
                    "task.revision.kind",
                    &id,
                ));
            }
        };
        let payload: Value = serde_json::from_slice(&event.payload).unwrap_or_default();
        let kind_type = if kind == "result" {
            "tasklatch.result.accepted"
        } else {
            "tasklatch.task.updated"
        };
        let said = [
            (
                "subject",
                event.subject.as_str(),
                format!("tasklatch.event.{kind}.{task_id}"),
            ),
            (
                "Nats-Msg-Id",
                header("Nats-Msg-Id"),
                format!("{}.{id}", self.ledger_id),
            ),
            (
                "ce-source",
                header("ce-source"),
                format!("tasklatch/{}", self.ledger_id),
            ),
            ("ce-type", header("ce-type"), kind_type.to_owned()),
            ("ce-subject", header("ce-subject"), task_id.to_owned()),
            ("ce-specversion", header("ce-specversion"), "1.0".to_owned()),
            (
                "content-type",
                header("content-type"),
                "application/json".to_owned(),
            ),
            (
                "task_id",
                payload["task_id"].as_str().unwrap_or_default(),
                task_id.to_owned(),
            ),
        ];
        for (what, seen, expected) in said {
            holds(seen == expected, || {
                Failure::new(&format!("an event says its {what}"), &id, &expected, seen)
            })?;
        }
        holds(payload["revision"] == revision, || {
            Failure::new(
                "an event says its revision",
                &id,
                revision,
                &payload["revision"],
            )
        })?;
        if kind == "task" {
            holds(payload["updated_at"] == header("ce-time"), || {
                Failure::new(
                    "an event says its time",
                    &id,
                    &payload["updated_at"],
                    header("ce-time"),
                )
            })?;
        }
        let mut hasher = DefaultHasher::new();
        (&event.payload, header("ce-time")).hash(&mut hasher);
        let content = hasher.finish();
        let strict = self.is_strict();
        let of_task = self.tasks.entry(task_id.to_owned()).or_default();
        let key = (revision, if kind == "result" { 'r' } else { 't' });
        if let Some(first) = of_task.seen.insert(key, content) {
            count(&self.shared.counts.twice);
            holds(first == content, || {
                Failure::new(
                    "an event has one content",
                    &id,
                    "the same bytes",
                    String::from_utf8_lossy(&event.payload),
                )
            })?;
            return holds(!strict, || {
                Failure::new("an event is stored once", &id, "once", "twice")
            });
        }
        if key < of_task.last {
            count(&self.shared.counts.overtaken);
            let excused = self.shared.connection_lost.load(Ordering::SeqCst) && !strict;
            holds(excused, || {
                Failure::new(
                    "events of a task are in order",
                    &id,
                    format!("after {:?}", of_task.last),
                    "before it",
                )
            })?;
        }
        of_task.last = of_task.last.max(key);
        if kind == "result" {
            let text = result_text(&event.payload).unwrap_or_default();
            of_task.result = Some((revision, text));
        } else {
            if payload["result"].is_object() {
                of_task.ended_at = Some(
                    of_task
                        .ended_at
                        .map_or(revision, |first| first.min(revision)),
                );
            }
            if revision > of_task.newest.0 {
                of_task.newest = (revision, event.payload.clone());
            }
        }
        Ok(())
    }

    /// Checks the events of these tasks, which have not changed since the last event was filed; `parked` are those that
    /// the service says it could not publish.
    pub fn check(&mut self, rows: &[Row], parked: &BTreeSet<String>) -> Result<(), Failure> {
        let may_miss = match self.is_stream {
            true => !SERVICE_STORES_EVENTS,
            false => self.shared.server_died.load(Ordering::SeqCst),
        };
        for row in rows {
            let id = &row.task_id;
            let of_task = self.tasks.entry(id.clone()).or_default();
            let newest = of_task
                .seen
                .keys()
                .map(|(revision, _)| *revision)
                .max()
                .unwrap_or(0);
            holds(newest <= row.revision, || {
                Failure::new(
                    "an event tells what was committed",
                    id,
                    format!("up to revision {}", row.revision),
                    newest,
                )
            })?;
            for revision in of_task.settled + 1..=row.revision {
                let event = format!("{id}.{revision}.task");
                if of_task.seen.contains_key(&(revision, 't')) {
                    continue;
                }
                if parked.contains(&event) {
                    count(&self.shared.counts.parked);
                    continue;
                }
                count(&self.shared.counts.missed);
                if may_miss {
                    println!("       lost, which may be: {event}");
                }
                holds(may_miss, || {
                    Failure::new(
                        "every revision has its task event",
                        id,
                        event,
                        "no such event",
                    )
                })?;
            }
            let results = of_task.seen.keys().filter(|(_, kind)| *kind == 'r').count();
            let expected = usize::from(row.result.is_some());
            let is_parked = parked
                .iter()
                .any(|event| event.starts_with(&format!("{id}.")) && event.ends_with(".result"));
            let is_new = of_task.settled < row.revision;
            holds(results <= expected, || {
                Failure::new(
                    "an accepted report has one result event, a refusal none",
                    id,
                    expected,
                    results,
                )
            })?;
            if results < expected && !is_parked && is_new {
                count(&self.shared.counts.missed);
                if may_miss {
                    println!("       lost, which may be: the result event of {id}");
                }
                holds(may_miss, || {
                    Failure::new(
                        "an accepted report has one result event",
                        id,
                        expected,
                        results,
                    )
                })?;
            }
            of_task.check_content(row)?;
            of_task.settled = row.revision;
        }
        Ok(())
    }

    /// The tasks of which there are events.
    pub fn task_ids(&self) -> impl Iterator<Item = &String> {
        self.tasks.keys()
    }

    /// The newest task event of a task, if it is of this revision.
    pub fn newest(&self, task_id: &str, revision: u64) -> Option<&Bytes> {
        let newest = &self.tasks.get(task_id)?.newest;
        (newest.0 == revision).then_some(&newest.1)
    }
}

impl OfTask {
    /// What events say of a result is what the database has.
    fn check_content(&self, row: &Row) -> Result<(), Failure> {
        let id = &row.task_id;
        if let (Some((at, _)), Some(ended_at)) = (&self.result, self.ended_at) {
            holds(*at <= ended_at, || {
                Failure::new(
                    "the result event is of the revision that ended the task",
                    id,
                    ended_at,
                    at,
                )
            })?;
        }
        let (Some((_, text)), Some([status, summary, artifacts, evidence])) =
            (&self.result, &row.result)
        else {
            return Ok(());
        };
        let result: Value = serde_json::from_str(text).unwrap_or_default();
        let stored: Value = serde_json::from_str(artifacts).unwrap_or_default();
        let is_so = result["status"] == *status
            && result["summary"] == *summary
            && result["artifacts"] == stored
            && text.contains(&format!("\"evidence\":{evidence}"));
        holds(is_so, || {
            let stored = format!("{status} {summary} {artifacts} {evidence}");
            Failure::new("a result event says what is stored", id, stored, text)
        })?;
        let newest = result_text(&self.newest.1);
        holds(newest.is_none() || newest.as_ref() == Some(text), || {
            Failure::new(
                "the task event has the result of the result event",
                id,
                text,
                newest.unwrap_or_default(),
            )
        })
    }
}
