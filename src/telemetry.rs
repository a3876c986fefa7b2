//! Spans of recorded traces, for a collector of OpenTelemetry (docs/metrics.md, "Traces").
//!
//! A span is put in a bounded queue and sent by a thread of its own, by the processor and the exporter of the SDK; what comes
//! while that is full is left out. Whoever handles reports or events never waits for a collector, and never fails by it.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::BoxFuture;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};

use crate::config::OtlpEndpoint;
use crate::ids;
use crate::task::Timestamp;
use crate::wire::{Endpoint, EventKind, Trace};

/// How long spans gather before they are sent.
const SEND_EVERY: Duration = Duration::from_secs(1);

/// How many spans wait at most.
const WAITING_MAX: usize = 8192;

/// How long a collector may take for a request.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How often it is logged at most that a collector does not take spans.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The name of the service, unless `OTEL_SERVICE_NAME` says another.
const SERVICE_NAME: &str = "tasklatch";

/// Spans cannot be sent as it is configured.
#[derive(Debug, thiserror::Error)]
#[error("spans cannot be sent to {endpoint}: {source}; correct --otlp-endpoint or leave it out")]
pub struct TelemetryError {
    endpoint: String,
    source: opentelemetry_otlp::ExporterBuildError,
}

/// Where spans go.
#[derive(Debug)]
pub struct Telemetry {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
}

/// From when to when something took.
#[derive(Clone, Copy, Debug)]
pub struct Period {
    /// Its beginning.
    pub from: SystemTime,
    /// Its end.
    pub to: SystemTime,
}

impl Period {
    /// What began so long ago and ends now.
    pub fn of_last(took: Duration) -> Self {
        let micros = u64::try_from(Timestamp::now().micros()).unwrap_or_default();
        let to = SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
        Self {
            from: to.checked_sub(took).unwrap_or(to),
            to,
        }
    }
}

/// A report that was answered.
#[derive(Debug)]
pub struct ReportSpan<'r> {
    /// The trace that it belongs to.
    pub trace: &'r Trace,
    /// Where it came in.
    pub endpoint: Endpoint,
    /// The task that it names, if it names one.
    pub task_id: Option<&'r str>,
    /// What became of it, and if it was refused, why.
    pub outcome: &'static str,
    /// The code of its refusal, or nothing.
    pub code: Option<&'static str>,
    /// Whether the service could not do what it should.
    pub is_fault: bool,
    /// From its taking to its answer.
    pub whole: Period,
    /// The transaction that it was in, if it was in one.
    pub transaction: Option<Period>,
}

