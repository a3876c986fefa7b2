//! `ledger verify`, `events republish`: what an operator has when the stream was lost or the file was touched.

use super::{SHORT_WINDOW, Set, ids_of, tasklatch, verified};
use crate::support::{Outside, Service, copy_folder, eventually, full_report, http_get};

const REPUBLISH: [&str; 4] = ["events", "republish", "--since", "all"];
const VERIFY: [&str; 4] = ["ledger", "verify", "--events", "jetstream"];

#[tokio::test]
async fn what_a_stream_lost_that_was_set_back_is_found_missing_and_sent_again() {
    let mut set = Set::up().await;
    set.report("a").await;
    Outside::read(&set.database()).await.until_published().await;
    set.broker.kill().await;
    let saved = tempfile::tempdir().unwrap();
    copy_folder(set.broker.store(), saved.path());
    set.broker.restart().await;
    for task_id in ["b", "c"] {
        let create = serde_json::json!({"task_id": task_id, "title": "a task"});
        crate::support::insist(&set.worker, "tasklatch.task.create", &create)
            .await
            .task();
        let report = crate::support::full_report(task_id, "completed");
        crate::support::insist(&set.worker, "tasklatch.report", &report)
            .await
            .task();
    }
    Outside::read(&set.database()).await.until_published().await;
    // A power cut can do this: what was acknowledged was not on the disk yet.
    set.broker.kill().await;
    copy_folder(saved.path(), set.broker.store());
    set.broker.restart().await;
    set.stream = crate::support::EventStream::of(&set.broker).await;
    assert_eq!(set.stream.ids().await, ids_of(["a"]));
    let (code, stdout, stderr) = tasklatch(&VERIFY, &set.database(), &set.broker).await;
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(
        stdout.contains("b.1.task, b.2.result, b.2.task, c.1.task"),
        "{stdout}"
    );
    assert!(stderr.contains("events republish"), "{stderr}");
    let (code, stdout, stderr) = tasklatch(&REPUBLISH, &set.database(), &set.broker).await;
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(
        stdout.starts_with("6 sent, 3 were in the stream"),
        "{stdout}"
    );
    assert_eq!(set.stream.ids().await, ids_of(["a", "b", "c"]));
    let (_, stdout, _) = tasklatch(&REPUBLISH, &set.database(), &set.broker).await;
    assert!(
        stdout.starts_with("0 sent, 9 were in the stream"),
        "{stdout}"
    );
    verified(&set).await;
}

#[tokio::test]
async fn an_event_that_the_stream_lacks_between_later_ones_is_sent_again_and_only_from_the_time_that_was_named()
 {
    let set = Set::up().await;
    set.report("a").await;
    set.worker.review("a", "rework").await;
    set.worker.review("a", "approved").await;
    Outside::read(&set.database()).await.until_published().await;
    let stream = set
        .stream
        .context
        .get_stream("TASKLATCH_EVENTS")
        .await
        .unwrap();
    // The task's second change, whose subject has later messages.
    stream.delete_message(3).await.unwrap();
    set.stream.until_window_is_over().await;
    let nothing = ["events", "republish", "--since", "0s"];
    let (_, stdout, _) = tasklatch(&nothing, &set.database(), &set.broker).await;
    assert!(stdout.starts_with("0 sent, 0 were"), "{stdout}");
    let (_, stdout, _) = tasklatch(&REPUBLISH, &set.database(), &set.broker).await;
    assert!(
        stdout.starts_with("1 sent, 4 were in the stream"),
        "{stdout}"
    );
    assert_eq!(set.stream.ids().await.last().unwrap(), "a.2.task");
}

