//! Service discovery, who else serves a prefix, and streams that cover a request subject.

use serde_json::{Value, json};

use crate::support::{Broker, Service, Stage, Worker, full_report};

async fn ask_service(stage: &Stage, subject: &str) -> Value {
    let answer = stage
        .worker
        .client
        .request(subject.to_owned(), "".into())
        .await
        .unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

#[tokio::test]
async fn ping_info_and_stats_answer_by_name_and_by_id_as_adr_32_has_it() {
    let stage = Stage::set().await;
    let ping = ask_service(&stage, "$SRV.PING").await;
    assert_eq!(ping["type"], "io.nats.micro.v1.ping_response");
    assert_eq!(ping["name"], "tasklatch");
    assert_eq!(ping["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(ping["metadata"]["prefix"], "tasklatch");
    assert!(!ping["metadata"]["ledger_id"].as_str().unwrap().is_empty());
    let id = ping["id"].as_str().unwrap();
    for tail in [".tasklatch", &format!(".tasklatch.{id}")] {
        assert_eq!(ask_service(&stage, &format!("$SRV.PING{tail}")).await, ping);
    }

    let info = ask_service(&stage, "$SRV.INFO.tasklatch").await;
    assert_eq!(info["type"], "io.nats.micro.v1.info_response");
    assert_eq!(
        (&info["id"], &info["metadata"]),
        (&ping["id"], &ping["metadata"])
    );
    assert!(info["description"].is_string());
    let endpoints = info["endpoints"].as_array().unwrap();
    let subjects: Vec<&str> = endpoints
        .iter()
        .map(|endpoint| endpoint["subject"].as_str().unwrap())
        .collect();
    let verbs = [
        "report",
        "report.*",
        "task.create",
        "task.get",
        "task.list",
        "task.start",
        "task.cancel",
        "task.review",
    ];
    assert_eq!(subjects, verbs.map(|verb| format!("tasklatch.{verb}")));
    assert!(
        endpoints
            .iter()
            .all(|endpoint| endpoint["queue_group"] == "tasklatch")
    );
}

#[tokio::test]
async fn stats_count_requests_and_errors_of_each_endpoint() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    for status in ["completed", "completed", "failed"] {
        stage.worker.report(&full_report("t", status)).await;
    }
    // An answer is counted once it is on its way, so the one that this waited for may be counted a moment later.
    let counted = async {
        loop {
            let stats = ask_service(&stage, "$SRV.STATS.tasklatch").await;
            assert_eq!(stats["type"], "io.nats.micro.v1.stats_response");
            assert!(stats["started"].as_str().unwrap().ends_with('Z'));
            let report = stats["endpoints"]
                .as_array()
                .unwrap()
                .iter()
                .find(|endpoint| endpoint["name"] == "report");
            let report = report.unwrap().clone();
            if report["num_requests"] == 3 {
                return report;
            }
        }
    };
    let report = tokio::time::timeout(crate::support::DEADLINE, counted)
        .await
        .expect("three requests are counted");
    assert_eq!(report["num_errors"], 1);
    assert!(
        report["last_error"]
            .as_str()
            .unwrap()
            .starts_with("result_conflict: ")
    );
    assert!(
        report["processing_time"].as_u64().unwrap()
            >= report["average_processing_time"].as_u64().unwrap()
    );
}

#[tokio::test]
async fn a_second_service_with_another_ledger_on_the_same_prefix_refuses_to_start_and_says_so() {
    let stage = Stage::set().await;
    let ledger_id =
        ask_service(&stage, "$SRV.PING.tasklatch").await["metadata"]["ledger_id"].clone();
    let other = stage.folder.path().join("other.db");
    let refused = Service::try_start(&stage.broker.url(), &other, &[])
        .await
        .err()
        .expect("it refuses");
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8_lossy(&refused.stderr);
    for part in [
        ledger_id.as_str().unwrap(),
        "--allow-other-ledgers",
        "--prefix",
        "tasklatch.>",
    ] {
        assert!(message.contains(part), "{part} in {message}");
    }
    // The first is unharmed and still gets every request.
    for number in 0..20 {
        stage.worker.create(&format!("t-{number}")).await;
    }
}

#[tokio::test]
async fn a_second_service_starts_on_another_prefix_or_if_other_ledgers_are_allowed() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let elsewhere = Service::start(
        &stage.broker,
        &stage.folder.path().join("elsewhere.db"),
        &["--prefix", "else.where"],
    )
    .await;
    let unknown = stage
        .worker
        .ask("else.where.task.get", &json!({"task_id": "t"}))
        .await;
    assert_eq!(unknown.code(), "task_not_found", "it is another ledger");
    let created = stage
        .worker
        .ask(
            "else.where.task.create",
            &json!({"task_id": "t", "title": "else"}),
        )
        .await;
    assert_eq!(created.task()["title"], "else");
    assert!(elsewhere.stop().await.0.success());

    let other = stage.folder.path().join("other.db");
    let allowed = Service::start(&stage.broker, &other, &["--allow-other-ledgers"]).await;
    let (status, log) = allowed.stop().await;
    assert!(status.success());
    assert!(
        log.contains("another service answers under the same prefix"),
        "{log}"
    );
}

#[tokio::test]
async fn events_and_reply_rules_follow_the_prefix() {
    let broker = Broker::start().await;
    let folder = tempfile::tempdir().unwrap();
    let _service = Service::start(
        &broker,
        &folder.path().join("ledger.db"),
        &["--prefix", "acme.latch"],
    )
    .await;
    let worker = Worker::connect(&broker).await;
    let mut events = worker.client.subscribe("acme.latch.event.>").await.unwrap();
    worker
        .ask(
            "acme.latch.task.create",
            &json!({"task_id": "t", "title": "t"}),
        )
        .await
        .task();
    let event = tokio::time::timeout(
        crate::support::DEADLINE,
        futures_util::StreamExt::next(&mut events),
    )
    .await;
    assert_eq!(
        event.unwrap().unwrap().subject.as_str(),
        "acme.latch.event.task.t"
    );
}

#[tokio::test]
async fn a_second_service_on_the_same_database_refuses_to_start_and_says_who_holds_it() {
    let stage = Stage::set().await;
    let refused = Service::try_start(&stage.broker.url(), &stage.database(), &[])
        .await
        .err()
        .expect("it refuses");
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(
        message.contains(&stage.service.pid().to_string()),
        "the process that holds it: {message}"
    );
    stage.worker.create("t").await;
}
#[tokio::test]
async fn a_stream_that_covers_a_request_subject_is_warned_of_when_the_service_starts() {
    let broker = Broker::start_with_jetstream().await;
    let worker = Worker::connect(&broker).await;
    let jetstream = async_nats::jetstream::new(worker.client.clone());
    let stream = async_nats::jetstream::stream::Config {
        name: "GREEDY".to_owned(),
        subjects: vec!["tasklatch.>".to_owned()],
        ..Default::default()
    };
    jetstream.create_stream(stream).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(&broker, &folder.path().join("ledger.db"), &[]).await;
    let (status, log) = service.stop().await;
    assert!(status.success());
    let warning = log
        .lines()
        .find(|line| line.contains("GREEDY"))
        .unwrap_or_else(|| panic!("no warning: {log}"));
    assert!(
        warning.contains("WARN") && warning.contains("tasklatch.report"),
        "{warning}"
    );
}

#[tokio::test]
async fn of_two_services_with_different_ledgers_that_start_together_not_both_serve() {
    let broker = Broker::start().await;
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one.db", "two.db"].map(|name| folder.path().join(name));
    let url = broker.url();
    let (one, two) = tokio::join!(
        Service::try_start(&url, &one, &[]),
        Service::try_start(&url, &two, &[])
    );
    let refused = [one.err(), two.err()].into_iter().flatten();
    let messages: Vec<String> = refused
        .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
        .collect();
    assert!(!messages.is_empty(), "both serve");
    for message in messages {
        assert!(message.contains("--allow-other-ledgers"), "{message}");
    }
}
