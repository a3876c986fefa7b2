//! What a restored ledger is, and what a restore must not do.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;

use super::{closed, content, lines, restored, snapshot, text};
use crate::support::{
    BINARY, Burst, Outside, Service, Stage, Witness, Worker, commit_cut_off, eventually,
    full_report,
};

const REPORT: &str = "tasklatch.report";

async fn save(stage: &Stage, name: &str) -> std::path::PathBuf {
    let file = stage.folder.path().join(name);
    let output = snapshot("save", &file, &["--database", text(&stage.database())]).await;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    file
}

/// Content that is easily changed by a careless hand.
fn delicate() -> Vec<String> {
    let evidence = [
        r#"{"x":6.477856523538338e55,"y":7.508520672616366e-13,"z":1.50,"e":1E+2,"n":-0}"#,
        r#"{"n":18446744073709551616,"m":9007199254740993,"big":1e400,"tiny":1e-400}"#,
        r#"{"b":1,"a":{"z":null,"y":[]},"":{"\u0000":"\u0000"},"$serde_json::private::Number":"1"}"#,
        "{\"e\":\"é\",\"c\":\"e\u{301}\",\"line\":\"\\u2028\\n\\\"\\\\/\u{7f}\"}",
    ];
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(60), "]".repeat(60));
    let evidence = evidence.iter().map(|text| (*text).to_owned()).chain([deep]);
    evidence
        .enumerate()
        .map(|(number, evidence)| {
            format!(
                r#"{{"task_id":"t-{number}","status":"failed","summary":" a\u0000b \ud83d\ude00 ","artifacts":["\u0000","","é"],"evidence":{evidence}}}"#
            )
            .replace("\"\",", "")
        })
        .collect()
}

#[tokio::test]
async fn a_snapshot_of_a_restored_ledger_has_the_same_task_lines_byte_for_byte_and_every_retry_is_a_replay()
 {
    let mut stage = Stage::set().await;
    let reports = delicate();
    for number in 0..reports.len() {
        let create = json!({"task_id": format!("t-{number}"), "pane_id": "w1:p2\u{1f600}", "title": "é \u{301}", "metadata": {"n": 1.5}});
        stage.worker.create_with(create).await;
    }
    for task_id in ["open", "working", "canceled", "reviewed"] {
        let create = json!({"task_id": task_id, "title": task_id, "deadline": "2999-01-01T02:00:00.5+02:00"});
        stage.worker.create_with(create).await;
    }
    stage
        .worker
        .ask("tasklatch.task.start", &json!({"task_id": "working"}))
        .await
        .task();
    stage
        .worker
        .ask(
            "tasklatch.task.cancel",
            &json!({"task_id": "canceled", "reason": "off\u{0}"}),
        )
        .await
        .task();
    stage
        .worker
        .report(&full_report("reviewed", "completed"))
        .await
        .task();
    let review =
        json!({"task_id": "reviewed", "verdict": "approved", "note": "good", "reviewer": "ann"});
    stage
        .worker
        .ask("tasklatch.task.review", &review)
        .await
        .task();
    let mut accepted = Vec::new();
    for report in &reports {
        let reply = stage
            .worker
            .ask_bytes(REPORT, report.clone().into_bytes())
            .await;
        assert_eq!(
            reply.outcome(),
            Some("accepted"),
            "{}",
            String::from_utf8_lossy(&reply.body)
        );
        accepted.push(reply.body);
    }
    Outside::read(&stage.database())
        .await
        .until_published()
        .await;
    let first = save(&stage, "first").await;
    let database = stage.folder.path().join("restored.db");
    restored(&first, &database, &[]).await;
    let second = stage.folder.path().join("second");
    let output = snapshot("save", &second, &["--database", text(&database)]).await;
    assert!(output.status.success());
    assert_eq!(content(&second), content(&first));
    assert_eq!(content(&second).len(), reports.len() + 4);

    stage.service.kill().await;
    stage.service = Service::start(&stage.broker, &database, &[]).await;
    let witness = Witness::watch(&stage.broker).await;
    for (report, body) in reports.iter().zip(&accepted) {
        let again = stage
            .worker
            .ask_bytes(REPORT, report.clone().into_bytes())
            .await;
        assert_eq!((again.outcome(), &again.body), (Some("replayed"), body));
    }
    witness.until_now(&stage.worker).await;
    assert_eq!(
        witness.ids(),
        [""; 0],
        "neither the restore nor a replay publishes anything"
    );
}

