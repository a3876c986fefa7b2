//! The scenarios, edge cases and success criteria of the feature: an accepted report is safe to retry.

use serde_json::{Value, json};

use crate::support::{Burst, Observer, Reply, Stage, Worker, full_report};

const STATUSES: [&str; 3] = ["completed", "failed", "rejected"];

/// Creates a task and has its first report accepted. Gives the report and its answer.
async fn accepted(stage: &Stage, task_id: &str, status: &str) -> (Value, Reply) {
    let pane_id = format!("pane of {task_id}");
    stage
        .worker
        .create_with(json!({
            "task_id": task_id, "pane_id": pane_id, "title": "a task", "metadata": {"repo": "web", "priority": 2},
            "deadline": "2999-01-01T00:00:00Z",
        }))
        .await;
    let report = full_report(task_id, status);
    let reply = stage.worker.report(&report).await;
    assert_eq!(reply.outcome(), Some("accepted"), "{:?}", reply.json());
    (report, reply)
}

/// Sends a report again and sees that it is a replay with exactly this body.
async fn assert_replayed(stage: &Stage, report: &Value, body: &Reply) {
    let again = stage.worker.report(report).await;
    assert_eq!(again.outcome(), Some("replayed"), "{:?}", again.json());
    assert_eq!(again.body, body.body);
}

/// Sees that a report is refused for exactly these differences, and that the task is as it was.
async fn assert_conflict(stage: &Stage, report: &Value, differs: &[&str], first: &Reply) {
    let refused = stage.worker.report(report).await;
    let task_id = report["task_id"].as_str().unwrap();
    assert_eq!(refused.code(), "result_conflict", "{report}");
    assert_eq!(refused.error()["differs"], json!(differs), "{report}");
    assert_eq!(stage.worker.get(task_id).await.body, first.body, "{report}");
}

async fn assert_quiet(observer: &mut Observer) {
    assert_eq!(observer.ids_so_far().await, [""; 0]);
}

/// US1.1, FR-001
#[tokio::test]
async fn an_accepted_completed_failed_or_rejected_report_sent_again_gets_the_current_task_with_the_original_result()
 {
    let stage = Stage::set().await;
    for status in STATUSES {
        let (report, first) = accepted(&stage, status, status).await;
        let again = stage.worker.report(&report).await;
        assert_eq!(again.outcome(), Some("replayed"));
        let (first, again) = (first.task(), again.task());
        assert_eq!(again["lifecycle"], status);
        assert_eq!(again["result"], first["result"]);
        for part in ["status", "summary", "artifacts", "evidence"] {
            assert_eq!(again["result"][part], report[part]);
        }
    }
}

/// US1.1: "reconnect, and submit the same content"
#[tokio::test]
async fn a_worker_that_reconnects_and_reports_again_gets_the_original_result_and_timestamps() {
    let mut stage = Stage::set().await;
    let (report, first) = accepted(&stage, "t", "completed").await;
    stage.worker = Worker::connect(&stage.broker).await;
    assert_replayed(&stage, &report, &first).await;
    stage.crash_and_restart().await;
    assert_replayed(&stage, &report, &first).await;
}

/// US1.2
#[tokio::test]
async fn two_simultaneous_identical_reports_both_succeed_and_observers_get_one_result_notification_and_one_task_update()
 {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let mut observer = stage.observer_from_now().await;
    let other = Worker::connect(&stage.broker).await;
    let report = full_report("t", "completed");
    let (one, two) = tokio::join!(stage.worker.report(&report), other.report(&report));
    let mut outcomes = [one.outcome().unwrap(), two.outcome().unwrap()];
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["accepted", "replayed"]);
    assert_eq!(one.body, two.body);
    assert_eq!(observer.ids_so_far().await, ["t.2.result", "t.2.task"]);
}

/// US1.3, SC-004, FR-007
#[tokio::test]
async fn an_accepted_report_restored_from_a_saved_snapshot_stays_accepted_when_it_is_retried_without_a_notification()
 {
    let mut stage = Stage::set().await;
    let mut sent = Vec::new();
    for status in STATUSES {
        sent.push(accepted(&stage, status, status).await);
    }
    stage.move_to_a_restored_ledger().await;
    let mut observer = stage.observer_from_now().await;
    for (report, first) in &sent {
        assert_replayed(&stage, report, first).await;
    }
    assert_quiet(&mut observer).await;
}

