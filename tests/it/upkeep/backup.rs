//! `ledger backup`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::tasklatch;
use crate::support::{
    Broker, DEADLINE, EventStream, Outside, Service, Stage, Worker, eventually, full_report,
};

async fn back_up(database: &Path, file: &Path) -> (i32, String, String) {
    tasklatch(&["ledger", "backup", file.to_str().unwrap()], database).await
}

/// What is in a folder, by name.
fn names(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_backup_made_under_load_each_report_that_was_answered_before_it_began_is_a_replay() {
    let stage = Stage::set().await;
    let answered = Arc::new(Mutex::new(Vec::new()));
    let done = Arc::new(Semaphore::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for name in 0..8 {
        let worker = Worker::connect(&stage.broker).await;
        let (answered, done) = (answered.clone(), done.clone());
        workers.spawn(async move {
            for number in 0.. {
                let task_id = format!("t-{name}-{number}");
                worker.create(&task_id).await;
                let reply = worker.report(&full_report(&task_id, "completed")).await;
                assert_eq!(reply.outcome(), Some("accepted"), "{task_id}");
                answered.lock().unwrap().push((task_id, reply.body));
                done.add_permits(1);
            }
        });
    }
    let more = async |count| {
        let reported = timeout(DEADLINE, done.acquire_many(count)).await;
        reported.expect("reports are accepted").unwrap().forget();
    };
    more(200).await;
    let before = answered.lock().unwrap().clone();
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("backup.db");
    let (code, stdout, stderr) = back_up(&stage.database(), &file).await;
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("all rules hold"), "{stdout}");
    // The load went on.
    more(40).await;
    workers.shutdown().await;
    assert_eq!(
        names(elsewhere.path()),
        std::slice::from_ref(&file),
        "nothing else is left"
    );
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
    assert_eq!(mode(&file), mode(&stage.database()));

    let broker = Broker::start().await;
    let service = Service::start(&broker, &file, &[]).await;
    let worker = Worker::connect(&broker).await;
    for (task_id, body) in &before {
        let again = worker.report(&full_report(task_id, "completed")).await;
        assert_eq!(
            (again.outcome(), &again.body),
            (Some("replayed"), body),
            "{task_id}"
        );
    }
    let texts = "SELECT ledger_id FROM ledger";
    let mut copy = Outside::read(&file).await;
    let mut original = Outside::read(&stage.database()).await;
    assert_eq!(copy.texts(texts).await, original.texts(texts).await);
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
}

#[tokio::test]
async fn a_backup_replaces_no_file_and_leaves_nothing_where_it_cannot_be_made() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("there.db");
    std::fs::write(&file, "mine").unwrap();
    let (code, _, stderr) = back_up(&stage.database(), &file).await;
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains("there already") && stderr.contains("name another file"),
        "{stderr}"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    assert_eq!(back_up(&stage.database(), &link).await.0, 2);
    let missing = folder.path().join("missing/backup.db");
    let (code, _, stderr) = back_up(&stage.database(), &missing).await;
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("folder"), "{stderr}");
    let none = folder.path().join("none.db");
    let (code, _, stderr) = back_up(&folder.path().join("other.db"), &none).await;
    assert_eq!(code, 2, "{stderr}");
    assert_eq!(names(folder.path()), [link, file]);
}

#[tokio::test]
async fn of_a_ledger_that_breaks_a_rule_no_backup_is_made_and_the_rule_is_named() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    stage.worker.report(&full_report("t", "completed")).await;
    let mut outside = Outside::write(&stage.database()).await;
    outside.run("DROP TRIGGER results_never_go").await.unwrap();
    outside.run("DELETE FROM results").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (code, _, stderr) = back_up(&stage.database(), &folder.path().join("b.db")).await;
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("the schema guards its rules"), "{stderr}");
    assert!(names(folder.path()).is_empty());
}

#[tokio::test]
async fn events_that_were_published_after_a_backup_was_made_are_stored_once_when_it_is_put_in_place()
 {
    let broker = Broker::start_with_jetstream().await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("ledger.db");
    let options = [
        "--events",
        "jetstream",
        "--events-duplicate-window",
        "100ms",
    ];
    let mut service = Service::start(&broker, &database, &options).await;
    let stream = EventStream::of(&broker).await;
    let worker = Worker::connect(&broker).await;
    // Committed, and not yet published when the backup is made: the stream takes nothing.
    worker.create("a").await;
    stream.until(1).await;
    stream.change(|config| config.max_messages = 1).await;
    stream
        .change(|config| config.discard = async_nats::jetstream::stream::DiscardPolicy::New)
        .await;
    worker.report(&full_report("a", "completed")).await;
    let file = folder.path().join("backup.db");
    let (code, _, stderr) = back_up(&database, &file).await;
    assert_eq!(code, 0, "{stderr}");
    stream.change(|config| config.max_messages = -1).await;
    stream.until(3).await;
    stream.until_window_is_over().await;
    service.kill().await;
    for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    std::fs::rename(&file, &database).unwrap();
    service = Service::start(&broker, &database, &options).await;
    // What comes next is stored behind them, so none of them was stored again.
    let worker = Worker::connect(&broker).await;
    worker.create("b").await;
    let ids = eventually("the next event is stored", async || {
        let mut ids = stream.ids().await;
        // Those by which the test saw that the window is over.
        ids.retain(|id| !id.contains("probe"));
        ids.contains(&"b.1.task".to_owned()).then_some(ids)
    })
    .await;
    assert_eq!(ids, ["a.1.task", "a.2.result", "a.2.task", "b.1.task"]);
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
}
