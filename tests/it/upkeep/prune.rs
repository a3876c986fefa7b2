//! `ledger prune`.

use std::path::Path;

use serde_json::{Value, json};

use super::tasklatch;
use crate::support::{Outside, Service, Stage, Worker, full_report};

async fn prune(database: &Path, more: &[&str]) -> (i32, String, String) {
    tasklatch(
        &[&["ledger", "prune", "--before", "0s"], more].concat(),
        database,
    )
    .await
}

async fn given(worker: &Worker, task_id: &str, pane_id: &str) {
    let create = json!({"task_id": task_id, "pane_id": pane_id, "title": "a task"});
    worker.create_with(create).await;
}

async fn report(worker: &Worker, selector: Value, summary: &str) -> crate::support::Reply {
    let mut report = full_report("", "completed");
    report["summary"] = json!(summary);
    let body = report.as_object_mut().unwrap();
    body.remove("task_id");
    body.extend(selector.as_object().unwrap().clone());
    worker.report(&report).await
}

/// Stops the service once all is published, and adds what makes nothing else the newest: that always stays.
async fn stopped(stage: Stage) -> (Stage2, std::path::PathBuf) {
    stage.worker.create("last").await;
    let database = stage.database();
    Outside::read(&database).await.until_published().await;
    let Stage {
        broker,
        service,
        worker,
        folder,
    } = stage;
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
    (
        Stage2 {
            broker,
            worker,
            _folder: folder,
        },
        database,
    )
}

/// A stage without its service.
struct Stage2 {
    broker: crate::support::Broker,
    worker: Worker,
    _folder: tempfile::TempDir,
}

