//! `kill -9` of the service.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::support::{
    DEADLINE, Dice, Outside, Reply, Service, Stage, Witness, Worker, commit_cut_off, full_report,
    insist, pair_of_each,
};

const REPORT: &str = "tasklatch.report";

#[tokio::test]
async fn a_report_whose_answer_kill_9_took_is_replayed_and_its_events_keep_their_ids_if_they_come_twice()
 {
    let mut stage = Stage::set().await;
    stage.worker.create("t").await;
    let witness = Witness::watch(&stage.broker).await;
    witness.until_now(&stage.worker).await;
    let report = full_report("t", "completed");
    commit_cut_off(
        &stage.broker,
        &stage.worker,
        &stage.database(),
        std::slice::from_ref(&report),
    )
    .await;
    stage.service.kill().await;
    // What the service had handed to the socket may arrive now. It cannot have moved the cursor, so that it comes again.
    crate::support::signal(stage.broker.pid(), "CONT").await;
    stage.service = Service::start(&stage.broker, &stage.database(), &[]).await;

    let again = stage.worker.report(&report).await;
    assert_eq!(again.outcome(), Some("replayed"));
    assert_eq!(again.task()["revision"], json!(2));
    witness.until_now(&stage.worker).await;
    let ids = witness.ids();
    let last_two = &ids[ids.len() - 2..];
    assert_eq!(
        last_two,
        ["t.2.result", "t.2.task"],
        "the pair comes after the restart: {ids:?}"
    );
    assert!(
        ids.iter().filter(|id| *id == "t.2.result").count() <= 2,
        "{ids:?}"
    );
    let mut outside = Outside::read(&stage.database()).await;
    let revisions = "SELECT count(*) FROM revisions WHERE lifecycle = 'completed'";
    assert_eq!(outside.number(revisions).await, 1);
}

#[tokio::test]
async fn a_report_whose_answer_and_events_were_lost_with_service_and_server_is_replayed_with_one_pair_of_events()
 {
    let mut stage = Stage::set().await;
    stage.worker.create("t").await;
    let report = full_report("t", "failed");
    commit_cut_off(
        &stage.broker,
        &stage.worker,
        &stage.database(),
        std::slice::from_ref(&report),
    )
    .await;
    stage.service.kill().await;
    stage.broker.kill().await;
    stage.broker.restart().await;
    let witness = Witness::watch(&stage.broker).await;
    stage.service = Service::start(&stage.broker, &stage.database(), &[]).await;

    let worker = Worker::connect(&stage.broker).await;
    let again = worker.report(&report).await;
    assert_eq!(again.outcome(), Some("replayed"));
    witness.until_now(&worker).await;
    // The first start had published the creation, but its cursor may not have been moved before the end.
    let ids: Vec<_> = witness
        .ids()
        .into_iter()
        .filter(|id| id != "t.1.task")
        .collect();
    assert_eq!(ids, ["t.2.result", "t.2.task"]);
    let other = worker.report(&full_report("t", "completed")).await;
    assert_eq!(other.code(), "result_conflict");
}

#[tokio::test]
async fn an_accepted_answer_means_that_another_process_sees_the_rows_then_and_after_kill_9() {
    let mut stage = Stage::set().await;
    let mut outside = Outside::read(&stage.database()).await;
    let pair = |task_id: &str| {
        format!(
            "SELECT count(*) FROM results JOIN tasks USING (task_key) JOIN revisions AS v USING (task_key)
             WHERE task_id = '{task_id}' AND v.lifecycle = results.status AND v.revision = tasks.revision"
        )
    };
    let mut accepted = Vec::new();
    for number in 0..20 {
        let task_id = format!("t-{number}");
        stage.worker.create(&task_id).await;
        let reply = stage
            .worker
            .report(&full_report(&task_id, "completed"))
            .await;
        assert_eq!(reply.outcome(), Some("accepted"));
        assert_eq!(outside.number(&pair(&task_id)).await, 1, "{task_id}");
        accepted.push((task_id, reply));
    }
    stage.service.kill().await;
    for (task_id, _) in &accepted {
        assert_eq!(
            outside.number(&pair(task_id)).await,
            1,
            "{task_id} after kill -9"
        );
    }
    stage.service = Service::start(&stage.broker, &stage.database(), &[]).await;
    for (task_id, reply) in &accepted {
        let again = stage
            .worker
            .report(&full_report(task_id, "completed"))
            .await;
        assert_eq!(
            (again.outcome(), &again.body),
            (Some("replayed"), &reply.body),
            "{task_id}"
        );
    }
}

