//! Somebody else publishes into the event stream all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{Set, ids_of, verified};
use crate::support::{Broker, Outside, eventually, http_get};

/// Messages of a stranger at most, so that it stops by itself.
const MESSAGES_MAX: usize = 200_000;

/// Publishes on a subject without a pause, on a connection of its own, until it is told to stop.
struct Stranger {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Stranger {
    async fn begin(broker: &Broker, subject: &'static str) -> Self {
        let client = broker.client().await;
        let (stop, sent) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (stopped, counted) = (stop.clone(), sent.clone());
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed)
                && counted.fetch_add(1, Ordering::Relaxed) < MESSAGES_MAX
            {
                client.publish(subject, "{}".into()).await.unwrap();
                // Each is on its way before the next, so that there is no gap for long.
                client.flush().await.unwrap();
            }
        });
        Self { stop, sent, task }
    }

    /// How many it has sent.
    async fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        self.sent.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_get_into_the_stream_once_and_in_order_while_a_stranger_publishes_there_all_the_time()
 {
    let set = Set::up().await;
    set.report("before").await;
    let other = Stranger::begin(&set.broker, "tasklatch.event.stranger.x").await;
    // Also on the subject of events that are yet to come.
    let same = Stranger::begin(&set.broker, "tasklatch.event.task.t-3").await;
    let task_ids: Vec<String> = (0..20).map(|number| format!("t-{number}")).collect();
    for task_id in &task_ids {
        set.report(task_id).await;
    }
    Outside::read(&set.database()).await.until_published().await;
    let (status, page) = http_get(&set.service.ready_line, "/ready").await;
    assert_eq!(status, 200, "requests are served: {page}");
    assert!(
        page.contains("others publish into the event stream") && page.contains("tasklatch.event."),
        "{page}"
    );
    let sent = other.end().await + same.end().await;
    assert!(sent > 100, "{sent}");
    let mut ids = set.stream.ids().await;
    ids.retain(|id| !id.starts_with("tasklatch.event."));
    let all = std::iter::once("before").chain(task_ids.iter().map(String::as_str));
    assert_eq!(ids, ids_of(all));
    // With the stranger gone, many are on their way at once again.
    set.report("after").await;
    Outside::read(&set.database()).await.until_published().await;
    eventually("it is ready", async || {
        (http_get(&set.service.ready_line, "/ready").await.0 == 200).then_some(())
    })
    .await;
    verified(&set).await;
    let (_, log) = set.service.stop().await;
    let lines: Vec<_> = log
        .lines()
        .filter(|line| line.contains("others publish into the event stream"))
        .collect();
    assert_eq!(lines.len(), 1, "once a minute: {log}");
    assert!(
        lines[0].contains("stranger.subject=tasklatch.event.")
            && lines[0].contains("stranger.messages="),
        "{lines:?}"
    );
}
