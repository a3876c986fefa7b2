//! Events: what is published, where, with which headers, in which order, and that nothing else is.

use serde_json::{Value, json};
use tasklatch::ledger::Command;
use tasklatch::wire::{Endpoint, Event};

use crate::support::bench::{self, Bench, at};
use crate::support::{Observer, Seen, Service, Stage, full_report};

/// The identity of the ledger that a stage serves, from discovery.
async fn ledger_id(stage: &Stage) -> String {
    let ping = stage
        .worker
        .client
        .request("$SRV.PING.tasklatch", "".into())
        .await
        .unwrap();
    let ping: Value = serde_json::from_slice(&ping.payload).unwrap();
    ping["metadata"]["ledger_id"].as_str().unwrap().to_owned()
}

/// Sees that an event is wholly as docs/protocol.md has it.
fn assert_event(event: &Seen, kind: &str, ledger_id: &str, task: &Value) {
    let task_id = task["task_id"].as_str().unwrap();
    let id = format!("{task_id}.{}.{kind}", task["revision"]);
    assert_eq!(event.subject, format!("tasklatch.event.{kind}.{task_id}"));
    let kind = if kind == "result" {
        "tasklatch.result.accepted"
    } else {
        "tasklatch.task.updated"
    };
    let expected = [
        ("Nats-Msg-Id", format!("{ledger_id}.{id}")),
        ("ce-id", id),
        ("ce-source", format!("tasklatch/{ledger_id}")),
        ("ce-specversion", "1.0".to_owned()),
        ("ce-subject", task_id.to_owned()),
        ("ce-time", task["updated_at"].as_str().unwrap().to_owned()),
        ("ce-type", kind.to_owned()),
        ("content-type", "application/json".to_owned()),
    ];
    let mut headers: Vec<(String, String)> = event
        .headers
        .iter()
        .map(|(name, values)| (name.to_string(), values[0].to_string()))
        .collect();
    headers.sort();
    assert_eq!(
        headers,
        expected.map(|(name, text)| (name.to_owned(), text))
    );
}

async fn ask(stage: &Stage, verb: &str, body: Value) -> Value {
    stage
        .worker
        .ask(&format!("tasklatch.{verb}"), &body)
        .await
        .task()
}

#[tokio::test]
async fn each_change_publishes_one_task_event_as_a_cloud_event_and_an_accepted_report_one_result_event_before_it()
 {
    let stage = Stage::set().await;
    let mut observer = stage.observer_from_now().await;
    let mut tasks = Vec::new();
    let create =
        json!({"task_id": "t", "pane_id": "w1:p2", "title": "a task", "metadata": {"a": [1.50]}});
    tasks.push(ask(&stage, "task.create", create).await);
    tasks.push(ask(&stage, "task.start", json!({"task_id": "t"})).await);
    tasks.push(ask(&stage, "report", full_report("t", "completed")).await);
    tasks.push(
        ask(
            &stage,
            "task.review",
            json!({"task_id": "t", "verdict": "rework", "note": "n"}),
        )
        .await,
    );
    tasks.push(
        ask(
            &stage,
            "task.review",
            json!({"task_id": "t", "verdict": "approved"}),
        )
        .await,
    );
    ask(
        &stage,
        "task.create",
        json!({"task_id": "c", "title": "to be canceled"}),
    )
    .await;
    let canceled = ask(
        &stage,
        "task.cancel",
        json!({"task_id": "c", "reason": "no"}),
    )
    .await;

    let events = observer.all_so_far().await;
    let ids: Vec<&str> = events.iter().map(Seen::id).collect();
    let expected = [
        "t.1.task",
        "t.2.task",
        "t.3.result",
        "t.3.task",
        "t.4.task",
        "t.5.task",
        "c.1.task",
        "c.2.task",
    ];
    assert_eq!(ids, expected);
    let ledger_id = ledger_id(&stage).await;
    for (event, task) in [
        (0, &tasks[0]),
        (1, &tasks[1]),
        (3, &tasks[2]),
        (4, &tasks[3]),
        (5, &tasks[4]),
        (7, &canceled),
    ] {
        assert_event(&events[event], "task", &ledger_id, task);
        assert_eq!(events[event].json(), *task);
    }
    assert_event(&events[2], "result", &ledger_id, &tasks[2]);
    let data =
        json!({"task_id": "t", "pane_id": "w1:p2", "revision": 3, "result": tasks[2]["result"]});
    assert_eq!(events[2].json(), data);
}

