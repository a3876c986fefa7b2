//! Reports from the report stream (docs/protocol.md, "Durable reports").

mod faults;
mod line;
mod poison;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{
    Broker, Burst, DEADLINE, Outside, Reply, Service, Stage, Worker, eventually, full_report,
    http_get,
};

const SERVE: [&str; 3] = ["--durable-reports", "--http", "127.0.0.1:0"];

/// A stage with JetStream, whose service takes durable reports.
async fn set() -> (Stage, Context) {
    set_on(Broker::start_with_jetstream().await).await
}

async fn set_on(broker: Broker) -> (Stage, Context) {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start_serving(&broker, &folder.path().join("ledger.db"), &SERVE).await;
    let worker = Worker::connect(&broker).await;
    let context = jetstream::new(worker.client.clone());
    let stage = Stage {
        broker,
        service,
        worker,
        folder,
    };
    (stage, context)
}

/// Waits until the service says that it is ready.
async fn until_ready(stage: &Stage) {
    eventually("the service is ready", async || {
        let (status, _) = http_get(&stage.service.ready_line, "/ready").await;
        (status == 200).then_some(())
    })
    .await;
}

/// Waits until the service says that it is not ready, with this among the reasons.
async fn until_unready_for(stage: &Stage, reason: &str) {
    let mut last = String::new();
    let seen = eventually("the service says what is wrong", async || {
        let (status, body) = http_get(&stage.service.ready_line, "/ready").await;
        last = body;
        (status == 503 && last.contains(reason)).then_some(())
    });
    seen.await;
}

/// Publishes a report into the stream and waits for its acknowledgment.
async fn publish(context: &Context, task_id: &str, body: &Value, headers: &[(&str, &str)]) -> u64 {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, *value);
    }
    let subject = format!("tasklatch.queue.report.{task_id}");
    let sent = context.publish_with_headers(subject, map, body.to_string().into());
    let stored = sent.await.unwrap().await.unwrap();
    assert_eq!(stored.stream, "TASKLATCH_REPORTS");
    stored.sequence
}

/// How many messages a stream holds.
async fn held(context: &Context, stream: &str) -> u64 {
    match context.get_stream(stream).await {
        Ok(stream) => stream.cached_info().state.messages,
        Err(_) => u64::MAX,
    }
}

/// Waits until every report is settled.
async fn until_drained(context: &Context) {
    eventually("the report stream is empty", async || {
        (held(context, "TASKLATCH_REPORTS").await == 0).then_some(())
    })
    .await;
}

/// Creates tasks, `t-0` and so on.
async fn create_many(worker: &Worker, tasks: usize) {
    let mut creates = Burst::open(worker).await;
    for number in 0..tasks {
        let body = json!({"task_id": format!("t-{number}"), "title": "a task"});
        creates
            .send("tasklatch.task.create", body.to_string())
            .await;
    }
    for reply in creates.finish().await {
        reply.task();
    }
}

/// Publishes a report on each of these tasks.
async fn publish_many(context: &Context, tasks: usize) {
    let mut stored = Vec::new();
    for number in 0..tasks {
        let subject = format!("tasklatch.queue.report.t-{number}");
        let report = full_report(&format!("t-{number}"), "completed").to_string();
        stored.push(context.publish(subject, report.into()).await.unwrap());
    }
    for stored in stored {
        stored.await.unwrap();
    }
}

async fn results(stage: &Stage) -> i64 {
    let mut outside = Outside::read(&stage.database()).await;
    let count = outside.number("SELECT count(*) FROM results").await;
    outside.close().await;
    count
}

/// A subject for answers, and what comes there.
async fn answers(worker: &Worker) -> (String, async_nats::Subscriber) {
    let inbox = worker.client.new_inbox();
    let answers = worker.client.subscribe(inbox.clone()).await.unwrap();
    worker.client.flush().await.unwrap();
    (inbox, answers)
}

async fn next(answers: &mut async_nats::Subscriber) -> Reply {
    let message = timeout(DEADLINE, answers.next())
        .await
        .expect("an answer in time")
        .unwrap();
    Reply {
        headers: message.headers.unwrap_or_default(),
        body: message.payload,
    }
}