#[tokio::test]
async fn a_restore_killed_in_the_middle_leaves_an_empty_ledger_or_none_and_can_be_repeated() {
    const TASKS: usize = 5_000;
    let mut stage = Stage::set().await;
    stage.worker.create("t-00000").await;
    let mut report = full_report("t-00000", "completed");
    report["summary"] = json!("x".repeat(4_000));
    stage.worker.report(&report).await.task();
    Outside::read(&stage.database())
        .await
        .until_published()
        .await;
    let file = save(&stage, "one").await;
    stage.service.kill().await;
    let (head, one) = (lines(&file)[0].clone(), content(&file)[0].clone());
    let many = (0..TASKS).map(|number| one.replace("t-00000", &format!("t-{number:05}")));
    let big = stage.folder.path().join("big");
    std::fs::write(
        &big,
        closed(&[head].into_iter().chain(many).collect::<Vec<_>>(), TASKS),
    )
    .unwrap();

    let database = stage.folder.path().join("restored.db");
    let log = stage.folder.path().join("restored.db-wal");
    for grown in [1, 1 << 20, 6 << 20] {
        let mut restore = Command::new(BINARY)
            .args([
                "snapshot",
                "restore",
                text(&big),
                "--database",
                text(&database),
            ])
            .env("TMPDIR", stage.folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        eventually("the restore writes", async || {
            assert!(
                restore.try_wait().unwrap().is_none(),
                "the restore is killed before its end"
            );
            let length = std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
            (length >= grown).then_some(())
        })
        .await;
        restore.kill().await.unwrap();
        let mut outside = Outside::write(&database).await;
        let tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'tasks'";
        if outside.number(tables).await == 1 {
            assert_eq!(
                outside.number("SELECT count(*) FROM tasks").await,
                0,
                "killed at {grown} bytes"
            );
            assert_eq!(
                outside.number("SELECT count(*) FROM results").await,
                0,
                "killed at {grown} bytes"
            );
        }
        outside.close().await;
    }
    restored(&big, &database, &[]).await;
    let mut outside = Outside::read(&database).await;
    assert_eq!(
        outside.number("SELECT count(*) FROM results").await,
        TASKS as i64
    );
    stage.service = Service::start(&stage.broker, &database, &[]).await;
    report["task_id"] = json!(format!("t-{:05}", TASKS - 1));
    assert_eq!(
        stage.worker.report(&report).await.outcome(),
        Some("replayed")
    );
}

#[tokio::test]
async fn a_restore_into_a_ledger_with_tasks_or_one_that_a_service_holds_is_refused_and_changes_nothing()
 {
    let mut stage = Stage::set().await;
    let held = stage.folder.path().join("held.db");
    stage.worker.create("t").await;
    let file = save(&stage, "saved").await;
    let identity =
        "SELECT ledger_id || ' ' || created_at || ' ' || (SELECT count(*) FROM tasks) FROM ledger";

    // The ledger itself, with its service and without.
    let mut outside = Outside::read(&stage.database()).await;
    let before = outside.texts(identity).await;
    let output = snapshot("restore", &file, &["--database", text(&stage.database())]).await;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        message.contains(&format!("process ID {}", stage.service.pid())),
        "{message}"
    );
    stage.worker.get("t").await.task();
    stage.service.kill().await;
    let output = snapshot("restore", &file, &["--database", text(&stage.database())]).await;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("has tasks already"), "{message}");
    assert_eq!(outside.texts(identity).await, before);
    stage.service = Service::start(&stage.broker, &stage.database(), &[]).await;
    assert_eq!(stage.worker.get("t").await.task()["revision"], json!(1));
    stage.service.kill().await;

    // An empty ledger with a service on it.
    let service = Service::start(&stage.broker, &held, &[]).await;
    let mut outside = Outside::read(&held).await;
    let before = outside.texts(identity).await;
    let output = snapshot("restore", &file, &["--database", text(&held)]).await;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        message.contains(&format!("process ID {}", service.pid())),
        "{message}"
    );
    assert_eq!(outside.texts(identity).await, before);
    stage.worker.create("of-the-empty-one").await;
}

