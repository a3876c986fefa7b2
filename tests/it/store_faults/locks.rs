//! Other processes that read and write the file beside the service.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::support::{Burst, Outside, Service, Stage, Worker, eventually, full_report, insist};

#[tokio::test]
async fn a_write_lock_held_past_the_busy_time_out_is_answered_unavailable_and_after_it_the_same_report_is_accepted_once()
 {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let mut observer = stage.observer_from_now().await;
    let mut outside = Outside::write(&stage.database()).await;
    outside.hold().await;
    let report = full_report("t", "completed");
    for _ in 0..2 {
        let error = stage.worker.report(&report).await.error();
        assert_eq!(
            (&error["code"], &error["action"]),
            (&json!("unavailable"), &json!("retry"))
        );
        assert!(
            !error.to_string().contains("locked"),
            "detail is for the log: {error}"
        );
    }
    assert_eq!(
        stage.worker.get("t").await.task()["revision"],
        json!(1),
        "reading goes on"
    );
    outside.release().await;

    let accepted = stage.worker.report(&report).await;
    assert_eq!(accepted.outcome(), Some("accepted"));
    let again = stage.worker.report(&report).await;
    assert_eq!(
        (again.outcome(), &again.body),
        (Some("replayed"), &accepted.body)
    );
    assert_eq!(observer.ids_so_far().await, ["t.2.result", "t.2.task"]);
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_parallel_reports_half_of_them_identical_beside_an_outside_writer_end_with_exact_counts()
 {
    let stage = Stage::set().await;
    let mut observer = stage.observer().await;
    let stop = Arc::new(AtomicBool::new(false));
    let writes = Arc::new(AtomicU32::new(0));
    let mut outside = Outside::write(&stage.database()).await;
    let writer = tokio::spawn({
        let (stop, writes) = (stop.clone(), writes.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                outside.hold().await;
                let held = Instant::now();
                outside
                    .run("UPDATE ledger SET created_at = created_at + 1")
                    .await
                    .unwrap();
                outside.run("COMMIT").await.unwrap();
                writes.fetch_add(1, Ordering::Relaxed);
                // SQLite has no queue for its lock: who waits looks now and then, some 30 times within its time-out. With
                // the lock free for half of the time, however slow the disk is, each look finds it so by even chance.
                let pause = held.elapsed().max(Duration::from_millis(2));
                sleep_until(Instant::now() + pause).await;
            }
        }
    });
    let mut wanted = Vec::new();
    for round in 0..5 {
        let same = format!("same-{round}");
        let others: Vec<_> = (0..25)
            .map(|number| format!("t-{round}-{number}"))
            .collect();
        for task_id in others.iter().chain([&same]) {
            stage.worker.create(task_id).await;
            wanted.push(format!("{task_id}.1.task"));
        }
        let before = writes.load(Ordering::Relaxed);
        eventually("the outside writer writes", async || {
            (writes.load(Ordering::Relaxed) > before).then_some(())
        })
        .await;
        let mut asked = tokio::task::JoinSet::new();
        for task_id in others
            .iter()
            .flat_map(|other| [other.clone(), same.clone()])
        {
            let worker = Worker::connect(&stage.broker).await;
            asked.spawn(async move {
                let reply = worker.report(&full_report(&task_id, "completed")).await;
                (task_id, reply)
            });
        }
        let replies = asked.join_all().await;
        let of_same = replies.iter().filter(|(task_id, _)| *task_id == same);
        let outcomes: Vec<_> = of_same
            .map(|(_, reply)| reply.outcome().expect("no refusal"))
            .collect();
        assert_eq!(
            outcomes
                .iter()
                .filter(|outcome| **outcome == "accepted")
                .count(),
            1
        );
        assert_eq!(
            outcomes
                .iter()
                .filter(|outcome| **outcome == "replayed")
                .count(),
            24
        );
        for (task_id, reply) in replies.iter().filter(|(task_id, _)| *task_id != same) {
            assert_eq!(
                reply.outcome(),
                Some("accepted"),
                "{task_id}: {}",
                reply.json()
            );
        }
        for task_id in others.iter().chain([&same]) {
            wanted.extend([format!("{task_id}.2.result"), format!("{task_id}.2.task")]);
        }
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    let mut ids = observer.ids_so_far().await;
    ids.sort();
    wanted.sort();
    assert_eq!(ids, wanted);
    let mut outside = Outside::read(&stage.database()).await;
    assert_eq!(outside.number("SELECT count(*) FROM results").await, 5 * 26);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stays_open_stops_no_report_and_after_it_the_log_is_folded_away() {
    const REPORTS: usize = 5_000;
    let stage = Stage::set().await;
    let log = stage.folder.path().join("ledger.db-wal");
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let before = size(&stage.database());
    let mut reader = Outside::read(&stage.database()).await;
    reader.run("BEGIN").await.unwrap();
    assert_eq!(
        reader.number("SELECT count(*) FROM tasks").await,
        0,
        "the reader has its picture"
    );
    for round in 0..REPORTS / 1_000 {
        let task_ids: Vec<_> = (0..1_000)
            .map(|number| format!("t-{round}-{number}"))
            .collect();
        let mut creates = Burst::open(&stage.worker).await;
        for task_id in &task_ids {
            creates
                .send(
                    "tasklatch.task.create",
                    json!({"task_id": task_id, "title": "a task"}).to_string(),
                )
                .await;
        }
        creates
            .finish()
            .await
            .iter()
            .for_each(|reply| drop(reply.task()));
        let mut reports = Burst::open(&stage.worker).await;
        for task_id in &task_ids {
            let mut report = full_report(task_id, "completed");
            report["evidence"]["log"] = json!("x".repeat(2_000));
            reports.send("tasklatch.report", report.to_string()).await;
        }
        for reply in reports.finish().await {
            assert_eq!(reply.outcome(), Some("accepted"));
        }
    }
    assert_eq!(
        reader.number("SELECT count(*) FROM tasks").await,
        0,
        "it still is the same picture"
    );
    assert_eq!(
        size(&stage.database()),
        before,
        "the reader has kept the log from being folded"
    );
    assert!(
        size(&log) > 8 << 20,
        "the log has grown: {} bytes",
        size(&log)
    );
    reader.run("COMMIT").await.unwrap();
    reader.close().await;

    let (status, text) = stage.service.stop().await;
    assert!(status.success(), "{text}");
    assert_eq!(size(&log), 0, "the log is folded into the file");
    let mut outside = Outside::read(&stage.folder.path().join("ledger.db")).await;
    assert_eq!(
        outside.number("SELECT count(*) FROM results").await,
        REPORTS as i64
    );
}

#[tokio::test]
async fn a_reader_that_stays_open_over_kill_9_does_not_stop_the_next_start_nor_its_replays() {
    let mut stage = Stage::set().await;
    stage.worker.create("t").await;
    let mut reader = Outside::read(&stage.database()).await;
    reader.run("BEGIN").await.unwrap();
    reader.number("SELECT count(*) FROM results").await;
    let accepted = stage.worker.report(&full_report("t", "completed")).await;
    stage.service.kill().await;
    stage.service = Service::start(&stage.broker, &stage.database(), &[]).await;
    let again = insist(
        &stage.worker,
        "tasklatch.report",
        &full_report("t", "completed"),
    )
    .await;
    assert_eq!(
        (again.outcome(), &again.body),
        (Some("replayed"), &accepted.body)
    );
    assert_eq!(
        reader.number("SELECT count(*) FROM results").await,
        0,
        "the reader's picture stays"
    );
}
