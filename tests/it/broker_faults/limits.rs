//! Floods, and a server that carries less than before.

use std::collections::BTreeSet;

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{
    Broker, DEADLINE, Outside, Service, Stage, Witness, Worker, commit_cut_off, full_report,
    http_get, insist, signal,
};

/// The most memory that a process has had resident, in MiB.
fn peak_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        / 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_requests_while_the_store_is_locked_are_each_answered_in_bounded_memory() {
    const REQUESTS: usize = 20_000;
    const PEAK_MIB_MAX: u64 = 256;
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    stage.worker.create("after").await;
    let report = full_report("t", "completed");
    let payload = bytes::Bytes::from(report.to_string());
    let mut outside = Outside::write(&stage.database()).await;
    outside.hold().await;
    let client = &stage.worker.client;
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(format!("{inbox}.*")).await.unwrap();
    for number in 0..REQUESTS {
        client
            .publish_with_reply(
                "tasklatch.report",
                format!("{inbox}.{number}"),
                payload.clone(),
            )
            .await
            .unwrap();
    }
    client.flush().await.unwrap();
    let mut held = Some(outside);
    let mut answered = BTreeSet::new();
    let (mut overloaded, mut unavailable, mut done) = (0, 0, 0);
    while answered.len() < REQUESTS {
        let message = timeout(DEADLINE, answers.next())
            .await
            .expect("every request is answered")
            .unwrap();
        assert!(
            answered.insert(message.subject.to_string()),
            "{} is answered twice",
            message.subject
        );
        let body: Value = serde_json::from_slice(&message.payload).unwrap();
        match body.pointer("/error/code").and_then(Value::as_str) {
            Some("overloaded") => overloaded += 1,
            Some("unavailable") => unavailable += 1,
            Some(other) => panic!("{other}: {body}"),
            None => done += 1,
        }
        // On a slow machine the first are given up before the last are sent.
        if let Some(mut outside) = held.take_if(|_| overloaded > 0 && unavailable > 0) {
            outside.release().await;
        }
    }
    println!("{overloaded} overloaded, {unavailable} unavailable, {done} done");
    assert!(overloaded > 0 && unavailable > 0, "both limits were met");
    let peak = peak_mib(stage.service.pid());
    println!("peak of the service: {peak} MiB");
    assert!(peak < PEAK_MIB_MAX, "the service had {peak} MiB");
    assert!(
        insist(&stage.worker, "tasklatch.report", &report)
            .await
            .outcome()
            .is_some()
    );
    let good = insist(
        &stage.worker,
        "tasklatch.report",
        &full_report("after", "completed"),
    )
    .await;
    assert_eq!(good.outcome(), Some("accepted"));
    let mut observed = Outside::read(&stage.database()).await;
    assert_eq!(observed.number("SELECT count(*) FROM results").await, 2);
}

#[tokio::test]
async fn a_report_whose_answer_would_not_fit_the_server_is_refused_before_anything_is_written() {
    let broker = Broker::start_configured("max_payload: 8192").await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("ledger.db");
    let _service = Service::start(&broker, &database, &[]).await;
    let worker = Worker::connect(&broker).await;
    let witness = Witness::watch(&broker).await;
    worker
        .create_with(
            json!({"task_id": "t", "title": "a task", "metadata": {"m": "x".repeat(2_000)}}),
        )
        .await;
    let report =
        |bytes: usize| json!({"task_id": "t", "status": "completed", "summary": "s".repeat(bytes)});
    // It comes in, but with the task around it, it could not go out again.
    for bytes in [8_192 - 100, 6_000] {
        let error = worker.report(&report(bytes)).await.error();
        assert_eq!(
            (&error["code"], &error["action"]),
            (&json!("invalid_report"), &json!("fix"))
        );
        assert_eq!(error["limit"], json!(8_192));
        assert!(error["actual"].as_u64().unwrap() > 8_192, "{error}");
    }
    let metadata = json!({"m": "x".repeat(7_900)});
    let create = json!({"task_id": "large", "title": "a task", "metadata": metadata});
    let error = worker.ask("tasklatch.task.create", &create).await.error();
    assert_eq!(
        (&error["code"], &error["limit"]),
        (&json!("invalid_request"), &json!(8_192))
    );
    assert_eq!(worker.get("t").await.task()["revision"], json!(1));
    assert_eq!(worker.get("large").await.code(), "task_not_found");
    witness.until_now(&worker).await;
    assert_eq!(witness.ids(), ["t.1.task"]);
    let mut outside = Outside::read(&database).await;
    assert_eq!(outside.number("SELECT count(*) FROM results").await, 0);

    // The largest that fits is accepted, and its events arrive.
    let mut fits = 6_000;
    let accepted = loop {
        let reply = worker.report(&report(fits)).await;
        match reply.outcome() {
            Some(_) => break reply,
            None => fits -= 16,
        }
    };
    let size = accepted.body.len()
        + accepted
            .headers
            .iter()
            .map(|(name, _)| name.to_string().len())
            .sum::<usize>();
    assert!(
        size > 8_192 - 1_300,
        "the limit does not refuse what fits: {size}"
    );
    witness.until_now(&worker).await;
    assert_eq!(witness.ids(), ["t.1.task", "t.2.result", "t.2.task"]);
}

