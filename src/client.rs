//! The Rust client: typed calls over the protocol, and a stream of events.
//!
//! Every request goes out with an inbox of its own, and only a message with the header `Tasklatch-Protocol` is its
//! answer: a stream that happens to cover the subject acknowledges first, and that acknowledgment says nothing of the
//! task.

use std::time::Duration;

use async_nats::{ConnectError, ConnectOptions, Message, ServerAddr, StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::report::Selector;
use crate::task::Task;
use crate::wire::{
    Endpoint, Outcome, PROTOCOL_VERSION, Refusal, Subjects, header, limits, may_be_in_task_id,
};

mod events;
mod history;
mod requests;
mod stored;

use events::Source;
pub use events::{NotAnEvent, Watch, WatchedEvent};
pub use history::Since;
pub use requests::{CreateRequest, ListRequest, ReportRequest, ReviewRequest, Which};
pub use stored::Stored;

/// How many complaints of the server are kept for a request that has not looked yet.
const COMPLAINTS: usize = 64;

/// How long a complaint may come after an answer that the server sent later: the two take different ways in async-nats.
const COMPLAINT_GRACE: Duration = Duration::from_millis(50);

/// Talks to a service. Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    nats: async_nats::Client,
    subjects: Subjects,
    timeout: Duration,
    /// What the NATS server complains of. It does not say which request it means, other than in its text.
    complaints: broadcast::Sender<String>,
}

/// Why a request brought no task.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service refused it, and says why and what to do.
    #[error("{refusal}")]
    Refused {
        /// Why.
        refusal: Box<Refusal>,
        /// The answer as it came.
        body: Bytes,
    },
    /// Nobody is subscribed to the subject.
    #[error("nobody answers on {subject}: no service runs there, or it has another prefix")]
    NoResponders {
        /// Where the request went.
        subject: String,
    },
    /// No answer came in time. The request may have been carried out.
    #[error("no answer on {subject} within {}", humantime::format_duration(*.after))]
    TimedOut {
        /// Where the request went.
        subject: String,
        /// How long the client waited.
        after: Duration,
    },
    /// Something answered that is no service of this protocol, and no service did in time.
    #[error(
        "something else answered on {subject}, and no service did within {}: {what}",
        humantime::format_duration(*.after)
    )]
    NotAnAnswer {
        /// Where the request went.
        subject: String,
        /// How long the client waited.
        after: Duration,
        /// What came instead.
        what: &'static str,
    },
    /// There is no stream where one must be.
    #[error("there is no stream {stream}")]
    NoStream {
        /// The stream.
        stream: String,
        /// The option of the service that has it made.
        made_by: &'static str,
    },
    /// A stream does not do what it is asked for now.
    #[error("the stream {stream} cannot be used: {what}")]
    StreamFailed {
        /// The stream.
        stream: String,
        /// What it or the server says.
        what: String,
    },
    /// The NATS server does not let this client send there or listen for the answer.
    #[error("the NATS server does not allow it: {complaint}")]
    Denied {
        /// What the NATS server says.
        complaint: String,
    },
    /// The request is larger than the NATS server takes, so it was not sent.
    #[error("the request has {actual} bytes, and the NATS server takes at most {limit}")]
    TooLarge {
        /// The server's `max_payload`, in bytes.
        limit: usize,
        /// The size of the request, in bytes.
        actual: usize,
    },
    /// A task ID that cannot be one token of a subject, so nothing was sent.
    #[error("{0:?} is no task ID: use 1 to 128 of A-Z a-z 0-9 _ and -")]
    NotATaskId(String),
    /// The service answered with something that this client does not understand.
    #[error("the service's answer is not understood; is it of another version?")]
    Unintelligible {
        /// The answer as it came.
        body: Bytes,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The connection to NATS has ended or cannot be used.
    #[error("the connection to NATS failed")]
    Nats(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// An answer about one task.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The answer as it came, byte for byte.
    pub body: Bytes,
    /// The same, read.
    pub task: Task,
    /// What became of a report; `None` for other requests.
    pub outcome: Option<Outcome>,
}

/// An answer about many tasks.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The answer as it came, byte for byte.
    pub body: Bytes,
    /// Newest created first.
    pub tasks: Vec<Task>,
    /// Where to go on, if there is more.
    pub cursor: Option<String>,
}

