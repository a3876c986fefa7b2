//! A ledger that moves from one way of publishing to the other loses no event and has none twice.

use std::collections::BTreeMap;

use super::{SHORT_WINDOW, Set, ids_of};
use crate::support::{Outside, Service, Witness, full_report};

const CORE: &[&str] = &["--events", "core", "--http", "127.0.0.1:0"];

/// Has the service of a set stop in order and start again in another mode.
async fn restart(set: Set, options: &[&str]) -> Set {
    let database = set.database();
    Outside::read(&database).await.until_published().await;
    let (status, log) = set.service.stop().await;
    assert!(status.success(), "{log}");
    let service = Service::start(&set.broker, &database, options).await;
    Set { service, ..set }
}

/// Has the service die at a point with a report, and start again in another mode.
async fn die_and_restart(
    set: Set,
    options: &[&str],
    point: &str,
    task_id: &str,
    next: &[&str],
) -> Set {
    let database = set.database();
    set.worker.create(task_id).await;
    Outside::read(&database).await.until_published().await;
    let (status, log) = set.service.stop().await;
    assert!(status.success(), "{log}");
    let wrapper = ["env", &format!("TASKLATCH_DIE_AT={point}")];
    let dying = Service::try_start_by(&wrapper, &set.broker.url(), &database, options).await;
    let dying = dying.ok().unwrap();
    let report = full_report(task_id, "completed").to_string();
    let client = &set.worker.client;
    client
        .publish("tasklatch.report", report.into())
        .await
        .unwrap();
    let (status, _) = dying.ended().await;
    assert!(!status.success(), "it died at {point}");
    if set.stream.last_sequence().await > 0 {
        set.stream.until_window_is_over().await;
    }
    let service = Service::start(&set.broker, &database, next).await;
    Outside::read(&database).await.until_published().await;
    Set { service, ..set }
}

/// How often each event was seen, without the probes of the tests.
fn counted(ids: Vec<String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for id in ids
        .into_iter()
        .filter(|id| id.contains(".task") || id.contains(".result"))
    {
        *counts.entry(id).or_default() += 1;
    }
    counts.retain(|id, _| !id.starts_with("tasklatch.event.probe"));
    counts
}

fn once(task_ids: &[&str]) -> BTreeMap<String, usize> {
    ids_of(task_ids.iter().copied())
        .into_iter()
        .map(|id| (id, 1))
        .collect()
}

#[tokio::test]
async fn a_ledger_that_moves_to_the_stream_and_back_in_order_has_each_event_once() {
    let set = Set::on(crate::support::Broker::start_with_jetstream().await, CORE).await;
    let witness = Witness::watch(&set.broker).await;
    set.report("plain").await;
    let set = restart(set, SHORT_WINDOW).await;
    set.report("stored").await;
    let set = restart(set, CORE).await;
    set.report("plain-again").await;
    Outside::read(&set.database()).await.until_published().await;
    witness.until("plain-again.2.task").await;
    assert_eq!(
        counted(witness.ids()),
        once(&["plain", "stored", "plain-again"])
    );
    // The stream has its subjects still, and takes what is published there.
    assert_eq!(
        counted(set.stream.ids().await),
        once(&["stored", "plain-again"])
    );
}

#[tokio::test]
async fn what_the_stream_had_when_a_service_died_is_not_published_again_in_core_mode() {
    for point in ["after-publish:1", "before-cursor:1"] {
        let set = Set::up().await;
        let witness = Witness::watch(&set.broker).await;
        set.report("before").await;
        let set = die_and_restart(set, SHORT_WINDOW, point, "in-doubt", CORE).await;
        set.report("after").await;
        Outside::read(&set.database()).await.until_published().await;
        witness.until("after.2.task").await;
        let all = once(&["before", "in-doubt", "after"]);
        assert_eq!(counted(witness.ids()), all, "{point}");
        assert_eq!(counted(set.stream.ids().await), all, "{point}");
    }
}

#[tokio::test]
async fn what_was_not_known_to_be_published_in_core_mode_is_stored_once_in_the_stream() {
    for point in ["after-commit:1", "after-publish:1", "before-cursor:1"] {
        let set = Set::on(crate::support::Broker::start_with_jetstream().await, CORE).await;
        let witness = Witness::watch(&set.broker).await;
        let set = die_and_restart(set, CORE, point, "in-doubt", SHORT_WINDOW).await;
        set.report("after").await;
        Outside::read(&set.database()).await.until_published().await;
        witness.until("after.2.task").await;
        let mut stored = once(&["in-doubt", "after"]);
        // It was published, and known to be, before.
        stored.remove("in-doubt.1.task");
        assert_eq!(counted(set.stream.ids().await), stored, "{point}");
        // Plain subscribers may hear again what is in doubt, and miss nothing.
        let seen = counted(witness.ids());
        let missed: Vec<_> = once(&["in-doubt", "after"])
            .into_keys()
            .filter(|id| !seen.contains_key(id))
            .collect();
        assert_eq!(missed, Vec::<String>::new(), "{point}");
    }
}

#[tokio::test]
async fn events_that_a_stream_took_with_gaps_from_core_mode_are_stored_once_each_and_none_is_missing()
 {
    let set = Set::on(crate::support::Broker::start_with_jetstream().await, CORE).await;
    let short = async_nats::jetstream::stream::Config {
        duplicate_window: std::time::Duration::from_millis(100),
        ..Default::default()
    };
    set.stream.make(short).await;
    for task_id in ["lost", "kept"] {
        set.worker.create(task_id).await;
    }
    let database = set.database();
    Outside::read(&database).await.until_published().await;
    let (status, log) = set.service.stop().await;
    assert!(status.success(), "{log}");
    let wrapper = ["env", "TASKLATCH_DIE_AT=before-cursor:1"];
    let dying = Service::try_start_by(&wrapper, &set.broker.url(), &database, CORE).await;
    for task_id in ["lost", "kept"] {
        let report = full_report(task_id, "completed").to_string();
        let client = &set.worker.client;
        client
            .publish("tasklatch.report", report.into())
            .await
            .unwrap();
    }
    let (status, _) = dying.ok().unwrap().ended().await;
    assert!(!status.success());
    // As if the connection had been lost between the two.
    let stored = set
        .stream
        .context
        .get_stream("TASKLATCH_EVENTS")
        .await
        .unwrap();
    for (at, id) in set.stream.ids().await.iter().enumerate() {
        if id.starts_with("lost.2.") {
            stored.delete_message(at as u64 + 1).await.unwrap();
        }
    }
    let kept: Vec<_> = set.stream.ids().await;
    assert!(
        kept.contains(&"kept.2.task".to_owned()) && !kept.contains(&"lost.2.task".to_owned()),
        "{kept:?}"
    );
    set.stream.until_window_is_over().await;
    let _service = Service::start(&set.broker, &database, SHORT_WINDOW).await;
    Outside::read(&database).await.until_published().await;
    assert_eq!(counted(set.stream.ids().await), once(&["lost", "kept"]));
}