/// FR-007: "without new stored fields"
#[tokio::test]
async fn a_snapshot_stores_of_a_task_what_the_protocol_shows_of_it_and_that_is_enough_to_match_a_retry()
 {
    let mut stage = Stage::set().await;
    let (report, first) = accepted(&stage, "t", "completed").await;
    stage.move_to_a_restored_ledger().await;
    let snapshot = std::fs::read(stage.folder.path().join("ledger.snapshot")).unwrap();
    let lines: Vec<&[u8]> = snapshot.split(|&byte| byte == b'\n').collect();
    assert_eq!(
        lines[1],
        &first.body[..],
        "the line of a task is the task as it is answered"
    );
    assert_replayed(&stage, &report, &first).await;
}

/// US2.1
#[tokio::test]
async fn a_report_whose_status_summary_ordered_artifacts_or_evidence_changed_is_refused_and_the_task_stays_unchanged()
 {
    let stage = Stage::set().await;
    let (report, first) = accepted(&stage, "t", "completed").await;
    let mut observer = stage.observer_from_now().await;
    for (field, other) in [
        ("status", json!("failed")),
        ("summary", json!("something else")),
        ("artifacts", json!(["pr:118", "branch:fix/login"])),
        ("evidence", json!({"tests": {"passed": 214, "failed": 1}})),
    ] {
        let mut changed = report.clone();
        changed[field] = other;
        assert_conflict(&stage, &changed, &[field], &first).await;
    }
    assert_quiet(&mut observer).await;
}

/// US2.2, FR-005
#[tokio::test]
async fn a_report_on_a_terminal_task_without_an_accepted_result_is_refused_as_terminal() {
    let stage = Stage::set().await;
    stage.worker.create("canceled").await;
    stage
        .worker
        .ask(
            "tasklatch.task.cancel",
            &json!({"task_id": "canceled", "reason": "not wanted"}),
        )
        .await
        .task();
    let mut observer = stage.observer_from_now().await;
    let soon = tasklatch::task::Timestamp::from_micros(
        tasklatch::task::Timestamp::now().micros() + 200_000,
    );
    stage
        .worker
        .create_with(
            json!({"task_id": "expired", "title": "t", "deadline": soon.unwrap().to_string()}),
        )
        .await;
    // The sweep tells of the deadline.
    while observer.next().await.id() != "expired.2.task" {}
    for lifecycle in ["canceled", "expired"] {
        let before = stage.worker.get(lifecycle).await;
        let refused = stage
            .worker
            .report(&full_report(lifecycle, "completed"))
            .await;
        assert_eq!(refused.code(), "task_terminal");
        assert_eq!(refused.error()["lifecycle"], lifecycle);
        assert_eq!(stage.worker.get(lifecycle).await.body, before.body);
    }
    assert_quiet(&mut observer).await;
}

/// US2.3, FR-003
#[tokio::test]
async fn a_retry_after_a_review_keeps_the_current_disposition_and_task_metadata() {
    let stage = Stage::set().await;
    let (report, first) = accepted(&stage, "t", "completed").await;
    let review =
        json!({"task_id": "t", "verdict": "rework", "note": "too slow", "reviewer": "dana"});
    let reviewed = stage.worker.ask("tasklatch.task.review", &review).await;
    let mut observer = stage.observer_from_now().await;
    assert_replayed(&stage, &report, &reviewed).await;
    let task = reviewed.task();
    assert_eq!(task["disposition"]["verdict"], "rework");
    assert_eq!(task["metadata"], json!({"repo": "web", "priority": 2}));
    assert_eq!(task["result"], first.task()["result"]);
    assert_eq!(task["lifecycle"], "completed");
    assert_quiet(&mut observer).await;
}

/// Edge case, FR-008
#[tokio::test]
async fn omitted_optional_content_and_its_decoded_default_are_equivalent() {
    let stage = Stage::set().await;
    let base = |task_id: &str| json!({"task_id": task_id, "status": "completed", "summary": "s"});
    let with = |task_id: &str, artifacts: Value, evidence: Value| {
        let mut report = base(task_id);
        report["artifacts"] = artifacts;
        report["evidence"] = evidence;
        report
    };
    let spellings = |task_id: &str| {
        [
            base(task_id),
            with(task_id, json!([]), json!({})),
            with(task_id, Value::Null, Value::Null),
        ]
    };
    for (at, task_id) in ["a", "b", "c"].into_iter().enumerate() {
        stage.worker.create(task_id).await;
        let first = stage.worker.report(&spellings(task_id)[at]).await;
        assert_eq!(first.outcome(), Some("accepted"));
        assert_eq!(first.task()["result"]["artifacts"], json!([]));
        assert_eq!(first.task()["result"]["evidence"], json!({}));
        for spelling in &spellings(task_id) {
            assert_replayed(&stage, spelling, &first).await;
        }
    }
}