impl Client {
    /// Speaks over a connection that somebody else made. A permission that is missing then shows as a timeout.
    pub fn new(nats: async_nats::Client, subjects: Subjects, timeout: Duration) -> Self {
        Self {
            nats,
            subjects,
            timeout,
            complaints: broadcast::Sender::new(COMPLAINTS),
        }
    }

    /// Connects. `on_event` is told of everything that happens to the connection.
    ///
    /// # Errors
    /// If no server can be reached, or it does not let this client in.
    pub async fn connect(
        options: ConnectOptions,
        addresses: Vec<ServerAddr>,
        subjects: Subjects,
        timeout: Duration,
        on_event: impl Fn(&async_nats::Event) + Send + Sync + 'static,
    ) -> Result<Self, ConnectError> {
        let complaints = broadcast::Sender::new(COMPLAINTS);
        let complain = complaints.clone();
        let options = options
            .connection_timeout(timeout)
            .event_callback(move |event| {
                on_event(&event);
                if let async_nats::Event::ServerError(error) = event {
                    let text = error.to_string();
                    // Where no request waits, nobody wants to know.
                    let _ = complain.send(text.strip_prefix("nats: ").unwrap_or(&text).to_owned());
                }
                std::future::ready(())
            });
        let nats = options.connect(addresses).await?;
        Ok(Self {
            nats,
            subjects,
            timeout,
            complaints,
        })
    }

    /// The connection below.
    pub fn nats(&self) -> &async_nats::Client {
        &self.nats
    }

    /// Sends a report.
    ///
    /// # Errors
    /// [`ClientError`]. After a timeout it may have been accepted, and sending the same again is safe.
    pub async fn report(&self, report: &ReportRequest) -> Result<Answered, ClientError> {
        self.report_as_is(report.which.task_id.as_deref(), report.encode()?)
            .await
    }

    /// Sends a payload as a report: on the subject of a task, or on the one where the payload names it.
    ///
    /// # Errors
    /// As [`Client::report`].
    pub async fn report_as_is(
        &self,
        task_id: Option<&str>,
        payload: Bytes,
    ) -> Result<Answered, ClientError> {
        let subject = match task_id {
            Some(task_id) => self.subjects.report_of(checked_task_id(task_id)?),
            None => self.subjects.of(Endpoint::Report),
        };
        answered(self.ask(subject, payload).await?)
    }

    /// Creates a task, or reads the one that was created with the same ID and content.
    ///
    /// # Errors
    /// [`ClientError`]. After a timeout, sending the same again is safe if it names its task ID.
    pub async fn create(&self, request: &CreateRequest) -> Result<Answered, ClientError> {
        self.about_one(Endpoint::Create, request).await
    }

