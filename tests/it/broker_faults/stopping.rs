//! SIGTERM in good and bad moments.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::support::{
    Burst, DEADLINE, Outside, Reply, Service, Stage, Witness, Worker, commit_cut_off, eventually,
    full_report, http_get, pair_of_each,
};

#[tokio::test]
async fn events_of_all_that_was_committed_are_published_before_the_service_stops_by_sigterm() {
    let stage = Stage::set().await;
    let witness = Witness::watch(&stage.broker).await;
    let mut burst = Burst::open(&stage.worker).await;
    for number in 0..500 {
        let create = json!({"task_id": format!("t-{number}"), "title": "a task"});
        burst
            .send("tasklatch.task.create", create.to_string())
            .await;
        burst
            .send(
                "tasklatch.report",
                full_report(&format!("t-{number}"), "completed").to_string(),
            )
            .await;
    }
    burst.next().await;
    let (status, log) = stage.service.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    witness.round_trip().await;

    let mut outside = Outside::read(&stage.folder.path().join("ledger.db")).await;
    let left = "SELECT (SELECT max(seq) FROM revisions) - published_seq FROM ledger";
    assert_eq!(outside.number(left).await, 0, "the cursor is at the end");
    let committed = outside.texts(
        "SELECT task_id || '.' || v.revision || kind.column1
         FROM revisions AS v JOIN tasks USING (task_key) JOIN (VALUES ('.result'), ('.task')) AS kind
         WHERE v.lifecycle = 'completed' OR kind.column1 = '.task' ORDER BY v.seq, kind.column1",
    );
    let committed = committed.await;
    assert!(!committed.is_empty());
    let last = committed.last().unwrap().clone();
    witness.until(&last).await;
    assert_eq!(witness.ids(), committed);
}

#[tokio::test]
async fn sigterm_with_five_hundred_requests_queued_answers_each_or_accepts_its_retry_and_loses_and_doubles_no_event()
 {
    let mut stage = Stage::set().await;
    let witness = Witness::watch(&stage.broker).await;
    let task_ids: Vec<_> = (0..500).map(|number| format!("t-{number}")).collect();
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

    // One transaction wants to begin, and all the others wait behind it.
    let mut outside = Outside::write(&stage.database()).await;
    outside.hold().await;
    let client = &stage.worker.client;
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(format!("{inbox}.*")).await.unwrap();
    for task_id in &task_ids {
        let payload = full_report(task_id, "completed").to_string().into();
        client
            .publish_with_reply("tasklatch.report", format!("{inbox}.{task_id}"), payload)
            .await
            .unwrap();
    }
    stage.worker.get("nobody").await;
    stage.service.signal("TERM").await;
    outside.release().await;
    let began = Instant::now();
    let (status, log) = stage.service.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "it took {:?} to stop",
        began.elapsed()
    );

    // The server has all that the service sent, and passes it on before what is sent now.
    client
        .publish(format!("{inbox}.end"), "".into())
        .await
        .unwrap();
    let mut replies: BTreeMap<String, Vec<Reply>> = BTreeMap::new();
    loop {
        let message = timeout(DEADLINE, answers.next())
            .await
            .expect("the end in time")
            .unwrap();
        let task_id = message.subject.rsplit('.').next().unwrap().to_owned();
        if task_id == "end" {
            break;
        }
        let reply = Reply {
            headers: message.headers.unwrap_or_default(),
            body: message.payload,
        };
        replies.entry(task_id).or_default().push(reply);
    }
    stage.service =
        Service::start(&stage.broker, &stage.folder.path().join("ledger.db"), &[]).await;
    let mut answered = 0;
    for task_id in &task_ids {
        let again = stage
            .worker
            .report(&full_report(task_id, "completed"))
            .await;
        match replies.get(task_id).map_or(&[][..], Vec::as_slice) {
            [] => assert!(again.outcome().is_some(), "{task_id}: {}", again.json()),
            [reply] => {
                answered += 1;
                assert_eq!(
                    reply.outcome(),
                    Some("accepted"),
                    "{task_id}: {}",
                    reply.json()
                );
                assert_eq!(
                    (again.outcome(), &again.body),
                    (Some("replayed"), &reply.body),
                    "{task_id}"
                );
            }
            more => panic!("{task_id} has {} answers", more.len()),
        }
    }
    assert_eq!(
        answered,
        task_ids.len(),
        "what was in hand is finished and answered"
    );
    witness.until_now(&stage.worker).await;
    assert_eq!(
        witness.ids().len(),
        3 * task_ids.len(),
        "no event came twice"
    );
    pair_of_each(&[witness], &task_ids);
}

