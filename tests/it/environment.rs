//! What the environment may say, and what it may not.

use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::process::Command;

use crate::support::{BINARY, Stage};

/// Runs the binary at a stage, with variables.
async fn run(stage: &Stage, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command
        .args(arguments)
        .env("TASKLATCH_NATS_URL", stage.broker.url())
        .envs(variables.iter().copied())
        .stdin(Stdio::null());
    command.output().await.unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_stray_variable_changes_nothing_of_a_report_and_is_told_once() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let stray = [
        ("TASKLATCH_STATUS", "failed"),
        ("TASKLATCH_SUMMARY", "Stray"),
        ("TASKLATCH_ARTIFACT", "stray"),
        ("TASKLATCH_EVIDENCE", "{\"stray\":true}"),
        ("TASKLATCH_FROM", "/nowhere"),
        ("TASKLATCH_DURABLE", "true"),
        ("TASKLATCH_RETRY_FOR", "nonsense"),
    ];
    let reported = run(
        &stage,
        &stray,
        &["report", "t", "--summary", "Done", "--json"],
    )
    .await;
    assert!(reported.status.success(), "{}", stderr(&reported));
    let task: Value = serde_json::from_slice(&reported.stdout).unwrap();
    assert_eq!(task["result"]["status"], "completed");
    assert_eq!(task["result"]["summary"], "Done");
    assert_eq!(task["result"]["artifacts"], Value::Array(Vec::new()));
    assert_eq!(task["result"]["evidence"], serde_json::json!({}));
    let told = stderr(&reported);
    for (variable, _) in stray {
        let long = variable
            .trim_start_matches("TASKLATCH_")
            .to_lowercase()
            .replace('_', "-");
        let text = format!("{variable} (give --{long})");
        assert_eq!(told.matches(&text).count(), 1, "{told}");
    }
    assert_eq!(
        told.matches("warning: not read from the environment")
            .count(),
        1,
        "{told}"
    );
    // Without an explicit summary there is no report.
    let missing = run(&stage, &stray, &["report", "t"]).await;
    assert_eq!(missing.status.code(), Some(2), "{}", stderr(&missing));
    let told = stderr(&missing);
    assert_eq!(
        told.matches("TASKLATCH_SUMMARY (give --summary)").count(),
        1,
        "{told}"
    );
}

#[tokio::test]
async fn a_variable_does_not_confirm_that_tasks_are_pruned() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    stage
        .worker
        .report(&crate::support::full_report("t", "completed"))
        .await;
    let (database, stray) = (stage.database(), [("TASKLATCH_YES", "true")]);
    let database = database.to_str().unwrap();
    let words = ["ledger", "prune", "--before", "0s", "--database", database];
    let pruned = run(&stage, &stray, &words).await;
    assert!(pruned.status.success(), "{}", stderr(&pruned));
    assert!(
        stderr(&pruned).contains("TASKLATCH_YES (give --yes)"),
        "{}",
        stderr(&pruned)
    );
    assert_eq!(stage.worker.get("t").await.task()["task_id"], "t");
}

#[tokio::test]
async fn the_environment_says_which_task_or_pane_one_is_unless_the_command_does() {
    let stage = Stage::set().await;
    for (task_id, pane_id) in [("one", "w1"), ("two", "w2")] {
        let body = serde_json::json!({"task_id": task_id, "pane_id": pane_id, "title": "a task"});
        stage.worker.create_with(body).await;
    }
    let got = async |variables: &[(&str, &str)], more: &[&str]| {
        let words = [&["task", "get", "--json"][..], more].concat();
        let output = run(&stage, variables, &words).await;
        let task = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
        (
            output.status.code(),
            task["task_id"].as_str().unwrap_or_default().to_owned(),
            stderr(&output),
        )
    };
    let (task, pane) = (("TASKLATCH_TASK", "one"), ("TASKLATCH_PANE", "w2"));
    assert_eq!(got(&[task], &[]).await.1, "one");
    assert_eq!(got(&[pane], &[]).await.1, "two");
    assert_eq!(got(&[task, pane], &["two"]).await.1, "two");
    assert_eq!(got(&[task, pane], &["--pane", "w1"]).await.1, "one");
    let (code, _, told) = got(&[task, pane], &[]).await;
    assert_eq!(code, Some(2));
    assert!(
        told.contains("TASKLATCH_TASK and TASKLATCH_PANE are both set")
            && told.contains("unset one of them, or name the task on the command line"),
        "{told}"
    );
    // A new task gets the pane that the command names, and no other.
    let created = run(&stage, &[pane], &["task", "create", "A task", "--json"]).await;
    let created: Value = serde_json::from_slice(&created.stdout).unwrap();
    assert_eq!(created["pane_id"], Value::Null);
}
