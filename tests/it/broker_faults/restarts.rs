//! nats-server goes away and comes back; events are delayed by it, never lost.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::support::{
    Broker, DEADLINE, Dice, Outside, Service, Stage, Witness, Worker, commit_cut_off, eventually,
    first_of_each, full_report, http_get, insist, pair_of_each, signal,
};

/// Creates tasks and gives a report for each.
async fn tasks_and_reports(worker: &Worker, count: usize) -> (Vec<String>, Vec<Value>) {
    let task_ids: Vec<_> = (0..count).map(|number| format!("t-{number}")).collect();
    for task_id in &task_ids {
        worker.create(task_id).await;
    }
    let reports = task_ids
        .iter()
        .map(|task_id| full_report(task_id, "completed"))
        .collect();
    (task_ids, reports)
}

/// Both events of each report, in the order of the reports.
fn events_of(task_ids: &[String]) -> Vec<String> {
    let pair = |task_id| ["2.result", "2.task"].map(|event| format!("{task_id}.{event}"));
    task_ids.iter().flat_map(pair).collect()
}

/// The `ce-id` of what a witness saw other than creations.
fn reported(witness: &Witness) -> Vec<String> {
    let mut ids = first_of_each(witness.ids());
    ids.retain(|id| !id.ends_with(".1.task"));
    ids
}

/// Restarts nats-server while the service sleeps, so that a witness is there before the service is back.
async fn restart_before_a_witness(
    broker: &mut Broker,
    service: &Service,
    config: Option<&str>,
) -> Witness {
    signal(service.pid(), "STOP").await;
    broker.kill().await;
    match config {
        Some(config) => broker.restart_configured(config).await,
        None => broker.restart().await,
    }
    let witness = Witness::watch(broker).await;
    signal(service.pid(), "CONT").await;
    witness
}

#[tokio::test]
async fn events_committed_just_before_nats_server_died_come_in_order_after_its_restart_without_a_restart_of_the_service()
 {
    let mut stage = Stage::set().await;
    let witness = Witness::watch(&stage.broker).await;
    let (task_ids, reports) = tasks_and_reports(&stage.worker, 200).await;
    witness.until_now(&stage.worker).await;
    commit_cut_off(&stage.broker, &stage.worker, &stage.database(), &reports).await;

    let witness = restart_before_a_witness(&mut stage.broker, &stage.service, None).await;
    let worker = Worker::connect(&stage.broker).await;
    witness.until_now(&worker).await;
    assert_eq!(reported(&witness), events_of(&task_ids));
    let seen = witness.ids().len();
    for report in &reports {
        assert_eq!(worker.report(report).await.outcome(), Some("replayed"));
    }
    witness.until_now(&worker).await;
    assert!(
        !witness.ids()[seen..].iter().any(|id| id.contains(".2.")),
        "a replay publishes nothing"
    );
    Outside::read(&stage.database())
        .await
        .until_published()
        .await;
}

#[tokio::test]
async fn events_that_a_service_left_unpublished_at_kill_9_come_in_order_at_its_next_start() {
    let mut stage = Stage::set().await;
    let (task_ids, reports) = tasks_and_reports(&stage.worker, 100).await;
    commit_cut_off(&stage.broker, &stage.worker, &stage.database(), &reports).await;
    stage.service.kill().await;
    stage.broker.kill().await;
    stage.broker.restart().await;
    let witness = Witness::watch(&stage.broker).await;
    stage.service = Service::start(&stage.broker, &stage.database(), &[]).await;
    let worker = Worker::connect(&stage.broker).await;
    witness.until_now(&worker).await;
    assert_eq!(reported(&witness), events_of(&task_ids));
}

#[tokio::test]
async fn a_service_that_was_started_before_nats_server_serves_once_that_is_there() {
    let mut broker = Broker::start().await;
    let url = broker.url();
    broker.kill().await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("ledger.db");
    let starting = tokio::spawn({
        let database = database.clone();
        async move { Service::try_start(&url, &database, &[]).await }
    });
    eventually("the service has begun", async || {
        database.exists().then_some(())
    })
    .await;
    broker.restart().await;
    let service = starting.await.unwrap();
    assert!(
        service.is_ok(),
        "{}",
        String::from_utf8_lossy(&service.err().unwrap().stderr)
    );
    Worker::connect(&broker).await.create("t").await;
}