#[tokio::test]
async fn a_second_sigterm_ends_the_service_at_once_and_loses_nothing_that_was_accepted() {
    let mut stage = Stage::set_with(&["--http", "127.0.0.1:0"]).await;
    stage.worker.create("before").await;
    let accepted = stage
        .worker
        .report(&full_report("before", "completed"))
        .await;
    stage.worker.create("in-hand").await;
    // Work that cannot be finished keeps the first stop from coming to its end.
    let mut outside = Outside::write(&stage.database()).await;
    outside.hold().await;
    let report = full_report("in-hand", "completed");
    stage
        .worker
        .client
        .publish("tasklatch.report", report.to_string().into())
        .await
        .unwrap();
    stage.worker.get("nobody").await;
    stage.service.signal("TERM").await;
    eventually("it is stopping", async || {
        let (status, page) = http_get(&stage.service.ready_line, "/ready").await;
        (status == 503 && page.contains("stopping")).then_some(())
    })
    .await;
    let began = Instant::now();
    stage.service.signal("TERM").await;
    let (status, log) = stage.service.ended().await;
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "it took {:?}",
        began.elapsed()
    );
    assert!(
        status.code().is_some_and(|code| code != 0),
        "{status}: {log}"
    );
    outside.release().await;

    stage.service =
        Service::start(&stage.broker, &stage.folder.path().join("ledger.db"), &[]).await;
    let again = stage
        .worker
        .report(&full_report("before", "completed"))
        .await;
    assert_eq!(
        (again.outcome(), &again.body),
        (Some("replayed"), &accepted.body)
    );
    assert_eq!(
        stage.worker.report(&report).await.outcome(),
        Some("accepted")
    );
}

#[tokio::test]
async fn sigterm_while_nats_server_is_gone_ends_in_bounded_time_and_keeps_the_events_for_the_next_start()
 {
    let mut stage = Stage::set().await;
    stage.worker.create("t").await;
    let report = full_report("t", "completed");
    commit_cut_off(
        &stage.broker,
        &stage.worker,
        &stage.database(),
        std::slice::from_ref(&report),
    )
    .await;
    stage.broker.kill().await;
    let began = Instant::now();
    let (status, log) = stage.service.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(
        began.elapsed() < Duration::from_secs(18),
        "it took {:?}",
        began.elapsed()
    );

    stage.broker.restart().await;
    let witness = Witness::watch(&stage.broker).await;
    stage.service =
        Service::start(&stage.broker, &stage.folder.path().join("ledger.db"), &[]).await;
    let worker = Worker::connect(&stage.broker).await;
    assert_eq!(worker.report(&report).await.outcome(), Some("replayed"));
    witness.until_now(&worker).await;
    let mut ids = witness.ids();
    ids.retain(|id| id != "t.1.task");
    assert_eq!(ids, ["t.2.result", "t.2.task"]);
}

#[tokio::test]
async fn sigterm_before_the_service_is_ready_ends_it_in_bounded_time() {
    let mut stage = Stage::set().await;
    let (status, log) = stage.service.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    stage.broker.kill().await;
    let mut child = tokio::process::Command::new(crate::support::BINARY)
        .args([
            "serve",
            "--events",
            "core",
            "--http",
            "off",
            "--nats-url",
            &stage.broker.url(),
            "--database",
        ])
        .arg(stage.folder.path().join("ledger.db"))
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut log = tokio::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    let first = tokio::io::AsyncBufReadExt::read_line(&mut log, &mut line);
    timeout(DEADLINE, first)
        .await
        .expect("it says that it waits")
        .unwrap();
    crate::support::signal(child.id().unwrap(), "TERM").await;
    let status = timeout(Duration::from_secs(5), child.wait())
        .await
        .expect("it ends in time")
        .unwrap();
    assert_eq!(status.code(), Some(0), "after {line}");
}
