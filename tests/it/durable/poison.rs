//! Reports that can never be applied.

use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{answers, held, next, publish, set, set_on, until_drained, until_ready};
use crate::broker_faults::requesters::{format_hpub as hpub, raw};
use crate::support::{Broker, DEADLINE, full_report};

/// All that the stream of dead letters holds.
async fn dead(context: &Context, count: u64) -> Vec<jetstream::Message> {
    let stream = context.get_stream("TASKLATCH_DEAD").await.unwrap();
    assert_eq!(stream.cached_info().state.messages, count);
    let config = Config {
        ack_policy: AckPolicy::None,
        ..Config::default()
    };
    let consumer: PullConsumer = stream.create_consumer(config).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let mut letters = Vec::new();
    while (letters.len() as u64) < count {
        let message = timeout(DEADLINE, messages.next()).await.unwrap().unwrap();
        letters.push(message.unwrap());
    }
    letters
}

#[tokio::test]
async fn each_report_that_can_never_be_applied_is_set_aside_once_with_its_refusal_and_leaves_the_stream()
 {
    let (stage, context) = set().await;
    until_ready(&stage).await;
    for task_id in ["open", "done", "canceled", "other"] {
        stage.worker.create(task_id).await;
    }
    for task_id in ["p-1", "p-2"] {
        let task = json!({"task_id": task_id, "pane_id": "p", "title": "a task"});
        stage.worker.create_with(task).await;
    }
    stage.worker.report(&full_report("done", "completed")).await;
    let cancel = json!({"task_id": "canceled"});
    stage.worker.ask("tasklatch.task.cancel", &cancel).await;
    let whole = full_report("open", "completed");
    let bare = json!({"status": "completed", "summary": "x"});
    let with = |key: &str, value: Value| {
        let mut report = bare.clone();
        report[key] = value;
        report
    };
    let kinds: [(&str, Value, &str, &str); 9] = [
        (
            "open",
            json!({"status": "completed"}),
            "invalid_report",
            "open",
        ),
        ("open", json!([1]), "invalid_report", "open"),
        ("open", with("surprise", json!(1)), "invalid_report", "open"),
        ("nobody", bare.clone(), "task_not_found", "nobody"),
        ("other", whole, "selector_mismatch", "other"),
        (
            "p-1",
            with("pane_id", json!("q")),
            "selector_mismatch",
            "p-1",
        ),
        (
            "done",
            full_report("done", "failed"),
            "result_conflict",
            "done",
        ),
        ("canceled", bare.clone(), "task_terminal", "canceled"),
        ("a.b", bare.clone(), "invalid_report", "_"),
    ];
    let (inbox, mut came) = answers(&stage.worker).await;
    for (count, (task_id, body, code, token)) in kinds.iter().enumerate() {
        let headers = [
            ("Tasklatch-Reply-To", inbox.as_str()),
            ("X-Note", "the worker's own"),
            ("Nats-Expected-Stream", "TASKLATCH_REPORTS"),
        ];
        let sequence = publish(&context, task_id, body, &headers).await;
        let refusal = next(&mut came).await;
        assert_eq!(refusal.code(), *code, "{task_id}");
        until_drained(&context).await;
        let letters = dead(&context, count as u64 + 1).await;
        let letter = letters.last().unwrap();
        assert_eq!(letter.subject.as_str(), format!("tasklatch.dead.{token}"));
        assert_eq!(letter.payload, body.to_string().as_bytes());
        let headers = letter.headers.as_ref().unwrap();
        let header = |name: &str| headers.get(name).map(|value| value.as_str());
        for name in [
            "Nats-Service-Error-Code",
            "Nats-Service-Error",
            "Tasklatch-Protocol",
        ] {
            assert_eq!(header(name), refusal.header(name), "{name}");
        }
        assert_eq!(header("X-Note"), Some("the worker's own"));
        let id = header("Nats-Msg-Id").unwrap();
        assert!(id.starts_with("TASKLATCH_REPORTS.") && id.ends_with(&format!(".{sequence}")));
    }
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
}

