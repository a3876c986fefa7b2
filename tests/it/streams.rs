//! Events into JetStream: each stored once, in order, whatever happens (docs/protocol.md, "Events").

mod commands;
mod doubt;
mod moving;
mod strangers;
mod trouble;

use std::path::Path;

use serde_json::json;

use crate::support::{Broker, EventStream, Service, Worker, full_report};

/// The shortest duplicate window that a server takes, so that nothing here stands on it.
const SHORT_WINDOW: &[&str] = &[
    "--events",
    "jetstream",
    "--events-duplicate-window",
    "100ms",
    "--http",
    "127.0.0.1:0",
];

/// A server with JetStream, a service that publishes into it, and a worker.
struct Set {
    broker: Broker,
    service: Service,
    worker: Worker,
    stream: EventStream,
    folder: tempfile::TempDir,
}

impl Set {
    async fn up() -> Self {
        let broker = Broker::start_with_jetstream().await;
        Self::on(broker, SHORT_WINDOW).await
    }

    async fn on(broker: Broker, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let service = Service::start(&broker, &folder.path().join("ledger.db"), options).await;
        Self::of(broker, service, folder).await
    }

    /// With a service whose events are in trouble from the start.
    async fn in_trouble(broker: Broker, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("ledger.db");
        let service = Service::start_serving(&broker, &database, options).await;
        Self::of(broker, service, folder).await
    }

    async fn of(broker: Broker, service: Service, folder: tempfile::TempDir) -> Self {
        Self {
            worker: Worker::connect(&broker).await,
            stream: EventStream::of(&broker).await,
            service,
            broker,
            folder,
        }
    }

    fn database(&self) -> std::path::PathBuf {
        self.folder.path().join("ledger.db")
    }

    /// Kills the service and starts it again.
    async fn crash_and_restart(&mut self) {
        self.service.kill().await;
        self.service = Service::start(&self.broker, &self.database(), SHORT_WINDOW).await;
    }

    /// Creates a task and reports on it.
    async fn report(&self, task_id: &str) {
        self.worker.create(task_id).await;
        let reply = self.worker.report(&full_report(task_id, "completed")).await;
        assert_eq!(reply.outcome(), Some("accepted"), "{}", reply.json());
    }
}

/// The `ce-id`s of tasks that were created and reported, in that order.
fn ids_of<'t>(task_ids: impl IntoIterator<Item = &'t str>) -> Vec<String> {
    let three = |task_id| ["1.task", "2.result", "2.task"].map(|id| format!("{task_id}.{id}"));
    task_ids.into_iter().flat_map(three).collect()
}

async fn tasklatch(words: &[&str], database: &Path, broker: &Broker) -> (i32, String, String) {
    let url = broker.url();
    let database = database.to_str().unwrap();
    let more = ["--database", database, "--nats-url", &url];
    let output = crate::support::stage::run(&[words, &more].concat()).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().unwrap();
    (code, text(&output.stdout), text(&output.stderr))
}

async fn verified(set: &Set) {
    let words = ["ledger", "verify", "--events", "jetstream"];
    let (code, stdout, stderr) = tasklatch(&words, &set.database(), &set.broker).await;
    assert_eq!(code, 0, "{stdout}{stderr}");
}

#[tokio::test]
async fn each_event_is_stored_once_in_the_order_of_the_commits_with_the_headers_of_the_protocol() {
    let set = Set::up().await;
    set.report("a").await;
    set.report("b").await;
    for _ in 0..3 {
        let again = set.worker.report(&full_report("a", "completed")).await;
        assert_eq!(again.outcome(), Some("replayed"));
        let other = set.worker.report(&full_report("a", "failed")).await;
        assert_eq!(other.code(), "result_conflict");
    }
    set.worker.create("c").await;
    set.stream.until(7).await;
    let mut expected = ids_of(["a", "b"]);
    expected.push("c.1.task".to_owned());
    assert_eq!(
        set.stream.ids().await,
        expected,
        "and none for a replay or a refusal"
    );

    let ledger_id = set.service.ready_line.split_whitespace().nth(2).unwrap();
    for seen in set.stream.all().await {
        let id = seen.header("ce-id");
        assert_eq!(seen.header("Nats-Msg-Id"), format!("{ledger_id}.{id}"));
        assert_eq!(seen.header("ce-source"), format!("tasklatch/{ledger_id}"));
        assert_eq!(seen.header("content-type"), "application/json");
        let kind = seen.subject.split('.').nth(2).unwrap();
        let task_id = seen.subject.split('.').nth(3).unwrap();
        assert!(
            id.starts_with(&format!("{task_id}.")) && id.ends_with(kind),
            "{id}"
        );
    }
    let task = set.worker.get("a").await;
    let last = &set.stream.all().await[2];
    assert_eq!(last.payload, task.body, "an event says what was committed");
    verified(&set).await;
}

#[tokio::test]
async fn the_stream_is_made_as_the_options_say_and_one_that_is_there_is_left_as_it_is() {
    let options = [
        "--events",
        "jetstream",
        "--events-duplicate-window",
        "30s",
        "--events-max-age",
        "12h",
        "--events-retention",
        "interest",
    ];
    let set = Set::on(Broker::start_with_jetstream().await, &options).await;
    set.report("a").await;
    let stream = crate::support::eventually("the stream is there", async || {
        set.stream.context.get_stream("TASKLATCH_EVENTS").await.ok()
    })
    .await;
    let config = serde_json::to_value(&stream.cached_info().config).unwrap();
    assert_eq!(config["subjects"], json!(["tasklatch.event.>"]));
    assert_eq!(config["storage"], json!("file"));
    assert_eq!(config["retention"], json!("interest"));
    assert_eq!(config["duplicate_window"], json!(30_000_000_000_u64));
    assert_eq!(config["max_age"], json!(43_200_000_000_000_u64));
    drop(set);

    let broker = Broker::start_with_jetstream().await;
    let theirs = EventStream::of(&broker).await;
    theirs
        .make(async_nats::jetstream::stream::Config {
            max_messages: 1000,
            ..Default::default()
        })
        .await;
    let set = Set::on(broker, SHORT_WINDOW).await;
    set.report("a").await;
    set.stream.until(3).await;
    let stream = set
        .stream
        .context
        .get_stream("TASKLATCH_EVENTS")
        .await
        .unwrap();
    assert_eq!(stream.cached_info().config.max_messages, 1000);
}
