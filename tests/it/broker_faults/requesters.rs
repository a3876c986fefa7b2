//! Those who ask: gone, confused, in the way of a stream, or not speaking NATS well.

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{
    Broker, DEADLINE, Observer, Service, Stage, Worker, eventually, full_report, insist,
};

#[tokio::test]
async fn a_report_is_applied_once_whoever_hears_the_answer_or_nobody() {
    let stage = Stage::set().await;
    let mut observer = stage.observer().await;
    let task_ids = [
        "silent", "unheard", "gone", "echo", "event", "wildcard", "system",
    ];
    for task_id in task_ids {
        stage.worker.create(task_id).await;
    }
    observer.ids_so_far().await;
    let gone = Worker::connect(&stage.broker).await;
    for (worker, task_id, reply) in [
        (&stage.worker, "unheard", "nobody.listens"),
        (&gone, "gone", "_INBOX.gone"),
        (&stage.worker, "echo", "tasklatch.report"),
        (&stage.worker, "event", "tasklatch.event.result.event"),
        (&stage.worker, "wildcard", "_INBOX.>"),
        (&stage.worker, "system", "$SYS.REQ.SERVER.PING"),
    ] {
        let payload = full_report(task_id, "completed").to_string().into();
        let sent = worker
            .client
            .publish_with_reply("tasklatch.report", reply, payload)
            .await;
        // A client may refuse to send the odd ones; the server would pass them on.
        if sent.is_err() {
            raw(
                &stage.broker,
                &format_pub(
                    "tasklatch.report",
                    reply,
                    &full_report(task_id, "completed").to_string(),
                ),
            )
            .await;
        }
        worker.client.flush().await.unwrap();
    }
    drop(gone);
    let payload = full_report("silent", "completed").to_string().into();
    stage
        .worker
        .client
        .publish("tasklatch.report", payload)
        .await
        .unwrap();
    for task_id in task_ids {
        let reply = insist(
            &stage.worker,
            "tasklatch.report",
            &full_report(task_id, "completed"),
        )
        .await;
        assert!(reply.outcome().is_some(), "{task_id}: {}", reply.json());
        let applied = eventually("it is applied", async || {
            let task = stage.worker.get(task_id).await.task();
            (task["lifecycle"] == "completed").then_some(task)
        })
        .await;
        assert_eq!(applied["revision"], json!(2), "{task_id}");
    }
    let mut ids = observer.ids_so_far().await;
    ids.sort();
    let mut wanted: Vec<_> = task_ids
        .iter()
        .flat_map(|task_id| ["2.result", "2.task"].map(|event| format!("{task_id}.{event}")))
        .collect();
    wanted.sort();
    assert_eq!(ids, wanted, "no answer was taken for an event or a report");
}

#[tokio::test]
async fn a_stream_over_the_requests_acknowledges_them_first_and_the_answer_is_known_by_its_header()
{
    let broker = Broker::start_with_jetstream().await;
    let worker = Worker::connect(&broker).await;
    let jetstream = async_nats::jetstream::new(worker.client.clone());
    let config = async_nats::jetstream::stream::Config {
        name: "EVERYTHING".to_owned(),
        subjects: vec!["tasklatch.>".to_owned()],
        ..Default::default()
    };
    jetstream.create_stream(config).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(&broker, &folder.path().join("ledger.db"), &[]).await;
    let mut observer = Observer::watch(&broker).await;

    let both = async |subject: &'static str, body: Value| {
        let inbox = worker.client.new_inbox();
        let mut answers = worker.client.subscribe(inbox.clone()).await.unwrap();
        worker
            .client
            .publish_with_reply(subject, inbox, body.to_string().into())
            .await
            .unwrap();
        let mut got = Vec::new();
        for _ in 0..2 {
            got.push(
                timeout(DEADLINE, answers.next())
                    .await
                    .expect("two answers in time")
                    .unwrap(),
            );
        }
        let ours = |message: &async_nats::Message| {
            let headers = message.headers.as_ref();
            headers
                .and_then(|headers| headers.get("Tasklatch-Protocol"))
                .is_some_and(|value| value.as_str() == "1")
        };
        let (ours, others): (Vec<_>, Vec<_>) = got.into_iter().partition(ours);
        assert_eq!(
            (ours.len(), others.len()),
            (1, 1),
            "one has the header, the other has not"
        );
        let acknowledgment: Value = serde_json::from_slice(&others[0].payload).unwrap();
        assert_eq!(acknowledgment["stream"], json!("EVERYTHING"));
        ours.into_iter().next().unwrap()
    };
    both(
        "tasklatch.task.create",
        json!({"task_id": "t", "title": "a task"}),
    )
    .await;
    let accepted = both("tasklatch.report", full_report("t", "completed")).await;
    let replayed = both("tasklatch.report", full_report("t", "completed")).await;
    let outcome = |message: &async_nats::Message| {
        message
            .headers
            .as_ref()
            .unwrap()
            .get("Tasklatch-Outcome")
            .unwrap()
            .to_string()
    };
    assert_eq!(
        (outcome(&accepted), outcome(&replayed)),
        ("accepted".to_owned(), "replayed".to_owned())
    );
    assert_eq!(accepted.payload, replayed.payload);
    for wanted in ["t.1.task", "t.2.result", "t.2.task"] {
        assert_eq!(observer.next().await.id(), wanted);
    }
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
    assert!(
        log.contains("EVERYTHING"),
        "the service says which stream is in the way: {log}"
    );
}