#[tokio::test]
async fn what_ended_before_a_time_goes_and_its_id_is_neither_reported_on_nor_made_again() {
    let stage = Stage::set().await;
    for task_id in ["done", "canceled", "open"] {
        stage.worker.create(task_id).await;
    }
    let done = full_report("done", "completed");
    stage.worker.report(&done).await;
    let cancel = json!({"task_id": "canceled"});
    stage.worker.ask("tasklatch.task.cancel", &cancel).await;
    let (stage, database) = stopped(stage).await;

    let (code, stdout, stderr) = prune(&database, &[]).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stdout.starts_with("2 tasks") && stdout.contains("--yes"),
        "{stdout}"
    );
    let long_ago = ["ledger", "prune", "--before", "1h", "--yes", "--json"];
    let (code, stdout, _) = tasklatch(&long_ago, &database).await;
    assert_eq!(code, 0);
    assert!(stdout.contains(r#""tasks":0"#), "{stdout}");
    let (code, stdout, stderr) = prune(&database, &["--yes"]).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("pruned 2 tasks"), "{stdout}");
    let (code, stdout, _) = tasklatch(&["ledger", "verify"], &database).await;
    assert_eq!(code, 0, "{stdout}");

    let service = Service::start(&stage.broker, &database, &[]).await;
    for reply in [
        stage.worker.report(&done).await,
        stage.worker.get("done").await,
        stage.worker.ask("tasklatch.task.cancel", &cancel).await,
    ] {
        let error = reply.error();
        assert_eq!(error["code"], json!("task_not_found"), "{error}");
        assert_eq!(error["action"], json!("fix"), "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("was pruned at 20"), "{error}");
    }
    let create = json!({"task_id": "done", "title": "a task"});
    let error = stage
        .worker
        .ask("tasklatch.task.create", &create)
        .await
        .error();
    assert_eq!(error["code"], json!("task_conflict"), "{error}");
    assert_eq!(error["action"], json!("stop"), "{error}");
    assert_eq!(stage.worker.get("nobody").await.code(), "task_not_found");
    assert!(
        !stage
            .worker
            .get("nobody")
            .await
            .error()
            .to_string()
            .contains("pruned"),
        "it was never there"
    );
    let accepted = stage.worker.report(&full_report("open", "failed")).await;
    assert_eq!(accepted.outcome(), Some("accepted"));
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
}

#[tokio::test]
async fn a_pane_whose_newest_task_was_pruned_names_none_and_an_open_one_keeps_what_a_late_retry_is_known_by()
 {
    let stage = Stage::set().await;
    let worker = &stage.worker;
    // All of its tasks ended.
    for task_id in ["a-1", "a-2"] {
        given(worker, task_id, "a").await;
        report(worker, json!({"task_id": task_id}), task_id).await;
    }
    // Its newest ended, and one before it has not.
    given(worker, "b-1", "b").await;
    given(worker, "b-2", "b").await;
    report(worker, json!({"task_id": "b-2"}), "b-2").await;
    // Its newest is open.
    for task_id in ["c-1", "c-2"] {
        given(worker, task_id, "c").await;
        report(worker, json!({"task_id": task_id}), task_id).await;
    }
    given(worker, "c-3", "c").await;
    let (stage, database) = stopped(stage).await;
    let (code, stdout, _) = prune(&database, &["--yes"]).await;
    assert_eq!(code, 0);
    assert!(stdout.starts_with("pruned 3 tasks"), "{stdout}");

    let _service = Service::start(&stage.broker, &database, &[]).await;
    let worker = &stage.worker;
    let by_pane = report(worker, json!({"pane_id": "a"}), "a-2").await;
    assert_eq!(by_pane.code(), "task_not_found");
    worker.get("b-2").await.task();
    let late = report(worker, json!({"pane_id": "c"}), "c-2").await;
    assert_eq!(late.code(), "ambiguous_pane");
    assert_eq!(worker.get("c-1").await.code(), "task_not_found");
    let both = json!({"task_id": "a-2", "pane_id": "a"});
    assert_eq!(report(worker, both, "a-2").await.code(), "task_not_found");
}

#[tokio::test]
async fn a_task_with_an_event_that_waits_or_is_parked_stays_and_what_went_goes_by_no_other_door() {
    let stage = Stage::set().await;
    for task_id in ["waits", "parked", "goes"] {
        stage.worker.create(task_id).await;
        stage
            .worker
            .report(&full_report(task_id, "completed"))
            .await;
    }
    stage.worker.review("waits", "approved").await;
    let (stage, database) = stopped(stage).await;
    let mut outside = Outside::write(&database).await;
    let park = "INSERT INTO parked_events SELECT max(seq), 'task', 'large', 1 FROM revisions JOIN tasks USING (task_key)
                WHERE task_id = 'parked'";
    outside.run(park).await.unwrap();
    // As if the service had been killed before it was published.
    for sql in [
        "DROP TRIGGER cursor_moves_forward",
        "UPDATE ledger SET published_seq = (SELECT max(seq) - 1 FROM revisions JOIN tasks USING (task_key)
         WHERE task_id = 'waits')",
    ] {
        outside.run(sql).await.unwrap();
    }
    outside.close().await;
    let (code, stdout, stderr) = prune(&database, &["--yes"]).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("pruned 1 task"), "{stdout}");

    let mut outside = Outside::write(&database).await;
    let waits = "(SELECT task_key FROM tasks WHERE task_id = 'waits')";
    for (sql, why) in [
        (format!("DELETE FROM results WHERE task_key = {waits}"), "never removed"),
        (format!("DELETE FROM tasks WHERE task_key = {waits}"), "never removed"),
        ("INSERT INTO pruned_tasks VALUES ('last', 1)".to_owned(), "has ended"),
        ("INSERT INTO pruned_tasks VALUES ('nobody', 1)".to_owned(), "has ended"),
        ("UPDATE pruned_tasks SET pruned_at = 1".to_owned(), "never changes"),
        ("DELETE FROM pruned_tasks".to_owned(), "never removed"),
        (
            "INSERT INTO tasks (task_key, lifecycle, revision, updated_at, task_id, created_at, title)
             VALUES (900, 'submitted', 1, 1, 'goes', 1, 'x')"
                .to_owned(),
            "was pruned",
        ),
    ] {
        let error = outside.run(&sql).await.unwrap_err().to_string();
        assert!(error.contains(why), "{sql}: {error}");
    }
    drop(stage);
}

#[tokio::test]
async fn while_a_service_runs_nothing_is_pruned_and_it_is_said_who_holds_the_ledger() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    stage.worker.report(&full_report("t", "completed")).await;
    stage.worker.create("last").await;
    Outside::read(&stage.database())
        .await
        .until_published()
        .await;
    let (code, stdout, _) = prune(&stage.database(), &[]).await;
    assert_eq!(code, 0);
    assert!(stdout.starts_with("1 task"), "{stdout}");
    let (code, _, stderr) = prune(&stage.database(), &["--yes"]).await;
    assert_eq!(code, 2, "{stderr}");
    let holder = format!("process ID {}", stage.service.pid());
    assert!(stderr.contains(&holder), "{stderr}");
    stage.worker.get("t").await.task();
}
