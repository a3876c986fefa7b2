//! What each request gets: every row of the table of outcomes, every code of a refusal, and answers under load.

use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection};

use crate::support::{Broker, Burst, Reply, Service, Stage, Worker, full_report};

/// Sees that an answer is this refusal: code, number, header text, action, and these fields beside them and no others.
fn assert_refused(reply: &Reply, code: &str, number: &str, action: &str, fields: Value) {
    let error = reply.error();
    assert_eq!(error["code"], code, "{error}");
    assert_eq!(error["action"], action, "{error}");
    assert_eq!(
        reply.header("Nats-Service-Error-Code"),
        Some(number),
        "{error}"
    );
    let message = error["message"].as_str().unwrap();
    assert!(
        !message.is_empty() && !message.contains(char::is_control),
        "{message:?}"
    );
    assert_eq!(
        reply.header("Nats-Service-Error"),
        Some(&*format!("{code}: {message}"))
    );
    assert_eq!(reply.outcome(), None);
    let mut rest = error.clone();
    for always in ["code", "message", "action"] {
        rest.as_object_mut().unwrap().remove(always);
    }
    assert_eq!(rest, fields, "{error}");
    assert_eq!(
        reply.json().as_object().unwrap().len(),
        1,
        "the body is the error alone"
    );
}

/// A task in each state that a report can find it in.
async fn set_with_tasks() -> Stage {
    let stage = Stage::set().await;
    for task_id in ["submitted", "working", "canceled", "completed"] {
        stage.worker.create(task_id).await;
    }
    stage
        .worker
        .ask("tasklatch.task.start", &json!({"task_id": "working"}))
        .await
        .task();
    stage
        .worker
        .ask("tasklatch.task.cancel", &json!({"task_id": "canceled"}))
        .await
        .task();
    assert_eq!(
        stage
            .worker
            .report(&full_report("completed", "completed"))
            .await
            .outcome(),
        Some("accepted")
    );
    stage
}

#[tokio::test]
async fn a_report_on_an_open_task_is_accepted_and_written_and_published_with_both_events() {
    let stage = set_with_tasks().await;
    let mut observer = stage.observer_from_now().await;
    for (task_id, revision) in [("submitted", 2), ("working", 3)] {
        let reply = stage.worker.report(&full_report(task_id, "failed")).await;
        assert_eq!(reply.outcome(), Some("accepted"));
        let names: Vec<String> = reply
            .headers
            .iter()
            .map(|(name, _)| name.to_string())
            .collect();
        assert_eq!(names.len(), 2, "{names:?}");
        let task = reply.task();
        assert_eq!(task["lifecycle"], "failed");
        assert_eq!(task["revision"], revision);
        assert_eq!(task["result"]["reported_at"], task["updated_at"]);
        assert_eq!(stage.worker.get(task_id).await.body, reply.body);
        let expected = ["result", "task"].map(|kind| format!("{task_id}.{revision}.{kind}"));
        assert_eq!(observer.ids_so_far().await, expected);
    }
}

#[tokio::test]
async fn a_report_on_a_task_with_a_result_is_a_replay_or_a_conflict_and_nothing_is_written_or_published()
 {
    let stage = set_with_tasks().await;
    let before = stage.worker.get("completed").await;
    let mut observer = stage.observer_from_now().await;
    let mut report = full_report("completed", "completed");
    let replay = stage.worker.report(&report).await;
    assert_eq!(replay.outcome(), Some("replayed"));
    assert_eq!(replay.body, before.body);
    report["summary"] = json!("other");
    report["evidence"] = json!({});
    let refused = stage.worker.report(&report).await;
    let fields = json!({"task_id": "completed", "lifecycle": "completed", "differs": ["summary", "evidence"]});
    assert_refused(&refused, "result_conflict", "409", "stop", fields);
    assert_eq!(stage.worker.get("completed").await.body, before.body);
    assert_eq!(observer.ids_so_far().await, [""; 0]);
}