/// Edge case, FR-002
#[tokio::test]
async fn key_order_of_evidence_is_irrelevant_and_artifact_order_and_string_contents_are_significant()
 {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let report = |artifacts: &str, evidence: &str| {
        format!(
            r#"{{"task_id":"t","status":"completed","summary":"s","artifacts":{artifacts},"evidence":{evidence}}}"#
        )
    };
    let send = async |artifacts: &str, evidence: &str| {
        stage
            .worker
            .ask_bytes("tasklatch.report", report(artifacts, evidence))
            .await
    };
    let first = send(r#"["a","b"]"#, r#"{"x":{"k":"v","l":1},"y":2}"#).await;
    assert_eq!(first.outcome(), Some("accepted"));
    let turned = send(r#"["a","b"]"#, r#"{"y":2,"x":{"l":1,"k":"v"}}"#).await;
    assert_eq!(turned.outcome(), Some("replayed"));
    assert_eq!(turned.body, first.body);
    let moved = send(r#"["b","a"]"#, r#"{"x":{"k":"v","l":1},"y":2}"#).await;
    assert_eq!(moved.error()["differs"], json!(["artifacts"]));
    for string in ["V", "v ", " v", "v\u{301}", ""] {
        let evidence = json!({"x": {"k": string, "l": 1}, "y": 2}).to_string();
        assert_eq!(
            send(r#"["a","b"]"#, &evidence).await.error()["differs"],
            json!(["evidence"]),
            "{string:?}"
        );
    }
}

/// Edge case, FR-002
#[tokio::test]
async fn the_time_of_a_report_is_assigned_by_the_service_and_no_part_of_its_content() {
    let stage = Stage::set().await;
    let (report, first) = accepted(&stage, "t", "completed").await;
    let reported_at = first.task()["result"]["reported_at"].clone();
    assert_eq!(first.task()["updated_at"], reported_at);
    // The clock of the service has moved on for sure once it has given another task a later time.
    let later = accepted(&stage, "u", "completed").await.1.task();
    assert!(later["updated_at"].as_str() > reported_at.as_str());
    assert_replayed(&stage, &report, &first).await;
    let mut timed = report;
    timed["reported_at"] = reported_at;
    let refused = stage.worker.report(&timed).await;
    assert_eq!(refused.code(), "invalid_report");
    assert_eq!(refused.error()["field"], "/reported_at");
}

/// Edge case
#[tokio::test]
async fn pane_selection_uses_the_retained_association_and_the_task_id_remains_the_stable_selector()
{
    let mut stage = Stage::set().await;
    let (mut report, first) = accepted(&stage, "t", "completed").await;
    let by_id = report.clone();
    report.as_object_mut().unwrap().remove("task_id");
    report["pane_id"] = json!("pane of t");
    assert_replayed(&stage, &report, &first).await;
    // Whatever becomes of the pane, nothing here forgets that it was given the task.
    stage.crash_and_restart().await;
    assert_replayed(&stage, &report, &first).await;
    stage
        .worker
        .create_with(json!({"task_id": "next", "pane_id": "pane of t", "title": "next"}))
        .await;
    assert_eq!(stage.worker.report(&report).await.code(), "ambiguous_pane");
    assert_replayed(&stage, &by_id, &first).await;
}

/// Edge case, FR-008
#[tokio::test]
async fn malformed_reports_and_missing_task_identities_keep_their_validation_errors_also_once_a_result_is_accepted()
 {
    let stage = Stage::set().await;
    let (report, first) = accepted(&stage, "t", "completed").await;
    let mut observer = stage.observer_from_now().await;
    for (field, value, pointer) in [
        ("status", json!("done"), "/status"),
        ("summary", json!("  "), "/summary"),
        ("artifacts", json!(["a", 1]), "/artifacts/1"),
        ("evidence", json!([]), "/evidence"),
        ("extra", json!(1), "/extra"),
    ] {
        let mut malformed = report.clone();
        malformed[field] = value;
        let refused = stage.worker.report(&malformed).await;
        assert_eq!(refused.code(), "invalid_report", "{malformed}");
        assert_eq!(refused.error()["field"], pointer);
    }
    let mut nameless = report.clone();
    nameless.as_object_mut().unwrap().remove("task_id");
    assert_eq!(
        stage.worker.report(&nameless).await.code(),
        "invalid_report"
    );
    nameless["task_id"] = json!("no-such-task");
    assert_eq!(
        stage.worker.report(&nameless).await.code(),
        "task_not_found"
    );
    assert_eq!(stage.worker.get("t").await.body, first.body);
    assert_quiet(&mut observer).await;
}

/// SC-001, FR-003, FR-004
#[tokio::test]
async fn ten_retries_of_each_accepted_outcome_are_answered_byte_for_byte_alike_with_zero_notifications()
 {
    let stage = Stage::set().await;
    let mut sent = Vec::new();
    for status in STATUSES {
        sent.push(accepted(&stage, status, status).await);
    }
    let mut observer = stage.observer_from_now().await;
    for (report, first) in &sent {
        for _ in 0..10 {
            assert_replayed(&stage, report, first).await;
        }
    }
    assert_quiet(&mut observer).await;
}
#[tokio::test]
async fn a_thousand_retries_and_the_first_message_after_a_restart_are_replays_and_never_an_unknown_task()
 {
    let mut stage = Stage::set().await;
    let (report, first) = accepted(&stage, "t", "completed").await;
    let mut observer = stage.observer_from_now().await;
    let mut burst = Burst::open(&stage.worker).await;
    for _ in 0..1000 {
        burst.send("tasklatch.report", report.to_string()).await;
    }
    for again in burst.finish().await {
        assert_eq!(
            (again.outcome(), &again.body),
            (Some("replayed"), &first.body)
        );
    }
    assert_quiet(&mut observer).await;
    stage.crash_and_restart().await;
    assert_replayed(&stage, &report, &first).await;
    stage.crash_and_restart().await;
    let mut other = report.clone();
    other["summary"] = json!("other");
    assert_conflict(&stage, &other, &["summary"], &first).await;
    let unknown = full_report("unknown", "completed");
    assert_eq!(stage.worker.report(&unknown).await.code(), "task_not_found");
}

/// SC-002, FR-002
#[tokio::test]
async fn every_mismatch_of_content_alone_or_together_is_refused_naming_exactly_what_differs() {
    let stage = Stage::set().await;
    let fields = ["status", "summary", "artifacts", "evidence"];
    let mut observer = stage.observer_from_now().await;
    for status in STATUSES {
        let (report, first) = accepted(&stage, status, status).await;
        observer.all_so_far().await;
        let other_status = if status == "failed" {
            "completed"
        } else {
            "failed"
        };
        let others = [json!(other_status), json!("other"), json!([]), json!({})];
        for chosen in 1..16_usize {
            let changed: Vec<usize> = (0..4).filter(|at| chosen & (1 << at) != 0).collect();
            let mut other = report.clone();
            for &at in &changed {
                other[fields[at]] = others[at].clone();
            }
            let differs: Vec<&str> = changed.iter().map(|&at| fields[at]).collect();
            assert_conflict(&stage, &other, &differs, &first).await;
        }
        assert_quiet(&mut observer).await;
        assert_replayed(&stage, &report, &first).await;
    }
}

/// FR-004
#[tokio::test]
async fn the_first_accepted_report_is_told_as_its_result_and_then_as_the_task() {
    let stage = Stage::set().await;
    let mut observer = stage.observer_from_now().await;
    let (_, first) = accepted(&stage, "t", "rejected").await;
    let [created, result, task] = &observer.all_so_far().await[..] else {
        panic!("three events")
    };
    assert_eq!(created.id(), "t.1.task");
    assert_eq!(result.subject, "tasklatch.event.result.t");
    assert_eq!(result.json()["result"], first.task()["result"]);
    assert_eq!(task.subject, "tasklatch.event.task.t");
    assert_eq!(task.payload, first.body);
}

/// FR-005
#[tokio::test]
async fn different_content_a_canceled_task_and_an_unknown_task_are_refused_for_reasons_that_can_be_told_apart()
 {
    let stage = Stage::set().await;
    let (mut report, _) = accepted(&stage, "t", "completed").await;
    report["summary"] = json!("Fixed; the clock was read twice ");
    stage.worker.create("c").await;
    stage
        .worker
        .ask("tasklatch.task.cancel", &json!({"task_id": "c"}))
        .await
        .task();
    assert_eq!(stage.worker.report(&report).await.code(), "result_conflict");
    assert_eq!(
        stage
            .worker
            .report(&full_report("c", "completed"))
            .await
            .code(),
        "task_terminal"
    );
    assert_eq!(
        stage
            .worker
            .report(&full_report("nobody", "completed"))
            .await
            .code(),
        "task_not_found"
    );
}