#[tokio::test]
async fn what_is_purged_within_the_duplicate_window_is_refused_and_said_to_be_sent_later() {
    let broker = crate::support::Broker::start_with_jetstream().await;
    let set = Set::on(broker, &["--events", "jetstream"]).await;
    set.report("a").await;
    Outside::read(&set.database()).await.until_published().await;
    let stream = set
        .stream
        .context
        .get_stream("TASKLATCH_EVENTS")
        .await
        .unwrap();
    stream.purge().await.unwrap();
    let (code, stdout, stderr) = tasklatch(&REPUBLISH, &set.database(), &set.broker).await;
    assert_eq!(code, 75, "{stdout}{stderr}");
    assert!(
        stdout.contains("3 refused") && stderr.contains("duplicate window"),
        "{stdout}{stderr}"
    );
    // Another event comes in all the same.
    set.report("b").await;
    set.stream.until(6).await;
    assert_eq!(set.stream.ids().await, ids_of(["b"]));
}

#[tokio::test]
async fn verify_finds_each_rule_that_another_program_broke_and_says_who_breaks_it() {
    let broken: [(&str, &[&str], &str); 9] = [
        (
            "a result belongs to",
            &[
                "DROP TRIGGER results_never_change",
                "UPDATE results SET status = 'failed'",
            ],
            "a",
        ),
        (
            "a task that was reported on",
            &["DROP TRIGGER results_never_go", "DELETE FROM results"],
            "a",
        ),
        (
            "a result was reported between",
            &[
                "DROP TRIGGER results_never_change",
                "UPDATE results SET reported_at = 5",
            ],
            "a",
        ),
        (
            "the last change of a task in the outbox",
            &["UPDATE revisions SET lifecycle = 'failed' WHERE seq = 2"],
            "a",
        ),
        (
            "is one of a task",
            &["INSERT INTO revisions VALUES (99, 77, 1, 'submitted', 5, NULL, NULL, NULL, NULL)"],
            "seq 99",
        ),
        (
            "follow each other",
            &["UPDATE revisions SET revision = 4 WHERE seq = 1"],
            "a",
        ),
        (
            "waits to be published is there",
            &[
                "INSERT INTO revisions SELECT 50, task_key, 3, lifecycle, updated_at, 'approved', NULL, NULL, updated_at FROM revisions WHERE seq = 2",
            ],
            "after seq 2",
        ),
        (
            "the cursor does not",
            &[
                "DROP TRIGGER cursor_moves_forward",
                "UPDATE ledger SET published_seq = 70",
            ],
            "published_seq 70",
        ),
        (
            "guards its rules",
            &["DROP TRIGGER tasks_end_once"],
            "tasks_end_once",
        ),
    ];
    let mut set = Set::up().await;
    set.report("a").await;
    Outside::read(&set.database()).await.until_published().await;
    verified(&set).await;
    set.service.kill().await;
    for (number, (rule, statements, offender)) in broken.into_iter().enumerate() {
        let copy = set.folder.path().join(format!("broken-{number}.db"));
        let mut whole = Outside::write(&set.database()).await;
        whole
            .run(&format!("VACUUM INTO '{}'", copy.display()))
            .await
            .unwrap();
        whole.close().await;
        let mut outside = Outside::write(&copy).await;
        for statement in statements {
            outside.run(statement).await.unwrap();
        }
        outside.close().await;
        let (code, stdout, stderr) = tasklatch(&["ledger", "verify"], &copy, &set.broker).await;
        assert_eq!(code, 1, "{rule}: {stdout}{stderr}");
        let line = stdout.lines().find(|line| line.contains(rule));
        let line = line.unwrap_or_else(|| panic!("{rule} is found broken:\n{stdout}{stderr}"));
        assert!(line.ends_with(&format!(": {offender}")), "{line}");
    }
}

