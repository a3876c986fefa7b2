//! Which files are opened, by how many at once, and what a refusal leaves behind.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Output;

use sha2::{Digest, Sha256};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{ConnectOptions, Connection};

use crate::support::{BINARY, Broker, Outside, Service, Stage, Worker, eventually};

async fn refusal(broker: &Broker, database: &Path) -> String {
    refusal_by(&[], broker, database).await
}

/// Starts a service that must refuse to start, and gives what it says.
async fn refusal_by(wrapper: &[&str], broker: &Broker, database: &Path) -> String {
    match Service::try_start_by(wrapper, &broker.url(), database, &[]).await {
        Ok(_) => panic!("a service started on {}", database.display()),
        Err(Output { status, stderr, .. }) => {
            let text = String::from_utf8_lossy(&stderr).into_owned();
            assert_eq!(status.code(), Some(1), "{text}");
            text
        }
    }
}

/// All files of a folder with the hash of their bytes, other than locks.
fn files_in(folder: &Path) -> BTreeMap<OsString, String> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let no_locks = files.filter(|entry| entry.path().extension().is_none_or(|end| end != "lock"));
    let hash = |path| hex::encode(Sha256::digest(std::fs::read(path).unwrap()));
    no_locks
        .map(|entry| (entry.file_name(), hash(entry.path())))
        .collect()
}

#[tokio::test]
async fn a_second_service_on_the_same_file_refuses_to_start_and_says_who_holds_it_by_any_name_of_the_file()
 {
    let mut stage = Stage::set().await;
    let links = tempfile::tempdir().unwrap();
    symlink(stage.database(), links.path().join("link.db")).unwrap();
    symlink(stage.folder.path(), links.path().join("folder")).unwrap();
    let holder = format!("process ID {}", stage.service.pid());
    for name in [
        stage.database(),
        links.path().join("link.db"),
        links.path().join("folder/ledger.db"),
        links.path().join("./link.db"),
        stage.folder.path().join(".").join("ledger.db"),
    ] {
        let text = refusal(&stage.broker, &name).await;
        assert!(text.contains(&holder), "{}: {text}", name.display());
    }
    stage.worker.create("still-served").await;

    stage.service.kill().await;
    let by_link = links.path().join("link.db");
    stage.service = Service::start(&stage.broker, &by_link, &[]).await;
    stage.worker.get("still-served").await.task();
    let holder = format!("process ID {}", stage.service.pid());
    let text = refusal(&stage.broker, &stage.database()).await;
    assert!(text.contains(&holder), "{text}");
}

#[tokio::test]
async fn a_database_from_a_newer_version_refuses_to_open_and_is_left_as_it_was() {
    let stage = Stage::set().await;
    let database = stage.database();
    stage.worker.create("t").await;
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    let mut outside = Outside::write(&database).await;
    outside
        .run(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (9999, 'of a later version', TRUE, x'00', 1)",
        )
        .await
        .unwrap();
    outside.close().await;
    let before = files_in(stage.folder.path());

    let text = refusal(&stage.broker, &database).await;
    assert!(text.contains("newer") && text.contains("9999"), "{text}");
    assert_eq!(files_in(stage.folder.path()), before);

    // Take the row out again, and it is a ledger of this version.
    let mut outside = Outside::write(&database).await;
    outside
        .run("DELETE FROM _sqlx_migrations WHERE version = 9999")
        .await
        .unwrap();
    outside.close().await;
    let _service = Service::start(&stage.broker, &database, &[]).await;
    stage.worker.get("t").await.task();
}

#[tokio::test]
async fn a_file_that_is_no_ledger_is_refused_and_left_alone() {
    let broker = Broker::start().await;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, mode) in [
        ("other.db", SqliteJournalMode::Delete),
        ("other-wal.db", SqliteJournalMode::Wal),
    ] {
        let options = SqliteConnectOptions::new()
            .filename(at(name))
            .create_if_missing(true)
            .journal_mode(mode);
        let mut other = options.connect().await.unwrap();
        sqlx::query("CREATE TABLE notes (text TEXT)")
            .execute(&mut other)
            .await
            .unwrap();
        sqlx::query("INSERT INTO notes VALUES ('mine')")
            .execute(&mut other)
            .await
            .unwrap();
        other.close().await.unwrap();
    }
    std::fs::write(
        at("text.db"),
        "a text, and no database at all\n".repeat(200),
    )
    .unwrap();
    std::fs::write(at("short.db"), "x").unwrap();
    std::fs::write(at("nul.db"), vec![0; 8192]).unwrap();
    std::fs::create_dir(at("folder.db")).unwrap();
    let before = files_in(folder.path());
    for name in [
        "other.db",
        "other-wal.db",
        "text.db",
        "short.db",
        "nul.db",
        "folder.db",
    ] {
        let text = refusal(&broker, &at(name)).await;
        assert!(text.contains(name), "the message names the file: {text}");
        assert_eq!(files_in(folder.path()), before, "after {name}");
    }
    let text = refusal(&broker, &at("missing/ledger.db")).await;
    assert!(text.contains("missing"), "{text}");
    assert!(!at("missing").exists());
}

