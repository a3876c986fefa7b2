//! `--max-wal-size`: what a reader that stays can make the write-ahead log grow to.

use std::path::Path;

use serde_json::json;

use crate::support::{
    Burst, Outside, Service, Stage, Worker, eventually, full_report, http_get, insist,
};

const LIMIT: u64 = 32 << 20;

/// The content of a whole round comes in one batch at most.
const ROUND: usize = 64;

fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}

fn large_report(task_id: &str) -> serde_json::Value {
    let mut report = full_report(task_id, "completed");
    report["evidence"]["log"] = json!("x".repeat(100_000));
    report
}

/// Sends a large report for each task at once, and gives those that were accepted; the others were refused as overloaded.
async fn report_all(worker: &Worker, task_ids: &[String]) -> Vec<String> {
    let mut reports = Burst::open(worker).await;
    for task_id in task_ids {
        let report = large_report(task_id);
        reports.send("tasklatch.report", report.to_string()).await;
    }
    let replies = reports.finish().await;
    let mut accepted = Vec::new();
    for (task_id, reply) in task_ids.iter().zip(replies) {
        match reply.outcome() {
            Some(outcome) => {
                assert_eq!(outcome, "accepted");
                accepted.push(task_id.clone());
            }
            None => {
                let error = reply.error();
                assert_eq!(error["code"], json!("overloaded"), "{error}");
                assert_eq!(error["action"], json!("retry"), "{error}");
                let message = error["message"].as_str().unwrap();
                assert!(message.contains("reader"), "{message}");
            }
        }
    }
    accepted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_reader_that_stays_the_log_is_bounded_and_after_it_everything_is_accepted_by_itself()
 {
    let options = ["--max-wal-size", "32MiB", "--http", "127.0.0.1:0"];
    let stage = Stage::set_with(&options).await;
    let mut observer = stage.observer_from_now().await;
    let log = stage.folder.path().join("ledger.db-wal");
    let task_ids: Vec<String> = (0..10 * ROUND)
        .map(|number| format!("t-{number}"))
        .collect();
    let mut creates = Burst::open(&stage.worker).await;
    for task_id in &task_ids {
        let create = json!({"task_id": task_id, "title": "a task"});
        creates
            .send("tasklatch.task.create", create.to_string())
            .await;
    }
    for reply in creates.finish().await {
        reply.task();
    }
    let mut reader = Outside::read(&stage.database()).await;
    reader.run("BEGIN").await.unwrap();
    reader.number("SELECT count(*) FROM tasks").await;
    let mut accepted = Vec::new();
    for round in task_ids.chunks(ROUND) {
        accepted.extend(report_all(&stage.worker, round).await);
    }
    // Each report takes its pages, some more for its indexes, and the outbox.
    let one_batch = (ROUND * 128 * 1024) as u64;
    assert!(
        size(&log) >= LIMIT,
        "it has come to the limit: {}",
        size(&log)
    );
    assert!(size(&log) <= LIMIT + one_batch, "{}", size(&log));
    let refused: Vec<_> = task_ids
        .iter()
        .filter(|id| !accepted.contains(id))
        .collect();
    assert!(!accepted.is_empty() && !refused.is_empty());

    // What needs no room goes on: a retry, also one that is not remembered, and reading.
    let again = stage.worker.report(&large_report(&accepted[0])).await;
    assert_eq!(again.outcome(), Some("replayed"), "{}", again.code());
    let create = json!({"task_id": accepted[1], "title": "a task"});
    stage
        .worker
        .ask("tasklatch.task.create", &create)
        .await
        .task();
    let task = stage.worker.get(refused[0]).await.task();
    assert_eq!(task["lifecycle"], json!("submitted"));
    let create = json!({"task_id": "new", "title": "a task"});
    let reply = stage.worker.ask("tasklatch.task.create", &create).await;
    assert_eq!(reply.code(), "overloaded");
    let (status, body) = http_get(&stage.service.ready_line, "/ready").await;
    assert_eq!(status, 503, "{body}");
    let length = size(&log).to_string();
    assert!(
        body.contains("--max-wal-size") && body.contains(&length) && body.contains("end the shell"),
        "{body}"
    );

    reader.run("COMMIT").await.unwrap();
    eventually(
        "it is ready again though nobody asks it for anything",
        async || {
            let (status, _) = http_get(&stage.service.ready_line, "/ready").await;
            (status == 200).then_some(())
        },
    )
    .await;
    assert!(size(&log) < LIMIT, "{}", size(&log));
    for task_id in &refused {
        let reply = stage.worker.report(&large_report(task_id)).await;
        assert_eq!(reply.outcome(), Some("accepted"), "{task_id}");
    }
    for task_id in &accepted {
        let reply = stage.worker.report(&large_report(task_id)).await;
        assert_eq!(reply.outcome(), Some("replayed"), "{task_id}");
    }
    let mut ids = observer.ids_so_far().await;
    ids.sort();
    let events = |id: &String| ["1.task", "2.result", "2.task"].map(|end| format!("{id}.{end}"));
    let mut wanted: Vec<String> = task_ids.iter().flat_map(events).collect();
    wanted.sort();
    assert_eq!(ids, wanted, "each event once");
}

#[tokio::test]
async fn a_service_that_is_killed_under_an_overlong_log_and_a_reader_refuses_new_work_until_it_is_gone()
 {
    let options = ["--max-wal-size", "32MiB"];
    let mut stage = Stage::set_with(&options).await;
    let task_ids: Vec<String> = (0..400).map(|number| format!("t-{number}")).collect();
    for task_id in &task_ids {
        stage.worker.create(task_id).await;
    }
    let mut reader = Outside::read(&stage.database()).await;
    reader.run("BEGIN").await.unwrap();
    reader.number("SELECT count(*) FROM tasks").await;
    let mut accepted = Vec::new();
    for round in task_ids.chunks(ROUND) {
        accepted.extend(report_all(&stage.worker, round).await);
    }
    assert!(accepted.len() < task_ids.len());
    stage.service.kill().await;
    stage.service = Service::start(&stage.broker, &stage.database(), &options).await;
    let first = insist(
        &stage.worker,
        "tasklatch.report",
        &large_report(&accepted[0]),
    )
    .await;
    assert_eq!(first.outcome(), Some("replayed"));
    let create = json!({"task_id": "new", "title": "a task"});
    let reply = stage.worker.ask("tasklatch.task.create", &create).await;
    assert_eq!(reply.code(), "overloaded");
    reader.close().await;
    insist(&stage.worker, "tasklatch.task.create", &create)
        .await
        .task();
}
