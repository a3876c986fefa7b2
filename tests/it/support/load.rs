//! Workers that do not give up, witnesses that miss nothing, and what their notes must add up to.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::{Broker, DEADLINE, Reply, Seen, Worker};

/// How long a worker waits for one answer before it sends the same again.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// How often something is looked at that gives no signal.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Looks until there is something to see.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < end, "in time: {what}");
        sleep(LOOK_EVERY).await;
    }
}

/// Sends the same content again until it is answered for good, as the protocol asks of a worker: on a time-out, on no
/// responders and on the action `retry`.
pub async fn insist(worker: &Worker, subject: &str, body: &Value) -> Reply {
    let end = Instant::now() + DEADLINE;
    loop {
        let request = async_nats::Request::new()
            .payload(body.to_string().into())
            .timeout(Some(ANSWER_WITHIN));
        if let Ok(message) = worker
            .client
            .send_request(subject.to_owned(), request)
            .await
        {
            let headers = message.headers.unwrap_or_default();
            let reply = Reply {
                headers,
                body: message.payload,
            };
            assert_eq!(
                reply.header("Tasklatch-Protocol"),
                Some("1"),
                "every answer says so"
            );
            let again = reply.outcome().is_none()
                && reply
                    .json()
                    .pointer("/error/action")
                    .is_some_and(|action| action == "retry");
            if !again {
                return reply;
            }
        }
        assert!(Instant::now() < end, "an answer for good in time");
        sleep(LOOK_EVERY).await;
    }
}

/// Random numbers from a seed that is printed, and can be given by `TASKLATCH_TEST_SEED`.
pub struct Dice(u64);

impl Dice {
    /// Takes the seed from the environment or rolls one.
    pub fn new() -> Self {
        let given = std::env::var("TASKLATCH_TEST_SEED")
            .ok()
            .and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
        eprintln!("TASKLATCH_TEST_SEED={seed}");
        Self(seed | 1)
    }

    /// A number from 0 to below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Notes every event in the background, from the moment it is made.
pub struct Witness {
    worker: Worker,
    notes: Arc<Notes>,
}

#[derive(Default)]
struct Notes {
    seen: Mutex<Vec<Seen>>,
    more: Notify,
}

impl Witness {
    /// Watches all events.
    pub async fn watch(broker: &Broker) -> Self {
        let worker = Worker::connect(broker).await;
        let mut events = worker.client.subscribe("tasklatch.event.>").await.unwrap();
        let notes = Arc::<Notes>::default();
        let noted = notes.clone();
        tokio::spawn(async move {
            while let Some(message) = events.next().await {
                let seen = Seen {
                    subject: message.subject.to_string(),
                    headers: message.headers.unwrap_or_default(),
                    payload: message.payload,
                };
                noted.seen.lock().unwrap().push(seen);
                noted.more.notify_one();
            }
        });
        let witness = Self { worker, notes };
        witness.round_trip().await;
        witness
    }

    /// Returns when all that the server had for this witness has arrived at its connection.
    pub async fn round_trip(&self) {
        let inbox = self.worker.client.new_inbox();
        let mut echo = self.worker.client.subscribe(inbox.clone()).await.unwrap();
        self.worker.client.publish(inbox, "".into()).await.unwrap();
        timeout(DEADLINE, echo.next())
            .await
            .expect("a round trip in time");
    }

    /// Waits for the event with this `ce-id`.
    pub async fn until(&self, id: &str) {
        let wait = async {
            loop {
                let more = self.notes.more.notified();
                if self
                    .notes
                    .seen
                    .lock()
                    .unwrap()
                    .iter()
                    .rev()
                    .any(|seen| seen.id() == id)
                {
                    return;
                }
                more.await;
            }
        };
        timeout(2 * DEADLINE, wait)
            .await
            .unwrap_or_else(|_| panic!("event {id} in time"));
    }

    /// Waits for the event of a task that is created for this, so that no earlier event can come any more.
    pub async fn until_now(&self, worker: &Worker) {
        let marker = format!("marker-{}", uuid::Uuid::now_v7());
        insist(
            worker,
            "tasklatch.task.create",
            &serde_json::json!({"task_id": marker, "title": "marker"}),
        )
        .await
        .task();
        self.until(&format!("{marker}.1.task")).await;
    }

    /// All that it noted, without markers.
    pub fn seen(&self) -> Vec<Seen> {
        let seen = self.notes.seen.lock().unwrap();
        seen.iter()
            .filter(|event| !event.id().starts_with("marker-"))
            .cloned()
            .collect()
    }

    /// The `ce-id` of all that it noted.
    pub fn ids(&self) -> Vec<String> {
        self.seen()
            .iter()
            .map(|event| event.id().to_owned())
            .collect()
    }
}

/// Each where it came first: in `core` mode, what was on its way when a connection or a process was lost may come twice.
pub fn first_of_each(mut ids: Vec<String>) -> Vec<String> {
    let mut known = BTreeSet::new();
    ids.retain(|id| known.insert(id.clone()));
    ids
}

/// Checks that witnesses together saw, of each of these tasks that was created and reported, its three events and no other;
/// that no event came with two contents; and that each witness saw the events of a task in order. An event may come twice.
pub fn pair_of_each(witnesses: &[Witness], task_ids: &[String]) {
    let mut contents: BTreeMap<String, Seen> = BTreeMap::new();
    for witness in witnesses {
        let mut last: BTreeMap<String, String> = BTreeMap::new();
        let mut known = BTreeSet::new();
        for event in witness.seen() {
            let id = event.id().to_owned();
            let first = contents.entry(id.clone()).or_insert_with(|| event.clone());
            assert_eq!(first.payload, event.payload, "{id} has one content");
            assert_eq!(first.headers, event.headers, "{id} has one set of headers");
            if known.insert(id.clone()) {
                // `{task_id}.{revision}.{kind}`, and result comes before task: in the order of the text for single digits.
                let before = last.insert(event.header("ce-subject").to_owned(), id.clone());
                assert!(before.as_ref() < Some(&id), "{id} came after {before:?}");
            }
        }
    }
    let seen: BTreeSet<String> = contents.into_keys().collect();
    let wanted = task_ids.iter().flat_map(|task_id| {
        ["1.task", "2.result", "2.task"].map(|event| format!("{task_id}.{event}"))
    });
    let wanted: BTreeSet<String> = wanted.collect();
    let missing: Vec<_> = wanted.difference(&seen).collect();
    let extra: Vec<_> = seen.difference(&wanted).collect();
    assert!(missing.is_empty(), "events that nobody saw: {missing:?}");
    assert!(extra.is_empty(), "events that must not be: {extra:?}");
}
