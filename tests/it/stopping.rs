//! Nobody is left without a reply by a service that stops.

use std::collections::BTreeMap;

use async_nats::StatusCode;
use futures_util::StreamExt;
use futures_util::future::join_all;
use serde_json::json;
use tokio::time::timeout;

use crate::support::{DEADLINE, Service, Stage, full_report};

const REQUESTS: usize = 3000;

/// What a request was replied to with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Heard {
    /// By the service.
    Outcome,
    /// By the service, which could not do it any more.
    Unavailable,
    /// By the server: nobody is there.
    NoResponders,
}

/// Opens many requests, has the service stop in their middle, and counts what came for each of them.
async fn stop_under_load(stage: Stage, round: usize) -> (Stage, BTreeMap<Heard, usize>) {
    let client = stage.worker.client.clone();
    let inbox = client.new_inbox();
    let mut replies = client.subscribe(format!("{inbox}.*")).await.unwrap();
    let requests = |number: usize| {
        let task_id = format!("t-{round}-{}", number / 4);
        match number % 4 {
            0 => ("create", json!({"task_id": task_id, "title": "a task"})),
            1 => ("start", json!({"task_id": task_id})),
            2 => ("get", json!({"task_id": task_id})),
            _ => ("report", full_report(&task_id, "completed")),
        }
    };
    let send = async |numbers: std::ops::Range<usize>| {
        for number in numbers {
            let (verb, body) = requests(number);
            let subject = match verb {
                "report" => "tasklatch.report".to_owned(),
                verb => format!("tasklatch.task.{verb}"),
            };
            let reply_to = format!("{inbox}.{number}");
            let sent = client.publish_with_reply(subject, reply_to, body.to_string().into());
            sent.await.unwrap();
        }
        client.flush().await.unwrap();
    };
    send(0..REQUESTS / 2).await;
    let rest = send(REQUESTS / 2..REQUESTS);
    tokio::join!(rest, stage.service.signal("TERM"));
    let mut heard = vec![None; REQUESTS];
    for _ in 0..REQUESTS {
        let Ok(message) = timeout(DEADLINE, replies.next()).await else {
            let silent: Vec<_> = (0..REQUESTS)
                .filter(|&number| heard[number].is_none())
                .collect();
            let (status, log) = stage.service.ended().await;
            panic!(
                "stop {round}: {} requests heard nothing: {silent:?}; the service ended with {status} and logged {log}",
                silent.len()
            );
        };
        let message = message.unwrap();
        let number: usize = message.subject.rsplit('.').next().unwrap().parse().unwrap();
        let what = match message.status {
            Some(StatusCode::NO_RESPONDERS) => Heard::NoResponders,
            _ => {
                let headers = message.headers.unwrap();
                assert_eq!(headers.get("Tasklatch-Protocol").unwrap().as_str(), "1");
                match headers
                    .get("Nats-Service-Error-Code")
                    .map(|code| code.as_str())
                {
                    Some("503") => Heard::Unavailable,
                    _ => Heard::Outcome,
                }
            }
        };
        assert_eq!(heard[number].replace(what), None, "one reply each");
    }
    let (status, log) = stage.service.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    let service = Service::start(&stage.broker, &stage.folder.path().join("ledger.db"), &[]).await;
    let mut counts = BTreeMap::new();
    for what in heard.into_iter().flatten() {
        *counts.entry(what).or_default() += 1;
    }
    (Stage { service, ..stage }, counts)
}

#[tokio::test]
async fn no_request_of_three_thousand_is_silent_in_twenty_stops_in_their_middle() {
    let stages = join_all((0..4).map(|_| Stage::set())).await;
    let stops = stages.into_iter().map(async |mut stage| {
        let mut all = BTreeMap::<_, usize>::new();
        for round in 0..5 {
            let counts;
            (stage, counts) = stop_under_load(stage, round).await;
            for (what, count) in counts {
                *all.entry(what).or_default() += count;
            }
        }
        all
    });
    let heard = join_all(stops).await;
    let some = |what| heard.iter().any(|counts| counts.contains_key(&what));
    assert!(
        some(Heard::Outcome) && some(Heard::NoResponders),
        "the stops were in the middle: {heard:?}"
    );
}