#[tokio::test]
async fn a_durable_report_is_applied_acknowledged_and_answered_as_a_request_would_be_and_again_is_a_replay()
 {
    let (stage, context) = set().await;
    until_ready(&stage).await;
    stage.worker.create("t").await;
    let mut observer = stage.observer_from_now().await;
    let (inbox, mut came) = answers(&stage.worker).await;
    let report = full_report("t", "completed");
    let reply_to = [("Tasklatch-Reply-To", inbox.as_str())];
    publish(&context, "t", &report, &reply_to).await;
    let accepted = next(&mut came).await;
    assert_eq!(accepted.outcome(), Some("accepted"));
    until_drained(&context).await;

    // The selector may be left out, as with a request on the subject of the task.
    let mut bare = report.clone();
    bare.as_object_mut().unwrap().remove("task_id");
    publish(&context, "t", &bare, &reply_to).await;
    let replayed = next(&mut came).await;
    let asked = stage.worker.report(&report).await;
    assert_eq!(replayed, asked, "the same headers and body");
    assert_eq!(
        (asked.outcome(), &asked.body),
        (Some("replayed"), &accepted.body)
    );
    until_drained(&context).await;
    assert_eq!(observer.ids_so_far().await, ["t.2.result", "t.2.task"]);
    assert_eq!(held(&context, "TASKLATCH_DEAD").await, 0);
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_wait_while_no_service_runs_and_all_are_applied_once_one_does() {
    const TASKS: usize = 3_000;
    let (mut stage, context) = set().await;
    until_ready(&stage).await;
    create_many(&stage.worker, TASKS).await;
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    publish_many(&context, TASKS).await;
    assert_eq!(held(&context, "TASKLATCH_REPORTS").await, TASKS as u64);
    stage.service = Service::start(
        &stage.broker,
        &stage.folder.path().join("ledger.db"),
        &SERVE,
    )
    .await;
    until_drained(&context).await;
    let mut outside = Outside::read(&stage.folder.path().join("ledger.db")).await;
    assert_eq!(
        outside.number("SELECT count(*) FROM results").await,
        TASKS as i64
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_killed_in_the_middle_of_many_reports_loses_none_and_gives_each_task_one_result()
 {
    const TASKS: usize = 4_000;
    let (mut stage, context) = set().await;
    until_ready(&stage).await;
    create_many(&stage.worker, TASKS).await;
    for round in 1..=3 {
        stage.service.kill().await;
        if round == 1 {
            publish_many(&context, TASKS).await;
        }
        let before = results(&stage).await;
        stage.service = Service::start(&stage.broker, &stage.database(), &SERVE).await;
        eventually("some reports are applied", async || {
            let now = results(&stage).await;
            (now > before || now == TASKS as i64).then_some(())
        })
        .await;
    }
    // What the killed service had in hand is delivered again when the stream has waited for it; a consumer that is made
    // anew does not wait.
    let stream = context.get_stream("TASKLATCH_REPORTS").await.unwrap();
    stream.delete_consumer("tasklatch").await.unwrap();
    until_drained(&context).await;
    assert_eq!(results(&stage).await, TASKS as i64);
    assert_eq!(held(&context, "TASKLATCH_DEAD").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_stops_settles_what_is_in_hand_and_gives_back_the_rest() {
    const TASKS: usize = 4_000;
    let (mut stage, context) = set().await;
    until_ready(&stage).await;
    create_many(&stage.worker, TASKS).await;
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    publish_many(&context, TASKS).await;
    let database = stage.folder.path().join("ledger.db");
    stage.service = Service::start(&stage.broker, &database, &SERVE).await;
    eventually("the first reports are settled", async || {
        (held(&context, "TASKLATCH_REPORTS").await < TASKS as u64).then_some(())
    })
    .await;
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    let stream = context.get_stream("TASKLATCH_REPORTS").await.unwrap();
    let left = stream.cached_info().state.messages as i64;
    let mut outside = Outside::read(&database).await;
    let applied = outside.number("SELECT count(*) FROM results").await;
    assert_eq!(applied + left, TASKS as i64, "settled is what was applied");
    // Those that were given back wait for nobody: the next service gets them at once.
    stage.service = Service::start(&stage.broker, &database, &SERVE).await;
    until_drained(&context).await;
    assert_eq!(
        outside.number("SELECT count(*) FROM results").await,
        TASKS as i64
    );
}

#[tokio::test]
async fn no_answer_goes_to_a_subject_that_is_the_services_the_servers_or_a_wildcard() {
    let (stage, context) = set().await;
    until_ready(&stage).await;
    let mut everything = stage.worker.client.subscribe(">").await.unwrap();
    let long = "x".repeat(2_000);
    let bad = [
        "tasklatch.report",
        "tasklatch.event.task.t-0",
        "$SYS.x",
        "a.*",
        "a.>",
        "a b",
        "a..b",
        &long,
    ];
    create_many(&stage.worker, bad.len()).await;
    for (number, bad) in bad.iter().enumerate() {
        let task_id = format!("t-{number}");
        let report = full_report(&task_id, "completed");
        publish(&context, &task_id, &report, &[("Tasklatch-Reply-To", bad)]).await;
    }
    until_drained(&context).await;
    assert_eq!(results(&stage).await, bad.len() as i64, "all are applied");
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    let inbox = stage.worker.client.new_inbox();
    stage
        .worker
        .client
        .publish(inbox.clone(), "".into())
        .await
        .unwrap();
    loop {
        let message = timeout(DEADLINE, everything.next()).await.unwrap().unwrap();
        if message.subject.as_str() == inbox {
            break;
        }
        let is_answer = (message.headers.as_ref())
            .is_some_and(|headers| headers.get("Tasklatch-Outcome").is_some());
        assert!(!is_answer, "an answer at {}", message.subject);
    }
    assert!(log.contains("is not a client's"), "{log}");
}
