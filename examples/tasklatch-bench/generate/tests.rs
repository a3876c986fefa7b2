//! The load generator against a real server and responders that do not do what they should: each must fail the run.

use std::path::{Path, PathBuf};

use async_nats::HeaderMap;
use clap::Parser;
use futures_util::StreamExt;

use super::*;
use crate::run::broker::{Broker, Kind as BrokerKind};

/// What a responder does with the request of this number.
#[derive(Clone, Copy)]
enum Answer {
    Accepted,
    Replayed,
    OfAnotherTask,
    None,
    Twice,
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn nats_server() -> PathBuf {
    let named = std::env::var_os("TASKLATCH_TEST_NATS_SERVER").map(PathBuf::from);
    named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/bin/nats-server"))
}

/// A server with a responder that answers by `choose`, if there is one; and what the load generator makes of it.
async fn run(
    arguments: &str,
    choose: Option<fn(u64) -> Answer>,
) -> std::result::Result<Measured, String> {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(&nats_server(), BrokerKind::Plain, folder.path())
        .await
        .unwrap();
    let client = async_nats::connect(&broker.address).await.unwrap();
    if let Some(choose) = choose {
        let mut reports = client.subscribe(REPORT_SUBJECT).await.unwrap();
        client.flush().await.unwrap();
        tokio::spawn(async move {
            for number in 1.. {
                let Some(report) = reports.next().await else {
                    return;
                };
                respond(&client, report, choose(number)).await;
            }
        });
    }
    let server = format!("--server={}", broker.address);
    let words = ["generate", &server, "--patience=0.5", "--expect=outcome"];
    let line = Line::parse_from(words.into_iter().chain(arguments.split(' ')));
    let measured = tokio::task::spawn_blocking(move || generate(&line.options));
    measured
        .await
        .unwrap()
        .map_err(|failure| failure.to_string())
}

async fn respond(client: &async_nats::Client, report: async_nats::Message, answer: Answer) {
    let payload: serde_json::Value = serde_json::from_slice(&report.payload).unwrap();
    let (outcome, task_id) = match answer {
        Answer::Replayed => ("replayed", payload["task_id"].as_str().unwrap()),
        Answer::OfAnotherTask => ("accepted", "somebody-elses"),
        _ => ("accepted", payload["task_id"].as_str().unwrap()),
    };
    let times = match answer {
        Answer::None => 0,
        Answer::Twice => 2,
        _ => 1,
    };
    for _ in 0..times {
        let mut headers = HeaderMap::new();
        headers.insert("Tasklatch-Outcome", outcome);
        let body = format!(r#"{{"task_id":"{task_id}"}}"#);
        let reply = report.reply.clone().unwrap();
        client
            .publish_with_headers(reply, headers, body.into())
            .await
            .unwrap();
    }
}

fn one_of_a_thousand(number: u64, answer: Answer) -> Answer {
    if number.is_multiple_of(1000) {
        answer
    } else {
        Answer::Accepted
    }
}

const ALL: &str = "--workload=first --tasks=3000 --in-flight=100";

#[tokio::test(flavor = "multi_thread")]
async fn every_request_is_counted() {
    let measured = run(ALL, Some(|_| Answer::Accepted)).await.unwrap();
    assert_eq!((measured.answered, measured.counted), (3000, 3000));
    assert_eq!(measured.kinds, [0, 3000, 0, 0]);
    assert!(measured.per_second > 0.0 && measured.latency.max_us >= measured.latency.median_us);
    assert_eq!(measured.usage.last().unwrap().name, GENERATOR);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_is_as_long_as_asked_for_and_all_is_answered_after_it() {
    let arguments =
        "--workload=first --tasks=1000000 --in-flight=16 --warm-up=0.1 --window=0.4 --seconds";
    let measured = run(arguments, Some(|_| Answer::Accepted)).await.unwrap();
    assert!((0.4..0.6).contains(&measured.seconds) && !measured.ended_early);
    assert!(measured.counted < measured.answered);
    let rate = measured.counted as f64 / measured.seconds;
    assert!((measured.per_second - rate).abs() < 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_ends_early_when_the_tasks_are_used_up() {
    for tasks in [200, 20_000] {
        let arguments =
            format!("--workload=first --tasks={tasks} --in-flight=16 --warm-up=0.05 --window=60");
        let measured = run(&arguments, Some(|_| Answer::Accepted)).await.unwrap();
        assert!(measured.ended_early && measured.per_second > 0.0);
        assert_eq!(measured.answered, tasks);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_of_a_thousand_without_an_answer_fails_the_run() {
    let failure = run(ALL, Some(|number| one_of_a_thousand(number, Answer::None)))
        .await
        .unwrap_err();
    assert!(
        failure.starts_with("3 of 3000 requests got no answer"),
        "{failure}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_answer_of_a_thousand_that_comes_twice_fails_the_run() {
    let failure = run(ALL, Some(|number| one_of_a_thousand(number, Answer::Twice)))
        .await
        .unwrap_err();
    assert!(failure.contains("it was answered twice"), "{failure}");
    let last = |number| {
        if number == 3000 {
            Answer::Twice
        } else {
            Answer::Accepted
        }
    };
    let failure = run(ALL, Some(last)).await.unwrap_err();
    assert!(
        failure.contains("twice") || failure.contains("too many"),
        "{failure}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wrong_outcome_of_a_thousand_fails_the_run() {
    let failure = run(
        ALL,
        Some(|number| one_of_a_thousand(number, Answer::Replayed)),
    )
    .await
    .unwrap_err();
    assert!(failure.contains("the first report of task"), "{failure}");
    let failure = run(
        ALL,
        Some(|number| one_of_a_thousand(number, Answer::OfAnotherTask)),
    )
    .await
    .unwrap_err();
    assert!(failure.contains("got a wrong answer"), "{failure}");
    let retries = ALL.replace("first", "retries");
    let failure = run(&format!("{retries} --window=1"), Some(|_| Answer::Accepted))
        .await
        .unwrap_err();
    assert!(failure.contains("a retry of task"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_who_serves_the_subject_fails_the_run() {
    let failure = run(ALL, None).await.unwrap_err();
    assert!(failure.contains("nobody serves its subject"), "{failure}");
}
