//! The requests besides reports, reply subjects, messages that no client library sends, and time.

use std::collections::HashSet;

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Broker, DEADLINE, Service, Stage, Worker, full_report};

async fn ask(stage: &Stage, verb: &str, body: Value) -> crate::support::Reply {
    stage
        .worker
        .ask(&format!("tasklatch.task.{verb}"), &body)
        .await
}

#[tokio::test]
async fn creating_again_with_the_same_content_answers_the_task_as_it_is_and_other_content_is_a_conflict()
 {
    let stage = Stage::set().await;
    let body = json!({
        "task_id": "t", "pane_id": "p", "title": "a task", "metadata": {"a": 1, "b": [1.0, {"c": null}]},
        "deadline": "2999-06-30T18:00:00.5+02:00",
    });
    let created = ask(&stage, "create", body.clone()).await;
    assert_eq!(created.task()["deadline"], "2999-06-30T16:00:00.500000Z");
    let turned = r#"{"deadline":"2999-06-30T16:00:00.500000000Z","metadata":{"b":[1e0,{"c":null}],"a":1.0},"title":"a task","pane_id":"p","task_id":"t"}"#;
    let mut observer = stage.observer_from_now().await;
    assert_eq!(ask(&stage, "create", body.clone()).await.body, created.body);
    assert_eq!(
        stage
            .worker
            .ask_bytes("tasklatch.task.create", turned)
            .await
            .body,
        created.body
    );
    for (field, value) in [
        ("pane_id", json!("q")),
        ("pane_id", Value::Null),
        ("title", json!("a task ")),
        ("metadata", json!({"a": 1})),
        ("metadata", Value::Null),
        ("deadline", json!("2999-06-30T16:00:00.500001Z")),
        ("deadline", Value::Null),
    ] {
        let mut other = body.clone();
        other[field] = value;
        let refused = ask(&stage, "create", other.clone()).await;
        assert_eq!(refused.code(), "task_conflict", "{other}");
        assert_eq!(refused.error()["differs"], json!([field]), "{other}");
    }
    let all = json!({"task_id": "t", "title": "other"});
    let differs = json!(["pane_id", "title", "metadata", "deadline"]);
    assert_eq!(ask(&stage, "create", all).await.error()["differs"], differs);
    assert_eq!(observer.ids_so_far().await, [""; 0]);

    // Whatever has become of the task.
    let done = stage.worker.report(&full_report("t", "completed")).await;
    assert_eq!(ask(&stage, "create", body).await.body, done.body);
    assert_eq!(
        ask(&stage, "create", json!({"task_id": "t", "title": "x"}))
            .await
            .error()["lifecycle"],
        "completed"
    );
}

