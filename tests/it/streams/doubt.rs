//! What was on its way when something died is looked for in the stream before it is published again.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{SHORT_WINDOW, Set, ids_of, verified};
use crate::support::{
    DEADLINE, Dice, Outside, Service, Worker, eventually, full_report, http_get, insist, signal,
};

/// Starts a service that dies by itself at a point.
async fn start_to_die_at(set: &mut Set, point: &str) {
    // With nothing left to do, it lives until it is given something.
    Outside::read(&set.database()).await.until_published().await;
    set.service.kill().await;
    let wrapper = ["env", &format!("TASKLATCH_DIE_AT={point}")];
    let url = set.broker.url();
    let service = Service::try_start_by(&wrapper, &url, &set.database(), SHORT_WINDOW).await;
    set.service = service
        .unwrap_or_else(|output| panic!("it starts: {}", String::from_utf8_lossy(&output.stderr)));
}

#[tokio::test]
async fn what_a_service_published_before_it_died_is_not_stored_again_long_after_the_duplicate_window()
 {
    let mut set = Set::up().await;
    set.report("before").await;
    let mut all = vec!["before".to_owned()];
    for (round, point) in ["after-publish:1", "before-cursor:1", "after-commit:2"]
        .into_iter()
        .enumerate()
    {
        start_to_die_at(&mut set, point).await;
        let task_id = format!("t-{round}");
        let worker = set.worker.clone();
        let create = serde_json::json!({"task_id": task_id, "title": "a task"});
        let report = full_report(&task_id, "completed");
        let work = tokio::spawn(async move {
            insist(&worker, "tasklatch.task.create", &create)
                .await
                .task();
            insist(&worker, "tasklatch.report", &report).await.task();
        });
        let (status, _) = std::mem::replace(
            &mut set.service,
            Service::start(
                &set.broker,
                &set.folder.path().join("other.db"),
                &["--prefix", "other"],
            )
            .await,
        )
        .ended()
        .await;
        assert!(!status.success(), "it died at {point}");
        set.stream.until_window_is_over().await;
        set.service = Service::start(&set.broker, &set.database(), SHORT_WINDOW).await;
        work.await.unwrap();
        all.push(task_id);
        Outside::read(&set.database()).await.until_published().await;
    }
    let mut ids = set.stream.ids().await;
    ids.retain(|id| !id.starts_with("tasklatch.event.probe"));
    assert_eq!(ids, ids_of(all.iter().map(String::as_str)));
    verified(&set).await;
}

#[tokio::test]
async fn events_of_a_cursor_that_was_not_moved_for_long_are_all_found_and_not_stored_again() {
    let mut set = Set::up().await;
    let task_ids: Vec<String> = (0..120).map(|number| format!("t-{number}")).collect();
    for task_id in &task_ids {
        set.report(task_id).await;
    }
    Outside::read(&set.database()).await.until_published().await;
    set.service.kill().await;
    let mut outside = Outside::write(&set.database()).await;
    outside
        .run("DROP TRIGGER cursor_moves_forward")
        .await
        .unwrap();
    outside
        .run("UPDATE ledger SET published_seq = 3")
        .await
        .unwrap();
    outside.close().await;
    set.stream.until_window_is_over().await;
    set.crash_and_restart().await;
    Outside::read(&set.database()).await.until_published().await;
    let mut ids = set.stream.ids().await;
    ids.retain(|id| !id.starts_with("tasklatch.event.probe"));
    assert_eq!(ids, ids_of(task_ids.iter().map(String::as_str)));
}

#[tokio::test]
async fn a_server_that_stands_still_for_longer_than_an_acknowledgment_may_take_stores_each_event_once()
 {
    let set = Set::up().await;
    set.report("a").await;
    // The clock brings changes that nobody has to ask for.
    let deadline = tasklatch::task::Timestamp::now().micros() + 1_000_000;
    let deadline = tasklatch::task::Timestamp::from_micros(deadline).unwrap();
    for task_id in ["b", "c"] {
        let task = serde_json::json!({"task_id": task_id, "title": "a task", "deadline": deadline});
        set.worker.create_with(task).await;
    }
    set.stream.until(5).await;
    signal(set.broker.pid(), "STOP").await;
    let ready = async || http_get(&set.service.ready_line, "/ready").await;
    eventually("ready says that no acknowledgment came", async || {
        let (status, page) = ready().await;
        (status == 503 && page.contains("not acknowledged")).then_some(())
    })
    .await;
    signal(set.broker.pid(), "CONT").await;
    eventually("it is ready again", async || {
        (ready().await.0 == 200).then_some(())
    })
    .await;
    set.stream.until(7).await;
    Outside::read(&set.database()).await.until_published().await;
    let mut expected = ids_of(["a"]);
    expected.extend(["b.1", "c.1", "b.2", "c.2"].map(|id| format!("{id}.task")));
    assert_eq!(set.stream.ids().await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_the_service_and_of_the_server_in_turns_under_load_stores_each_event_once_and_in_order()
 {
    let mut dice = Dice::new();
    let mut set = Set::up().await;
    let done = Arc::new(Semaphore::new(0));
    let mut workers = tokio::task::JoinSet::new();
    let mut all = Vec::new();
    for number in 0..6 {
        let worker = Worker::connect(&set.broker).await;
        let task_ids: Vec<String> = (0..120).map(|task| format!("w{number}-{task}")).collect();
        all.extend(task_ids.clone());
        let done = done.clone();
        workers.spawn(async move {
            for task_id in task_ids {
                let create = serde_json::json!({"task_id": task_id, "title": "a task"});
                insist(&worker, "tasklatch.task.create", &create)
                    .await
                    .task();
                let report = full_report(&task_id, "completed");
                let reply = insist(&worker, "tasklatch.report", &report).await;
                assert!(reply.outcome().is_some(), "{}", reply.json());
                done.add_permits(1);
            }
        });
    }
    for round in 0..6 {
        let some = 1 + dice.below(60) as u32;
        let answered = timeout(DEADLINE, done.acquire_many(some)).await;
        answered.expect("answers come again").unwrap().forget();
        match round % 2 {
            0 => set.crash_and_restart().await,
            _ => {
                set.broker.kill().await;
                set.broker.restart().await;
            }
        }
    }
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    Outside::read(&set.database()).await.until_published().await;
    let mut ids = set.stream.ids().await;
    let in_order = ids.clone();
    for task_id in &all {
        let mut of_task = in_order.clone();
        of_task.retain(|id| id.starts_with(&format!("{task_id}.")));
        assert_eq!(of_task, ids_of([task_id.as_str()]));
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), in_order.len());
    assert_eq!(ids.len(), 3 * all.len());
    verified(&set).await;
}
