//! A ledger on a real file without a service, for tests that set the clock and the batches themselves.

use bytes::Bytes;
use serde_json::{Value, json};
use tasklatch::ledger::{Applied, Circumstances, Command, Ledger, Writer, open};
use tasklatch::task::Timestamp;
use tasklatch::wire::{Endpoint, Event, Outcome, Refusal, Request, decode};

/// An open ledger in a folder of its own.
pub struct Bench {
    pub ledger: Ledger,
    pub writer: Writer,
    pub max_payload: usize,
    _folder: tempfile::TempDir,
}

/// What the bench's clock shows at `0`: an instant far from the real present.
const EPOCH_MICROS: i64 = 2_000_000_000_000_000;

/// An instant of the bench's clock, in microseconds.
pub fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(EPOCH_MICROS + micros).unwrap()
}

/// A request as it comes off the wire, for the writer.
pub fn command(endpoint: Endpoint, body: &Value) -> Command {
    match decode(
        endpoint,
        None,
        body.to_string().as_bytes(),
        tasklatch::ids::new_task_id,
    )
    .unwrap()
    {
        Request::Change(change) => Command::Change(change),
        Request::Get(selector) => Command::Get(selector),
        Request::List(_) => panic!("a list is not for the writer"),
    }
}

/// A request to create a task.
pub fn create(body: &Value) -> Command {
    command(Endpoint::Create, body)
}

/// A short report; `selector` is an object with the selector in it.
pub fn report(selector: &Value, status: &str, summary: &str) -> Command {
    let mut body = json!({"status": status, "summary": summary});
    for (key, value) in selector.as_object().unwrap() {
        body[key] = value.clone();
    }
    command(Endpoint::Report, &body)
}

/// A request to read a task.
pub fn get(selector: &Value) -> Command {
    command(Endpoint::Get, selector)
}

impl Bench {
    /// Makes a new ledger.
    pub async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (ledger, writer) = open(&folder.path().join("ledger.db"), "a test")
            .await
            .unwrap();
        Self {
            ledger,
            writer,
            max_payload: 1 << 20,
            _folder: folder,
        }
    }

    /// The circumstances of a batch at this time.
    pub fn circumstances(&self, now: Timestamp) -> Circumstances {
        Circumstances {
            now,
            max_payload: self.max_payload,
        }
    }

    /// Applies a batch at this time.
    pub async fn apply(&mut self, now: Timestamp, batch: &[Command]) -> Vec<Applied> {
        let circumstances = self.circumstances(now);
        let applied = self.writer.apply(batch, circumstances).await;
        applied
            .into_iter()
            .map(|one| one.expect("the store works"))
            .collect()
    }

    /// Applies one command at this time.
    pub async fn one(&mut self, now: Timestamp, command: Command) -> Applied {
        self.apply(now, &[command]).await.remove(0)
    }

    /// The `ce-id` of every event there is to publish, in order.
    pub async fn event_ids(&self) -> Vec<String> {
        self.events().await.iter().map(Event::id).collect()
    }

    /// Every event there is to publish, in order.
    pub async fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut after = 0;
        loop {
            let outgoing = self.ledger.outgoing(after, usize::MAX).await.unwrap();
            let Some(last) = outgoing.last() else {
                return events;
            };
            after = last.seq;
            events.extend(outgoing.into_iter().flat_map(|revision| revision.events));
        }
    }
}

/// The body and the outcome of what was applied; panics for a refusal.
pub fn done(applied: &Applied) -> (Bytes, Option<Outcome>) {
    match applied {
        Applied::Task { body, outcome } => (body.clone(), *outcome),
        other => panic!("not a task: {other:?}"),
    }
}

/// The task that was answered; panics for a refusal.
pub fn task(applied: &Applied) -> Value {
    serde_json::from_slice(&done(applied).0).unwrap()
}

/// The refusal that was answered; panics for anything else.
pub fn refusal(applied: &Applied) -> &Refusal {
    match applied {
        Applied::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}
