//! Answers on their way out.

use std::sync::Arc;
use std::time::Instant;

use async_nats::{HeaderMap, PublishErrorKind, Subject};
use serde::Deserialize;
use tokio_util::task::TaskTracker;

use super::Share;
use super::discovery::Statistics;
use super::durable::Delivery;
use super::reply_bytes::{ReplyBytes, Room};
use crate::faults::{self, Point};
use crate::health::Health;
use crate::ids;
use crate::ledger::{Applied, Fault};
use crate::metrics::ReportOutcome;
use crate::nats::{Connection, LogPace, header_map};
use crate::report::Selector;
use crate::telemetry::{Period, ReportSpan};
use crate::wire::{
    Answer, Code, Endpoint, Refusal, Subjects, TRACEPARENT, TRACESTATE, Trace, header,
};

/// What is needed to answer one request: exactly one answer is sent for each.
#[derive(Debug)]
pub struct Ticket {
    endpoint: Endpoint,
    reply: Option<Subject>,
    pub(super) received: Instant,
    /// The task that a report names, if that is to be logged or traced.
    task_id: Option<Box<str>>,
    /// The trace that a report belongs to.
    pub(super) trace: Option<Box<Trace>>,
    /// The transaction that a request was in.
    pub(super) transaction: Option<Period>,
    /// For a report from the report stream: what is to be settled with it.
    delivery: Option<Box<Delivery>>,
    /// Held until the answer is on its way, so that answers that wait are work in hand too.
    _share: Option<Share>,
    /// The room that the reply has among those that wait for the connection.
    room: Option<Room>,
}

impl Ticket {
    /// Takes note of the task that a report names, if that is to be logged or traced.
    pub(super) fn name_task(&mut self, selector: &Selector) {
        if is_logged() || self.trace.is_some() {
            self.task_id = selector.task_id().map(Into::into);
        }
    }

    pub(super) fn with(self, share: Share) -> Self {
        Self {
            _share: Some(share),
            ..self
        }
    }
}

/// The trace that a report belongs to by its headers. What is malformed, or said twice, is as good as nothing.
pub(super) fn trace_of(headers: &HeaderMap) -> Option<Box<Trace>> {
    let mut traceparents = headers.get_all(TRACEPARENT);
    let (Some(traceparent), None) = (traceparents.next(), traceparents.next()) else {
        return None;
    };
    let tracestate = headers.get(TRACESTATE).map(|state| state.as_str());
    Trace::of(traceparent.as_str(), tracestate, ids::new_span_id()).map(Box::new)
}

/// Whether each report is logged.
fn is_logged() -> bool {
    tracing::enabled!(tracing::Level::DEBUG)
}

/// The one event of a report. Its content belongs to nobody who reads logs.
fn log(ticket: &Ticket, answer: &Answer) {
    /// The task of an answer, which a report by its pane does not name.
    #[derive(Deserialize)]
    struct Named {
        task_id: Box<str>,
    }
    let answered = || serde_json::from_slice::<Named>(&answer.body).ok();
    let task_id = match &ticket.task_id {
        None if answer.refused.is_none() => answered().map(|named| named.task_id),
        named => named.clone(),
    };
    tracing::debug!(
        task.id = task_id.as_deref(),
        report.outcome = ReportOutcome::of(answer).as_str(),
        report.code = answer.refused.map(Code::as_str),
        report.duration_us = ticket.received.elapsed().as_micros() as u64,
        report.durable = ticket.delivery.is_some(),
        trace.id = ticket.trace.as_ref().map(|trace| trace.trace_id_text()),
        "report"
    );
}

/// Sends answers.
#[derive(Clone, Debug)]
pub struct Replier {
    connection: Connection,
    subjects: Subjects,
    statistics: Arc<Statistics>,
    health: Arc<Health>,
    refused: Arc<LogPace>,
    waiting: Arc<ReplyBytes>,
    /// Deliveries whose settling takes more than one message.
    settling: TaskTracker,
}

impl Replier {
    /// Sends on this connection.
    pub fn new(
        connection: Connection,
        subjects: Subjects,
        statistics: Arc<Statistics>,
        health: Arc<Health>,
    ) -> Self {
        Self {
            connection,
            subjects,
            statistics,
            health,
            refused: Arc::default(),
            waiting: Arc::default(),
            settling: TaskTracker::new(),
        }
    }

    /// The server's `max_payload` in bytes, as it last said.
    pub fn max_payload(&self) -> usize {
        self.connection.max_payload()
    }

    /// The connection that answers go out on.
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Takes note of a request. A reply subject at which the service must not publish is as good as none.
    pub fn ticket(&self, endpoint: Endpoint, reply: Option<&Subject>) -> Ticket {
        let reply = reply.filter(|subject| {
            let allowed = self.subjects.may_answer_to(subject);
            if !allowed && self.refused.is_due() {
                tracing::warn!(reply.subject = %subject.escape_debug(), "a request asks for its answer at a subject that is not a client's; it gets none");
            }
            allowed
        });
        Ticket {
            endpoint,
            reply: reply.cloned(),
            received: Instant::now(),
            task_id: None,
            trace: None,
            transaction: None,
            delivery: None,
            _share: None,
            room: None,
        }
    }

