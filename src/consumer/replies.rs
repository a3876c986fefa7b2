//! Answers on their way out.

use std::sync::Arc;
use std::time::Instant;

use async_nats::{PublishErrorKind, Subject};
use tokio_util::task::TaskTracker;

use super::Share;
use super::discovery::Statistics;
use super::durable::Delivery;
use crate::faults::{self, Point};
use crate::nats::{Connection, LogPace, header_map};
use crate::wire::{Answer, Code, Endpoint, Refusal, Subjects, header};

/// What is needed to answer one request: exactly one answer is sent for each.
#[derive(Debug)]
pub struct Ticket {
    endpoint: Endpoint,
    reply: Option<Subject>,
    pub(super) received: Instant,
    /// For a report from the report stream: what is to be settled with it.
    delivery: Option<Box<Delivery>>,
    /// Held until the answer is on its way, so that answers that wait are work in hand too.
    _share: Option<Share>,
}

impl Ticket {
    pub(super) fn with(self, share: Share) -> Self {
        Self {
            _share: Some(share),
            ..self
        }
    }
}

/// Sends answers.
#[derive(Clone, Debug)]
pub struct Replier {
    connection: Connection,
    subjects: Subjects,
    statistics: Arc<Statistics>,
    refused: Arc<LogPace>,
    /// Deliveries whose settling takes more than one message.
    settling: TaskTracker,
}

impl Replier {
    /// Sends on this connection.
    pub fn new(connection: Connection, subjects: Subjects, statistics: Arc<Statistics>) -> Self {
        Self {
            connection,
            subjects,
            statistics,
            refused: Arc::default(),
            settling: TaskTracker::new(),
        }
    }

    /// The server's `max_payload` in bytes, as it last said.
    pub fn max_payload(&self) -> usize {
        self.connection.client().max_payload()
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
            delivery: None,
            _share: None,
        }
    }

    /// Takes note of a report from the report stream.
    pub(super) fn ticket_of(&self, delivery: Delivery, share: Share) -> Ticket {
        let reply = delivery.reply_to();
        let ticket = self.ticket(Endpoint::ReportOfTask, reply.as_ref());
        Ticket {
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
        if let Some(delivery) = ticket.delivery.take() {
            return delivery.settle(self, ticket, answer).await;
        }
        let error = answer
            .headers
            .iter()
            .find(|(name, _)| *name == header::SERVICE_ERROR)
            .map(|(_, text)| text.clone());
        self.answer(&ticket, answer).await;
        self.statistics
            .count(ticket.endpoint, ticket.received.elapsed(), error);
    }

    /// Sends the answer and nothing else.
    pub(super) async fn answer(&self, ticket: &Ticket, answer: Answer) {
        if let Some(reply) = ticket.reply.clone() {
            self.publish(reply, answer).await;
            faults::pass(Point::AfterReply);
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
