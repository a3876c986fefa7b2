//! Input that nobody means well with, as bytes on a socket: a client library is too well-behaved for it.

mod secrets;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::docs::document;
use crate::support::{Broker, DEADLINE, Service, Stage, Worker, full_report, http_get, insist};

/// The most memory that the service may have used in the end, in KiB; docs/security.md names it.
const MEMORY_MAX_KIB: u64 = 256 * 1024;

fn hpub(subject: &[u8], headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let sizes = format!("{} {}\r\n", headers.len(), headers.len() + payload.len());
    [
        b"HPUB ",
        subject,
        b" _INBOX.odd ",
        sizes.as_bytes(),
        headers,
        payload,
        b"\r\n",
    ]
    .concat()
}

fn publish(subject: &[u8], payload: &[u8]) -> Vec<u8> {
    let size = format!("{}\r\n", payload.len());
    [
        b"PUB ",
        subject,
        b" _INBOX.odd ",
        size.as_bytes(),
        payload,
        b"\r\n",
    ]
    .concat()
}

fn with_headers(headers: &[u8]) -> Vec<u8> {
    hpub(b"tasklatch.report", headers, b"{}")
}

/// Small messages that are wrong in ways of their own. The first three cost the service its connection or its client.
fn odd_messages() -> Vec<Vec<u8>> {
    vec![
        with_headers(b"NATS/1.0\r\nX: a\rb\r\n\r\n"),
        with_headers(b"NATS/1.0\r\nX: \xff\xfe\r\n\r\n"),
        publish(b"tasklatch.report.\xff\xfe", b"{}"),
        with_headers(b"HTTP/1.1 200 OK\r\n\r\n"),
        with_headers(b"NATS/1.0\r\nnonsense\r\n\r\n"),
        with_headers(b"NATS/1.0\r\nA b: c\r\n\r\n"),
        with_headers(b"NATS/1.0 503\r\n\r\n"),
        with_headers(b"NATS/1.0 abcd\r\n\r\n"),
        with_headers(b"NATS/1.0\r\n: no name\r\n\r\n"),
        with_headers(b"NATS/1.0\r\n goes on\r\n\r\n"),
        with_headers(b"NATS/1.0"),
        publish(b"tasklatch.report.*x", b"{}"),
        publish(b"tasklatch.report.a>b", b"{}"),
        publish(b"tasklatch.report.\x01\x02\x7f", b"{}"),
        publish("tasklatch.report.\u{202e}\u{0}".as_bytes(), b"{}"),
        publish(b"tasklatch.report.", b"{}"),
        publish(b"tasklatch.report..x", b"{}"),
        publish(b"tasklatch.report.*", b"{}"),
        publish(
            &[b"tasklatch.report.".as_slice(), &[b'x'; 3_900]].concat(),
            b"{}",
        ),
        publish(b"tasklatch.report", b""),
        publish(b"tasklatch.report", b"\xff\xfe\x00"),
        publish(b"tasklatch.report", b"{\"task_id\":"),
        publish(b"tasklatch.task.list", b"[]"),
        publish(b"tasklatch.task.create", b"nonsense"),
        b"HPUB tasklatch.report 9 2\r\n".to_vec(),
        b"PUB tasklatch.report -1\r\n{}\r\n".to_vec(),
        b"nonsense\r\n".to_vec(),
    ]
}

/// Messages as large as the server takes them.
fn large_messages() -> Vec<Vec<u8>> {
    const SIZE: usize = 1_000_000;
    let many = "X: y\r\n".repeat(20_000);
    let names: String = (0..20_000)
        .map(|number| format!("N{number}: y\r\n"))
        .collect();
    let keys: Vec<String> = (0..60_000)
        .map(|number| format!("\"k{number}\":1"))
        .collect();
    let of = |lines: &str| with_headers(format!("NATS/1.0\r\n{lines}\r\n").as_bytes());
    vec![
        of(&many),
        of(&names),
        of(&format!("X: {}\r\n", "y".repeat(SIZE))),
        of(&format!("{}: y\r\n", "N".repeat(SIZE))),
        publish(b"tasklatch.report", "[".repeat(SIZE).as_bytes()),
        publish(b"tasklatch.report", "{\"a\":".repeat(SIZE / 5).as_bytes()),
        publish(
            b"tasklatch.report",
            format!("{{{}}}", keys.join(",")).as_bytes(),
        ),
        publish(b"tasklatch.report", "9".repeat(SIZE).as_bytes()),
        publish(
            b"tasklatch.report",
            format!("\"{}\"", "\\u0000".repeat(SIZE / 6)).as_bytes(),
        ),
    ]
}

/// Sends bytes on a connection of their own, until the server has read them or hangs up.
async fn send_raw(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let connect = b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\n";
    let sent = async {
        stream
            .write_all(&[connect, bytes, b"PING\r\n"].concat())
            .await?;
        let mut said = Vec::new();
        while !said.windows(6).any(|six| six == b"PONG\r\n") {
            if stream.read_buf(&mut said).await? == 0 {
                break;
            }
        }
        std::io::Result::Ok(())
    };
    // A server that hangs up while it is sent to resets the connection.
    let _ = timeout(DEADLINE, sent)
        .await
        .expect("the server reads it, or hangs up, in time");
}

