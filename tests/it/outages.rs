//! What the log says of an outage: each thing once.

use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::support::{
    Broker, DEADLINE, Service, Stage, commit_cut_off, eventually, full_report, http_get,
};

/// How many lines of a log have this text.
fn lines(log: &str, text: &str) -> usize {
    log.lines().filter(|line| line.contains(text)).count()
}

#[tokio::test]
async fn an_outage_of_the_server_has_one_line_a_connection_when_it_is_lost_and_one_when_it_is_back()
{
    let options = [
        "--http",
        "127.0.0.1:0",
        "--events",
        "jetstream",
        "--durable-reports",
    ];
    let mut stage = Stage::on(Broker::start_with_jetstream().await, &options).await;
    let http = stage.service.ready_line.clone();
    stage.broker.kill().await;
    // Each connection was tried again more than once by then.
    eventually("the server is away for some time", async || {
        let (status, page) = http_get(&http, "/ready").await;
        let away = page.split("server for ").nth(1)?.split(' ').next()?;
        let is_long = away.parse::<u64>().ok()? >= 3;
        (status == 503 && is_long && page.contains("durable reports are not taken")).then_some(())
    })
    .await;
    stage.broker.restart().await;
    eventually("it is ready", async || {
        (http_get(&http, "/ready").await.0 == 200).then_some(())
    })
    .await;
    let (_, log) = stage.service.stop().await;
    for connection in ["tasklatch", "tasklatch events", "tasklatch reports"] {
        let of = format!("nats.connection=\"{connection}\"");
        let lost: Vec<_> = log
            .lines()
            .filter(|line| line.contains("lost the NATS server") && line.contains(&of))
            .collect();
        assert_eq!(lost.len(), 1, "{log}");
        assert!(lost[0].contains("error="), "{lost:?}");
        let back: Vec<_> = log
            .lines()
            .filter(|line| line.contains("connected to the NATS server") && line.contains(&of))
            .filter(|line| line.contains("outage.seconds="))
            .collect();
        assert_eq!(back.len(), 1, "{log}");
        assert!(back[0].contains("outage.failures="), "{back:?}");
    }
    assert_eq!(lines(&log, "durable reports are not taken"), 1, "{log}");
    assert_eq!(lines(&log, "async_nats"), 0, "{log}");
    assert_eq!(lines(&log, "the NATS connection changed"), 0, "{log}");
}

#[tokio::test]
async fn events_that_are_delayed_for_long_have_one_line_and_one_when_they_are_published_again() {
    let options = ["--http", "127.0.0.1:0", "--events", "jetstream"];
    let mut stage = Stage::on(Broker::start_with_jetstream().await, &options).await;
    let http = stage.service.ready_line.clone();
    stage.worker.create("t").await;
    let report = full_report("t", "completed");
    commit_cut_off(
        &stage.broker,
        &stage.worker,
        &stage.database(),
        std::slice::from_ref(&report),
    )
    .await;
    stage.broker.kill().await;
    let retries = async || {
        let (_, page) = http_get(&http, "/metrics").await;
        let line = page
            .lines()
            .find(|line| line.starts_with("tasklatch_retries_total{") && line.contains("relay"))?;
        line.rsplit(' ').next()?.parse::<f64>().ok()
    };
    eventually("the relay has tried again", async || {
        (retries().await? >= 5.0).then_some(())
    })
    .await;
    stage.broker.restart().await;
    eventually("it is ready", async || {
        (http_get(&http, "/ready").await.0 == 200).then_some(())
    })
    .await;
    let (_, log) = stage.service.stop().await;
    assert!(
        (1..=2).contains(&lines(&log, "events are delayed")),
        "{log}"
    );
    assert_eq!(lines(&log, "events are published again"), 1, "{log}");
}

#[tokio::test]
async fn a_service_that_waits_for_its_server_at_the_start_says_so_once() {
    let mut broker = Broker::start().await;
    let folder = tempfile::tempdir().unwrap();
    broker.kill().await;
    let (database, url) = (folder.path().join("ledger.db"), broker.url());
    let starting = tokio::spawn(async move { Service::try_start(&url, &database, &[]).await });
    // It is tried once in a second: a listener in the place of the server sees two tries, and hangs up.
    let listener = TcpListener::bind(broker.url().trim_start_matches("nats://"))
        .await
        .unwrap();
    for _ in 0..2 {
        drop(
            timeout(DEADLINE, listener.accept())
                .await
                .expect("a try in time")
                .unwrap(),
        );
    }
    drop(listener);
    broker.restart().await;
    let service = starting.await.unwrap().ok().unwrap();
    let (_, log) = service.stop().await;
    assert_eq!(lines(&log, "no NATS server yet"), 1, "{log}");
    let connected: Vec<_> = log
        .lines()
        .filter(|line| {
            line.contains("connected to the NATS server") && line.contains("outage.failures=")
        })
        .collect();
    assert_eq!(connected.len(), 1, "{log}");
}
