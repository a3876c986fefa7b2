//! Spans as a collector gets them, which the test plays.

use std::net::SocketAddr;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Set, TRACE_ID, report, span, text, traceparent};
use crate::support::{Broker, DEADLINE, EventStream, Service, Worker};

/// A collector that takes spans by OTLP over HTTP.
struct Collector {
    address: SocketAddr,
    came: mpsc::UnboundedReceiver<ResourceSpans>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, came) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, tell.clone()));
            }
        });
        Self { address, came }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits for so many spans, and gives them with the name of the service that they all come from.
    async fn spans(&mut self, count: usize) -> (String, Vec<Span>) {
        let (mut name, mut spans) = (String::new(), Vec::new());
        while spans.len() < count {
            let next = timeout(DEADLINE, self.came.recv());
            let group = next.await.expect("spans in time").unwrap();
            let attributes = group.resource.unwrap().attributes;
            let of_service = attributes.iter().find(|one| one.key == "service.name");
            let value = of_service.unwrap().value.clone().unwrap().value;
            let Some(Value::StringValue(said)) = value else {
                panic!("{attributes:?}")
            };
            name = said;
            spans.extend(group.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
        (name, spans)
    }
}

/// Takes the requests of one connection.
async fn serve(mut stream: TcpStream, tell: mpsc::UnboundedSender<ResourceSpans>) {
    let mut read = Vec::new();
    loop {
        let head = read.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = head.map(|at| at + 4) else {
            if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return;
            }
            continue;
        };
        let head = String::from_utf8(read[..end].to_vec())
            .unwrap()
            .to_lowercase();
        assert!(head.starts_with("post /v1/traces "), "{head}");
        assert!(
            head.contains("content-type: application/x-protobuf\r\n"),
            "{head}"
        );
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.unwrap().parse().unwrap();
        while read.len() < end + length {
            assert!(stream.read_buf(&mut read).await.unwrap() > 0);
        }
        let request = ExportTraceServiceRequest::decode(&read[end..end + length]).unwrap();
        read.drain(..end + length);
        for group in request.resource_spans {
            let _ = tell.send(group);
        }
        let answer =
            "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_collector_gets_the_spans_of_a_recorded_trace_and_of_no_other_without_content() {
    let mut collector = Collector::start().await;
    let broker = Broker::start_with_jetstream().await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("ledger.db");
    let url = collector.url();
    let options = ["--events", "jetstream", "--otlp-endpoint", &url];
    let named = ["env", "OTEL_SERVICE_NAME=workshop"];
    let service = Service::try_start_by(&named, &broker.url(), &database, &options).await;
    let set = Set {
        service: service.unwrap(),
        worker: Worker::connect(&broker).await,
        stream: EventStream::of(&broker).await,
        folder,
        broker,
    };
    let unrecorded = "00-11111111111111111111111111111111-00f067aa0ba902b7-00";
    for (task_id, traceparent) in [("quiet", unrecorded), ("t", &traceparent())] {
        set.worker.create(task_id).await;
        let answer = report(&set.worker, task_id, &[("traceparent", traceparent)]).await;
        set.events_of(task_id).await;
        if task_id == "quiet" {
            continue;
        }
        let ours = span(text(&answer, "traceparent").unwrap());
        let (service_name, mut spans) = collector.spans(5).await;
        assert_eq!(service_name, "workshop");
        spans.sort_by(|one, other| one.name.cmp(&other.name));
        let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
        assert_eq!(
            names,
            ["publish", "publish", "reply", "report", "transaction"]
        );
        for span in &spans {
            assert_eq!(hex(&span.trace_id), TRACE_ID);
            assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
            match span.name == "report" {
                true => {
                    assert_eq!(hex(&span.span_id), ours);
                    assert_eq!(hex(&span.parent_span_id), super::SENDERS_SPAN);
                }
                false => assert_eq!(hex(&span.parent_span_id), ours),
            }
        }
        let all = format!("{spans:?}");
        for wanted in ["accepted", "t.2.result", "t.2.task"] {
            assert!(all.contains(wanted), "{wanted} in {all}");
        }
        for content in ["clock was read", "branch:fix", "passed", "a task"] {
            assert!(!all.contains(content), "{content}");
        }
    }
}

#[tokio::test]
async fn a_collector_that_cannot_be_reached_costs_no_report_and_is_logged_once() {
    let set = Set::up(&["--otlp-endpoint", "http://127.0.0.1:9"]).await;
    for number in 0..20 {
        let task_id = format!("t{number}");
        set.worker.create(&task_id).await;
        let answer = report(&set.worker, &task_id, &[("traceparent", &traceparent())]).await;
        assert_eq!(text(&answer, "Tasklatch-Outcome"), Some("accepted"));
    }
    let (status, log) = set.service.stop().await;
    assert!(status.success(), "{log}");
    let warnings = log.matches("the collector does not take spans").count();
    assert_eq!(warnings, 1, "{log}");
}
