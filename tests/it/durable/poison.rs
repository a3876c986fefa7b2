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

#[tokio::test]
async fn a_report_whose_reply_does_not_fit_any_more_is_set_aside_with_its_reason() {
    let config = "max_payload: 1048576\njetstream {}";
    let (mut stage, context) = set_on(Broker::start_configured(config).await).await;
    until_ready(&stage).await;
    let large =
        json!({"task_id": "large", "title": "a task", "metadata": {"m": "x".repeat(20_000)}});
    stage.worker.create_with(large).await;
    stage.worker.create("small").await;
    let report = full_report("large", "completed");
    stage.worker.report(&report).await;
    let mut huge = full_report("small", "completed");
    huge["summary"] = json!("x".repeat(12_000));
    // They come while the service is away, and then the server takes less.
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    publish(&context, "large", &report, &[]).await;
    publish(&context, "small", &huge, &[]).await;
    stage.broker.kill().await;
    stage
        .broker
        .restart_configured("max_payload: 8192\njetstream {}")
        .await;
    let database = stage.folder.path().join("ledger.db");
    let serve = &super::SERVE;
    let service = crate::support::Service::start_serving(&stage.broker, &database, serve).await;
    until_drained(&context).await;
    let mut reasons: Vec<_> = dead(&context, 2)
        .await
        .into_iter()
        .map(|letter| {
            let headers = letter.headers.as_ref().unwrap();
            let error = headers.get("Nats-Service-Error").unwrap().as_str();
            (
                letter.subject.to_string(),
                error.to_owned(),
                letter.payload.len(),
            )
        })
        .collect();
    reasons.sort();
    let [(large, why_large, bytes), (small, why_small, none)] = &reasons[..] else {
        panic!("{reasons:?}");
    };
    assert_eq!(
        (large.as_str(), small.as_str()),
        ("tasklatch.dead.large", "tasklatch.dead.small")
    );
    assert!(
        why_large.starts_with("unavailable: the answer has ")
            && why_large.contains("max_payload is 8192"),
        "{why_large}"
    );
    assert_eq!(*bytes, report.to_string().len(), "what fits is kept");
    assert!(why_small.contains("max_payload is 8192"), "{why_small}");
    assert_eq!(*none, 0, "what does not fit is not");
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
}

#[tokio::test]
async fn a_report_whose_headers_cannot_be_read_is_found_however_far_it_lies_behind_one_that_is_not_settled()
 {
    /// More than are handed out at once, twice over.
    const BETWEEN: usize = 17_000;
    let (stage, context) = set().await;
    until_ready(&stage).await;
    stage.worker.create("first").await;
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    // Somebody else holds the first one.
    publish(&context, "first", &full_report("first", "completed"), &[]).await;
    let stream = context.get_stream("TASKLATCH_REPORTS").await.unwrap();
    let consumer: PullConsumer = stream.get_consumer("tasklatch").await.unwrap();
    let mut pulled = consumer.fetch().max_messages(1).messages().await.unwrap();
    let first = timeout(DEADLINE, pulled.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    for _ in 0..BETWEEN {
        let subject = "tasklatch.queue.report.between";
        stage
            .worker
            .client
            .publish(subject, "{}".into())
            .await
            .unwrap();
    }
    crate::support::eventually("the stream has them", async || {
        (held(&context, "TASKLATCH_REPORTS").await > BETWEEN as u64).then_some(())
    })
    .await;
    stream
        .purge()
        .filter("tasklatch.queue.report.between")
        .await
        .unwrap();
    let odd = hpub(
        "tasklatch.queue.report.odd",
        "_INBOX.odd",
        "NATS/1.0\r\nX: a\rb\r\n\r\n",
        "{}",
    );
    raw(&stage.broker, &odd).await;
    let database = stage.folder.path().join("ledger.db");
    let serve = &super::SERVE;
    let service = crate::support::Service::start_serving(&stage.broker, &database, serve).await;
    crate::support::eventually("it is set aside", async || {
        let _ = first.ack_with(jetstream::AckKind::Progress).await;
        (held(&context, "TASKLATCH_DEAD").await == 1).then_some(())
    })
    .await;
    first.ack_with(jetstream::AckKind::Nak(None)).await.unwrap();
    until_drained(&context).await;
    let letters = dead(&context, 1).await;
    assert_eq!(letters[0].subject.as_str(), "tasklatch.dead.odd");
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
}