    /// Reads one task.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get(&self, selector: &Selector) -> Result<Answered, ClientError> {
        self.about_one(Endpoint::Get, &Which::from(selector)).await
    }

    /// Says that work on a task has begun.
    ///
    /// # Errors
    /// [`ClientError`]. After a timeout, sending the same again is safe.
    pub async fn start(&self, selector: &Selector) -> Result<Answered, ClientError> {
        self.about_one(Endpoint::Start, &Which::from(selector))
            .await
    }

    /// Calls a task off.
    ///
    /// # Errors
    /// [`ClientError`]. After a timeout, sending the same again is safe.
    pub async fn cancel(
        &self,
        selector: &Selector,
        reason: Option<&str>,
    ) -> Result<Answered, ClientError> {
        #[derive(Serialize)]
        struct Cancel<'a> {
            #[serde(flatten)]
            which: Which,
            #[serde(skip_serializing_if = "Option::is_none")]
            reason: Option<&'a str>,
        }
        self.about_one(
            Endpoint::Cancel,
            &Cancel {
                which: selector.into(),
                reason,
            },
        )
        .await
    }

    /// Reviews a result.
    ///
    /// # Errors
    /// [`ClientError`]. After a timeout, sending the same again is safe.
    pub async fn review(&self, request: &ReviewRequest) -> Result<Answered, ClientError> {
        self.about_one(Endpoint::Review, request).await
    }

    /// Reads a page of tasks.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn list(&self, request: &ListRequest) -> Result<Listed, ClientError> {
        #[derive(Deserialize)]
        struct Page {
            tasks: Vec<Task>,
            cursor: Option<String>,
        }
        let body = self
            .ask(self.subjects.of(Endpoint::List), encode(request)?)
            .await?
            .payload;
        match serde_json::from_slice(&body) {
            Ok(Page { tasks, cursor }) => Ok(Listed {
                body,
                tasks,
                cursor,
            }),
            Err(source) => Err(ClientError::Unintelligible { body, source }),
        }
    }

    async fn about_one(
        &self,
        endpoint: Endpoint,
        request: &impl Serialize,
    ) -> Result<Answered, ClientError> {
        answered(
            self.ask(self.subjects.of(endpoint), encode(request)?)
                .await?,
        )
    }

    /// One request and its answer, which is not a refusal.
    async fn ask(&self, subject: String, payload: Bytes) -> Result<Message, ClientError> {
        let (limit, actual) = (self.nats.max_payload(), payload.len());
        if actual > limit {
            return Err(ClientError::TooLarge { limit, actual });
        }
        let inbox = self.nats.new_inbox();
        let mut complaints = self.complaints.subscribe();
        let mut stranger = None;
        let about = [subject.as_str(), inbox.as_str()];
        let exchange = async {
            let mut answers = self.nats.subscribe(inbox.clone()).await.map_err(broken)?;
            let sent = self
                .nats
                .publish_with_reply(subject.clone(), inbox.clone(), payload);
            sent.await.map_err(broken)?;
            tokio::select! {
                answer = answer_among(&mut answers, &subject, &mut stranger) => answer,
                complaint = complaint_about(&mut complaints, &about) => {
                    Err(ClientError::Denied { complaint })
                }
            }
        };
        let ended = tokio::time::timeout(self.timeout, exchange).await;
        let (after, subject) = (self.timeout, subject.clone());
        match (ended, stranger) {
            (Ok(answer), _) => refused_or(answer?),
            (Err(_), Some(what)) => Err(ClientError::NotAnAnswer {
                subject,
                after,
                what,
            }),
            (Err(_), None) => Err(ClientError::TimedOut { subject, after }),
        }
    }

    /// Listens for events, of one task or of all. When this returns, the server has the subscription: every event that
    /// is published from now on comes, in the order of the server, for as long as the connection lasts.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn watch(&self, task_id: Option<&str>) -> Result<Watch, ClientError> {
        let token = task_id.map_or(Ok("*"), checked_task_id)?;
        // One subscription for both kinds: two would each have an order of their own.
        let subject = format!("{}.event.*.{token}", self.subjects.prefix());
        let subscriber = self.nats.subscribe(subject.clone()).await.map_err(broken)?;
        self.round_trip(&subject).await?;
        Ok(Watch {
            source: Source::Live(subscriber),
            subject,
        })
    }

    /// Waits until the server has read all that was sent on this connection before.
    async fn round_trip(&self, subscribed: &str) -> Result<(), ClientError> {
        let inbox = self.nats.new_inbox();
        let mut complaints = self.complaints.subscribe();
        let exchange = async {
            let mut echo = self.nats.subscribe(inbox.clone()).await.map_err(broken)?;
            self.nats
                .publish(inbox.clone(), Bytes::new())
                .await
                .map_err(broken)?;
            let about = [subscribed, &inbox];
            let complaint = tokio::select! {
                complaint = complaint_about(&mut complaints, &about) => Some(complaint),
                _ = echo.next() => {
                    let late = complaint_about(&mut complaints, &about);
                    tokio::time::timeout(COMPLAINT_GRACE, late).await.ok()
                }
            };
            match complaint {
                Some(complaint) if names(&complaint, subscribed) => {
                    Err(ClientError::Denied { complaint })
                }
                // A client that may only listen is told so, which is a round trip as well.
                Some(_) | None => Ok(()),
            }
        };
        let (subject, after) = (subscribed.to_owned(), self.timeout);
        tokio::time::timeout(self.timeout, exchange)
            .await
            .unwrap_or(Err(ClientError::TimedOut { subject, after }))
    }
}

