//! A subscriber of events.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_nats::{HeaderMap, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Broker, DEADLINE, Worker};

/// An event as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub subject: String,
    pub headers: HeaderMap,
    pub payload: Bytes,
}

impl Seen {
    /// A header's text; panics if it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .unwrap_or_else(|| panic!("no header {name}"))
            .as_str()
    }

    /// `ce-id`.
    pub fn id(&self) -> &str {
        self.header("ce-id")
    }

    /// The payload as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.payload).unwrap()
    }
}

/// Two observers of one ledger must not take each other's markers for their own.
static MARKERS: AtomicUsize = AtomicUsize::new(0);

/// Sees every event from the moment it is made.
pub struct Observer {
    worker: Worker,
    events: Subscriber,
}

impl Observer {
    /// Watches all events.
    pub async fn watch(broker: &Broker) -> Self {
        let worker = Worker::connect(broker).await;
        let events = worker.client.subscribe("tasklatch.event.>").await.unwrap();
        // The server knows the subscription once it has answered something sent after it.
        let mut observer = Self { worker, events };
        observer.round_trip().await;
        observer
    }

    async fn round_trip(&mut self) {
        let inbox = self.worker.client.new_inbox();
        let mut echo = self.worker.client.subscribe(inbox.clone()).await.unwrap();
        self.worker.client.publish(inbox, "".into()).await.unwrap();
        timeout(DEADLINE, echo.next())
            .await
            .expect("a round trip in time");
    }

    /// The next event.
    pub async fn next(&mut self) -> Seen {
        let message = timeout(DEADLINE, self.events.next())
            .await
            .expect("an event in time")
            .unwrap();
        Seen {
            subject: message.subject.to_string(),
            headers: message.headers.unwrap_or_default(),
            payload: message.payload,
        }
    }

    /// All events up to now: those that come before the event of a task that is created for this. Events come in commit
    /// order, so nothing that was committed before can come after it.
    pub async fn all_so_far(&mut self) -> Vec<Seen> {
        let number = MARKERS.fetch_add(1, Ordering::Relaxed);
        let marker = format!("marker-{}-{number}", std::process::id());
        self.worker
            .create_with(json!({"task_id": marker, "title": "marker"}))
            .await;
        let mut seen = Vec::new();
        loop {
            let event = self.next().await;
            if event.subject.ends_with(&format!(".{marker}")) {
                return seen;
            }
            if !event.subject.contains(".marker-") {
                seen.push(event);
            }
        }
    }

    /// The `ce-id` of all events up to now.
    pub async fn ids_so_far(&mut self) -> Vec<String> {
        self.all_so_far()
            .await
            .iter()
            .map(|event| event.id().to_owned())
            .collect()
    }
}