#[tokio::test]
async fn a_report_on_a_canceled_task_an_unknown_task_or_an_invalid_one_is_refused_and_writes_and_publishes_nothing()
 {
    let stage = set_with_tasks().await;
    let mut observer = stage.observer_from_now().await;
    let canceled = stage
        .worker
        .report(&full_report("canceled", "completed"))
        .await;
    let fields = json!({"task_id": "canceled", "lifecycle": "canceled"});
    assert_refused(&canceled, "task_terminal", "409", "stop", fields);
    let unknown = stage
        .worker
        .report(&full_report("nobody", "completed"))
        .await;
    assert_refused(
        &unknown,
        "task_not_found",
        "404",
        "fix",
        json!({"task_id": "nobody"}),
    );
    for task_id in ["submitted", "canceled", "completed", "nobody"] {
        let mut invalid = full_report(task_id, "completed");
        invalid["artifacts"] = json!(["a", "b", "c", ""]);
        let refused = stage.worker.report(&invalid).await;
        assert_refused(
            &refused,
            "invalid_report",
            "400",
            "fix",
            json!({"field": "/artifacts/3"}),
        );
    }
    assert_eq!(stage.worker.get("submitted").await.task()["revision"], 1);
    assert_eq!(observer.ids_so_far().await, [""; 0]);
}