#[tokio::test]
async fn a_lowered_max_payload_makes_a_retry_unavailable_and_parks_events_and_raised_again_the_retry_is_a_replay_and_they_can_be_sent()
 {
    let mut broker = Broker::start_configured("max_payload: 1048576").await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("ledger.db");
    let service = Service::start(&broker, &database, &["--http", "127.0.0.1:0"]).await;
    let worker = Worker::connect(&broker).await;
    worker
        .create_with(
            json!({"task_id": "t", "title": "a task", "metadata": {"m": "x".repeat(20_000)}}),
        )
        .await;
    let report = full_report("t", "completed");
    commit_cut_off(&broker, &worker, &database, std::slice::from_ref(&report)).await;
    broker.kill().await;
    broker.restart_configured("max_payload: 8192").await;

    let worker = Worker::connect(&broker).await;
    let answer = crate::support::eventually("the service is back", async || {
        let answer = worker
            .client
            .request("tasklatch.report", report.to_string().into())
            .await
            .ok()?;
        serde_json::from_slice::<Value>(&answer.payload).ok()
    })
    .await;
    let error = &answer["error"];
    assert_eq!(
        (&error["code"], &error["action"]),
        (&json!("unavailable"), &json!("retry")),
        "{answer}"
    );
    assert_eq!(error["limit"], json!(8_192), "{error}");
    assert!(error["actual"].as_u64().unwrap() > 20_000, "{error}");
    let other = worker.report(&full_report("t", "failed")).await;
    assert_eq!(other.code(), "result_conflict", "a refusal fits");
    crate::support::eventually("what does not fit is parked", async || {
        let (_, page) = http_get(&service.ready_line, "/metrics").await;
        (!page.contains("tasklatch_events_parked 0\n")).then_some(())
    })
    .await;
    worker.create("other").await;
    Outside::read(&database).await.until_published().await;
    let (status, page) = http_get(&service.ready_line, "/ready").await;
    assert_eq!(status, 200, "they hold up no others: {page}");

    signal(service.pid(), "STOP").await;
    broker.kill().await;
    broker.restart_configured("max_payload: 1048576").await;
    let witness = Witness::watch(&broker).await;
    signal(service.pid(), "CONT").await;
    let worker = Worker::connect(&broker).await;
    let again = insist(&worker, "tasklatch.report", &report).await;
    assert_eq!(again.outcome(), Some("replayed"));
    witness.until_now(&worker).await;
    assert!(!witness.ids().contains(&"t.2.task".to_owned()));
    let url = broker.url();
    let database = database.to_str().unwrap();
    let command = [
        "events",
        "resend",
        "--events",
        "core",
        "--database",
        database,
        "--nats-url",
        &url,
    ];
    let output = crate::support::stage::run(&command).await;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        !told.starts_with("0 sent"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    witness.until("t.2.task").await;
    let mut ids = witness.ids();
    ids.retain(|id| id.starts_with("t.2."));
    // The result event fits, and was published while nobody watched.
    assert_eq!(ids, ["t.2.task"]);
}
