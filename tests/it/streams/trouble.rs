//! Trouble that may pass delays events, and parks none; an event that can never be published is parked, and delays none.

use serde_json::json;
use tokio::time::timeout;

use super::{SHORT_WINDOW, Set, ids_of, tasklatch, verified};
use crate::support::{
    Broker, DEADLINE, EventStream, Outside, Service, Witness, Worker, eventually, full_report,
    http_get,
};

/// Waits until `/ready` says this word among its reasons.
async fn until_ready_says(set: &Set, word: &str) {
    eventually(&format!("ready says {word}"), async || {
        let (status, page) = http_get(&set.service.ready_line, "/ready").await;
        (status == 503 && page.contains(word)).then_some(())
    })
    .await;
}

async fn until_ready(set: &Set) {
    eventually("it is ready", async || {
        (http_get(&set.service.ready_line, "/ready").await.0 == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_is_full_delays_events_and_takes_them_in_order_once_it_has_room() {
    let broker = Broker::start_with_jetstream().await;
    let stream = EventStream::of(&broker).await;
    let config = async_nats::jetstream::stream::Config {
        max_messages: 4,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    stream.make(config).await;
    let set = Set::on(broker, SHORT_WINDOW).await;
    for task_id in ["a", "b", "c"] {
        set.report(task_id).await;
    }
    until_ready_says(&set, "was not stored").await;
    let (_, metrics) = http_get(&set.service.ready_line, "/metrics").await;
    assert!(
        !metrics.contains("tasklatch_relay_lag_changes 0\n"),
        "{metrics}"
    );
    set.stream.change(|config| config.max_messages = -1).await;
    set.stream.until(9).await;
    assert_eq!(set.stream.ids().await, ids_of(["a", "b", "c"]));
    until_ready(&set).await;
    let (_, metrics) = http_get(&set.service.ready_line, "/metrics").await;
    assert!(metrics.contains("tasklatch_events_parked 0\n"), "{metrics}");
}

#[tokio::test]
async fn a_stream_that_is_deleted_is_made_anew_and_takes_what_comes() {
    let set = Set::up().await;
    set.report("a").await;
    set.stream.until(3).await;
    set.stream
        .context
        .delete_stream("TASKLATCH_EVENTS")
        .await
        .unwrap();
    set.report("b").await;
    set.stream.until(3).await;
    assert_eq!(set.stream.ids().await, ids_of(["b"]));
    until_ready(&set).await;
}

#[tokio::test]
async fn a_server_without_jetstream_is_refused_at_the_start_with_both_ways_out() {
    let no_account =
        "jetstream {}\naccounts { A { users = [ { user: u, password: p } ] } }\nno_auth_user: u";
    for config in ["", no_account] {
        let broker = Broker::start_configured(config).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ledger.db");
        // As it comes, without a word about events.
        let run = |more: &[&'static str]| {
            let words = ["serve", "--http", "off", "--nats-url"];
            let mut command = tokio::process::Command::new(crate::support::BINARY);
            command
                .args(words)
                .arg(broker.url())
                .arg("--database")
                .arg(&file)
                .args(more);
            command.kill_on_drop(true);
            command
        };
        let refused = timeout(DEADLINE, run(&[]).output())
            .await
            .expect("it ends in time")
            .unwrap();
        assert_eq!(refused.status.code(), Some(1), "{config}");
        let said = String::from_utf8_lossy(&refused.stderr);
        for part in [
            "has no JetStream",
            "turn JetStream on (`nats-server -js`",
            "start with --events core",
            "misses them",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(refused.stdout, b"", "{config}");
        let service = Service::try_start(&broker.url(), &file, &["--events", "core"]).await;
        let (status, _) = service.ok().unwrap().stop().await;
        assert!(status.success());
    }
}

#[tokio::test]
async fn events_go_into_the_stream_if_nothing_else_is_said_and_to_plain_subscribers_too() {
    let broker = Broker::start_with_jetstream().await;
    let folder = tempfile::tempdir().unwrap();
    let mut command = tokio::process::Command::new(crate::support::BINARY);
    command
        .args([
            "serve",
            "--http",
            "off",
            "--nats-url",
            &broker.url(),
            "--database",
        ])
        .arg(folder.path().join("ledger.db"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true);
    let _service = Service::of(command.spawn().unwrap()).await;
    let witness = Witness::watch(&broker).await;
    let worker = Worker::connect(&broker).await;
    worker.create("a").await;
    worker.report(&full_report("a", "completed")).await;
    let stream = EventStream::of(&broker).await;
    stream.until(3).await;
    assert_eq!(stream.ids().await, ids_of(["a"]));
    witness.until("a.2.task").await;
    let subjects = |seen: Vec<crate::support::Seen>| {
        seen.into_iter()
            .map(|seen| seen.subject)
            .collect::<Vec<_>>()
    };
    assert_eq!(subjects(witness.seen()), subjects(stream.all().await));
    assert_eq!(witness.ids(), ids_of(["a"]));
}

#[tokio::test]
async fn a_stream_that_would_lose_events_is_not_used_and_ready_says_why() {
    let broker = Broker::start_with_jetstream().await;
    let stream = EventStream::of(&broker).await;
    let config = async_nats::jetstream::stream::Config {
        storage: async_nats::jetstream::stream::StorageType::Memory,
        ..Default::default()
    };
    stream.make(config).await;
    let set = Set::in_trouble(broker, SHORT_WINDOW).await;
    set.report("a").await;
    until_ready_says(&set, "kept in memory").await;
    assert!(set.stream.ids().await.is_empty());
    set.stream
        .context
        .delete_stream("TASKLATCH_EVENTS")
        .await
        .unwrap();
    set.stream.until(3).await;
    assert_eq!(set.stream.ids().await, ids_of(["a"]));
}

#[tokio::test]
async fn a_strangers_message_in_the_stream_does_not_hold_up_events_nor_double_them() {
    let set = Set::up().await;
    for number in 0..20 {
        set.report(&format!("t-{number}")).await;
        let stranger = set
            .stream
            .context
            .publish("tasklatch.event.stranger.x", "{}".into());
        stranger.await.unwrap().await.unwrap();
    }
    Outside::read(&set.database()).await.until_published().await;
    let mut ids = set.stream.ids().await;
    ids.retain(|id| !id.starts_with("tasklatch.event.stranger"));
    let task_ids: Vec<String> = (0..20).map(|number| format!("t-{number}")).collect();
    assert_eq!(ids, ids_of(task_ids.iter().map(String::as_str)));
}

/// A server on which the service may not do this.
fn denied(subject: &str) -> String {
    format!(
        "jetstream {{}}
         no_auth_user: all
         authorization {{ users: [
           {{ user: all, password: all }}
           {{ user: service, password: service, permissions: {{ publish: {{ deny: [{subject}] }} }} }}
         ] }}"
    )
}

#[tokio::test]
async fn a_missing_permission_delays_events_and_parks_none() {
    for subject in ["\"tasklatch.event.>\"", "\"$JS.API.STREAM.>\""] {
        let broker = Broker::start_configured(&denied(subject)).await;
        let login = ["--nats-user", "service", "--nats-password", "service"];
        let mut set = Set::in_trouble(broker, &[SHORT_WINDOW, &login].concat()).await;
        set.report("a").await;
        until_ready_says(&set, "events are delayed").await;
        assert!(set.stream.ids().await.is_empty());
        set.broker.kill().await;
        set.broker.restart_configured(&denied("")).await;
        set.stream.until(3).await;
        assert_eq!(set.stream.ids().await, ids_of(["a"]), "{subject}");
        until_ready(&set).await;
    }
}

#[tokio::test]
async fn an_event_that_is_too_large_for_its_stream_is_parked_holds_up_no_other_and_is_sent_by_a_command()
 {
    let broker = Broker::start_with_jetstream().await;
    let stream = EventStream::of(&broker).await;
    let config = async_nats::jetstream::stream::Config {
        max_message_size: 4096,
        ..Default::default()
    };
    stream.make(config).await;
    let mut set = Set::on(broker, SHORT_WINDOW).await;
    set.report("a").await;
    let large = json!({"task_id": "large", "title": "a task", "metadata": {"m": "x".repeat(5000)}});
    set.worker.create_with(large).await;
    set.report("b").await;
    set.stream.until(6).await;
    assert_eq!(set.stream.ids().await, ids_of(["a", "b"]));
    Outside::read(&set.database()).await.until_published().await;
    until_ready(&set).await;
    let (_, metrics) = http_get(&set.service.ready_line, "/metrics").await;
    assert!(metrics.contains("tasklatch_events_parked 1\n"), "{metrics}");
    let (code, stdout, _) = tasklatch(&["events", "parked"], &set.database(), &set.broker).await;
    assert!(code == 0 && stdout.starts_with("large.1.task "), "{stdout}");
    assert!(stdout.contains("the event stream takes"), "{stdout}");
    // It stays parked over a restart, also if there were room by then.
    set.stream
        .change(|config| config.max_message_size = -1)
        .await;
    set.crash_and_restart().await;
    set.report("c").await;
    set.stream.until(9).await;
    assert_eq!(set.stream.ids().await, ids_of(["a", "b", "c"]));
    let resend = ["events", "resend", "--events", "jetstream"];
    let (code, stdout, stderr) = tasklatch(&resend, &set.database(), &set.broker).await;
    assert_eq!(code, 0, "{stdout}{stderr}");
    let mut expected = ids_of(["a", "b", "c"]);
    expected.push("large.1.task".to_owned());
    assert_eq!(set.stream.ids().await, expected);
    let (_, stdout, stderr) = tasklatch(&["events", "parked"], &set.database(), &set.broker).await;
    assert!(
        stdout.is_empty() && stderr.contains("no event is parked"),
        "{stdout}{stderr}"
    );
    verified(&set).await;
}

#[tokio::test]
async fn past_the_limit_of_unpublished_changes_new_work_is_refused_as_overloaded_and_retries_are_answered()
 {
    let broker = Broker::start_with_jetstream().await;
    let stream = EventStream::of(&broker).await;
    let config = async_nats::jetstream::stream::Config {
        max_messages: 1,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    stream.make(config).await;
    let options = [SHORT_WINDOW, &["--max-unpublished", "4"]].concat();
    let set = Set::on(broker, &options).await;
    set.report("a").await;
    set.stream.until(1).await;
    eventually(
        "the cursor has passed the one that was stored",
        async || {
            let mut outside = Outside::read(&set.database()).await;
            (outside.number("SELECT published_seq FROM ledger").await == 1).then_some(())
        },
    )
    .await;
    for task_id in ["b", "c", "d"] {
        set.worker.create(task_id).await;
    }
    let create = json!({"task_id": "e", "title": "a task"});
    let refused = set
        .worker
        .ask("tasklatch.task.create", &create)
        .await
        .error();
    assert_eq!(
        (&refused["code"], &refused["action"]),
        (&json!("overloaded"), &json!("retry"))
    );
    let refused = set.worker.report(&full_report("b", "completed")).await;
    assert_eq!(refused.code(), "overloaded");
    let again = set.worker.report(&full_report("a", "completed")).await;
    assert_eq!(again.outcome(), Some("replayed"));
    assert_eq!(
        set.worker.report(&full_report("a", "failed")).await.code(),
        "result_conflict"
    );
    until_ready_says(&set, "--max-unpublished").await;
    set.stream.change(|config| config.max_messages = -1).await;
    let report = full_report("b", "completed");
    let accepted = crate::support::insist(&set.worker, "tasklatch.report", &report);
    assert_eq!(accepted.await.outcome(), Some("accepted"));
    until_ready(&set).await;
}

#[tokio::test]
async fn published_changes_leave_the_outbox_after_their_time_and_what_is_not_published_or_is_the_newest_does_not()
 {
    let options = [SHORT_WINDOW, &["--keep-events", "0s"]].concat();
    let mut set = Set::on(Broker::start_with_jetstream().await, &options).await;
    for number in 0..40 {
        set.report(&format!("t-{number}")).await;
    }
    let mut outside = Outside::read(&set.database()).await;
    outside.until_published().await;
    eventually("only the newest is left", async || {
        let seqs = outside
            .texts("SELECT CAST(seq AS TEXT) FROM revisions")
            .await;
        (seqs == ["80"]).then_some(())
    })
    .await;
    let again = set.worker.report(&full_report("t-3", "completed")).await;
    assert_eq!(
        again.outcome(),
        Some("replayed"),
        "the result is kept for ever"
    );
    set.broker.kill().await;
    set.service.kill().await;
    set.broker.restart().await;
    set.service = Service::start(&set.broker, &set.database(), &options).await;
    set.report("more").await;
    set.stream.until(123).await;
    assert_eq!(
        set.stream.ids().await[120..],
        ids_of(["more"]),
        "no seq is given twice"
    );
}

#[tokio::test]
async fn a_cursor_that_could_not_be_moved_is_moved_later_also_if_no_new_work_is_taken_until_then() {
    let broker = Broker::start_with_jetstream().await;
    let stream = EventStream::of(&broker).await;
    let config = async_nats::jetstream::stream::Config {
        max_messages: 1,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    stream.make(config).await;
    let options = [SHORT_WINDOW, &["--max-unpublished", "2"]].concat();
    let set = Set::on(broker, &options).await;
    set.worker.create("a").await;
    Outside::read(&set.database()).await.until_published().await;
    set.worker.create("b").await;
    set.worker.create("c").await;
    let create = json!({"task_id": "d", "title": "a task"});
    let refused = set.worker.ask("tasklatch.task.create", &create).await;
    assert_eq!(refused.code(), "overloaded");
    // Both are published while nobody can write that down, for longer than a write waits.
    let mut outside = Outside::write(&set.database()).await;
    outside.hold().await;
    set.stream.change(|config| config.max_messages = -1).await;
    set.stream.until(3).await;
    until_ready_says(&set, "the store cannot be written").await;
    outside.release().await;
    crate::support::insist(&set.worker, "tasklatch.task.create", &create)
        .await
        .task();
    Outside::read(&set.database()).await.until_published().await;
    until_ready(&set).await;
}

#[tokio::test]
async fn what_the_page_says_of_trouble_names_no_task() {
    let broker = Broker::start_with_jetstream().await;
    let stream = EventStream::of(&broker).await;
    let config = async_nats::jetstream::stream::Config {
        max_messages: 1,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    stream.make(config).await;
    let set = Set::on(broker, SHORT_WINDOW).await;
    set.report("secret-name").await;
    until_ready_says(&set, "was not stored").await;
    let (_, page) = http_get(&set.service.ready_line, "/ready").await;
    assert!(!page.contains("secret-name"), "{page}");
}