#[tokio::test]
async fn every_limit_of_a_report_is_refused_one_past_it_with_limit_and_actual_and_taken_at_it() {
    let stage = Stage::set().await;
    let evidence = |bytes: usize| json!({"a": "x".repeat(bytes - r#"{"a":""}"#.len())});
    let levels = |levels: usize| {
        let mut value = json!({});
        for _ in 1..levels {
            value = json!({"a": value});
        }
        value
    };
    // A report of 384 KiB with nothing else at its limit: much in artifacts, the rest in evidence.
    let whole = |task_id: &str, bytes: usize| {
        let mut report = full_report(task_id, "completed");
        report["artifacts"] = json!(vec!["x".repeat(4000); 50]);
        report["evidence"] = json!({"a": ""});
        report["evidence"]["a"] = json!("x".repeat(bytes - report.to_string().len()));
        report
    };
    let with = |field: &'static str, value: Value| {
        move |task_id: &str| {
            let mut report = full_report(task_id, "completed");
            report[field] = value.clone();
            report
        }
    };
    type Make<'a> = Box<dyn Fn(&str) -> Value + 'a>;
    let cases: [(&str, Make, Make, Value); 7] = [
        (
            "summary",
            Box::new(with("summary", json!("é".repeat(8192)))),
            Box::new(with("summary", json!("x".repeat(16385)))),
            json!({"field": "/summary", "limit": 16384, "actual": 16385}),
        ),
        (
            "items",
            Box::new(with("artifacts", json!(vec!["a"; 256]))),
            Box::new(with("artifacts", json!(vec!["a"; 257]))),
            json!({"field": "/artifacts", "limit": 256, "actual": 257}),
        ),
        (
            "artifact",
            Box::new(with("artifacts", json!(["a", "x".repeat(4096)]))),
            Box::new(with("artifacts", json!(["a", "x".repeat(4097)]))),
            json!({"field": "/artifacts/1", "limit": 4096, "actual": 4097}),
        ),
        (
            "evidence",
            Box::new(with("evidence", evidence(262_144))),
            Box::new(with("evidence", evidence(262_145))),
            json!({"field": "/evidence", "limit": 262_144, "actual": 262_145}),
        ),
        (
            "levels",
            Box::new(with("evidence", levels(64))),
            Box::new(with("evidence", levels(65))),
            json!({"field": "/evidence", "limit": 64}),
        ),
        (
            "whole",
            Box::new(|task_id| whole(task_id, 393_216)),
            Box::new(|task_id| whole(task_id, 393_217)),
            json!({"limit": 393_216, "actual": 393_217}),
        ),
        (
            "task-id",
            Box::new(|task_id| full_report(task_id, "completed")),
            Box::new(|_| full_report(&"x".repeat(129), "completed")),
            json!({"field": "/task_id", "limit": 128, "actual": 129}),
        ),
    ];
    for (name, at_limit, past_it, fields) in &cases {
        stage.worker.create(name).await;
        let mut refused = stage.worker.report(&past_it(name)).await;
        if *name == "levels" {
            // How many levels there are past the limit is not counted where parsing ends.
            refused = without(refused, "actual");
        }
        assert_refused(&refused, "invalid_report", "400", "fix", fields.clone());
        let reply = stage.worker.report(&at_limit(name)).await;
        assert_eq!(
            reply.outcome(),
            Some("accepted"),
            "{name}: {:?}",
            reply.json()["error"]
        );
        assert_eq!(
            stage.worker.report(&at_limit(name)).await.outcome(),
            Some("replayed"),
            "{name}"
        );
    }
}

fn without(reply: Reply, field: &str) -> Reply {
    let mut body = reply.json();
    body["error"].as_object_mut().unwrap().remove(field);
    Reply {
        body: body.to_string().into(),
        ..reply
    }
}

#[tokio::test]
async fn white_space_between_the_tokens_of_a_report_does_not_count_to_its_size() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let padded = full_report("t", "completed")
        .to_string()
        .replace(',', &format!(",{}", " ".repeat(100_000)));
    assert!(padded.len() > 500_000);
    assert_eq!(
        stage
            .worker
            .ask_bytes("tasklatch.report", padded)
            .await
            .outcome(),
        Some("accepted")
    );
}

#[tokio::test]
async fn each_code_of_a_refused_request_carries_its_number_its_text_its_action_and_its_fields() {
    let stage = set_with_tasks().await;
    let worker = &stage.worker;
    for (task_id, pane_id) in [("p1", "p"), ("p2", "p"), ("q1", "q")] {
        worker
            .create_with(json!({"task_id": task_id, "pane_id": pane_id, "title": "t"}))
            .await;
    }
    let mut observer = stage.observer_from_now().await;
    let ask = async |verb: &str, body: Value| worker.ask(&format!("tasklatch.{verb}"), &body).await;

    let title = ask("task.create", json!({"title": "x".repeat(1311)})).await;
    let fields = json!({"field": "/title", "limit": 1024, "actual": 1311});
    assert_refused(&title, "invalid_request", "400", "fix", fields);

    let conflict = ask(
        "task.create",
        json!({"task_id": "working", "pane_id": "x", "title": "y"}),
    )
    .await;
    let fields =
        json!({"task_id": "working", "lifecycle": "working", "differs": ["pane_id", "title"]});
    assert_refused(&conflict, "task_conflict", "409", "stop", fields);

    let nobody = ask("task.get", json!({"pane_id": "nobody"})).await;
    assert_refused(&nobody, "task_not_found", "404", "fix", json!({}));

    let both = ask("task.get", json!({"task_id": "p1", "pane_id": "q"})).await;
    assert_refused(
        &both,
        "selector_mismatch",
        "409",
        "fix",
        json!({"task_id": "p1"}),
    );

    let subject = ask("report.submitted", full_report("working", "completed")).await;
    assert_refused(
        &subject,
        "selector_mismatch",
        "409",
        "fix",
        json!({"task_id": "working"}),
    );

    let pane = ask("task.start", json!({"pane_id": "p"})).await;
    assert_refused(
        &pane,
        "ambiguous_pane",
        "409",
        "fix",
        json!({"field": "/pane_id"}),
    );

    for (verb, task_id) in [
        ("task.start", "completed"),
        ("task.cancel", "completed"),
        ("task.start", "canceled"),
    ] {
        let ended = ask(verb, json!({"task_id": task_id})).await;
        assert_refused(
            &ended,
            "task_terminal",
            "409",
            "stop",
            json!({"task_id": task_id, "lifecycle": task_id}),
        );
    }
    for task_id in ["submitted", "working", "canceled"] {
        let review = ask(
            "task.review",
            json!({"task_id": task_id, "verdict": "approved"}),
        )
        .await;
        assert_refused(
            &review,
            "no_result",
            "409",
            "stop",
            json!({"task_id": task_id, "lifecycle": task_id}),
        );
    }
    let limit = ask("task.list", json!({"limit": 1001})).await;
    assert_refused(
        &limit,
        "invalid_request",
        "400",
        "fix",
        json!({"field": "/limit"}),
    );
    assert_eq!(observer.ids_so_far().await, [""; 0]);
}

/// A row that the database refuses is a fault of ours and never a replay.
#[tokio::test]
async fn a_report_that_a_constraint_of_the_database_refuses_is_answered_internal_and_harms_no_other()
 {
    let stage = Stage::set().await;
    for task_id in ["good", "bad"] {
        stage.worker.create(task_id).await;
    }
    let mut sqlite = stage.sqlite().await;
    sqlx::query(
        "CREATE TRIGGER refuses BEFORE INSERT ON results WHEN NEW.summary = 'bad'
         BEGIN SELECT RAISE(ABORT, 'a secret of the database'); END",
    )
    .execute(&mut sqlite)
    .await
    .unwrap();
    let mut observer = stage.observer_from_now().await;
    let mut burst = Burst::open(&stage.worker).await;
    for task_id in ["bad", "good", "bad"] {
        let report = json!({"task_id": task_id, "status": "completed", "summary": task_id});
        burst.send("tasklatch.report", report.to_string()).await;
    }
    let replies = burst.finish().await;
    for bad in [0, 2] {
        assert_refused(&replies[bad], "internal", "500", "retry", json!({}));
        assert!(
            !String::from_utf8_lossy(&replies[bad].body).contains("secret"),
            "detail is never sent"
        );
    }
    assert_eq!(replies[1].outcome(), Some("accepted"));
    assert_eq!(
        stage.worker.get("bad").await.task()["lifecycle"],
        "submitted"
    );
    assert_eq!(
        observer.ids_so_far().await,
        ["good.2.result", "good.2.task"]
    );
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    assert!(
        log.contains("a secret of the database"),
        "it is in the log: {log}"
    );
}

/// A service that takes on few requests at once, and tasks for many.
async fn set_with_tasks_for(requests: usize, max_in_hand: &str) -> Stage {
    let stage = Stage::set_with(&["--max-in-hand", max_in_hand]).await;
    for number in 0..requests {
        stage.worker.create(&format!("t-{number}")).await;
    }
    stage
}

/// Holds the write lock of the database until it is let go.
async fn hold(stage: &Stage) -> SqliteConnection {
    let mut sqlite = stage.sqlite().await;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut sqlite)
        .await
        .unwrap();
    sqlite
}

