//! Reports that meet: one content wins, everybody is answered, observers hear of it once.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tasklatch::wire::Outcome;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::bench::{self, Bench, at};
use crate::support::{Burst, Reply, Stage, Worker, full_report};

/// Sends each connection's reports, all released together, and gives each with its one answer.
async fn release_together(stage: &Stage, connections: Vec<Vec<Value>>) -> Vec<(Value, Reply)> {
    let barrier = Arc::new(Barrier::new(connections.len()));
    let mut senders = JoinSet::new();
    for reports in connections {
        let worker = Worker::connect(&stage.broker).await;
        let mut burst = Burst::open(&worker).await;
        let barrier = barrier.clone();
        senders.spawn(async move {
            barrier.wait().await;
            for report in &reports {
                burst.send("tasklatch.report", report.to_string()).await;
            }
            reports
                .into_iter()
                .zip(burst.finish().await)
                .collect::<Vec<_>>()
        });
    }
    senders.join_all().await.into_iter().flatten().collect()
}

/// Sees that one content won: accepted once, replayed to all others that sent it, refused to all who sent another.
fn assert_one_content_won(answered: &[(Value, Reply)]) -> Value {
    let accepted: Vec<_> = answered
        .iter()
        .filter(|(_, reply)| reply.outcome() == Some("accepted"))
        .collect();
    assert_eq!(accepted.len(), 1, "exactly one report is accepted");
    let (winner, first) = accepted[0];
    for (report, reply) in answered {
        if report == winner {
            assert!(
                matches!(reply.outcome(), Some("accepted" | "replayed")),
                "{:?}",
                reply.json()
            );
            assert_eq!(reply.body, first.body, "all winners are answered alike");
        } else {
            assert_eq!(reply.code(), "result_conflict");
            assert_eq!(reply.error()["differs"], json!(["summary"]));
        }
    }
    winner.clone()
}

/// SC-003, FR-006, FR-004
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_concurrent_identical_submissions_give_one_accepted_result_one_result_notification_and_one_task_update()
 {
    let stage = Stage::set().await;
    let mut observer = stage.observer_from_now().await;
    for round in 0..20 {
        let task_id = format!("t-{round}");
        stage.worker.create(&task_id).await;
        observer.all_so_far().await;
        let report = full_report(&task_id, "completed");
        let answered = release_together(&stage, vec![vec![report.clone()], vec![report]]).await;
        assert_one_content_won(&answered);
        assert_eq!(
            observer.ids_so_far().await,
            [format!("{task_id}.2.result"), format!("{task_id}.2.task")]
        );
    }
}

/// SC-003, FR-006, FR-005
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_200_identical_and_50_different_reports_for_one_task_released_together_exactly_one_content_wins()
 {
    let stage = Stage::set().await;
    let mut winners = HashSet::new();
    let mut observer = stage.observer_from_now().await;
    for round in 0..6 {
        let task_id = format!("t-{round}");
        stage.worker.create(&task_id).await;
        observer.all_so_far().await;
        let connections = (0..25)
            .map(|connection| {
                let mut reports = vec![full_report(&task_id, "completed"); 10];
                for (own, report) in reports.iter_mut().take(2).enumerate() {
                    report["summary"] = json!(format!("by {connection}, number {own}"));
                }
                // In every other round each connection begins with the content that all share.
                reports.rotate_left(if round % 2 == 0 { connection % 10 } else { 2 });
                reports
            })
            .collect();
        let answered = release_together(&stage, connections).await;
        assert_eq!(answered.len(), 250);
        let winner = assert_one_content_won(&answered);
        winners.insert(winner["summary"].as_str().unwrap().to_owned());

        let [result, task] = &observer.all_so_far().await[..] else {
            panic!("one pair of events")
        };
        assert_eq!(result.id(), format!("{task_id}.2.result"));
        assert_eq!(result.json()["result"]["summary"], winner["summary"]);
        assert_eq!(task.id(), format!("{task_id}.2.task"));
        assert_eq!(task.payload, stage.worker.get(&task_id).await.body);
    }
    assert!(
        winners.contains("Fixed; the clock was read twice"),
        "the shared content wins where it comes first"
    );
}

