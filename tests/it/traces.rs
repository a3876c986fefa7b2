//! A trace that a report belongs to is continued by its answer and its events.

mod collector;

use async_nats::HeaderMap;
use serde_json::json;
use tokio::time::timeout;

use crate::support::{
    Broker, DEADLINE, EventStream, Outside, Seen, Service, Worker, eventually, full_report,
};

const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SENDERS_SPAN: &str = "00f067aa0ba902b7";

fn traceparent() -> String {
    format!("00-{TRACE_ID}-{SENDERS_SPAN}-01")
}

/// Sends a report with headers, and gives those of its answer.
async fn report(worker: &Worker, task_id: &str, headers: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, *value);
    }
    let body = full_report(task_id, "completed").to_string();
    let sent = worker
        .client
        .request_with_headers("tasklatch.report", map, body.into());
    let answer = timeout(DEADLINE, sent).await.expect("in time").unwrap();
    let headers = answer.headers.unwrap();
    assert!(headers.get("Tasklatch-Outcome").is_some(), "{headers:?}");
    headers
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.as_str())
}

/// The span that a `traceparent` names, of the trace that was begun.
fn span(traceparent: &str) -> &str {
    let parts: Vec<&str> = traceparent.split('-').collect();
    assert_eq!((parts[0], parts[1], parts[3]), ("00", TRACE_ID, "01"));
    assert_eq!(parts[2].len(), 16);
    assert_ne!(parts[2], SENDERS_SPAN);
    parts[2]
}

struct Set {
    broker: Broker,
    service: Service,
    worker: Worker,
    stream: EventStream,
    folder: tempfile::TempDir,
}

const OPTIONS: &[&str] = &["--events", "jetstream", "--durable-reports"];

impl Set {
    async fn up(options: &[&str]) -> Self {
        let broker = Broker::start_with_jetstream().await;
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("ledger.db");
        Self {
            service: Service::start(&broker, &database, options).await,
            worker: Worker::connect(&broker).await,
            stream: EventStream::of(&broker).await,
            folder,
            broker,
        }
    }

    fn database(&self) -> std::path::PathBuf {
        self.folder.path().join("ledger.db")
    }

    /// The events of the accepted report on a task, once both are there.
    async fn events_of(&self, task_id: &str) -> Vec<Seen> {
        eventually("both events are stored", async || {
            let mut all = self.stream.all().await;
            all.retain(|event| event.id().starts_with(&format!("{task_id}.2.")));
            (all.len() == 2).then_some(all)
        })
        .await
    }
}

#[tokio::test]
async fn the_answer_and_both_events_of_a_report_name_one_span_of_the_service_in_the_trace_of_the_report()
 {
    let set = Set::up(OPTIONS).await;
    set.worker.create("t").await;
    let headers = [
        ("traceparent", &*traceparent()),
        ("tracestate", "vendor=abc"),
    ];
    let answer = report(&set.worker, "t", &headers).await;
    let ours = span(text(&answer, "traceparent").unwrap());
    for event in set.events_of("t").await {
        assert_eq!(span(event.header("traceparent")), ours);
        assert_eq!(event.header("tracestate"), "vendor=abc");
    }
    // A retry is another request, and has no event.
    let again = report(&set.worker, "t", &headers).await;
    assert_ne!(span(text(&again, "traceparent").unwrap()), ours);
}

#[tokio::test]
async fn a_durable_report_continues_its_trace_too() {
    let set = Set::up(OPTIONS).await;
    set.worker.create("t").await;
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", traceparent());
    let body = full_report("t", "completed").to_string();
    let context = &set.stream.context;
    let stored = eventually("the report is stored", async || {
        let subject = "tasklatch.queue.report.t";
        let sent = context.publish_with_headers(subject, headers.clone(), body.clone().into());
        sent.await.ok()?.await.ok()
    });
    stored.await;
    let events = set.events_of("t").await;
    let [result, task] = &events[..] else {
        panic!("{events:?}")
    };
    let ours = span(result.header("traceparent"));
    assert_eq!(span(task.header("traceparent")), ours);
}