async fn let_go(mut sqlite: SqliteConnection) {
    sqlx::query("ROLLBACK").execute(&mut sqlite).await.unwrap();
    sqlite.close().await.unwrap();
}

async fn send_reports(worker: &Worker, requests: usize) -> Burst {
    let mut burst = Burst::open(worker).await;
    for number in 0..requests {
        let report = full_report(&format!("t-{number}"), "completed");
        burst.send("tasklatch.report", report.to_string()).await;
    }
    burst
}

/// Sends what was refused for now again, until all of it is accepted or replayed.
async fn assert_all_settle(stage: &Stage, requests: usize) {
    for number in 0..requests {
        let reply = stage
            .worker
            .report(&full_report(&format!("t-{number}"), "completed"))
            .await;
        assert!(
            matches!(reply.outcome(), Some("accepted" | "replayed")),
            "{:?}",
            reply.json()
        );
    }
}

#[tokio::test]
async fn past_the_work_in_hand_a_request_is_answered_overloaded_at_once_and_what_is_in_hand_is_applied_later()
 {
    let stage = set_with_tasks_for(100, "8").await;
    let mut observer = stage.observer_from_now().await;
    let lock = hold(&stage).await;
    let mut burst = send_reports(&stage.worker, 100).await;
    // While the lock is held and eight requests are in hand, all others are told so.
    for _ in 0..92 {
        let (number, reply) = burst.next().await;
        assert_refused(&reply, "overloaded", "503", "retry", json!({}));
        assert!(number >= 8, "the first eight were taken on");
    }
    let_go(lock).await;
    let replies = burst.finish().await;
    let accepted = replies
        .iter()
        .filter(|reply| reply.outcome() == Some("accepted"))
        .count();
    let unavailable = replies
        .iter()
        .filter(|reply| reply.outcome().is_none() && reply.code() == "unavailable")
        .count();
    assert_eq!(
        accepted + unavailable,
        8,
        "what was in hand got an answer of its own"
    );
    assert_all_settle(&stage, 100).await;
    assert_eq!(
        observer.all_so_far().await.len(),
        200,
        "one pair of events for each"
    );
}