#[tokio::test]
async fn a_file_without_permissions_is_refused_and_left_alone() {
    let stage = Stage::set().await;
    let database = stage.database();
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    let before = std::fs::read(&database).unwrap();
    std::fs::set_permissions(&database, PermissionsExt::from_mode(0o000)).unwrap();
    // Root may read everything; without its powers, in a user namespace of its own, it may not.
    let wrapper: &[&str] = if std::fs::read(&database).is_ok() {
        &["unshare", "-U"]
    } else {
        &[]
    };
    let text = refusal_by(wrapper, &stage.broker, &database).await;
    assert!(
        text.contains("ledger.db"),
        "the message names the file: {text}"
    );
    assert!(text.contains("ermission"), "the message says why: {text}");

    std::fs::set_permissions(&database, PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(std::fs::read(&database).unwrap(), before);
    let _service = Service::start(&stage.broker, &database, &[]).await;
}

#[tokio::test]
async fn a_file_of_somebody_else_that_is_called_like_the_lock_is_not_overwritten() {
    let broker = Broker::start().await;
    let folder = tempfile::tempdir().unwrap();
    // `serve --database Cargo` beside a Cargo.lock.
    let theirs = folder.path().join("Cargo.lock");
    std::fs::write(&theirs, "version = 4\n").unwrap();
    let database = folder.path().join("Cargo");
    let started = Service::try_start(&broker.url(), &database, &[]).await;
    assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "version = 4\n");
    drop(started);
}

#[tokio::test]
async fn a_first_start_that_was_killed_early_leaves_a_file_that_the_next_start_can_use() {
    let broker = Broker::start().await;
    for sign in [
        "ledger.db.lock",
        "ledger.db",
        "ledger.db",
        "ledger.db",
        "ledger.db-wal",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("ledger.db");
        let mut first = tokio::process::Command::new(BINARY)
            .args([
                "serve",
                "--http",
                "off",
                "--events",
                "core",
                "--nats-url",
                &broker.url(),
                "--database",
            ])
            .arg(&database)
            .stderr(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let at = folder.path().join(sign);
        eventually("the first start has come to it", async || {
            at.exists().then_some(())
        })
        .await;
        first.kill().await.unwrap();
        let mut service = Service::start(&broker, &database, &[]).await;
        Worker::connect(&broker).await.create("t").await;
        service.kill().await;
    }
    // A file that was made and never written.
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("ledger.db");
    std::fs::write(&database, "").unwrap();
    let _service = Service::start(&broker, &database, &[]).await;
}

#[tokio::test]
async fn a_first_start_that_was_killed_before_the_file_had_its_log_leaves_a_journal_that_the_next_start_rolls_back()
 {
    let broker = Broker::start().await;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // A database without a table, and half of a transaction on it, as `kill -9` leaves them.
    let options = SqliteConnectOptions::new()
        .filename(at("begun.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Delete);
    let mut begun = Outside {
        connection: options.connect().await.unwrap(),
    };
    for sql in [
        "CREATE TABLE t (a)",
        "DROP TABLE t",
        "PRAGMA cache_size = 5",
        "BEGIN",
        "CREATE TABLE t (a)",
        "INSERT INTO t SELECT randomblob(3000) FROM (VALUES (1), (2), (3), (4)), (VALUES (1), (2), (3), (4))",
    ] {
        begun.run(sql).await.unwrap();
    }
    std::fs::copy(at("begun.db"), at("ledger.db")).unwrap();
    std::fs::copy(at("begun.db-journal"), at("ledger.db-journal")).unwrap();
    let _service = Service::start(&broker, &at("ledger.db"), &[]).await;
    Worker::connect(&broker).await.create("t").await;
}