#[tokio::test]
async fn a_task_has_every_key_in_the_order_of_the_protocol_and_an_id_of_the_services_own_if_none_is_brought()
 {
    let stage = Stage::set().await;
    let created = stage
        .worker
        .ask_bytes("tasklatch.task.create", r#"{"title":"x"}"#)
        .await;
    let task = created.task();
    let task_id = task["task_id"].as_str().unwrap();
    let made = task_id.strip_prefix("t-").unwrap();
    assert_eq!(
        (made.len(), made.as_bytes()[14]),
        (36, b'7'),
        "a UUIDv7: {task_id}"
    );
    let at = task["created_at"].as_str().unwrap();
    assert!(at.len() == 27 && at.ends_with('Z'), "{at}");
    let expected = format!(
        r#"{{"task_id":"{task_id}","pane_id":null,"title":"x","lifecycle":"submitted","metadata":null,"deadline":null,"reason":null,"result":null,"disposition":null,"revision":1,"created_at":"{at}","updated_at":"{at}"}}"#
    );
    assert_eq!(created.body, expected);
    assert_ne!(
        ask(&stage, "create", json!({"title": "x"})).await.task()["task_id"],
        task_id
    );
}

#[tokio::test]
async fn start_and_cancel_are_idempotent_and_keep_what_was_said_first() {
    let stage = Stage::set().await;
    let t = json!({"task_id": "t"});
    stage.worker.create("t").await;
    let started = ask(&stage, "start", t.clone()).await;
    assert_eq!(
        (&started.task()["lifecycle"], &started.task()["revision"]),
        (&json!("working"), &json!(2))
    );
    assert_eq!(ask(&stage, "start", t.clone()).await.body, started.body);
    let canceled = ask(&stage, "cancel", json!({"task_id": "t", "reason": "first"})).await;
    assert_eq!(
        (&canceled.task()["lifecycle"], &canceled.task()["reason"]),
        (&json!("canceled"), &json!("first"))
    );
    for again in [json!({"task_id": "t", "reason": "second"}), t.clone()] {
        assert_eq!(ask(&stage, "cancel", again).await.body, canceled.body);
    }
    assert_eq!(
        ask(&stage, "start", t.clone()).await.code(),
        "task_terminal"
    );
    assert_eq!(ask(&stage, "get", t).await.body, canceled.body);
    stage.worker.create("u").await;
    assert_eq!(
        ask(&stage, "cancel", json!({"task_id": "u"})).await.task()["reason"],
        Value::Null
    );
}

#[tokio::test]
async fn the_same_review_changes_nothing_and_another_replaces_it_and_none_of_them_touches_the_result()
 {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let result = stage
        .worker
        .report(&full_report("t", "failed"))
        .await
        .task()["result"]
        .clone();
    let mut revision = 2;
    for review in [
        json!({"verdict": "rework", "note": "n", "reviewer": "r"}),
        json!({"verdict": "rework", "note": "n"}),
        json!({"verdict": "rework", "note": ""}),
        json!({"verdict": "approved"}),
        json!({"verdict": "blocked", "reviewer": "r"}),
    ] {
        let mut body = review.clone();
        body["task_id"] = json!("t");
        let reviewed = ask(&stage, "review", body.clone()).await;
        revision += 1;
        let task = reviewed.task();
        assert_eq!(task["revision"], revision);
        assert_eq!(task["result"], result);
        assert_eq!(task["lifecycle"], "failed");
        for part in ["verdict", "note", "reviewer"] {
            assert_eq!(task["disposition"][part], review[part], "{review}");
        }
        assert_eq!(task["disposition"]["reviewed_at"], task["updated_at"]);
        assert_eq!(ask(&stage, "review", body).await.body, reviewed.body);
    }
}

#[tokio::test]
async fn a_list_is_filtered_by_lifecycle_pane_disposition_and_time_all_of_which_must_match() {
    let stage = Stage::set().await;
    for task_id in ["a", "b", "c", "d"] {
        let pane = if task_id < "c" { "p" } else { "q" };
        stage
            .worker
            .create_with(json!({"task_id": task_id, "pane_id": pane, "title": "t"}))
            .await;
    }
    for task_id in ["a", "c"] {
        stage
            .worker
            .report(&full_report(task_id, "completed"))
            .await
            .task();
    }
    let reviewed = ask(
        &stage,
        "review",
        json!({"task_id": "c", "verdict": "rework"}),
    )
    .await
    .task();
    let ids = async |filter: Value| -> String {
        let list = ask(&stage, "list", filter).await.json();
        assert_eq!(list["cursor"], Value::Null);
        list["tasks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|task| task["task_id"].as_str().unwrap())
            .collect()
    };
    assert_eq!(ids(json!({})).await, "dcba", "the newest comes first");
    assert_eq!(ids(json!({"lifecycle": ["completed"]})).await, "ca");
    assert_eq!(
        ids(json!({"lifecycle": ["submitted", "completed"]})).await,
        "dcba"
    );
    assert_eq!(ids(json!({"pane_id": "p"})).await, "ba");
    assert_eq!(
        ids(json!({"pane_id": "p", "lifecycle": ["completed"]})).await,
        "a"
    );
    assert_eq!(ids(json!({"disposition": ["rework"]})).await, "c");
    assert_eq!(
        ids(json!({"disposition": ["none"], "lifecycle": ["completed"]})).await,
        "a"
    );
    assert_eq!(
        ids(json!({"disposition": ["none", "rework"], "pane_id": "q"})).await,
        "dc"
    );
    assert_eq!(
        ids(json!({"updated_since": reviewed["updated_at"]})).await,
        "c"
    );
    assert_eq!(
        ids(json!({"updated_since": "2999-01-01T00:00:00Z"})).await,
        ""
    );
    let whole = ask(&stage, "list", json!({"disposition": ["rework"]}))
        .await
        .json();
    assert_eq!(whole["tasks"][0], reviewed);
    for (bad, field) in [
        (json!({"lifecycle": []}), "/lifecycle"),
        (json!({"lifecycle": ["done"]}), "/lifecycle/0"),
        (json!({"limit": 0}), "/limit"),
        (json!({"limit": 1.5}), "/limit"),
        (json!({"cursor": "nonsense"}), "/cursor"),
        (json!({"disposition": ["rework", 1]}), "/disposition/1"),
        (json!({"updated_since": "yesterday"}), "/updated_since"),
        (json!({"order": "asc"}), "/order"),
    ] {
        let refused = ask(&stage, "list", bad.clone()).await;
        assert_eq!(
            (refused.code(), &refused.error()["field"]),
            ("invalid_request".to_owned(), &json!(field)),
            "{bad}"
        );
    }
}

/// Reads all pages, and gives the IDs in the order in which they came, and how many pages there were.
async fn all_pages(worker: &Worker, mut query: Value) -> (Vec<String>, usize) {
    let (mut ids, mut pages) = (Vec::new(), 0);
    loop {
        let page = worker.ask("tasklatch.task.list", &query).await.json();
        pages += 1;
        ids.extend(
            page["tasks"]
                .as_array()
                .unwrap()
                .iter()
                .map(|task| task["task_id"].as_str().unwrap().to_owned()),
        );
        match &page["cursor"] {
            Value::Null => return (ids, pages),
            cursor => {
                assert_ne!(*cursor, query["cursor"], "each page goes on");
                query["cursor"] = cursor.clone();
            }
        }
    }
}

#[tokio::test]
async fn paging_reaches_the_end_without_gaps_or_repeats_while_tasks_are_being_created() {
    let stage = Stage::set().await;
    let before: Vec<String> = (0..250).map(|number| format!("t-{number}")).collect();
    for task_id in &before {
        stage.worker.create(task_id).await;
    }
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let other = Worker::connect(&stage.broker).await;
    let creating = tokio::spawn(async move {
        let mut created = 0;
        while stopped.try_recv().is_err() {
            other.create(&format!("new-{created}")).await;
            created += 1;
        }
        created
    });
    for limit in [1, 7, 100, 250] {
        let (ids, _) = all_pages(&stage.worker, json!({"limit": limit})).await;
        assert_eq!(
            ids.iter().collect::<HashSet<_>>().len(),
            ids.len(),
            "no repeats"
        );
        let old: Vec<String> = ids
            .into_iter()
            .filter(|id| id.starts_with("t-"))
            .rev()
            .collect();
        assert_eq!(old, before, "no gaps with limit {limit}");
    }
    stop.send(()).unwrap();
    assert!(creating.await.unwrap() > 0, "tasks were created meanwhile");
    let (ids, pages) = all_pages(&stage.worker, json!({"lifecycle": ["completed"]})).await;
    assert_eq!((ids.len(), pages), (0, 1));
}

#[tokio::test]
async fn a_page_ends_early_rather_than_outgrow_the_server_and_paging_goes_on_from_there() {
    let broker = Broker::start_configured("max_payload: 10240\n").await;
    let folder = tempfile::tempdir().unwrap();
    let _service = Service::start(&broker, &folder.path().join("ledger.db"), &[]).await;
    let worker = Worker::connect(&broker).await;
    for number in 0..20 {
        let metadata = json!({"text": "x".repeat(100 * (number + 1))});
        worker
            .create_with(
                json!({"task_id": format!("t-{number}"), "title": "t", "metadata": metadata}),
            )
            .await;
    }
    let (ids, pages) = all_pages(&worker, json!({})).await;
    assert_eq!(
        ids,
        (0..20)
            .rev()
            .map(|number| format!("t-{number}"))
            .collect::<Vec<_>>()
    );
    assert!(pages >= 3, "{pages} pages");
}
#[tokio::test]
async fn no_answer_is_published_under_the_own_prefix_or_to_a_system_subject_but_the_report_is_applied()
 {
    let stage = Stage::set().await;
    let client = &stage.worker.client;
    let mut heard = client.subscribe("tasklatch.>").await.unwrap();
    client.flush().await.unwrap();
    let replies = [
        None,
        Some("tasklatch.report"),
        Some("tasklatch.task.create"),
        Some("tasklatch.event.result.t"),
        Some("tasklatch"),
        Some("$SRV.PING"),
        Some("$JS.API.INFO"),
        Some("nobody.listens.here"),
        Some("_INBOX.*"),
        Some("_INBOX.>"),
    ];
    let mut expected = HashSet::new();
    for (number, reply) in replies.iter().enumerate() {
        let task_id = format!("t-{number}");
        stage.worker.create(&task_id).await;
        let report = full_report(&task_id, "completed").to_string();
        match reply {
            None => client
                .publish("tasklatch.report", report.into())
                .await
                .unwrap(),
            Some(reply) => publish_raw(&stage, "tasklatch.report", reply, &report).await,
        }
        expected.insert(format!("{task_id}.2.task"));
    }
    // All of them are applied; and of all that is heard under the prefix, nothing is an answer.
    let mut requests = 0;
    while !expected.is_empty() {
        let message = timeout(DEADLINE, heard.next())
            .await
            .expect("an event in time")
            .unwrap();
        let headers = message.headers.unwrap_or_default();
        assert!(
            headers.get("Tasklatch-Protocol").is_none(),
            "an answer on {}",
            message.subject
        );
        match headers.get("ce-id") {
            Some(id) => drop(expected.remove(id.as_str())),
            None => requests += 1,
        }
    }
    assert_eq!(
        requests,
        2 * replies.len(),
        "the requests of this test and no others"
    );
    let (status, log) = stage.service.stop().await;
    assert!(status.success());
    assert!(
        log.contains("asks for its answer at a subject that is not a client's"),
        "it is logged, though not each time: {log}"
    );
}

/// A connection that speaks the protocol of the server itself.
struct Raw {
    stream: BufReader<TcpStream>,
}

impl Raw {
    async fn connect(broker: &Broker) -> Self {
        let stream = TcpStream::connect(broker.url().strip_prefix("nats://").unwrap())
            .await
            .unwrap();
        let mut raw = Self {
            stream: BufReader::new(stream),
        };
        raw.line().await;
        raw.send(b"CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\n").await;
        raw
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(DEADLINE, self.stream.read_line(&mut line))
            .await
            .expect("a line in time")
            .unwrap();
        line
    }

    /// Sends bytes, and sees that the server has dealt with them.
    async fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).await.unwrap();
        self.stream.get_mut().write_all(b"PING\r\n").await.unwrap();
        loop {
            let line = self.line().await;
            assert!(!line.starts_with("-ERR"), "the server refused it: {line}");
            if line == "PONG\r\n" {
                return;
            }
        }
    }

    async fn publish(&mut self, subject: &str, reply: &str, header: &[u8], payload: &[u8]) {
        let sizes = format!("{} {}", header.len(), header.len() + payload.len());
        let mut bytes = format!("HPUB {subject} {reply} {sizes}\r\n").into_bytes();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(payload);
        bytes.extend_from_slice(b"\r\n");
        self.send(&bytes).await;
    }
}