#[tokio::test]
async fn while_another_process_holds_the_database_a_report_is_answered_unavailable_and_accepted_once_it_is_free()
 {
    let stage = set_with_tasks_for(5, "100").await;
    let mut observer = stage.observer_from_now().await;
    let lock = hold(&stage).await;
    let replies = async {
        let mut burst = send_reports(&stage.worker, 5).await;
        while burst.replies.iter().any(Vec::is_empty) {
            burst.next().await;
        }
        burst
    }
    .await;
    for reply in replies.replies.iter().flatten() {
        assert_refused(reply, "unavailable", "503", "retry", json!({}));
    }
    // What only reads goes on.
    assert_eq!(
        stage.worker.get("t-0").await.task()["lifecycle"],
        "submitted"
    );
    let_go(lock).await;
    for number in 0..5 {
        let reply = stage
            .worker
            .report(&full_report(&format!("t-{number}"), "completed"))
            .await;
        assert_eq!(
            reply.outcome(),
            Some("accepted"),
            "nothing had been written"
        );
    }
    assert_eq!(observer.all_so_far().await.len(), 10);
}
#[tokio::test]
async fn a_report_whose_answer_or_events_would_not_fit_the_server_is_refused_before_anything_is_written()
 {
    let broker = Broker::start_configured("max_payload: 16384\n").await;
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(&broker, &folder.path().join("ledger.db"), &[]).await;
    let worker = Worker::connect(&broker).await;
    let stage = Stage {
        broker,
        service,
        worker,
        folder,
    };
    let metadata = json!({"text": "x".repeat(8000)});
    let before = stage
        .worker
        .create_with(json!({"task_id": "t", "title": "t", "metadata": metadata}))
        .await;
    let mut observer = stage.observer_from_now().await;
    let mut report = full_report("t", "completed");
    report["summary"] = json!("y".repeat(8000));
    let refused = stage.worker.report(&report).await;
    let actual = refused.error()["actual"].as_u64().unwrap();
    assert!(actual > 16384, "{actual}");
    let fields = json!({"task_id": "t", "limit": 16384, "actual": actual});
    assert_refused(&refused, "invalid_report", "400", "fix", fields);
    assert_eq!(stage.worker.get("t").await.task(), before);
    assert_eq!(observer.ids_so_far().await, [""; 0]);
    // The largest that fits is accepted, and its answer and events come.
    report["summary"] = json!("y".repeat(8000 - usize::try_from(actual - 16384).unwrap()));
    assert_eq!(
        stage.worker.report(&report).await.outcome(),
        Some("accepted")
    );
    assert_eq!(observer.ids_so_far().await, ["t.2.result", "t.2.task"]);
    report["summary"] = json!("y".repeat(8001 - usize::try_from(actual - 16384).unwrap()));
    assert_eq!(
        stage.worker.report(&report).await.code(),
        "result_conflict",
        "the comparison comes first"
    );
}
