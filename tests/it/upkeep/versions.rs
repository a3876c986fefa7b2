//! Ledgers of earlier versions, and of later ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::tasklatch;
use crate::support::{Broker, EventStream, Outside, Service, Worker, full_report, stage};

/// The files of all migrations, in their order.
fn migrations() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// A task in each state, by plain SQL of the first schema, as a version of then left it: the cursor is behind, at 4 of 8.
fn rows() -> Vec<String> {
    let mut rows = vec![
        "INSERT INTO ledger (only_row, ledger_id, created_at, published_seq) VALUES (1, 'of-old', 1000, 0)".to_owned(),
    ];
    let mut seq = 0;
    for ((lifecycle, more), key) in [
        ("submitted", "NULL, NULL, NULL, NULL, NULL, NULL"),
        ("working", "32503680000000000, NULL, NULL, NULL, NULL, NULL"),
        ("completed", "NULL, NULL, NULL, NULL, NULL, NULL"),
        ("failed", "NULL, NULL, 'rework', 'once more', 'ann', 3000"),
        ("rejected", "NULL, NULL, NULL, NULL, NULL, NULL"),
        ("canceled", "NULL, 'not needed', NULL, NULL, NULL, NULL"),
        ("expired", "2000, NULL, NULL, NULL, NULL, NULL"),
    ]
    .into_iter()
    .zip(1..)
    {
        if ["completed", "failed", "rejected"].contains(&lifecycle) {
            let report = full_report("", lifecycle);
            rows.push(format!(
                "INSERT INTO results (task_key, status, reported_at, summary, artifacts, evidence)
                 VALUES ({key}, '{lifecycle}', 2000, '{}', '{}', '{}')",
                report["summary"].as_str().unwrap(),
                report["artifacts"],
                report["evidence"],
            ));
        }
        let reviewed = lifecycle == "failed";
        let (revision, updated_at) = match lifecycle {
            "submitted" => (1, 1000),
            "failed" => (3, 3000),
            _ => (2, 2000),
        };
        rows.push(format!(
            "INSERT INTO tasks (task_key, task_id, lifecycle, revision, updated_at, created_at, title, metadata, pane_id,
                 deadline, reason, verdict, note, reviewer, reviewed_at)
             VALUES ({key}, 't-{lifecycle}', '{lifecycle}', {revision}, {updated_at}, 1000, 'a task', '{{\"n\":1.50}}', 'p-{key}', {more})"
        ));
        seq += 1;
        rows.push(format!(
            "INSERT INTO revisions (seq, task_key, revision, lifecycle, updated_at)
             VALUES ({seq}, {key}, {}, '{lifecycle}', {})",
            if reviewed { 2 } else { revision },
            updated_at.min(2000),
        ));
        if reviewed {
            seq += 1;
            rows.push(format!(
                "INSERT INTO revisions VALUES ({seq}, {key}, 3, 'failed', 3000, 'rework', 'once more', 'ann', 3000)"
            ));
        }
    }
    rows.push("UPDATE ledger SET published_seq = 4".to_owned());
    rows
}

/// A database as the version left it that knew the first `count` migrations.
async fn ledger_of(count: usize, folder: &Path) -> PathBuf {
    let some = tempfile::tempdir().unwrap();
    for file in &migrations()[..count] {
        std::fs::copy(file, some.path().join(file.file_name().unwrap())).unwrap();
    }
    let database = folder.join(format!("of-{count}.db"));
    let mut connection = SqliteConnectOptions::new()
        .filename(&database)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .foreign_keys(false)
        .connect()
        .await
        .unwrap();
    let migrator = Migrator::new(some.path()).await.unwrap();
    migrator.run(&mut connection).await.unwrap();
    for row in rows() {
        let done = sqlx::query(AssertSqlSafe(row.clone())).execute(&mut connection);
        done.await.unwrap_or_else(|error| panic!("{error}: {row}"));
    }
    connection.close().await.unwrap();
    database
}

const STATES: [&str; 7] = [
    "submitted",
    "working",
    "completed",
    "failed",
    "rejected",
    "canceled",
    "expired",
];