#[tokio::test]
async fn a_dead_letter_that_does_not_fit_with_its_refusal_is_set_aside_without_its_payload() {
    let config = "max_payload: 4096\njetstream {}";
    let (stage, context) = set_on(Broker::start_configured(config).await).await;
    until_ready(&stage).await;
    let text = "x".repeat(4_096 - 2);
    publish(&context, "nobody", &json!(text), &[]).await;
    until_drained(&context).await;
    let letters = dead(&context, 1).await;
    assert!(letters[0].payload.is_empty());
    let headers = letters[0].headers.as_ref().unwrap();
    assert_eq!(
        headers.get("Tasklatch-Left-Out").unwrap().as_str(),
        "payload"
    );
    let error = headers.get("Nats-Service-Error").unwrap().as_str();
    assert!(error.starts_with("invalid_report: "), "{error}");
}

#[tokio::test]
async fn a_report_whose_headers_cannot_be_read_is_set_aside_and_does_not_hold_up_others() {
    let (stage, context) = set().await;
    until_ready(&stage).await;
    stage.worker.create("t").await;
    let bad = [
        "HTTP/1.1 200\r\n\r\n",
        "NATS/1.0\r\nA b: c\r\n\r\n",
        "NATS/1.0\r\nnonsense\r\n\r\n",
        "NATS/1.0\r\nX: a\rb\r\n\r\n",
    ];
    for (number, headers) in bad.iter().enumerate() {
        let subject = format!("tasklatch.queue.report.odd-{number}");
        raw(&stage.broker, &hpub(&subject, "_INBOX.odd", headers, "{}")).await;
    }
    let (inbox, mut came) = answers(&stage.worker).await;
    let report = full_report("t", "completed");
    publish(&context, "t", &report, &[("Tasklatch-Reply-To", &inbox)]).await;
    assert_eq!(next(&mut came).await.outcome(), Some("accepted"));
    until_drained(&context).await;
    for letter in dead(&context, 4).await {
        assert_eq!(letter.payload, "{}");
        let headers = letter.headers.as_ref().unwrap();
        let header = |name: &str| {
            let value = headers.get(name);
            value
                .unwrap_or_else(|| panic!("{name} in {headers:?} on {}", letter.subject))
                .as_str()
        };
        assert_eq!(header("Tasklatch-Left-Out"), "headers");
        assert!(header("Nats-Service-Error").starts_with("invalid_report: "));
        assert!(letter.subject.starts_with("tasklatch.dead.odd-"));
    }
    until_ready(&stage).await;
}

#[tokio::test]
async fn a_report_that_cannot_be_set_aside_stays_until_it_can_and_the_stream_for_it_is_made_anew() {
    let (stage, context) = set().await;
    until_ready(&stage).await;
    context.delete_stream("TASKLATCH_DEAD").await.unwrap();
    publish(&context, "nobody", &full_report("nobody", "failed"), &[]).await;
    until_drained(&context).await;
    assert_eq!(held(&context, "TASKLATCH_DEAD").await, 1);
    until_ready(&stage).await;
}

#[tokio::test]
async fn a_report_whose_subject_is_no_text_is_set_aside_and_does_not_hold_up_others() {
    let (stage, context) = set().await;
    until_ready(&stage).await;
    stage.worker.create("t").await;
    raw(
        &stage.broker,
        b"PUB tasklatch.queue.report.\xff\xfe 2\r\n{}\r\n",
    )
    .await;
    let (inbox, mut came) = answers(&stage.worker).await;
    let report = full_report("t", "completed");
    publish(&context, "t", &report, &[("Tasklatch-Reply-To", &inbox)]).await;
    assert_eq!(next(&mut came).await.outcome(), Some("accepted"));
    until_drained(&context).await;
    let letters = dead(&context, 1).await;
    assert_eq!(letters[0].subject.as_str(), "tasklatch.dead._");
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
}