#[tokio::test]
async fn a_database_that_was_set_back_behind_its_events_is_found_out_and_publishes_none_of_the_same_identity()
 {
    let mut set = Set::up().await;
    set.worker.create("a").await;
    Outside::read(&set.database()).await.until_published().await;
    let copy = set.folder.path().join("copy.db");
    let mut outside = Outside::write(&set.database()).await;
    outside
        .run(&format!("VACUUM INTO '{}'", copy.display()))
        .await
        .unwrap();
    outside.close().await;
    let lost = set.worker.report(&full_report("a", "completed")).await;
    assert_eq!(lost.outcome(), Some("accepted"));
    Outside::read(&set.database()).await.until_published().await;
    set.service.stop().await;
    set.service = Service::start_serving(&set.broker, &copy, SHORT_WINDOW).await;
    let other = set.worker.report(&full_report("a", "failed")).await;
    assert_eq!(
        other.outcome(),
        Some("accepted"),
        "the ledger does not know of the first"
    );
    // What it publishes comes after what the stream has, and is refused for that.
    eventually("ready says so", async || {
        let (status, page) = http_get(&set.service.ready_line, "/ready").await;
        (status == 503 && page.contains("was set back")).then_some(())
    })
    .await;
    assert_eq!(set.stream.ids().await, ids_of(["a"]));

    // As the message says: a snapshot of it, restored, has an identity of its own.
    set.service.stop().await;
    let snapshot = set.folder.path().join("snapshot");
    let restored = set.folder.path().join("restored.db");
    let (code, ..) = tasklatch(
        &["snapshot", "save", snapshot.to_str().unwrap()],
        &copy,
        &set.broker,
    )
    .await;
    assert_eq!(code, 0);
    let restore = [
        "snapshot",
        "restore",
        snapshot.to_str().unwrap(),
        "--publish-pending",
    ];
    let (code, stdout, stderr) = tasklatch(&restore, &restored, &set.broker).await;
    assert_eq!(code, 0, "{stdout}{stderr}");
    set.service = Service::start(&set.broker, &restored, SHORT_WINDOW).await;
    set.stream.until(5).await;
    let all = set.stream.all().await;
    let last = all.last().unwrap();
    assert_eq!(last.header("ce-id"), "a.2.task");
    assert_ne!(last.header("ce-source"), all[0].header("ce-source"));
}

#[tokio::test]
async fn a_snapshot_has_the_parked_events_among_those_that_were_not_published() {
    let broker = crate::support::Broker::start_with_jetstream().await;
    let stream = crate::support::EventStream::of(&broker).await;
    let config = async_nats::jetstream::stream::Config {
        max_message_size: 4096,
        ..Default::default()
    };
    stream.make(config).await;
    let mut set = Set::on(broker, SHORT_WINDOW).await;
    let large = serde_json::json!({"task_id": "large", "title": "a task", "metadata": {"m": "x".repeat(5000)}});
    set.worker.create_with(large).await;
    set.report("b").await;
    Outside::read(&set.database()).await.until_published().await;
    let snapshot = set.folder.path().join("snapshot");
    let restored = set.folder.path().join("restored.db");
    let path = snapshot.to_str().unwrap();
    let (code, stdout, _) =
        tasklatch(&["snapshot", "save", path], &set.database(), &set.broker).await;
    assert!(
        code == 0 && stdout.contains("1 unpublished event"),
        "{stdout}"
    );
    set.service.stop().await;
    set.stream
        .change(|config| config.max_message_size = -1)
        .await;
    let restore = ["snapshot", "restore", path, "--publish-pending"];
    let (code, stdout, stderr) = tasklatch(&restore, &restored, &set.broker).await;
    assert_eq!(code, 0, "{stdout}{stderr}");
    set.service = Service::start(&set.broker, &restored, SHORT_WINDOW).await;
    set.stream.until(4).await;
    let mut expected = ids_of(["b"]);
    expected.push("large.1.task".to_owned());
    assert_eq!(set.stream.ids().await, expected);
    let (code, stdout, stderr) = tasklatch(
        &["ledger", "verify", "--events", "jetstream"],
        &restored,
        &set.broker,
    )
    .await;
    assert_eq!(code, 0, "{stdout}{stderr}");
}