#[tokio::test]
async fn a_ledger_of_each_earlier_schema_is_brought_up_to_date_with_its_tasks_its_retries_and_its_events()
 {
    for count in 1..=migrations().len() {
        let folder = tempfile::tempdir().unwrap();
        let database = ledger_of(count, folder.path()).await;
        let broker = Broker::start_with_jetstream().await;
        let options = ["--events", "jetstream"];
        let service = Service::start(&broker, &database, &options).await;
        let worker = Worker::connect(&broker).await;
        let mut tasks = BTreeMap::new();
        for state in STATES {
            let task = worker.get(&format!("t-{state}")).await.task();
            assert_eq!(task["lifecycle"], json!(state), "of schema {count}");
            assert_eq!(task["metadata"].to_string(), r#"{"n":1.5}"#);
            let ended = ["completed", "failed", "rejected"].contains(&state);
            assert_eq!(task["result"].is_object(), ended, "{task}");
            tasks.insert(state, task);
        }
        assert_eq!(tasks["failed"]["disposition"]["note"], json!("once more"));
        assert_eq!(tasks["canceled"]["reason"], json!("not needed"));
        assert_eq!(
            tasks["submitted"]["created_at"],
            json!("1970-01-01T00:00:00.001000Z")
        );
        for state in ["completed", "failed", "rejected"] {
            let again = worker
                .report(&full_report(&format!("t-{state}"), state))
                .await;
            assert_eq!(again.outcome(), Some("replayed"), "of schema {count}");
            assert_eq!(again.task(), tasks[state]);
        }
        let report = full_report("t-working", "completed");
        assert_eq!(worker.report(&report).await.outcome(), Some("accepted"));
        // What had not been published is, and what had been is not.
        let stream = EventStream::of(&broker).await;
        stream.until(7).await;
        assert_eq!(
            stream.ids().await,
            [
                "t-failed.3.task",
                "t-rejected.2.result",
                "t-rejected.2.task",
                "t-canceled.2.task",
                "t-expired.2.task",
                "t-working.3.result",
                "t-working.3.task",
            ]
            .map(str::to_owned),
        );
        let (code, stdout, stderr) = tasklatch(&["ledger", "verify"], &database).await;
        assert_eq!(code, 0, "of schema {count}: {stdout}{stderr}");
        let (status, log) = service.stop().await;
        assert!(status.success(), "{log}");
    }
}

async fn schema(database: &Path) -> i64 {
    let mut outside = Outside::read(database).await;
    let schema = "SELECT max(version) FROM _sqlx_migrations";
    outside.number(schema).await
}

#[tokio::test]
async fn an_upgrade_that_fails_in_a_later_step_leaves_the_schema_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let database = ledger_of(1, folder.path()).await;
    let mut outside = Outside::write(&database).await;
    outside
        .run("CREATE TABLE pruned_tasks (mine TEXT)")
        .await
        .unwrap();
    let broker = Broker::start().await;
    let Err(output) = Service::try_start(&broker.url(), &database, &[]).await else {
        panic!("it started");
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("bring the database"), "{text}");
    assert_eq!(schema(&database).await, 1, "the steps before are undone");
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'parked_events'";
    assert_eq!(outside.number(tables).await, 0);
    outside.run("DROP TABLE pruned_tasks").await.unwrap();
    outside.close().await;
    let _service = Service::start(&broker, &database, &[]).await;
    let worker = Worker::connect(&broker).await;
    worker.get("t-completed").await.task();
}

#[tokio::test]
async fn the_commands_beside_a_service_refuse_a_ledger_of_an_earlier_or_later_schema_and_say_what_to_do()
 {
    let folder = tempfile::tempdir().unwrap();
    let database = ledger_of(1, folder.path()).await;
    let file = folder.path().join("backup.db");
    let backup = ["ledger", "backup", file.to_str().unwrap()];
    let prune = ["ledger", "prune", "--before", "1s", "--yes"];
    for words in [&backup[..], &prune] {
        let (code, _, stderr) = tasklatch(words, &database).await;
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains("older tasklatch"), "{stderr}");
    }
    let mut outside = Outside::write(&database).await;
    let later =
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (9999, 'of a later version', TRUE, x'00', 1)";
    outside.run(later).await.unwrap();
    outside.close().await;
    for words in [&backup[..], &prune] {
        let (code, _, stderr) = tasklatch(words, &database).await;
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains("newer tasklatch"), "{stderr}");
    }
    assert!(!file.exists());
}

#[tokio::test]
async fn the_way_back_is_a_backup_from_before_the_upgrade_or_a_snapshot_from_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let database = ledger_of(1, folder.path()).await;
    // A copy of a ledger at rest is whole; it stands for the backup that the earlier version made.
    let before = folder.path().join("before.db");
    std::fs::copy(&database, &before).unwrap();
    let broker = Broker::start().await;
    let service = Service::start(&broker, &database, &[]).await;
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
    assert!(schema(&database).await > 1);
    assert_eq!(schema(&before).await, 1);
    // The lines of a snapshot say nothing of the schema, and its first line is the one that all versions know.
    let snapshot = folder.path().join("snapshot");
    stage::save(&snapshot, &database).await;
    let text = std::fs::read_to_string(&snapshot).unwrap();
    let head: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(head["tasklatch_snapshot"], json!(1));
    let keys: Vec<&String> = head.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["created_at", "ledger_id", "tasklatch_snapshot"]);
}