/// `PUB` with a reply subject.
fn format_pub(subject: &str, reply: &str, payload: &str) -> Vec<u8> {
    format!("PUB {subject} {reply} {}\r\n{payload}\r\n", payload.len()).into_bytes()
}

/// `HPUB` with any bytes as its headers.
pub fn format_hpub(subject: &str, reply: &str, headers: &str, payload: &str) -> Vec<u8> {
    let total = headers.len() + payload.len();
    format!(
        "HPUB {subject} {reply} {} {total}\r\n{headers}{payload}\r\n",
        headers.len()
    )
    .into_bytes()
}

/// Sends the server bytes as a client would, and returns when it has taken them.
pub async fn raw(broker: &Broker, bytes: &[u8]) {
    let address = broker.url().trim_start_matches("nats://").to_owned();
    let (reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
    writer
        .write_all(b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\n")
        .await
        .unwrap();
    writer.write_all(bytes).await.unwrap();
    writer.write_all(b"PING\r\n").await.unwrap();
    let mut lines = BufReader::new(reader).lines();
    let pong = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            assert!(
                !line.starts_with("-ERR"),
                "the server refuses what the test sends: {line}"
            );
            if line == "PONG" {
                return;
            }
        }
        panic!("the server hung up");
    };
    timeout(DEADLINE, pong).await.expect("a pong in time");
    let _ = lines.into_inner().read(&mut []).await;
}

#[tokio::test]
async fn odd_messages_from_the_network_leave_a_service_that_answers_or_ends_non_zero_but_never_up_and_silent()
 {
    let mut stage = Stage::set().await;
    stage.worker.create("t").await;
    let report = full_report("t", "completed").to_string();
    let odd = [
        (
            "a lone carriage return in a header",
            format_hpub(
                "tasklatch.report",
                "_INBOX.odd",
                "NATS/1.0\r\nX: a\rb\r\n\r\n",
                &report,
            ),
        ),
        (
            "headers and no payload",
            format_hpub(
                "tasklatch.report",
                "_INBOX.odd",
                "NATS/1.0\r\nX: a\r\n\r\n",
                "",
            ),
        ),
        (
            "nothing at all",
            format_pub("tasklatch.report", "_INBOX.odd", ""),
        ),
        (
            "a malformed status line",
            format_hpub(
                "tasklatch.report",
                "_INBOX.odd",
                "NATS/1.0 abc def\r\n\r\n",
                &report,
            ),
        ),
        (
            "no version line",
            format_hpub(
                "tasklatch.report",
                "_INBOX.odd",
                "HTTP/1.1 200\r\n\r\n",
                &report,
            ),
        ),
        (
            "a header without a colon",
            format_hpub(
                "tasklatch.report",
                "_INBOX.odd",
                "NATS/1.0\r\nnonsense\r\n\r\n",
                &report,
            ),
        ),
        (
            "a status that looks like no responders",
            format_hpub("tasklatch.report", "_INBOX.odd", "NATS/1.0 503\r\n\r\n", ""),
        ),
    ];
    for (what, bytes) in odd {
        raw(&stage.broker, &bytes).await;
        let good = json!({"task_id": "t"});
        let answered = {
            let asking = insist(&stage.worker, "tasklatch.task.get", &good);
            let ending = eventually("it ends", async || {
                let gone =
                    !std::path::Path::new(&format!("/proc/{}/fd/0", stage.service.pid())).exists();
                gone.then_some(())
            });
            tokio::select! {
                reply = asking => Some(reply),
                () = ending => None,
            }
        };
        match answered {
            Some(reply) => assert_eq!(reply.task()["task_id"], json!("t"), "after {what}"),
            None => {
                let database = stage.database();
                let (status, log) = stage.service.ended().await;
                println!("the service ended after {what}: {status}");
                assert!(
                    status.code().is_some_and(|code| code != 0),
                    "after {what}: {status}: {log}"
                );
                stage.service = Service::start(&stage.broker, &database, &[]).await;
            }
        }
    }
    let reply = stage.worker.report(&full_report("t", "completed")).await;
    assert!(reply.outcome().is_some(), "{}", reply.json());
}