#[tokio::test]
async fn the_payload_of_a_task_event_is_byte_for_byte_what_the_change_was_answered() {
    let stage = Stage::set().await;
    let mut observer = stage.observer_from_now().await;
    stage.worker.create("t").await;
    let report = r#"{"task_id":"t","status":"completed","summary":"s","evidence":{"z":12.50,"a":1e400,"n":12345678901234567890123}}"#;
    let reply = stage.worker.ask_bytes("tasklatch.report", report).await;
    let events = observer.all_so_far().await;
    assert_eq!(events[2].payload, reply.body);
    for event in &events[1..] {
        let text = String::from_utf8_lossy(&event.payload);
        assert!(
            text.contains(r#""evidence":{"z":12.50,"a":1e400,"n":12345678901234567890123}"#),
            "{text}"
        );
    }
}

#[tokio::test]
async fn replays_refusals_reads_and_requests_that_change_nothing_publish_nothing() {
    let stage = Stage::set().await;
    for task_id in ["open", "working", "canceled", "done"] {
        stage.worker.create(task_id).await;
    }
    ask(&stage, "task.start", json!({"task_id": "working"})).await;
    ask(
        &stage,
        "task.cancel",
        json!({"task_id": "canceled", "reason": "first"}),
    )
    .await;
    ask(&stage, "report", full_report("done", "completed")).await;
    let review = json!({"task_id": "done", "verdict": "approved", "note": "n", "reviewer": "r"});
    ask(&stage, "task.review", review.clone()).await;
    let mut observer = stage.observer_from_now().await;
    for (verb, body) in [
        ("report", full_report("done", "completed")),
        ("report", full_report("done", "failed")),
        ("report", full_report("canceled", "completed")),
        ("report", full_report("nobody", "completed")),
        ("report", json!({"task_id": "open"})),
        ("task.create", json!({"task_id": "open", "title": "a task"})),
        (
            "task.create",
            json!({"task_id": "open", "title": "another"}),
        ),
        ("task.get", json!({"task_id": "open"})),
        ("task.list", json!({})),
        ("task.start", json!({"task_id": "working"})),
        ("task.start", json!({"task_id": "done"})),
        (
            "task.cancel",
            json!({"task_id": "canceled", "reason": "second"}),
        ),
        ("task.cancel", json!({"task_id": "done"})),
        ("task.review", review),
        (
            "task.review",
            json!({"task_id": "open", "verdict": "approved"}),
        ),
    ] {
        stage.worker.ask(&format!("tasklatch.{verb}"), &body).await;
    }
    assert_eq!(observer.ids_so_far().await, [""; 0]);
}

#[tokio::test]
async fn several_changes_of_a_task_before_any_of_them_is_published_give_each_event_the_task_as_of_its_revision()
 {
    let mut bench = Bench::open().await;
    let t = json!({"task_id": "t"});
    let review = |verdict: &str| {
        bench::command(
            Endpoint::Review,
            &json!({"task_id": "t", "verdict": verdict, "note": verdict}),
        )
    };
    let create = json!({"task_id": "t", "pane_id": "p", "title": "a task", "deadline": at(1_000_000).to_string()});
    let first = [bench::create(&create), bench::command(Endpoint::Start, &t)];
    let second = [
        bench::report(&t, "failed", "s"),
        review("rework"),
        review("blocked"),
        review("approved"),
    ];
    let mut bodies = Vec::new();
    for (now, batch) in [(0, &first[..]), (7, &second[..])] {
        bodies.extend(
            bench
                .apply(at(now), batch)
                .await
                .iter()
                .map(|applied| bench::done(applied).0),
        );
    }
    // A cancel keeps its reason out of the events before it.
    let canceling = [
        bench::create(&json!({"task_id": "c", "title": "c"})),
        bench::command(Endpoint::Cancel, &json!({"task_id": "c", "reason": "why"})),
    ];
    bodies.extend(
        bench
            .apply(at(9), &canceling)
            .await
            .iter()
            .map(|applied| bench::done(applied).0),
    );

    let events = bench.events().await;
    let ids: Vec<String> = events.iter().map(Event::id).collect();
    let expected = [
        "t.1.task",
        "t.2.task",
        "t.3.result",
        "t.3.task",
        "t.4.task",
        "t.5.task",
        "t.6.task",
        "c.1.task",
        "c.2.task",
    ];
    assert_eq!(ids, expected);
    let of_tasks: Vec<&Event> = events
        .iter()
        .filter(|event| event.id().ends_with(".task"))
        .collect();
    for (event, body) in of_tasks.into_iter().zip(&bodies) {
        assert_eq!(event.data, *body, "{}", event.id());
        let task: Value = serde_json::from_slice(body).unwrap();
        assert_eq!(task["updated_at"], event.time.to_string());
    }
}

#[tokio::test]
async fn the_sweep_expires_a_task_and_tells_of_it_once_though_nobody_asks() {
    let stage = Stage::set().await;
    let mut observer = stage.observer_from_now().await;
    let soon = tasklatch::task::Timestamp::now().micros() + 100_000;
    let soon = tasklatch::task::Timestamp::from_micros(soon)
        .unwrap()
        .to_string();
    for task_id in ["a", "b"] {
        stage
            .worker
            .create_with(json!({"task_id": task_id, "title": "t", "deadline": soon}))
            .await;
    }
    let mut expired = Vec::new();
    while expired.len() < 2 {
        let event = observer.next().await;
        if event.id().ends_with(".2.task") {
            let task = event.json();
            assert_eq!(task["lifecycle"], "expired");
            assert_eq!(task["revision"], 2);
            assert!(task["updated_at"].as_str() >= Some(soon.as_str()));
            expired.push(event.id().to_owned());
        }
    }
    expired.sort();
    assert_eq!(expired, ["a.2.task", "b.2.task"]);
    let before = stage.worker.get("a").await;
    assert_eq!(
        stage
            .worker
            .report(&full_report("a", "completed"))
            .await
            .code(),
        "task_terminal"
    );
    assert_eq!(stage.worker.get("a").await.body, before.body);
    assert_eq!(observer.ids_so_far().await, [""; 0]);
}

#[tokio::test]
async fn a_restart_publishes_what_was_committed_before_it_with_the_same_identity_and_nothing_that_was_not()
 {
    // A ledger whose service never came to publish.
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("ledger.db");
    let (ledger, mut writer) = tasklatch::ledger::open(&database, "a test").await.unwrap();
    let circumstances = tasklatch::ledger::Circumstances {
        now: at(0),
        max_payload: 1 << 20,
    };
    let t = json!({"task_id": "t"});
    let batch = [
        bench::create(&json!({"task_id": "t", "title": "t"})),
        bench::report(&t, "completed", "s"),
    ];
    for applied in writer.apply(&batch, circumstances).await {
        bench::done(&applied.unwrap());
    }
    let expected: Vec<Event> = ledger
        .outgoing(0, usize::MAX)
        .await
        .unwrap()
        .into_iter()
        .flat_map(|revision| revision.events)
        .collect();
    let ledger_id = ledger.ledger_id().to_owned();
    ledger.close().await;
    writer.close().await.unwrap();

    let broker = crate::support::Broker::start().await;
    let mut observer = Observer::watch(&broker).await;
    let service = Service::start(&broker, &database, &[]).await;
    for expected in &expected {
        let event = observer.next().await;
        assert_eq!(event.id(), expected.id());
        assert_eq!(
            event.header("Nats-Msg-Id"),
            format!("{ledger_id}.{}", expected.id())
        );
        assert_eq!(event.payload, expected.data);
    }
    assert_eq!(observer.ids_so_far().await, [""; 0]);
    // The cursor moved with the confirmed events, so that a clean restart publishes nothing again.
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
    let _service = Service::start(&broker, &database, &[]).await;
    assert_eq!(observer.ids_so_far().await, [""; 0]);
}

#[tokio::test]
async fn an_event_that_was_published_but_not_yet_noted_as_such_comes_again_with_the_same_identity_and_content()
 {
    let mut stage = Stage::set().await;
    let mut observer = stage.observer_from_now().await;
    stage.worker.create("t").await;
    stage.worker.report(&full_report("t", "completed")).await;
    let before = observer.all_so_far().await;
    stage.service.kill().await;
    // As if the crash had come before the cursor was written.
    let mut sqlite = stage.sqlite().await;
    sqlx::query("UPDATE ledger SET published_seq = 0")
        .execute(&mut sqlite)
        .await
        .unwrap();
    sqlx::Connection::close(sqlite).await.unwrap();
    stage.service = Service::start(&stage.broker, &stage.database(), &[]).await;
    let again = observer.all_so_far().await;
    assert_eq!(
        again.iter().map(Seen::id).collect::<Vec<_>>(),
        ["t.1.task", "t.2.result", "t.2.task"]
    );
    for (one, two) in before.iter().zip(&again) {
        assert_eq!(
            (&one.subject, &one.headers, &one.payload),
            (&two.subject, &two.headers, &two.payload)
        );
    }
}

#[tokio::test]
async fn a_published_cursor_is_kept_and_events_after_it_are_those_that_are_left() {
    let mut bench = Bench::open().await;
    for number in 0..3 {
        bench
            .one(
                at(0),
                bench::create(&json!({"task_id": format!("t{number}"), "title": "t"})),
            )
            .await;
    }
    let all = bench.ledger.outgoing(0, usize::MAX).await.unwrap();
    bench.one(at(1), Command::Published(all[1].seq)).await;
    assert_eq!(bench.ledger.published_seq().await.unwrap(), all[1].seq);
    let left = bench.ledger.outgoing(all[1].seq, usize::MAX).await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].events[0].id(), "t2.1.task");
    // It never goes back.
    bench.one(at(2), Command::Published(all[0].seq)).await;
    assert_eq!(bench.ledger.published_seq().await.unwrap(), all[1].seq);
}
