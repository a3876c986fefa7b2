//! `tasklatch report --durable`.

use std::process::Output;

use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use super::{SERVE, held, results, set, until_drained, until_ready};
use crate::support::{BINARY, Broker, DEADLINE, Service};

async fn run(url: &str, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(BINARY)
        .env("TASKLATCH_NATS_URL", url)
        .args(arguments)
        .kill_on_drop(true)
        .output();
    let Output {
        status,
        stdout,
        stderr,
    } = timeout(DEADLINE, output).await.expect("it ends").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[tokio::test]
async fn the_command_line_stores_a_report_without_a_service_and_says_where_and_it_is_applied_later()
{
    let (mut stage, context) = set().await;
    until_ready(&stage).await;
    stage.worker.create("t-1").await;
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    let url = stage.broker.url();
    let report = ["report", "t-1", "--summary", "done", "--durable"];
    let (code, stdout, stderr) = run(&url, &report).await;
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    assert!(
        stderr.contains("in TASKLATCH_REPORTS as number 1")
            && stderr.contains("tasklatch task get t-1"),
        "{stderr}"
    );
    let (code, stdout, _) = run(&url, &[&report[..], &["--json"]].concat()).await;
    assert_eq!(code, 0);
    assert_eq!(stdout, "{\"stream\":\"TASKLATCH_REPORTS\",\"seq\":2}\n");
    let database = stage.folder.path().join("ledger.db");
    stage.service = Service::start(&stage.broker, &database, &SERVE).await;
    until_drained(&context).await;
    let task = stage.worker.get("t-1").await.task();
    assert_eq!(task["result"]["summary"], json!("done"));
    assert_eq!(results(&stage).await, 1);
    assert_eq!(held(&context, "TASKLATCH_DEAD").await, 0);
}

#[tokio::test]
async fn a_durable_report_needs_a_task_and_a_stream() {
    let broker = Broker::start_with_jetstream().await;
    let url = broker.url();
    let by_pane = ["report", "--pane", "p", "--summary", "x", "--durable"];
    let (code, _, stderr) = run(&url, &by_pane).await;
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("needs the ID of the task"), "{stderr}");
    let report = [
        "report",
        "t",
        "--summary",
        "x",
        "--durable",
        "--retry-for",
        "0s",
    ];
    let (code, stdout, stderr) = run(&url, &report).await;
    assert_eq!((code, stdout.as_str()), (75, ""), "{stderr}");
    assert!(
        stderr.contains("no stream TASKLATCH_REPORTS") && stderr.contains("--durable-reports"),
        "{stderr}"
    );
    // A stream that no service reads is none.
    let context = async_nats::jetstream::new(broker.client().await);
    let other = async_nats::jetstream::stream::Config {
        name: "OTHER".to_owned(),
        subjects: vec!["tasklatch.queue.>".to_owned()],
        ..Default::default()
    };
    context.create_stream(other).await.unwrap();
    let (code, _, stderr) = run(&url, &report).await;
    assert_eq!(code, 75, "{stderr}");
    assert!(stderr.contains("expected stream"), "{stderr}");
    assert_eq!(held(&context, "OTHER").await, 0);
}

#[tokio::test]
async fn a_durable_report_is_sent_again_until_the_stream_is_there() {
    let broker = Broker::start_with_jetstream().await;
    let url = broker.url();
    let report = ["report", "t", "--summary", "x", "--durable", "--json"];
    let stored = tokio::spawn(async move { run(&url, &report).await });
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("ledger.db");
    let _service = Service::start(&broker, &database, &SERVE).await;
    let (code, stdout, stderr) = stored.await.unwrap();
    assert_eq!(code, 0, "{stderr}");
    let stored: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(stored["stream"], json!("TASKLATCH_REPORTS"));
}
