//! The rules of a task hold in the file itself, against hands that know only SQL.

use serde_json::{Value, json};

use crate::support::{Outside, Stage, full_report};

/// Everything in the file that a task is made of.
async fn rows(outside: &mut Outside) -> Vec<String> {
    let tasks = outside
        .texts(
            "SELECT json_array(task_key, lifecycle, revision, updated_at, task_id, pane_id, deadline, created_at, title,
                    metadata, reason, verdict, note, reviewer, reviewed_at) FROM tasks ORDER BY task_key",
        )
        .await;
    let results = outside
        .texts(
            "SELECT json_array(task_key, status, reported_at, summary, artifacts, evidence)
             FROM results ORDER BY task_key",
        )
        .await;
    tasks.into_iter().chain(results).collect()
}

/// A ledger at rest with a task in each state, open to SQL.
async fn file_with_each_state() -> (Stage, Outside) {
    let stage = Stage::set().await;
    let worker = &stage.worker;
    for task_id in ["open", "working", "done", "reviewed", "canceled"] {
        worker
            .create_with(json!({"task_id": task_id, "title": task_id, "metadata": {"a": 1}}))
            .await;
    }
    worker
        .ask("tasklatch.task.start", &json!({"task_id": "working"}))
        .await
        .task();
    worker
        .report(&full_report("done", "completed"))
        .await
        .task();
    worker
        .report(&full_report("reviewed", "failed"))
        .await
        .task();
    let review = json!({"task_id": "reviewed", "verdict": "rework", "note": "again"});
    worker.ask("tasklatch.task.review", &review).await.task();
    let cancel = json!({"task_id": "canceled", "reason": "no longer needed"});
    worker.ask("tasklatch.task.cancel", &cancel).await.task();
    let outside = Outside::write(&stage.database()).await;
    (stage, outside)
}

/// Runs each statement, which must fail with this part in its message and change nothing.
async fn all_refused(outside: &mut Outside, statements: &[(&str, &str)]) {
    let before = rows(outside).await;
    let mut let_through = Vec::new();
    for (sql, why) in statements {
        outside.run("BEGIN").await.unwrap();
        match outside.run(sql).await {
            Err(error) => assert!(error.to_string().contains(why), "{sql}: {error}"),
            Ok(changed) => let_through.push(format!("{sql}: {changed} rows")),
        }
        // Some faults have rolled the transaction back already.
        let _ = outside.run("ROLLBACK").await;
        assert_eq!(rows(outside).await, before, "{sql}");
    }
    assert!(let_through.is_empty(), "not refused: {let_through:#?}");
}

const OF: &str = "(SELECT task_key FROM tasks WHERE task_id = 'done')";

#[tokio::test]
async fn a_result_is_neither_updated_nor_deleted_nor_replaced_by_sql() {
    let (_stage, mut outside) = file_with_each_state().await;
    let row = "SELECT task_key, 'failed', reported_at, 'other', artifacts, evidence FROM results";
    let statements = [
        (
            "UPDATE results SET summary = 'other'".to_owned(),
            "never changed",
        ),
        (
            format!("UPDATE results SET task_key = 1 WHERE task_key = {OF}"),
            "never changed",
        ),
        (
            "UPDATE OR REPLACE results SET status = 'failed'".to_owned(),
            "never changed",
        ),
        (
            "UPDATE OR IGNORE results SET summary = summary".to_owned(),
            "never changed",
        ),
        ("DELETE FROM results".to_owned(), "never removed"),
        (format!("INSERT INTO results {row}"), "has its result"),
        (
            format!("INSERT OR REPLACE INTO results {row}"),
            "has its result",
        ),
        (format!("REPLACE INTO results {row}"), "has its result"),
        (
            format!(
                "INSERT INTO results {row} WHERE TRUE ON CONFLICT (task_key) DO UPDATE SET summary = 'other'"
            ),
            "has its result",
        ),
    ];
    let statements: Vec<_> = statements
        .iter()
        .map(|(sql, why)| (sql.as_str(), *why))
        .collect();
    all_refused(&mut outside, &statements).await;
    outside.run("PRAGMA recursive_triggers = on").await.unwrap();
    all_refused(&mut outside, &statements).await;
}

