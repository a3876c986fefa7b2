//! What the service answers from memory is what the store would say, and the write-ahead log stays short.

use serde_json::json;

use crate::support::{Burst, Outside, Stage, eventually, full_report};

/// The state of the database as far as another process can tell: it changes with every commit.
async fn version(outside: &mut Outside) -> i64 {
    outside.number("PRAGMA data_version").await
}

#[tokio::test]
async fn a_retry_and_a_conflicting_report_are_answered_without_a_write_to_the_database() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let report = full_report("t", "completed");
    let first = stage.worker.report(&report).await;
    assert_eq!(first.outcome(), Some("accepted"));
    let mut outside = Outside::read(&stage.database()).await;
    outside.until_published().await;
    let before = version(&mut outside).await;
    for _ in 0..20 {
        let again = stage.worker.report(&report).await;
        assert_eq!(
            (again.outcome(), &again.body),
            (Some("replayed"), &first.body)
        );
        let other = stage.worker.report(&full_report("t", "failed")).await;
        assert_eq!(
            (other.code().as_str(), &other.error()["differs"]),
            ("result_conflict", &json!(["status"]))
        );
    }
    assert_eq!(version(&mut outside).await, before, "nothing was committed");
}

#[tokio::test]
async fn a_retry_after_a_review_shows_the_review_and_one_after_a_restart_what_was_shown_before_it()
{
    let mut stage = Stage::set().await;
    stage.worker.create("t").await;
    let report = full_report("t", "completed");
    stage.worker.report(&report).await;
    for note in ["first", "second"] {
        let review = json!({"task_id": "t", "verdict": "approved", "note": note});
        let reviewed = stage.worker.ask("tasklatch.task.review", &review).await;
        let retried = stage.worker.report(&report).await;
        assert_eq!(
            (retried.outcome(), &retried.body),
            (Some("replayed"), &reviewed.body)
        );
    }
    let before = stage.worker.report(&report).await;
    stage.crash_and_restart().await;
    let after = stage.worker.report(&report).await;
    assert_eq!(
        (after.outcome(), &after.body),
        (Some("replayed"), &before.body)
    );
}

#[tokio::test]
async fn a_retry_with_another_pane_is_refused_though_its_result_is_remembered() {
    let stage = Stage::set().await;
    let task = json!({"task_id": "t", "title": "a task", "pane_id": "pane:1"});
    stage.worker.create_with(task).await;
    let mut report = full_report("t", "completed");
    stage.worker.report(&report).await;
    report["pane_id"] = json!("pane:1");
    assert_eq!(
        stage.worker.report(&report).await.outcome(),
        Some("replayed")
    );
    report["pane_id"] = json!("pane:2");
    assert_eq!(
        stage.worker.report(&report).await.code(),
        "selector_mismatch"
    );
}

#[tokio::test]
async fn a_task_that_another_program_has_changed_is_decided_anew_from_the_store() {
    let stage = Stage::set().await;
    stage.worker.create("canceled").await;
    stage.worker.create("changed").await;
    let mut outside = Outside::write(&stage.database()).await;
    let behind = [
        "UPDATE tasks SET lifecycle = 'canceled', revision = revision + 1 WHERE task_id = 'canceled'",
        "UPDATE tasks SET revision = revision + 1 WHERE task_id = 'changed'",
    ];
    for sql in behind {
        assert_eq!(outside.run(sql).await.unwrap(), 1);
    }
    let refused = stage
        .worker
        .report(&full_report("canceled", "completed"))
        .await;
    assert_eq!(refused.code(), "task_terminal");
    let accepted = stage
        .worker
        .report(&full_report("changed", "completed"))
        .await;
    assert_eq!(
        (accepted.outcome(), &accepted.task()["revision"]),
        (Some("accepted"), &json!(3))
    );
}

#[tokio::test]
async fn the_write_ahead_log_is_written_over_and_stays_short_under_load() {
    const ROUNDS: usize = 12;
    const TASKS: usize = 100;
    const EVIDENCE_BYTES: usize = 32 * 1024;
    let stage = Stage::set().await;
    let evidence = json!({"text": "x".repeat(EVIDENCE_BYTES)});
    for round in 0..ROUNDS {
        let task_ids: Vec<_> = (0..TASKS)
            .map(|number| format!("t-{round}-{number}"))
            .collect();
        let mut creations = Burst::open(&stage.worker).await;
        for task_id in &task_ids {
            let task = json!({"task_id": task_id, "title": "a task"});
            creations
                .send("tasklatch.task.create", task.to_string())
                .await;
        }
        creations.finish().await;
        let mut reports = Burst::open(&stage.worker).await;
        for task_id in &task_ids {
            let mut report = full_report(task_id, "completed");
            report["evidence"] = evidence.clone();
            reports.send("tasklatch.report", report.to_string()).await;
        }
        for reply in reports.finish().await {
            assert_eq!(reply.outcome(), Some("accepted"));
        }
    }
    let written = ROUNDS * TASKS * EVIDENCE_BYTES;
    let log = stage.database().with_file_name("ledger.db-wal");
    let log = eventually("there is a write-ahead log", async || {
        std::fs::metadata(&log).ok().map(|log| log.len() as usize)
    })
    .await;
    // 8 MiB, and what comes within the 100 ms in which nobody looks.
    assert!(
        log < written * 3 / 4,
        "the log has {log} bytes after {written} were written"
    );
}