/// Reads messages until one is an answer. What else comes is remembered in `stranger`.
async fn answer_among(
    answers: &mut Subscriber,
    subject: &str,
    stranger: &mut Option<&'static str>,
) -> Result<Message, ClientError> {
    while let Some(message) = answers.next().await {
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return Err(ClientError::NoResponders {
                subject: subject.to_owned(),
            });
        }
        let version = message
            .headers
            .as_ref()
            .and_then(|headers| headers.get(header::PROTOCOL));
        *stranger = match version.map(|version| version.as_str()) {
            Some(PROTOCOL_VERSION) => return Ok(message),
            Some(_) => Some("a service of another version of the protocol"),
            None if is_stream_ack(&message.payload) => Some(
                "a stream covers the subject and acknowledged the request; take the subject out of the stream",
            ),
            None => Some("a message without the header Tasklatch-Protocol"),
        };
    }
    Err(ClientError::Nats("the connection was closed".into()))
}

fn is_stream_ack(payload: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Ack {
        #[serde(rename = "stream")]
        _stream: String,
        #[serde(rename = "seq")]
        _seq: u64,
    }
    serde_json::from_slice::<Ack>(payload).is_ok()
}

/// Waits for the server to complain that something about one of these subjects is not allowed; for ever if it does not.
async fn complaint_about(
    complaints: &mut broadcast::Receiver<String>,
    subjects: &[&str],
) -> String {
    loop {
        match complaints.recv().await {
            Ok(text) if subjects.iter().any(|subject| names(&text, subject)) => return text,
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn names(complaint: &str, subject: &str) -> bool {
    complaint
        .to_ascii_lowercase()
        .contains("permissions violation")
        && complaint.contains(&format!("\"{subject}\""))
}

fn broken(error: impl std::error::Error + Send + Sync + 'static) -> ClientError {
    ClientError::Nats(Box::new(error))
}

fn encode(value: &impl Serialize) -> Result<Bytes, ClientError> {
    serde_json::to_vec(value).map(Bytes::from).map_err(broken)
}

/// Hands a task ID back if it can be one token of a subject.
///
/// # Errors
/// [`ClientError::NotATaskId`].
pub fn checked_task_id(task_id: &str) -> Result<&str, ClientError> {
    let sized = (1..=limits::TASK_ID_BYTES).contains(&task_id.len());
    if sized && task_id.bytes().all(may_be_in_task_id) {
        return Ok(task_id);
    }
    let shown = task_id.chars().take(limits::TASK_ID_BYTES).collect();
    Err(ClientError::NotATaskId(shown))
}

fn refused_or(message: Message) -> Result<Message, ClientError> {
    #[derive(Deserialize)]
    struct Body {
        error: Box<Refusal>,
    }
    let headers = message.headers.as_ref();
    if headers
        .and_then(|headers| headers.get(header::SERVICE_ERROR_CODE))
        .is_none()
    {
        return Ok(message);
    }
    let body = message.payload;
    match serde_json::from_slice(&body) {
        Ok(Body { error: refusal }) => Err(ClientError::Refused { refusal, body }),
        Err(source) => Err(ClientError::Unintelligible { body, source }),
    }
}

fn answered(message: Message) -> Result<Answered, ClientError> {
    let headers = message.headers.as_ref();
    let outcome = headers
        .and_then(|headers| headers.get(header::OUTCOME))
        .and_then(|word| Outcome::from_word(word.as_str()));
    let body = message.payload;
    match serde_json::from_slice(&body) {
        Ok(task) => Ok(Answered {
            body,
            task,
            outcome,
        }),
        Err(source) => Err(ClientError::Unintelligible { body, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_id_that_would_break_its_subject_is_not_sent() {
        let long = "x".repeat(129);
        for bad in ["", "a.b", "*", ">", "a b", "ü", "a\n", &long] {
            assert!(checked_task_id(bad).is_err(), "{bad:?}");
        }
        assert_eq!(checked_task_id("t-1_A").unwrap(), "t-1_A");
    }

    #[test]
    fn the_acknowledgment_of_a_stream_is_told_from_other_strangers() {
        assert!(is_stream_ack(br#"{"stream":"ALL","seq":7}"#));
        assert!(!is_stream_ack(br#"{"task_id":"t-1"}"#));
        assert!(!is_stream_ack(b""));
    }
}