#[tokio::test]
async fn a_terminal_state_is_not_left_and_a_task_moves_only_forward_by_sql() {
    let (_stage, mut outside) = file_with_each_state().await;
    let next = "revision = revision + 1";
    let mut statements = Vec::new();
    for ended in ["done", "reviewed", "canceled"] {
        for to in ["submitted", "working", "rejected", "expired"] {
            let sql = format!(
                "UPDATE tasks SET lifecycle = '{to}', {next}, verdict = NULL, note = NULL, reviewed_at = NULL, reason = NULL WHERE task_id = '{ended}'"
            );
            let why = if to == "rejected" {
                "needs the result"
            } else {
                "terminal state"
            };
            statements.push((sql, why));
        }
    }
    for to in ["completed", "failed", "rejected"] {
        let sql = format!("UPDATE tasks SET lifecycle = '{to}', {next} WHERE task_id = 'open'");
        statements.push((sql, "needs the result"));
    }
    for back in [
        "revision = revision - 1",
        "revision = revision",
        "revision = 0",
        "revision = revision + 1, updated_at = updated_at - 1",
    ] {
        statements.push((
            format!("UPDATE tasks SET {back} WHERE task_id = 'working'"),
            "moves forward",
        ));
    }
    for fixed in [
        "task_id = 'x'",
        "pane_id = 'x'",
        "title = 'x'",
        "metadata = '{}'",
        "metadata = NULL",
        "deadline = created_at + 1",
        "created_at = created_at - 1",
        "task_key = 99",
    ] {
        let sql = format!("UPDATE tasks SET {fixed}, {next} WHERE task_id = 'working'");
        statements.push((sql, "was created with"));
    }
    let statements: Vec<_> = statements
        .iter()
        .map(|(sql, why)| (sql.as_str(), *why))
        .collect();
    all_refused(&mut outside, &statements).await;
}

#[tokio::test]
async fn a_task_with_its_end_is_neither_replaced_nor_deleted_by_sql() {
    let (_stage, mut outside) = file_with_each_state().await;
    let reopened = "(task_id, lifecycle, revision, updated_at, created_at, title)
                    SELECT task_id, 'submitted', 1, updated_at, created_at, title FROM tasks WHERE task_id = 'done'";
    let same_key = "(task_key, task_id, lifecycle, revision, updated_at, created_at, title)
                    SELECT task_key, task_id, 'submitted', 1, updated_at, created_at, title FROM tasks WHERE task_id = 'done'";
    let statements = [
        format!("REPLACE INTO tasks {reopened}"),
        format!("INSERT OR REPLACE INTO tasks {same_key}"),
        "UPDATE OR REPLACE tasks SET task_id = 'done', revision = revision + 1 WHERE task_id = 'open'".to_owned(),
        "DELETE FROM tasks WHERE task_id = 'done'".to_owned(),
        "DELETE FROM tasks WHERE task_id = 'canceled'".to_owned(),
    ];
    let statements: Vec<_> = statements.iter().map(|sql| (sql.as_str(), "")).collect();
    all_refused(&mut outside, &statements).await;
}

#[tokio::test]
async fn a_row_that_no_task_can_be_is_refused_by_sql() {
    let (_stage, mut outside) = file_with_each_state().await;
    let task = |task_id: &str, more: &str, values: &str| {
        format!(
            "INSERT INTO tasks (task_id, lifecycle, revision, created_at, updated_at, title{more})
             VALUES ('{task_id}', {values})"
        )
    };
    let open = "'submitted', 1, 10, 10, 'a title'";
    let long = "x".repeat(129);
    let mut statements = Vec::new();
    for bad in ["", "a.b", "a b", "a*", "ümlaut", "a/b", ">", long.as_str()] {
        statements.push(task(bad, "", open));
    }
    statements.extend([
        task("done", "", open),
        task("a\0b", "", open),
        task("n1", "", "'paused', 1, 10, 10, 'a title'"),
        task("n2", "", "'submitted', 0, 10, 10, 'a title'"),
        task("n16", "", "'completed', 1, 10, 10, 'a title'"),
        task("n3", "", "'submitted', 1, 10, 9, 'a title'"),
        task("n4", "", "'submitted', 1, 10, 10, ''"),
        task("n5", "", "'submitted', 1, 10, 10, NULL"),
        task("n6", "", "'submitted', 1, 10, 'soon', 'a title'"),
        task(
            "n7",
            ", reason",
            "'submitted', 1, 10, 10, 'a title', 'no reason to have one'",
        ),
        task(
            "n8",
            ", reason",
            "'expired', 1, 10, 10, 'a title', 'no reason to have one'",
        ),
        task("n9", ", deadline", "'submitted', 1, 10, 10, 'a title', 10"),
        task(
            "n10",
            ", verdict, reviewed_at",
            "'submitted', 1, 10, 10, 'a title', 'approved', 10",
        ),
        task(
            "n11",
            ", verdict, reviewed_at",
            "'canceled', 1, 10, 10, 'a title', 'approved', 10",
        ),
        task(
            "n12",
            ", verdict",
            "'completed', 1, 10, 10, 'a title', 'approved'",
        ),
        task(
            "n13",
            ", verdict, reviewed_at",
            "'completed', 1, 10, 10, 'a title', 'fine', 10",
        ),
        task(
            "n14",
            ", note",
            "'completed', 1, 10, 10, 'a title', 'a note without a verdict'",
        ),
        task(
            "n15",
            ", metadata",
            &format!("{open}, '{}'", "x".repeat(65_537)),
        ),
    ]);
    for values in [
        "'submitted', 10, 'a summary', '[]', '{}'",
        "'canceled', 10, 'a summary', '[]', '{}'",
        "'completed', 10, '', '[]', '{}'",
        "'completed', 10, NULL, '[]', '{}'",
        "'completed', 10, 'a summary', NULL, '{}'",
        "'completed', 10, 'a summary', '[]', ''",
        "'completed', NULL, 'a summary', '[]', '{}'",
    ] {
        statements.push(format!(
            "INSERT INTO results (task_key, status, reported_at, summary, artifacts, evidence)
             SELECT task_key, {values} FROM tasks WHERE task_id = 'open'"
        ));
    }
    statements
        .push("INSERT INTO ledger (only_row, ledger_id, created_at) VALUES (2, 'x', 1)".to_owned());
    let statements: Vec<_> = statements.iter().map(|sql| (sql.as_str(), "")).collect();
    all_refused(&mut outside, &statements).await;
}