impl Telemetry {
    /// Sends to a collector, from a thread that this starts. The collector need not be there.
    ///
    /// # Errors
    /// [`TelemetryError`] if the address cannot be used.
    pub fn start(endpoint: &OtlpEndpoint) -> Result<Self, TelemetryError> {
        let url = endpoint.traces_url();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new())
            .with_endpoint(&url)
            .with_timeout(ANSWER_WITHIN)
            .build()
            .map_err(|source| TelemetryError {
                endpoint: url,
                source,
            })?;
        let config = BatchConfigBuilder::default()
            .with_scheduled_delay(SEND_EVERY)
            .with_max_queue_size(WAITING_MAX)
            .build();
        let mut processor = BatchSpanProcessor::builder(exporter)
            .with_batch_config(config)
            .build();
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(SERVICE_NAME);
        }
        processor.set_resource(&resource.build());
        let scope = InstrumentationScope::builder(SERVICE_NAME)
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        Ok(Self { processor, scope })
    }

    /// Sends what waits, for so long at most, and ends.
    pub fn stop(&self, within: Duration) {
        if let Err(error) = self.processor.shutdown_with_timeout(within) {
            tracing::debug!(error = %error, "not all spans could be sent");
        }
    }

    /// The spans of a report: the whole, its transaction, and its reply. Nothing if its trace is not recorded.
    pub fn report(&self, report: &ReportSpan<'_>) {
        let trace = report.trace;
        if !trace.is_recorded() {
            return;
        }
        let mut attributes = vec![
            KeyValue::new("messaging.system", "nats"),
            KeyValue::new("tasklatch.endpoint", report.endpoint.name()),
            KeyValue::new("report.outcome", report.outcome),
        ];
        attributes.extend(report.code.map(|code| KeyValue::new("report.code", code)));
        let task_id = report.task_id.map(str::to_owned);
        attributes.extend(task_id.map(|task_id| KeyValue::new("task.id", task_id)));
        if let Some(transaction) = report.transaction {
            self.child(
                trace,
                "transaction",
                SpanKind::Internal,
                transaction,
                Vec::new(),
            );
            let reply = Period {
                from: transaction.to,
                to: report.whole.to,
            };
            self.child(trace, "reply", SpanKind::Producer, reply, Vec::new());
        }
        self.end(SpanData {
            parent_span_id: SpanId::from_bytes(trace.parent_id),
            parent_span_is_remote: true,
            status: match report.is_fault {
                true => Status::error(report.code.unwrap_or_default()),
                false => Status::Unset,
            },
            ..self.span(
                trace,
                trace.span_id,
                "report",
                SpanKind::Server,
                report.whole,
                attributes,
            )
        });
    }

    /// The span of an event that was published. Nothing if its trace is not recorded.
    pub fn event(&self, trace: &Trace, kind: EventKind, id: String, period: Period) {
        if trace.is_recorded() {
            let attributes = vec![
                KeyValue::new("messaging.system", "nats"),
                KeyValue::new("event.kind", kind.word()),
                KeyValue::new("event.id", id),
            ];
            self.child(trace, "publish", SpanKind::Producer, period, attributes);
        }
    }

    fn child(
        &self,
        trace: &Trace,
        name: &'static str,
        kind: SpanKind,
        period: Period,
        attributes: Vec<KeyValue>,
    ) {
        self.end(self.span(trace, ids::new_span_id(), name, kind, period, attributes));
    }

    /// A span whose parent is that of the report.
    fn span(
        &self,
        trace: &Trace,
        span_id: [u8; 8],
        name: &'static str,
        span_kind: SpanKind,
        period: Period,
        attributes: Vec<KeyValue>,
    ) -> SpanData {
        SpanData {
            span_context: SpanContext::new(
                TraceId::from_bytes(trace.trace_id),
                SpanId::from_bytes(span_id),
                TraceFlags::SAMPLED,
                false,
                TraceState::default(),
            ),
            parent_span_id: SpanId::from_bytes(trace.span_id),
            parent_span_is_remote: false,
            span_kind,
            name: name.into(),
            start_time: period.from,
            end_time: period.to,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn end(&self, span: SpanData) {
        self.processor.on_end(span);
    }
}

/// Sends requests to the collector, from the thread of the processor, which may wait.
#[derive(Debug)]
struct Collector {
    agent: ureq::Agent,
    last_log: Mutex<Option<Instant>>,
}

impl Collector {
    fn new() -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_WITHIN))
            .http_status_as_error(false)
            .build();
        Self {
            agent: config.into(),
            last_log: Mutex::new(None),
        }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (head, body) = request.into_parts();
        let request = Request::from_parts(head, body.to_vec());
        let (head, mut body) = self.agent.run(request)?.into_parts();
        Ok(Response::from_parts(head, body.read_to_vec()?.into()))
    }

    /// Says now and then that spans are lost.
    fn take_note(&self, why: &str) {
        let mut last = self
            .last_log
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            *last = Some(Instant::now());
            tracing::warn!(
                error = why,
                "the collector does not take spans, and some are lost; reports are not affected"
            );
        }
    }
}

impl HttpClient for Collector {
    fn send_bytes<'client, 'sending>(
        &'client self,
        request: Request<Bytes>,
    ) -> BoxFuture<'sending, Result<Response<Bytes>, HttpError>>
    where
        'client: 'sending,
        Self: 'sending,
    {
        Box::pin(async move {
            let sent = self.send(request);
            match &sent {
                Ok(answer) if answer.status().is_success() => {}
                Ok(answer) => self.take_note(&format!("it answers {}", answer.status())),
                Err(error) => self.take_note(&error.to_string()),
            }
            Ok(sent?)
        })
    }
}
