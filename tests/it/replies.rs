//! Replies that wait for a connection which stands still.

use futures_util::StreamExt;
use serde_json::json;
use tokio::time::timeout;

use crate::hostile::memory_peak_kib;
use crate::support::{Broker, DEADLINE, Held, Outside, Proxy, Service, Worker, eventually};

/// More bytes of replies than may wait, by far.
const REQUESTS: usize = 4000;
const EVIDENCE_BYTES: usize = 240 * 1024;

/// How many are sent before the service has dealt with those before: the replies to one batch are in memory at once.
const AT_ONCE: usize = 100;

/// After so many no more replies may wait.
const FULL: usize = 1000;

/// How much more memory the service may take for all the others, in KiB. Their replies have a gigabyte.
const GROWTH_MAX_KIB: u64 = 96 * 1024;

#[tokio::test]
async fn replies_that_wait_for_a_connection_that_stands_still_are_bounded_in_bytes_and_all_come_in_the_end()
 {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start().await;
    let proxy = Proxy::start(&broker.url()).await;
    let database = folder.path().join("ledger.db");
    let service = Service::try_start(&proxy.url(), &database, &[]).await;
    let service = service.ok().unwrap();
    let worker = Worker::connect(&broker).await;
    worker.create("t").await;
    let report = json!({
        "task_id": "t", "status": "completed", "summary": "Large",
        "evidence": {"log": "x".repeat(EVIDENCE_BYTES)},
    });
    let accepted = worker.report(&report).await;
    assert_eq!(accepted.outcome(), Some("accepted"));

    proxy.hold(Held::Everything);
    let client = &worker.client;
    let inbox = client.new_inbox();
    let mut replies = client.subscribe(format!("{inbox}.*")).await.unwrap();
    let mut peak_when_full = 0;
    let mut outside = Outside::read(&database).await;
    let applied = "SELECT revision FROM tasks".to_owned();
    // Small requests whose replies are large: some read, some change the task.
    for number in 0..REQUESTS {
        let (subject, body) = match number % 2 {
            0 => ("get", json!({"task_id": "t"})),
            _ => (
                "review",
                json!({"task_id": "t", "verdict": "approved", "note": format!("{number}")}),
            ),
        };
        let sent = client.publish_with_reply(
            format!("tasklatch.task.{subject}"),
            format!("{inbox}.{number}"),
            body.to_string().into(),
        );
        sent.await.unwrap();
        if number % AT_ONCE == AT_ONCE - 1 {
            client.flush().await.unwrap();
            eventually("the changes are applied", async || {
                (outside.number(&applied).await == 2 + (number + 1) as i64 / 2).then_some(())
            })
            .await;
        }
        if number == FULL - 1 {
            peak_when_full = memory_peak_kib(&service);
        }
    }
    let growth = memory_peak_kib(&service) - peak_when_full;
    assert!(
        growth < GROWTH_MAX_KIB,
        "{growth} KiB beside {peak_when_full}"
    );

    proxy.hold(Held::Nothing);
    let (mut whole, mut unavailable) = (0, 0);
    for _ in 0..REQUESTS {
        let reply = timeout(DEADLINE, replies.next())
            .await
            .expect("a reply in time")
            .unwrap();
        match reply.payload.len() {
            EVIDENCE_BYTES.. => whole += 1,
            _ => {
                let text = String::from_utf8_lossy(&reply.payload);
                assert!(text.contains("too many replies wait to be read"), "{text}");
                unavailable += 1;
            }
        }
    }
    assert!(whole > 0 && unavailable > 0, "{whole} {unavailable}");
    // What was applied is read back.
    let again = worker.report(&report).await;
    assert_eq!(again.outcome(), Some("replayed"));
}