#[tokio::test]
async fn what_only_the_log_holds_after_kill_9_is_replayed_also_behind_a_torn_end_and_is_settled_at_the_start()
 {
    let mut stage = Stage::set().await;
    let log = stage.folder.path().join("ledger.db-wal");
    let alone = stage.folder.path().join("alone.db");
    stage.worker.create("t").await;
    let accepted = stage.worker.report(&full_report("t", "completed")).await;
    stage.service.kill().await;

    // The file without its log does not know of the report.
    std::fs::copy(stage.database(), &alone).unwrap();
    let results_alone = async || {
        let mut outside = Outside::write(&alone).await;
        let results = outside.number("SELECT count(*) FROM results").await;
        outside.close().await;
        results
    };
    assert!(std::fs::metadata(&log).unwrap().len() > 0);
    assert_eq!(results_alone().await, 0, "the report is only in the log");

    // A power cut may leave half of what was being written after it.
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
    file.write_all(&[0x5a; 5000]).unwrap();
    drop(file);
    stage.service = Service::start(&stage.broker, &stage.database(), &[]).await;
    std::fs::copy(stage.database(), &alone).unwrap();
    assert_eq!(
        results_alone().await,
        1,
        "the start has brought the log into the file"
    );
    let again = stage.worker.report(&full_report("t", "completed")).await;
    assert_eq!(
        (again.outcome(), &again.body),
        (Some("replayed"), &accepted.body)
    );
}

/// What workers were answered.
#[derive(Default)]
struct Notes {
    sent: Mutex<Vec<String>>,
    accepted: Mutex<BTreeMap<String, Bytes>>,
    one_more: Notify,
}

/// The report of a task, another for each.
fn report_of(task_id: &str) -> Value {
    json!({"task_id": task_id, "status": "completed", "summary": format!("done with {task_id}"), "evidence": {"n": 1.50}})
}

/// Creates and reports one task after the other, each report twice at once, for ever.
async fn work(worker: Worker, name: String, notes: Arc<Notes>) {
    for number in 0.. {
        let task_id = format!("{name}-{number}");
        notes.sent.lock().unwrap().push(task_id.clone());
        insist(
            &worker,
            "tasklatch.task.create",
            &json!({"task_id": task_id, "title": "a task"}),
        )
        .await
        .task();
        let report = report_of(&task_id);
        let twice = tokio::join!(
            insist(&worker, REPORT, &report),
            insist(&worker, REPORT, &report)
        );
        for reply in <[Reply; 2]>::from(twice) {
            assert!(reply.outcome().is_some(), "{}", reply.json());
            let first = notes
                .accepted
                .lock()
                .unwrap()
                .entry(task_id.clone())
                .or_insert(reply.body.clone())
                .clone();
            assert_eq!(
                first, reply.body,
                "{task_id} is answered with the same bytes"
            );
            notes.one_more.notify_one();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_at_random_moments_under_load_loses_nothing_that_was_answered_and_doubles_nothing() {
    let mut dice = Dice::new();
    let mut stage = Stage::set().await;
    let witness = Witness::watch(&stage.broker).await;
    let notes = Arc::<Notes>::default();
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..8 {
        let worker = Worker::connect(&stage.broker).await;
        workers.spawn(work(worker, format!("w{number}"), notes.clone()));
    }
    for round in 0..6 {
        for _ in 0..1 + dice.below(120) {
            let answered = timeout(DEADLINE, notes.one_more.notified()).await;
            answered.unwrap_or_else(|_| panic!("answers come in round {round}"));
        }
        stage.service.kill().await;
        stage.service = Service::start(&stage.broker, &stage.database(), &[]).await;
    }
    workers.shutdown().await;

    let sent = notes.sent.lock().unwrap().clone();
    let accepted = notes.accepted.lock().unwrap().clone();
    assert!(
        accepted.len() > 6,
        "there was a load: {} tasks",
        accepted.len()
    );
    for task_id in &sent {
        let create = json!({"task_id": task_id, "title": "a task"});
        stage
            .worker
            .ask("tasklatch.task.create", &create)
            .await
            .task();
        let reply = stage.worker.report(&report_of(task_id)).await;
        match accepted.get(task_id) {
            Some(body) => assert_eq!(
                (reply.outcome(), &reply.body),
                (Some("replayed"), body),
                "{task_id}"
            ),
            None => assert!(reply.outcome().is_some(), "{task_id}: {}", reply.json()),
        }
    }
    witness.until_now(&stage.worker).await;
    pair_of_each(&[witness], &sent);
    let mut outside = Outside::read(&stage.database()).await;
    assert_eq!(
        outside.number("SELECT count(*) FROM results").await,
        sent.len() as i64
    );
    let pairs = "SELECT count(*) FROM revisions WHERE lifecycle = 'completed'";
    assert_eq!(outside.number(pairs).await, sent.len() as i64);
}