#[tokio::test]
async fn of_several_reports_for_one_task_in_one_batch_the_first_is_accepted_and_the_rest_are_replays_or_refusals()
 {
    let mut bench = Bench::open().await;
    let t = json!({"task_id": "t"});
    bench
        .one(
            at(0),
            bench::create(&json!({"task_id": "t", "title": "a task"})),
        )
        .await;
    let report = |summary: &str| bench::report(&t, "completed", summary);
    let batch = [
        report("a"),
        report("b"),
        report("a"),
        bench::get(&t),
        report("b"),
        report("a"),
    ];
    let applied = bench.apply(at(1), &batch).await;
    let (first, outcome) = bench::done(&applied[0]);
    assert_eq!(outcome, Some(Outcome::Accepted));
    for replayed in [2, 5] {
        assert_eq!(
            bench::done(&applied[replayed]),
            (first.clone(), Some(Outcome::Replayed))
        );
    }
    for refused in [1, 4] {
        assert_eq!(bench::refusal(&applied[refused]).differs, ["summary"]);
    }
    assert_eq!(bench::done(&applied[3]), (first, None));
    assert_eq!(
        bench.event_ids().await,
        ["t.1.task", "t.2.result", "t.2.task"]
    );
}

#[tokio::test]
async fn create_report_and_retry_in_one_batch_give_the_events_of_each_change_with_the_task_as_of_then()
 {
    let mut bench = Bench::open().await;
    let t = json!({"task_id": "t"});
    let start = bench::command(tasklatch::wire::Endpoint::Start, &t);
    let review = bench::command(
        tasklatch::wire::Endpoint::Review,
        &json!({"task_id": "t", "verdict": "approved"}),
    );
    let report = || bench::report(&t, "failed", "s");
    let batch = [
        bench::create(&json!({"task_id": "t", "title": "a task"})),
        start,
        report(),
        report(),
        review,
        report(),
    ];
    let applied = bench.apply(at(0), &batch).await;
    let bodies: Vec<Bytes> = applied.iter().map(|one| bench::done(one).0).collect();
    assert_eq!(bodies[3], bodies[2]);
    assert_eq!(bodies[5], bodies[4]);
    let events = bench.events().await;
    let ids: Vec<String> = events.iter().map(tasklatch::wire::Event::id).collect();
    assert_eq!(
        ids,
        ["t.1.task", "t.2.task", "t.3.result", "t.3.task", "t.4.task"]
    );
    for (event, body) in [(0, 0), (1, 1), (3, 2), (4, 4)] {
        assert_eq!(events[event].data, bodies[body], "{}", ids[event]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_2000_tasks_reported_over_20_connections_all_are_answered_and_each_has_its_events_in_order()
 {
    let stage = Stage::set().await;
    let mut observer = stage.observer_from_now().await;
    let barrier = Arc::new(Barrier::new(20));
    let mut workers = JoinSet::new();
    for connection in 0..20 {
        let worker = Worker::connect(&stage.broker).await;
        let barrier = barrier.clone();
        workers.spawn(async move {
            let ids: Vec<String> = (0..100)
                .map(|number| format!("t-{connection}-{number}"))
                .collect();
            let mut creating = Burst::open(&worker).await;
            for task_id in &ids {
                let body = json!({"task_id": task_id, "title": "a task"});
                creating
                    .send("tasklatch.task.create", body.to_string())
                    .await;
            }
            assert!(
                creating
                    .finish()
                    .await
                    .iter()
                    .all(|reply| reply.task()["revision"] == 1)
            );
            barrier.wait().await;
            let mut reporting = Burst::open(&worker).await;
            for task_id in &ids {
                reporting
                    .send(
                        "tasklatch.report",
                        full_report(task_id, "completed").to_string(),
                    )
                    .await;
            }
            for reply in reporting.finish().await {
                assert_eq!(reply.outcome(), Some("accepted"), "{:?}", reply.json());
            }
            ids
        });
    }
    let ids: Vec<String> = workers.join_all().await.into_iter().flatten().collect();
    assert_eq!(ids.len(), 2000);
    let mut by_task = std::collections::HashMap::<String, Vec<String>>::new();
    for event in observer.all_so_far().await {
        by_task
            .entry(event.header("ce-subject").to_owned())
            .or_default()
            .push(event.id().to_owned());
    }
    for task_id in &ids {
        let expected = ["1.task", "2.result", "2.task"].map(|end| format!("{task_id}.{end}"));
        assert_eq!(by_task.remove(task_id).unwrap_or_default(), expected);
    }
    assert!(by_task.is_empty());
}
