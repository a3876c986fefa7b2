//! `tasklatch watch --since`: events that the event stream kept, and those after them.

use std::process::Stdio;

use async_nats::HeaderMap;
use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::support::{BINARY, Broker, DEADLINE, eventually};

async fn event_stream(broker: &Broker) -> Context {
    let context = jetstream::new(broker.client().await);
    let config = Config {
        name: "TASKLATCH_EVENTS".to_owned(),
        subjects: vec!["tasklatch.event.>".to_owned()],
        ..Config::default()
    };
    context.create_stream(config).await.unwrap();
    context
}

/// Puts an event into the stream as the service would.
async fn put(context: &Context, kind: &str, task_id: &str, revision: u64) {
    let mut headers = HeaderMap::new();
    let id = format!("{task_id}.{revision}.{kind}");
    let word = match kind {
        "result" => "tasklatch.result.accepted",
        _ => "tasklatch.task.updated",
    };
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", id.as_str()),
        ("ce-source", "tasklatch/l"),
        ("ce-type", word),
        ("ce-time", "2026-11-30T07:41:22.123456Z"),
        ("ce-subject", task_id),
        ("content-type", "application/json"),
    ] {
        headers.insert(name, value);
    }
    let payload = json!({"task_id": task_id, "revision": revision}).to_string();
    let subject = format!("tasklatch.event.{kind}.{task_id}");
    eventually("the event is stored", async || {
        let sent = (context.publish_with_headers(
            subject.clone(),
            headers.clone(),
            payload.clone().into(),
        ))
        .await
        .ok()?;
        sent.await.ok()
    })
    .await;
}

/// A running watch that prints JSON.
struct Watching {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn start(broker: &Broker, options: &[&str]) -> Self {
        let mut child = Command::new(BINARY)
            .env("TASKLATCH_NATS_URL", broker.url())
            .args(["watch", "--json"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The `id` of the next event; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        let line = timeout(2 * DEADLINE, self.lines.next_line())
            .await
            .expect("an event in time")
            .unwrap()?;
        let event: Value = serde_json::from_str(&line).unwrap();
        Some(event["id"].as_str().unwrap().to_owned())
    }

    async fn ids(&mut self, count: usize) -> Vec<String> {
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(self.next().await.expect("an event"));
        }
        ids
    }
}

#[tokio::test]
async fn a_watch_since_the_beginning_prints_what_was_kept_in_order_and_goes_on_live() {
    let broker = Broker::start_with_jetstream().await;
    let context = event_stream(&broker).await;
    put(&context, "task", "t", 1).await;
    put(&context, "task", "u", 1).await;
    put(&context, "result", "t", 2).await;
    put(&context, "task", "t", 2).await;
    let mut all = Watching::start(&broker, &["--since", "all"]);
    let kept = ["t.1.task", "u.1.task", "t.2.result", "t.2.task"];
    assert_eq!(all.ids(4).await, kept);
    let mut hour = Watching::start(&broker, &["--since", "1h"]);
    assert_eq!(hour.ids(4).await, kept);
    let mut now = Watching::start(&broker, &["--since", "0s", "--count", "1"]);
    let mut of_task = Watching::start(&broker, &["--since", "all", "--task", "u"]);
    assert_eq!(of_task.ids(1).await, ["u.1.task"]);
    let mut results = Watching::start(
        &broker,
        &["--since", "all", "--result-only", "--count", "2"],
    );
    assert_eq!(results.ids(1).await, ["t.2.result"]);
    // The one since now has its consumer, once one of five more is there.
    eventually("all watch", async || {
        let mut stream = context.get_stream("TASKLATCH_EVENTS").await.unwrap();
        (stream.info().await.unwrap().state.consumer_count == 5).then_some(())
    })
    .await;
    put(&context, "result", "u", 2).await;
    assert_eq!(all.ids(1).await, ["u.2.result"]);
    assert_eq!(now.ids(1).await, ["u.2.result"]);
    assert_eq!(of_task.ids(1).await, ["u.2.result"]);
    assert_eq!(results.ids(1).await, ["u.2.result"]);
    for watching in [&mut now, &mut results] {
        assert_eq!(watching.next().await, None, "--count is reached");
        assert!(watching.child.wait().await.unwrap().success());
    }
}

#[tokio::test]
async fn a_watch_since_the_beginning_survives_restarts_of_the_server_without_a_gap_or_a_repeat() {
    let mut broker = Broker::start_with_jetstream().await;
    let context = event_stream(&broker).await;
    put(&context, "task", "t", 1).await;
    let mut watching = Watching::start(&broker, &["--since", "all"]);
    assert_eq!(watching.ids(1).await, ["t.1.task"]);
    for round in 1..=2 {
        broker.kill().await;
        broker.restart().await;
        let revisions = 3 * round - 1..3 * round + 2;
        for revision in revisions.clone() {
            put(&context, "task", "t", revision).await;
        }
        let wanted: Vec<_> = revisions.map(|number| format!("t.{number}.task")).collect();
        assert_eq!(watching.ids(3).await, wanted);
    }
    // Of a stream that is made anew everything is new.
    context.delete_stream("TASKLATCH_EVENTS").await.unwrap();
    let context = event_stream(&broker).await;
    put(&context, "task", "v", 1).await;
    assert_eq!(watching.ids(1).await, ["v.1.task"]);
}

#[tokio::test]
async fn a_watch_since_some_time_says_what_to_do_where_there_is_no_event_stream() {
    for broker in [Broker::start().await, Broker::start_with_jetstream().await] {
        let output = Command::new(BINARY)
            .env("TASKLATCH_NATS_URL", broker.url())
            .args(["watch", "--since", "1h"])
            .kill_on_drop(true)
            .output();
        let output = timeout(DEADLINE, output).await.expect("it ends").unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(75), "{stderr}");
        assert!(
            stderr.contains("no stream TASKLATCH_EVENTS") && stderr.contains("--events jetstream"),
            "{stderr}"
        );
    }
}
