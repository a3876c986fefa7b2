//! Snapshots that are saved while a service runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{content, restored, snapshot, text};
use crate::support::{Broker, DEADLINE, Outside, Service, Stage, Worker, full_report};

/// Creates, starts and reports one task after the other, for ever; a permit for each.
async fn work(worker: Worker, name: String, done: Arc<Semaphore>) {
    for number in 0.. {
        let task_id = format!("{name}-{number}");
        worker.create(&task_id).await;
        worker
            .ask("tasklatch.task.start", &json!({"task_id": task_id}))
            .await
            .task();
        let status = ["completed", "failed", "rejected"][number % 3];
        worker.report(&full_report(&task_id, status)).await.task();
        done.add_permits(1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_snapshot_saved_while_reports_are_accepted_restores_and_has_a_result_exactly_where_a_task_was_reported()
 {
    let stage = Stage::set().await;
    let done = Arc::new(Semaphore::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..8 {
        workers.spawn(work(
            Worker::connect(&stage.broker).await,
            format!("w{number}"),
            done.clone(),
        ));
    }
    let mut sizes = BTreeSet::new();
    let mut open = 0;
    let mut last = None;
    for round in 0..6 {
        // The load goes on between and during the snapshots.
        timeout(DEADLINE, done.acquire_many(40))
            .await
            .expect("reports are accepted")
            .unwrap()
            .forget();
        let file = stage.folder.path().join(format!("saved-{round}"));
        let output = snapshot("save", &file, &["--database", text(&stage.database())]).await;
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let database = stage.folder.path().join(format!("restored-{round}.db"));
        restored(&file, &database, &[]).await;

        let lines: Vec<Value> = content(&file)
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let (events, tasks): (Vec<_>, Vec<_>) = lines
            .iter()
            .partition(|line| line.get("unpublished_event").is_some());
        for task in &tasks {
            let lifecycle = task["lifecycle"].as_str().unwrap();
            let reported = ["completed", "failed", "rejected"].contains(&lifecycle);
            assert_eq!(task["result"].is_object(), reported, "{task}");
            if reported {
                assert_eq!(task["result"]["status"], task["lifecycle"], "{task}");
            } else {
                open += 1;
            }
        }
        // The outbox is of the same moment: each event is of a task that is there, at this revision or an earlier one.
        for event in &events {
            let event = &event["unpublished_event"];
            let task = tasks
                .iter()
                .find(|task| task["task_id"] == event["subject"])
                .expect("its task is there");
            assert!(
                event["data"]["revision"].as_u64() <= task["revision"].as_u64(),
                "{event}"
            );
        }
        sizes.insert(tasks.len());
        let mut outside = Outside::read(&database).await;
        let results = tasks
            .iter()
            .filter(|task| task["result"].is_object())
            .count();
        assert_eq!(
            outside.number("SELECT count(*) FROM tasks").await,
            tasks.len() as i64
        );
        assert_eq!(
            outside.number("SELECT count(*) FROM results").await,
            results as i64
        );
        last = Some((file, database));
    }
    workers.shutdown().await;
    assert_eq!(
        sizes.len(),
        6,
        "each snapshot is of another moment: {sizes:?}"
    );
    assert!(open > 0, "some tasks were open at such a moment");
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");

    // A worker that retries meets the moment of the last snapshot.
    let (file, database) = last.unwrap();
    let broker = Broker::start().await;
    let _service = Service::start(&broker, &database, &[]).await;
    let worker = Worker::connect(&broker).await;
    for line in content(&file)
        .iter()
        .filter(|line| line.starts_with("{\"task_id\""))
    {
        let task: Value = serde_json::from_str(line).unwrap();
        let task_id = task["task_id"].as_str().unwrap();
        let status = task["result"]["status"].as_str();
        let reply = worker
            .report(&full_report(task_id, status.unwrap_or("completed")))
            .await;
        let expected = if status.is_some() {
            "replayed"
        } else {
            "accepted"
        };
        assert_eq!(reply.outcome(), Some(expected), "{task_id}");
        if status.is_some() {
            assert_eq!(reply.body, line.as_bytes(), "{task_id}");
        }
    }
}
