//! The work of each role, done with the command line on a secured server.

use std::process::Output;

use async_nats::HeaderMap;
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{DEADLINE, Secured, User, eventually, full_report};

fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A server and a service with a task, `mine`.
async fn set(options: &[&str]) -> (Secured, crate::support::Service) {
    let server = Secured::start(&["narrow=mine"]).await;
    let service = server.serve(options).await;
    for task_id in ["mine", "other"] {
        let create = ["task", "create", "a task", "--task-id", task_id];
        succeeded(server.run_as("coordinator", &create).await);
    }
    (server, service)
}

#[tokio::test]
async fn a_worker_of_one_task_reports_on_it_with_the_command_line_and_on_no_other() {
    let (server, _service) = set(&[]).await;
    let report = |task_id| ["report", task_id, "--summary", "done", "--timeout", "5s"];
    succeeded(server.run_as("narrow", &report("mine")).await);
    succeeded(server.run_as("narrow", &report("mine")).await);
    let denied = server.run_as("narrow", &report("other")).await;
    let said = String::from_utf8(denied.stderr).unwrap();
    assert!(
        !denied.status.success() && said.contains("does not allow"),
        "{said}"
    );
    let get = server
        .run_as("coordinator", &["task", "get", "other", "--json"])
        .await;
    let other: Value = serde_json::from_str(&succeeded(get)).unwrap();
    assert_eq!(other["lifecycle"], "submitted");
}

#[tokio::test]
async fn both_ways_of_events_and_durable_reports_need_no_more_than_the_service_may() {
    for options in [
        &["--events", "core"][..],
        &["--events", "jetstream", "--durable-reports"],
    ] {
        let (server, service) = set(options).await;
        succeeded(
            server
                .run_as("worker", &["report", "other", "--summary", "x"])
                .await,
        );
        if options.len() > 2 {
            succeeded(
                server
                    .run_as("narrow", &["report", "mine", "--summary", "x", "--durable"])
                    .await,
            );
            eventually("the durable report is accepted", async || {
                let get = server
                    .run_as("worker", &["task", "get", "mine", "--json"])
                    .await;
                let task: Value = serde_json::from_str(&succeeded(get)).unwrap();
                (task["lifecycle"] == "completed").then_some(())
            })
            .await;
            let letter = server.run_as(
                "worker",
                &["report", "nobody", "--summary", "x", "--durable"],
            );
            succeeded(letter.await);
            let all = ["watch", "--since", "all", "--count", "4", "--json"];
            assert_eq!(
                succeeded(server.run_as("coordinator", &all).await)
                    .lines()
                    .count(),
                4
            );
            let database = server.database();
            let database = database.to_str().unwrap();
            let verify = [
                "ledger",
                "verify",
                "--events",
                "jetstream",
                "--database",
                database,
            ];
            for name in ["coordinator", "service"] {
                succeeded(server.run_as(name, &verify).await);
            }
        }
        let (status, log) = service.stop().await;
        assert!(status.success(), "{log}");
        assert!(
            !log.to_lowercase().contains("permissions violation"),
            "{log}"
        );
    }
}

/// Publishes a report that asks for its answer at a subject.
async fn report_to(user: &User, reply: &str, durable: bool) {
    let body = full_report("mine", "completed").to_string();
    let sent = match durable {
        false => {
            user.client
                .publish_with_reply("tasklatch.report.mine", reply.to_owned(), body.into())
                .await
        }
        true => {
            let mut headers = HeaderMap::new();
            headers.insert("Tasklatch-Reply-To", reply);
            // The acknowledgment of JetStream, which goes to the other one, is not sent by the service at all.
            user.client
                .publish_with_reply_and_headers(
                    "tasklatch.queue.report.mine",
                    reply.to_owned(),
                    headers,
                    body.into(),
                )
                .await
        }
    };
    sent.unwrap();
}