/// Has the NATS client of whoever takes reports panic, over a header with a lone carriage return.
pub async fn make_a_client_panic(broker: &Broker) {
    send_raw(&address(broker), &odd_messages()[0]).await;
}

fn address(broker: &Broker) -> String {
    broker.url().trim_start_matches("nats://").to_owned()
}

/// The most memory that a process has used, in KiB.
pub fn memory_peak_kib(service: &Service) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

/// A worker that wants an answer to each of its requests until it is told to stop; gives how many it got.
async fn works_on(worker: Worker, stop: &AtomicBool) -> usize {
    let mut answered = 0;
    while !stop.load(Ordering::Relaxed) {
        let get = insist(&worker, "tasklatch.task.get", &json!({"task_id": "good"})).await;
        assert_eq!(get.task()["task_id"], "good");
        answered += 1;
    }
    answered
}

#[tokio::test]
async fn each_odd_message_leaves_the_service_up_and_it_answers_the_next_request() {
    let stage = Stage::set().await;
    stage.worker.create("good").await;
    for message in odd_messages().into_iter().chain(large_messages()) {
        send_raw(&address(&stage.broker), &message).await;
        let get = insist(
            &stage.worker,
            "tasklatch.task.get",
            &json!({"task_id": "good"}),
        )
        .await;
        assert_eq!(
            get.task()["task_id"],
            "good",
            "{}",
            message[..60.min(message.len())].escape_ascii()
        );
    }
    let accepted = insist(
        &stage.worker,
        "tasklatch.report",
        &full_report("good", "completed"),
    )
    .await;
    accepted.task();
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    let place = "panic.place=\"async-nats-";
    assert!(
        log.contains("ERROR") && log.contains(place) && log.contains("which ends its connection"),
        "the lone carriage return still does that: {log}"
    );
    let lost = "error=\"the NATS client panicked at async-nats-";
    assert!(log.contains(lost), "{log}");
}

#[tokio::test]
async fn ten_thousand_connections_with_an_odd_message_each_neither_stop_the_service_nor_fill_its_memory()
 {
    const CONNECTIONS: usize = 10_000;
    const AT_ONCE: usize = 50;
    let mut stage = Stage::set().await;
    stage.worker.create("good").await;
    let stop = AtomicBool::new(false);
    let next = std::sync::Arc::new(AtomicUsize::new(0));
    let large = large_messages();
    let hostile = async {
        let mut senders = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (address, next) = (address(&stage.broker), next.clone());
            let (odd, large) = (odd_messages(), large.clone());
            senders.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    match number {
                        CONNECTIONS.. => return,
                        _ if number % 100 == 0 => {
                            send_raw(&address, &large[number / 100 % large.len()]).await
                        }
                        _ => send_raw(&address, &odd[number % odd.len()]).await,
                    }
                }
            });
        }
        while let Some(ended) = senders.join_next().await {
            ended.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    };
    let ((), answered) = tokio::join!(hostile, works_on(stage.worker.clone(), &stop));
    assert!(answered > 0);
    let mut observer = stage.observer().await;
    insist(
        &stage.worker,
        "tasklatch.report",
        &full_report("good", "completed"),
    )
    .await
    .task();
    assert_eq!(
        observer.all_so_far().await.len(),
        2,
        "the acceptance, once of each kind"
    );
    let peak = memory_peak_kib(&stage.service);
    eprintln!("peak memory: {peak} KiB; {answered} requests answered meanwhile");
    assert!(peak <= MEMORY_MAX_KIB, "{peak} KiB");
    let named = format!("{} MiB", MEMORY_MAX_KIB / 1024);
    assert!(
        document("security.md").contains(&named),
        "docs/security.md names {named}"
    );
    stage.service.signal("TERM").await;
    let (status, log) = stage.service.ended().await;
    assert!(status.success(), "{log}");
    stage.broker.kill().await;
}

#[tokio::test]
async fn http_is_served_on_loopback_by_default_and_shows_nothing_of_any_task() {
    let stage = Stage::set_with(&["--http", "127.0.0.1:0"]).await;
    let secret = "word-that-no-page-shows";
    let task = json!({"task_id": secret, "pane_id": secret, "title": secret});
    stage.worker.create_with(task).await;
    let mut report = full_report(secret, "completed");
    report["summary"] = json!(secret);
    stage.worker.report(&report).await.task();
    stage.worker.report(&full_report(secret, "failed")).await;
    for path in [
        "/live",
        "/ready",
        "/metrics",
        "/",
        "/tasks",
        "/../ledger.db",
    ] {
        let (_, body) = http_get(&stage.service.ready_line, path).await;
        assert!(!body.contains(secret), "{path}: {body}");
    }
    let help = std::process::Command::new(crate::support::BINARY)
        .args(["serve", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("[default: 127.0.0.1:"), "{help}");
}
