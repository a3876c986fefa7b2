//! A client that knows only the protocol: subjects, JSON and headers.

use async_nats::HeaderMap;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Broker, DEADLINE};

/// A client on a connection of its own.
#[derive(Clone)]
pub struct Worker {
    pub client: async_nats::Client,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    /// A header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.as_str())
    }

    /// `accepted` or `replayed`.
    pub fn outcome(&self) -> Option<&str> {
        self.header("Tasklatch-Outcome")
    }

    /// The body as JSON. Numbers beyond a double lose digits here: compare `body` for those.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The error of a refusal; panics for any other answer.
    pub fn error(&self) -> Value {
        match self.json() {
            Value::Object(mut body) if body.contains_key("error") => body.remove("error").unwrap(),
            other => panic!("not a refusal: {other}"),
        }
    }

    /// The code of a refusal; panics for any other answer.
    pub fn code(&self) -> String {
        self.error()["code"].as_str().unwrap().to_owned()
    }

    /// The task; panics for a refusal.
    pub fn task(&self) -> Value {
        let body = self.json();
        assert!(body.get("error").is_none(), "refused: {body}");
        body
    }
}

impl Worker {
    /// Connects.
    pub async fn connect(broker: &Broker) -> Self {
        Self {
            client: broker.client().await,
        }
    }

    /// Sends a request and waits for its answer.
    pub async fn ask(&self, subject: &str, body: &Value) -> Reply {
        self.ask_bytes(subject, body.to_string().into_bytes()).await
    }

    /// Reviews a task.
    pub async fn review(&self, task_id: &str, verdict: &str) -> Value {
        let review = json!({"task_id": task_id, "verdict": verdict});
        self.ask("tasklatch.task.review", &review).await.task()
    }

    /// Sends a request of any bytes and waits for its answer.
    pub async fn ask_bytes(&self, subject: &str, payload: impl Into<Bytes>) -> Reply {
        let request = self.client.request(subject.to_owned(), payload.into());
        let message = timeout(DEADLINE, request)
            .await
            .expect("an answer in time")
            .unwrap();
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
        reply
    }

    /// Creates a task with this ID and nothing special about it.
    pub async fn create(&self, task_id: &str) -> Value {
        self.create_with(json!({"task_id": task_id, "title": "a task"}))
            .await
    }

    /// Creates a task.
    pub async fn create_with(&self, body: Value) -> Value {
        self.ask("tasklatch.task.create", &body).await.task()
    }

    /// Reads a task by its ID.
    pub async fn get(&self, task_id: &str) -> Reply {
        self.ask("tasklatch.task.get", &json!({"task_id": task_id}))
            .await
    }

    /// Sends a report.
    pub async fn report(&self, body: &Value) -> Reply {
        self.ask("tasklatch.report", body).await
    }
}

/// A report with a status and everything else filled in.
pub fn full_report(task_id: &str, status: &str) -> Value {
    json!({
        "task_id": task_id,
        "status": status,
        "summary": "Fixed; the clock was read twice",
        "artifacts": ["branch:fix/login", "pr:118"],
        "evidence": {"tests": {"passed": 214, "failed": 0}},
    })
}