#[tokio::test]
async fn nobody_has_the_service_publish_where_they_may_not_by_the_subject_for_the_answer() {
    let (server, service) = set(&["--events", "jetstream", "--durable-reports"]).await;
    let worker = server.log_in("worker").await;
    let coordinator = server.log_in("coordinator").await.client;
    let mut events = coordinator.subscribe("tasklatch.event.>").await.unwrap();
    coordinator.flush().await.unwrap();
    for durable in [false, true] {
        for reply in [
            "tasklatch.event.result.mine",
            "tasklatch.task.cancel",
            "tasklatch.dead.mine",
            "tasklatch.queue.report.mine",
            "$JS.API.STREAM.DELETE.TASKLATCH_EVENTS",
            "$SYS.x",
        ] {
            report_to(&worker, reply, durable).await;
        }
    }
    // Nor does it reach the inbox of another by itself.
    let mut inbox = coordinator.subscribe("_INBOX.coordinator.x").await.unwrap();
    coordinator.flush().await.unwrap();
    let body = full_report("mine", "completed").to_string();
    for subject in ["tasklatch.queue.report.mine", "tasklatch.report.mine"] {
        let sent =
            worker
                .client
                .publish_with_reply(subject, "_INBOX.coordinator.x", body.clone().into());
        sent.await.unwrap();
    }
    worker.client.flush().await.unwrap();
    succeeded(
        server
            .run_as(
                "narrow",
                &["report", "mine", "--from", &report_file(&server)],
            )
            .await,
    );
    succeeded(
        server
            .run_as(
                "coordinator",
                &["task", "create", "x", "--task-id", "marker"],
            )
            .await,
    );
    let mut ids = Vec::new();
    loop {
        let event = timeout(DEADLINE, events.next()).await.unwrap().unwrap();
        if event.subject.ends_with(".marker") {
            break;
        }
        // An answer would come here without an ID.
        let headers = event.headers.unwrap();
        ids.push(headers.get("ce-id").expect("an event").as_str().to_owned());
    }
    assert_eq!(ids.len(), 2, "the acceptance, once each kind: {ids:?}");
    let marked = inbox.next().now_or_never();
    assert!(marked.is_none(), "an answer of another: {marked:?}");
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
}

fn report_file(server: &Secured) -> String {
    let path = server.folder.path().join("report.json");
    std::fs::write(&path, full_report("mine", "completed").to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn answers_that_the_service_may_not_send_disturb_neither_events_nor_durable_reports_nor_its_end()
 {
    for mode in ["core", "jetstream"] {
        let (server, service) = set(&["--events", mode, "--durable-reports"]).await;
        let worker = server.log_in("worker").await;
        let coordinator = server.log_in("coordinator").await.client;
        let mut events = coordinator
            .subscribe("tasklatch.event.result.*")
            .await
            .unwrap();
        coordinator.flush().await.unwrap();
        let flood = async |rounds: usize| {
            for number in 0..rounds {
                report_to(&worker, "other.app", number % 2 == 1).await;
            }
            worker.client.flush().await.unwrap();
        };
        let tasks: Vec<String> = (0..10).map(|number| format!("t-{number}")).collect();
        for task_id in &tasks {
            flood(100).await;
            succeeded(
                server
                    .run_as(
                        "coordinator",
                        &["task", "create", "x", "--task-id", task_id],
                    )
                    .await,
            );
            succeeded(
                server
                    .run_as("worker", &["report", task_id, "--summary", "x"])
                    .await,
            );
        }
        let mut seen = Vec::new();
        while seen.len() < tasks.len() + 1 {
            let event = timeout(DEADLINE, events.next())
                .await
                .expect("each event in time")
                .unwrap();
            seen.push(event.subject.rsplit('.').next().unwrap().to_owned());
        }
        let marker = json!({"task_id": "last", "title": "x"}).to_string();
        coordinator
            .request("tasklatch.task.create", marker.into())
            .await
            .unwrap();
        succeeded(
            server
                .run_as("worker", &["report", "last", "--summary", "x"])
                .await,
        );
        let last = timeout(DEADLINE, events.next()).await.unwrap().unwrap();
        assert!(
            last.subject.ends_with(".last"),
            "an event came twice: {}",
            last.subject
        );
        seen.retain(|task_id| task_id != "mine");
        assert_eq!(seen, tasks, "{mode}: each once and in order");
        flood(100).await;
        let (status, log) = service.stop().await;
        assert!(status.success(), "{log}");
        let complaints = log.matches("the NATS server reports an error").count();
        assert!((1..=10).contains(&complaints), "{complaints} lines: {log}");
        assert!(!log.contains("events are delayed"), "{log}");
        assert!(!log.contains("durable reports are not taken"), "{log}");
    }
}
