//! Files of every schema since the first, filled by plain SQL, are opened by this program.

use std::path::Path;

use serde_json::json;
use sqlx::migrate::Migrator;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use crate::support::{Broker, Observer, Outside, Service, Worker, full_report, stage};

static MIGRATOR: Migrator = sqlx::migrate!("./migrations");

/// A task in every state, made 1 s after 1970 and moved a second later, with its changes, of which none is published. Only
/// columns of the first schema are named.
const ROWS: &str = r#"
    BEGIN;
    INSERT INTO ledger (only_row, ledger_id, created_at) VALUES (1, 'of-an-older-program', 1000000);
    INSERT INTO results (task_key, status, reported_at, summary, artifacts, evidence)
        SELECT column1, column2, 2000000, 'Fixed; the clock was read twice', '["branch:fix/login","pr:118"]',
            '{"tests":{"passed":214,"failed":0}}'
        FROM (VALUES (3, 'completed'), (4, 'failed'), (5, 'rejected'));
    INSERT INTO tasks (task_key, lifecycle, revision, updated_at, task_id, created_at, title, reason, deadline)
        SELECT column1, column2, iif(column1 = 1, 1, 2), iif(column1 = 1, 1000000, 2000000), column2, 1000000, 'a task',
            iif(column2 = 'canceled', 'not needed', NULL), iif(column2 = 'expired', 1500000, NULL)
        FROM (VALUES (1, 'submitted'), (2, 'working'), (3, 'completed'), (4, 'failed'), (5, 'rejected'), (6, 'canceled'),
            (7, 'expired'));
    INSERT INTO revisions (seq, task_key, revision, lifecycle, updated_at)
        SELECT task_key, task_key, 1, 'submitted', 1000000 FROM tasks ORDER BY task_key;
    INSERT INTO revisions (seq, task_key, revision, lifecycle, updated_at)
        SELECT task_key + 10, task_key, 2, lifecycle, 2000000 FROM tasks WHERE task_key > 1 ORDER BY task_key;
    COMMIT;
"#;

const STATES: [&str; 7] = [
    "submitted",
    "working",
    "completed",
    "failed",
    "rejected",
    "canceled",
    "expired",
];

const REPORTED: [&str; 3] = ["completed", "failed", "rejected"];

/// Makes the file that a program of a schema left behind.
async fn make_file_of_schema(version: i64, database: &Path) {
    let mut connection = SqliteConnectOptions::new()
        .filename(database)
        .create_if_missing(true)
        .connect()
        .await
        .unwrap();
    MIGRATOR.run_to(version, &mut connection).await.unwrap();
    sqlx::raw_sql(ROWS).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_file_of_every_schema_since_the_first_is_brought_up_to_date_with_all_that_it_holds() {
    let versions: Vec<i64> = MIGRATOR.iter().map(|one| one.version).collect();
    assert_eq!(versions.first(), Some(&1));
    for &version in &versions {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("ledger.db");
        make_file_of_schema(version, &database).await;
        let broker = Broker::start().await;
        let mut observer = Observer::watch(&broker).await;
        let service = Service::start(&broker, &database, &[]).await;
        let worker = Worker::connect(&broker).await;

        for state in STATES {
            let task = worker.get(state).await.task();
            assert_eq!(task["lifecycle"], state, "schema {version}");
        }
        for state in REPORTED {
            let retry = worker.report(&full_report(state, state)).await;
            assert_eq!(
                retry.outcome(),
                Some("replayed"),
                "schema {version}: {state}"
            );
            let mut other = full_report(state, state);
            other["summary"] = json!("something else");
            let refused = worker.report(&other).await;
            assert_eq!(
                refused.code(),
                "result_conflict",
                "schema {version}: {state}"
            );
        }
        let events = observer.all_so_far().await;
        let mut subjects: Vec<&str> = events.iter().map(|event| event.subject.as_str()).collect();
        subjects.sort_unstable();
        let results = REPORTED.map(|state| format!("tasklatch.event.result.{state}"));
        let tasks = STATES.map(|state| format!("tasklatch.event.task.{state}"));
        // Each was created, all but the first were moved on, and three have results.
        let all = tasks.iter().chain(&tasks[1..]).chain(&results);
        let mut expected: Vec<&str> = all.map(String::as_str).collect();
        expected.sort_unstable();
        assert_eq!(subjects, expected, "schema {version}");

        let verify = ["ledger", "verify", "--database", database.to_str().unwrap()];
        let output = stage::run(&verify).await;
        assert!(output.status.success(), "schema {version}: {output:?}");
        let (status, log) = service.stop().await;
        assert!(status.success(), "schema {version}: {log}");
        let mut outside = Outside::read(&database).await;
        let newest = "SELECT max(version) FROM _sqlx_migrations WHERE success";
        assert_eq!(Some(&outside.number(newest).await), versions.last());
        outside.close().await;
    }
}