/// Publishes with a reply subject that no client library would send.
async fn publish_raw(stage: &Stage, subject: &str, reply: &str, payload: &str) {
    let mut raw = Raw::connect(&stage.broker).await;
    raw.send(format!("PUB {subject} {reply} {}\r\n{payload}\r\n", payload.len()).as_bytes())
        .await;
}

/// After this message the service answers a good report, or it has ended with an error. Never is it up and silent.
async fn assert_serves_or_ended_after(header: &[u8], payload: &[u8]) {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let mut raw = Raw::connect(&stage.broker).await;
    for subject in [
        "tasklatch.report",
        "tasklatch.report.t",
        "tasklatch.task.get",
        "tasklatch.task.create",
        "$SRV.PING",
    ] {
        raw.publish(subject, "inbox.of.a.test", header, payload)
            .await;
    }
    let served = async {
        loop {
            let report = full_report("t", "completed").to_string();
            let request = stage
                .worker
                .client
                .request("tasklatch.report", report.into());
            match timeout(std::time::Duration::from_secs(2), request).await {
                Ok(Ok(answer))
                    if answer
                        .headers
                        .as_ref()
                        .is_some_and(|headers| headers.get("Tasklatch-Outcome").is_some()) =>
                {
                    return;
                }
                _ => {}
            }
        }
    };
    let ended = stage.service.ended();
    tokio::select! {
        served = timeout(DEADLINE, served) => served.expect("the service answers, or ends"),
        (status, log) = ended => assert!(!status.success(), "it ended, and says that it went wrong: {log}"),
    }
}