#[tokio::test]
async fn a_report_without_a_valid_header_is_taken_like_any_other_and_leaves_no_trace() {
    let set = Set::up(OPTIONS).await;
    let valid = traceparent();
    let long = format!("{valid}{}", "0".repeat(10_000));
    let cases: &[&[(&str, &str)]] = &[
        &[],
        &[("traceparent", "")],
        &[("traceparent", "nonsense")],
        &[("traceparent", &long)],
        &[("traceparent", &valid), ("traceparent", &valid)],
        &[("tracestate", "vendor=abc")],
    ];
    for (at, headers) in cases.iter().enumerate() {
        let task_id = format!("t{at}");
        set.worker.create(&task_id).await;
        let answer = report(&set.worker, &task_id, headers).await;
        assert_eq!(text(&answer, "Tasklatch-Outcome"), Some("accepted"));
        assert_eq!(text(&answer, "traceparent"), None, "{headers:?}");
        for event in set.events_of(&task_id).await {
            for name in ["traceparent", "tracestate"] {
                assert!(event.headers.get(name).is_none(), "{headers:?}");
            }
        }
    }
    let mut outside = Outside::read(&set.database()).await;
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM revision_traces")
        .fetch_one(&mut outside.connection)
        .await
        .unwrap();
    assert_eq!(kept, 0);
}

#[tokio::test]
async fn events_that_are_published_after_a_crash_still_belong_to_the_trace() {
    let mut set = Set::up(&["--durable-reports"]).await;
    set.worker.create("t").await;
    let answer = report(&set.worker, "t", &[("traceparent", &traceparent())]).await;
    let ours = span(text(&answer, "traceparent").unwrap()).to_owned();
    set.service.kill().await;
    // As if it had been killed before it published anything.
    let mut outside = Outside::write(&set.database()).await;
    sqlx::raw_sql("DROP TRIGGER cursor_moves_forward; UPDATE ledger SET published_seq = 0")
        .execute(&mut outside.connection)
        .await
        .unwrap();
    drop(outside);
    set.service = Service::start(&set.broker, &set.database(), OPTIONS).await;
    for event in set.events_of("t").await {
        assert_eq!(span(event.header("traceparent")), ours);
    }
}

#[tokio::test]
async fn a_trace_leaves_the_database_with_its_revision() {
    let set = Set::up(&["--keep-events", "0s"]).await;
    set.worker.create("t").await;
    report(&set.worker, "t", &[("traceparent", &traceparent())]).await;
    // The newest revision stays.
    set.worker.review("t", "approved").await;
    let mut outside = Outside::read(&set.database()).await;
    let gone = eventually("the trace is pruned", async || {
        let counts: (i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM revision_traces), (SELECT count(*) FROM revisions)",
        )
        .fetch_one(&mut outside.connection)
        .await
        .unwrap();
        (counts == (0, 1)).then_some(())
    });
    gone.await;
    let reviewed = set.worker.get("t").await.task();
    assert_eq!(reviewed["disposition"]["verdict"], json!("approved"));
}

#[tokio::test]
async fn reports_with_and_without_a_trace_share_a_batch_and_each_keeps_its_own() {
    let set = Set::up(OPTIONS).await;
    let ids: Vec<String> = (0..64).map(|number| format!("t{number}")).collect();
    for task_id in &ids {
        set.worker.create(task_id).await;
    }
    let valid = traceparent();
    let traced = [("traceparent", &*valid)];
    let answers = ids.iter().enumerate().map(|(at, task_id)| {
        let headers = if at % 2 == 0 { &traced[..] } else { &[] };
        report(&set.worker, task_id, headers)
    });
    let answers = futures_util::future::join_all(answers).await;
    for (at, (task_id, answer)) in ids.iter().zip(answers).enumerate() {
        let ours = text(&answer, "traceparent");
        assert_eq!(ours.is_some(), at % 2 == 0);
        for event in set.events_of(task_id).await {
            let handed_on = text(&event.headers, "traceparent");
            assert_eq!(handed_on, ours, "{task_id}");
        }
    }
}