/// Creates and reports tasks one after the other, whatever happens to the server; a permit for each that is done.
async fn work(worker: Worker, task_ids: Vec<String>, done: Arc<Semaphore>) {
    for task_id in task_ids {
        let create = json!({"task_id": task_id, "title": "a task"});
        insist(&worker, "tasklatch.task.create", &create)
            .await
            .task();
        let reply = insist(
            &worker,
            "tasklatch.report",
            &full_report(&task_id, "completed"),
        )
        .await;
        assert!(reply.outcome().is_some(), "{}", reply.json());
        let again = insist(
            &worker,
            "tasklatch.report",
            &full_report(&task_id, "completed"),
        )
        .await;
        assert_eq!(
            (again.outcome(), &again.body),
            (Some("replayed"), &reply.body)
        );
        done.add_permits(1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_server_killed_and_restarted_again_and_again_under_load_loses_no_event_and_the_service_comes_back_by_itself()
 {
    const CYCLES: u64 = 5;
    let mut dice = Dice::new();
    let mut stage = Stage::set().await;
    let mut witnesses = vec![Witness::watch(&stage.broker).await];
    let done = Arc::new(Semaphore::new(0));
    let mut workers = tokio::task::JoinSet::new();
    let mut all = Vec::new();
    for number in 0..8 {
        let task_ids: Vec<_> = (0..100).map(|task| format!("w{number}-{task}")).collect();
        all.extend(task_ids.clone());
        workers.spawn(work(
            Worker::connect(&stage.broker).await,
            task_ids,
            done.clone(),
        ));
    }
    for cycle in 0..CYCLES {
        let some = 1 + dice.below(100);
        let answered = timeout(DEADLINE, done.acquire_many(some as u32)).await;
        answered
            .unwrap_or_else(|_| panic!("answers come again in cycle {cycle}"))
            .unwrap()
            .forget();
        // Core NATS drops what it holds for a subscriber when it dies. That is not what this is about: let it pass on what
        // it has of the service first.
        signal(stage.service.pid(), "STOP").await;
        stage.broker.until_all_is_dealt_with().await;
        for _ in 0..3 {
            witnesses.last().unwrap().round_trip().await;
        }
        witnesses.push(restart_before_a_witness(&mut stage.broker, &stage.service, None).await);
    }
    while let Some(worker) = timeout(3 * DEADLINE, workers.join_next())
        .await
        .expect("workers end in time")
    {
        worker.unwrap();
    }
    let worker = Worker::connect(&stage.broker).await;
    witnesses.last().unwrap().until_now(&worker).await;
    pair_of_each(&witnesses, &all);
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
}

/// A server on which the service may publish events, or not.
fn permissions(deny: &str) -> String {
    format!(
        "no_auth_user: all
         authorization {{ users: [
           {{ user: all, password: all }}
           {{ user: service, password: service, permissions: {{ publish: {{ deny: [{deny}] }} }} }}
         ] }}"
    )
}

#[tokio::test]
async fn events_that_the_service_may_not_publish_stay_in_the_outbox_until_it_may_and_ready_says_so_meanwhile()
 {
    let mut broker = Broker::start_configured(&permissions("\"tasklatch.event.>\"")).await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("ledger.db");
    let options = [
        "--nats-user",
        "service",
        "--nats-password",
        "service",
        "--http",
        "127.0.0.1:0",
    ];
    let mut service = Service::start(&broker, &database, &options).await;
    let worker = Worker::connect(&broker).await;
    let mut outside = Outside::read(&database).await;
    let (task_ids, reports) = tasks_and_reports(&worker, 12).await;
    // Each start tries at once; the more tries, the more often an error could be overlooked that comes by itself.
    for report in &reports {
        assert_eq!(
            worker.report(report).await.outcome(),
            Some("accepted"),
            "the worker is not to blame"
        );
        eventually("ready says what is wrong", async || {
            let cursor = outside.number("SELECT published_seq FROM ledger").await;
            assert_eq!(cursor, 0, "what no server has taken is not published");
            let (status, page) = http_get(&service.ready_line, "/ready").await;
            (status == 503 && page.contains("events")).then_some(())
        })
        .await;
        service.kill().await;
        service = Service::start_serving(&broker, &database, &options).await;
    }

    let witness = restart_before_a_witness(&mut broker, &service, Some(&permissions(""))).await;
    let worker = Worker::connect(&broker).await;
    witness.until_now(&worker).await;
    assert_eq!(reported(&witness), events_of(&task_ids));
    pair_of_each(&[witness], &task_ids);
    eventually("it is ready again", async || {
        (http_get(&service.ready_line, "/ready").await.0 == 200).then_some(())
    })
    .await;
}