#[tokio::test]
async fn a_report_that_a_constraint_refuses_is_an_internal_fault_never_a_replay_and_harms_no_other_of_its_batch()
 {
    let stage = Stage::set().await;
    let mut outside = Outside::write(&stage.database()).await;
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON results WHEN NEW.summary = 'refuse me'
                   BEGIN SELECT RAISE(ABORT, 'refused by the test'); END";
    outside.run(trigger).await.unwrap();
    let task_ids: Vec<_> = (0..20).map(|number| format!("t-{number}")).collect();
    for task_id in &task_ids {
        stage.worker.create(task_id).await;
    }
    let summary = |number| {
        if number == 7 {
            "refuse me"
        } else {
            "well done"
        }
    };
    let report = |number: usize| json!({"task_id": task_ids[number], "status": "completed", "summary": summary(number)});
    let mut observer = stage.observer_from_now().await;
    // While the lock is held, all of them come to wait together.
    outside.hold().await;
    let mut burst = crate::support::Burst::open(&stage.worker).await;
    for number in 0..20 {
        burst
            .send("tasklatch.report", report(number).to_string())
            .await;
    }
    stage.worker.get("nobody").await;
    outside.release().await;
    for (number, reply) in burst.finish().await.iter().enumerate() {
        if number == 7 {
            let error = reply.error();
            assert_eq!(
                (&error["code"], &error["action"]),
                (&json!("internal"), &json!("retry"))
            );
            assert!(
                !error.to_string().contains("refused by the test"),
                "detail is for the log: {error}"
            );
        } else {
            assert_eq!(reply.outcome(), Some("accepted"), "report {number}");
        }
    }
    assert_eq!(
        stage.worker.get("t-7").await.task()["lifecycle"],
        json!("submitted")
    );
    let ids = observer.ids_so_far().await;
    assert_eq!(ids.len(), 2 * 19, "{ids:?}");
    assert!(!ids.iter().any(|id| id.starts_with("t-7.")), "{ids:?}");

    outside.run("DROP TRIGGER refuse").await.unwrap();
    assert_eq!(
        stage.worker.report(&report(7)).await.outcome(),
        Some("accepted")
    );
    assert_eq!(observer.ids_so_far().await, ["t-7.2.result", "t-7.2.task"]);
}

#[tokio::test]
async fn a_clock_that_was_set_back_never_moves_the_times_of_a_task_backwards() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    // As a service wrote it whose clock was an hour and ten years ahead.
    let mut outside = Outside::write(&stage.database()).await;
    let ahead =
        "UPDATE tasks SET updated_at = updated_at + 319000000000000, revision = revision + 1";
    outside.run(ahead).await.unwrap();
    let before = stage.worker.get("t").await.task();
    let micros = outside.number("SELECT updated_at FROM tasks").await;

    let accepted = stage.worker.report(&full_report("t", "completed")).await;
    let task: Value = accepted.task();
    assert_eq!(task["revision"], json!(3));
    assert_eq!(task["updated_at"], before["updated_at"]);
    assert_eq!(task["result"]["reported_at"], before["updated_at"]);
    assert_eq!(outside.number("SELECT updated_at FROM tasks").await, micros);
    let again = stage.worker.report(&full_report("t", "completed")).await;
    assert_eq!(
        (again.outcome(), &again.body),
        (Some("replayed"), &accepted.body)
    );
}