#[tokio::test]
async fn unpublished_events_are_dropped_by_a_restore_or_published_if_asked_with_their_ids_under_the_new_ledger()
 {
    let mut stage = Stage::set().await;
    let task_ids: Vec<_> = (0..5).map(|number| format!("t-{number}")).collect();
    for task_id in &task_ids {
        stage.worker.create(task_id).await;
    }
    let before = Witness::watch(&stage.broker).await;
    before.until_now(&stage.worker).await;
    // So that all that was published until now is known to be.
    let mut outside = Outside::read(&stage.database()).await;
    outside.until_published().await;
    let old = outside
        .texts("SELECT ledger_id FROM ledger")
        .await
        .remove(0);
    outside.close().await;
    let reports: Vec<Value> = task_ids
        .iter()
        .map(|task_id| full_report(task_id, "completed"))
        .collect();
    commit_cut_off(&stage.broker, &stage.worker, &stage.database(), &reports).await;
    stage.service.kill().await;
    stage.broker.kill().await;
    let file = save(&stage, "saved").await;
    let events: Vec<Value> = content(&file)
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter_map(|line| line.get("unpublished_event").cloned())
        .collect();
    assert_eq!(events.len(), 10, "both events of each report");

    stage.broker.restart().await;
    let worker = Worker::connect(&stage.broker).await;
    let wanted: Vec<_> = events
        .iter()
        .map(|event| event["id"].as_str().unwrap().to_owned())
        .collect();
    for (name, options, expected) in [
        ("dropped.db", &[][..], &[][..]),
        ("kept.db", &["--publish-pending"][..], &wanted[..]),
    ] {
        let database = stage.folder.path().join(name);
        let told = restored(&file, &database, options).await;
        assert!(
            told.contains("10 events"),
            "it says how many there were: {told}"
        );
        let witness = Witness::watch(&stage.broker).await;
        stage.service = Service::start(&stage.broker, &database, &[]).await;
        for report in &reports {
            assert_eq!(worker.report(report).await.outcome(), Some("replayed"));
        }
        witness.until_now(&worker).await;
        assert_eq!(witness.ids(), expected, "{name}");
        let new = Outside::read(&database)
            .await
            .texts("SELECT ledger_id FROM ledger")
            .await
            .remove(0);
        assert_ne!(new, old, "a restored ledger is another one");
        for (seen, event) in witness.seen().iter().zip(&events) {
            assert_eq!(seen.header("ce-source"), format!("tasklatch/{new}"));
            assert_eq!(seen.header("Nats-Msg-Id"), format!("{new}.{}", seen.id()));
            assert_eq!(seen.header("ce-time"), event["time"].as_str().unwrap());
            assert_eq!(seen.json(), event["data"], "{}", seen.id());
        }
        stage.service.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_restored_tasks_are_a_thousand_replays_without_an_event_and_a_new_report_has_an_id_of_its_own()
 {
    let mut stage = Stage::set().await;
    let before = Witness::watch(&stage.broker).await;
    let task_ids: Vec<_> = (0..1_000).map(|number| format!("t-{number}")).collect();
    let mut burst = Burst::open(&stage.worker).await;
    for task_id in task_ids.iter().map(String::as_str).chain(["open"]) {
        burst
            .send(
                "tasklatch.task.create",
                json!({"task_id": task_id, "title": "a task"}).to_string(),
            )
            .await;
    }
    burst
        .finish()
        .await
        .iter()
        .for_each(|reply| drop(reply.task()));
    let report_all = async |worker: &Worker| {
        let mut burst = Burst::open(worker).await;
        for task_id in &task_ids {
            burst
                .send(REPORT, full_report(task_id, "completed").to_string())
                .await;
        }
        burst.finish().await
    };
    let accepted = report_all(&stage.worker).await;
    let file = save(&stage, "saved").await;
    // What happens to the old ledger after its picture was taken, the restored one does not know of.
    stage
        .worker
        .report(&full_report("open", "failed"))
        .await
        .task();
    before.until_now(&stage.worker).await;
    let used: BTreeSet<_> = before
        .seen()
        .iter()
        .map(|event| event.header("Nats-Msg-Id").to_owned())
        .collect();
    stage.service.kill().await;
    let database = stage.folder.path().join("restored.db");
    restored(&file, &database, &[]).await;

    let after = Witness::watch(&stage.broker).await;
    stage.service = Service::start(&stage.broker, &database, &[]).await;
    let replayed = report_all(&stage.worker).await;
    for (first, again) in accepted.iter().zip(&replayed) {
        assert_eq!(
            (first.outcome(), again.outcome()),
            (Some("accepted"), Some("replayed"))
        );
        assert_eq!(first.body, again.body);
    }
    after.until_now(&stage.worker).await;
    assert_eq!(after.ids(), [""; 0]);
    stage
        .worker
        .report(&full_report("open", "completed"))
        .await
        .task();
    after.until_now(&stage.worker).await;
    assert_eq!(after.ids(), ["open.2.result", "open.2.task"]);
    assert!(used.len() >= 3 * 1_000);
    for event in after.seen() {
        assert!(
            !used.contains(event.header("Nats-Msg-Id")),
            "{} would be taken for an old one",
            event.id()
        );
    }
}