    /// Finds room for the reply with a task among those that wait for the connection. Where there is none, the reply is
    /// `unavailable`: what was applied stays, and is read back by the same request. Nobody waits here, as the applier must not.
    pub(super) fn hold(
        &self,
        ticket: &mut Ticket,
        applied: Result<Applied, Fault>,
    ) -> Result<Applied, Fault> {
        match &applied {
            Ok(Applied::Task { body, .. }) if ticket.reply.is_some() => {
                ticket.room = self.waiting.try_take(body.len());
                match ticket.room {
                    Some(_) => applied,
                    None => Ok(Applied::Refused(Refusal::replies_wait(body.len()))),
                }
            }
            _ => applied,
        }
    }

    /// Sends the reply once there is room for it among those that wait for the connection.
    pub(super) async fn send_in_turn(&self, mut ticket: Ticket, answer: Answer) {
        if ticket.reply.is_some() {
            ticket.room = Some(self.waiting.take(answer.body.len()).await);
        }
        self.send(ticket, answer).await;
    }

    /// Takes note of a report from the report stream.
    pub(super) fn ticket_of(&self, delivery: Delivery, share: Share) -> Ticket {
        let reply = delivery.reply_to();
        let ticket = self.ticket(Endpoint::ReportOfTask, reply.as_ref());
        Ticket {
            trace: trace_of(delivery.headers()),
            delivery: Some(Box::new(delivery)),
            _share: Some(share),
            ..ticket
        }
    }

    /// Waits until every delivery whose answer was sent is settled, as far as it can be now.
    pub async fn until_settled(&self) {
        self.settling.close();
        self.settling.wait().await;
    }

    /// Sends the answer to a request; for one from the report stream, also to that.
    pub async fn send(&self, mut ticket: Ticket, answer: Answer) {
        self.health.metrics().answered(ticket.endpoint, &answer);
        if ticket.endpoint.is_report() && is_logged() {
            log(&ticket, &answer);
        }
        if let Some(delivery) = ticket.delivery.take() {
            return delivery.settle(self, ticket, answer).await;
        }
        let error = answer
            .headers
            .iter()
            .find(|(name, _)| *name == header::SERVICE_ERROR)
            .map(|(_, text)| text.clone());
        self.answer(&mut ticket, answer).await;
        let took = ticket.received.elapsed();
        self.statistics.count(ticket.endpoint, took, error);
    }

    /// Sends the answer and nothing else.
    pub(super) async fn answer(&self, ticket: &mut Ticket, mut answer: Answer) {
        if let Some(trace) = &ticket.trace {
            answer.headers.push((TRACEPARENT, trace.traceparent()));
        }
        let (outcome, refused) = (ReportOutcome::of(&answer), answer.refused);
        if let Some(reply) = ticket.reply.clone() {
            self.publish(reply, answer).await;
            if let Some(room) = ticket.room.take() {
                self.waiting.sent(room, self.connection.client());
            }
            faults::pass(Point::AfterReply);
        }
        let took = ticket.received.elapsed();
        self.health.metrics().replied(ticket.endpoint, took);
        if let (Some(trace), Some(telemetry)) = (&ticket.trace, self.health.telemetry()) {
            telemetry.report(&ReportSpan {
                trace,
                endpoint: ticket.endpoint,
                task_id: ticket.task_id.as_deref(),
                outcome: outcome.as_str(),
                code: refused.map(Code::as_str),
                is_fault: refused.is_some_and(|code| code.number() >= 500),
                whole: Period::of_last(took),
                transaction: ticket.transaction,
            });
        }
    }

    /// Settles a delivery beside those who send answers.
    pub(super) fn settle_beside(&self, settling: impl Future<Output = ()> + Send + 'static) {
        self.settling.spawn(settling);
    }

    async fn publish(&self, reply: Subject, answer: Answer) {
        let bytes = answer.body.len();
        let client = self.connection.client();
        let sent = client
            .publish_with_headers(reply.clone(), header_map(answer.headers), answer.body)
            .await;
        match sent {
            Ok(()) => {}
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                // The limit was lowered between the decision and this moment.
                let limit = self.max_payload();
                let message = format!(
                    "the answer has {bytes} bytes, but the server's max_payload is {limit} now; raise it and send the same again"
                );
                let refusal = Refusal::new(Code::Unavailable, message).over(limit, bytes);
                let answer = Answer::refused(&refusal);
                let _ = client
                    .publish_with_headers(reply, header_map(answer.headers), answer.body)
                    .await;
            }
            Err(error) => {
                tracing::warn!(reply.subject = %reply.escape_debug(), error = %error, "an answer could not be sent");
            }
        }
    }
}