#[tokio::test]
async fn a_carriage_return_inside_a_header_does_not_leave_the_service_up_and_silent() {
    assert_serves_or_ended_after(b"NATS/1.0\r\nx: a\rb\r\n\r\n", b"{}").await;
}

#[tokio::test]
async fn a_message_of_headers_alone_does_not_leave_the_service_up_and_silent() {
    assert_serves_or_ended_after(b"NATS/1.0\r\nx: y\r\n\r\n", b"").await;
}

#[tokio::test]
async fn a_malformed_status_line_does_not_leave_the_service_up_and_silent() {
    assert_serves_or_ended_after(b"NATS/1.0 abc what\r\n\r\n", b"{}").await;
    assert_serves_or_ended_after(b"NATS/9.9\r\n\r\n", b"{}").await;
    assert_serves_or_ended_after(b"nonsense\r\n\r\n", b"{}").await;
}

#[tokio::test]
async fn headers_without_a_name_or_in_bytes_that_are_no_text_do_not_leave_the_service_up_and_silent()
 {
    assert_serves_or_ended_after(b"NATS/1.0\r\n: y\r\n\r\n", b"{}").await;
    assert_serves_or_ended_after(b"NATS/1.0\r\nx: \xff\xfe\r\n\r\n", b"{}").await;
    assert_serves_or_ended_after(b"NATS/1.0\r\nno colon\r\n\r\n", b"{}").await;
}

#[tokio::test]
async fn an_empty_message_and_one_that_says_no_responders_are_refused_like_any_other_that_is_no_json()
 {
    let stage = Stage::set().await;
    let mut raw = Raw::connect(&stage.broker).await;
    let mut answers = stage
        .worker
        .client
        .subscribe("inbox.of.a.test")
        .await
        .unwrap();
    // Once this is answered, the server knows of the subscription that was sent before it.
    stage.worker.create("t").await;
    raw.publish(
        "tasklatch.report",
        "inbox.of.a.test",
        b"NATS/1.0 503\r\n\r\n",
        b"",
    )
    .await;
    raw.publish(
        "tasklatch.report",
        "inbox.of.a.test",
        b"NATS/1.0\r\nx: y\r\n\r\n",
        b"",
    )
    .await;
    publish_raw(&stage, "tasklatch.report", "inbox.of.a.test", "").await;
    for _ in 0..3 {
        let answer = timeout(DEADLINE, answers.next())
            .await
            .expect("each is answered")
            .unwrap();
        let body: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!(body["error"]["code"], "invalid_report");
    }
}
