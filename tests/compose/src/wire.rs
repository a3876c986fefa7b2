//! The protocol as a client speaks it that knows nothing else: docs/protocol.md.

use std::path::Path;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event, HeaderMap};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval};

use crate::Result;

/// Where the server is, by the name of its service.
const SERVER: &str = "tls://nats:4222";

/// Where `secrets make` has left what clients need.
const SECRETS: &str = "/secrets/clients";

/// How long one try waits for its answer.
const TRY_WITHIN: Duration = Duration::from_secs(2);

/// How long a request is sent again.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// How long to wait between tries.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A user of deploy/nats.conf that is logged in.
#[derive(Debug)]
pub struct User {
    pub name: String,
    pub client: Client,
    /// What the server refused.
    pub errors: mpsc::UnboundedReceiver<String>,
}

/// An answer of the service.
#[derive(Clone, Debug)]
pub struct Answer {
    headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    /// `accepted` or `replayed`.
    pub fn outcome(&self) -> Option<&str> {
        self.headers
            .get("Tasklatch-Outcome")
            .map(|value| value.as_str())
    }

    /// The code of a refusal.
    pub fn code(&self) -> Option<&str> {
        self.body["error"]["code"].as_str()
    }
}

/// The seed of a user.
pub fn seed(name: &str) -> Result<String> {
    let seed = std::fs::read_to_string(Path::new(SECRETS).join(format!("{name}.nk")))
        .map_err(|error| format!("the seed of {name}: {error}"))?;
    Ok(seed.trim().to_owned())
}

/// Logs in with the seed of a user and its private inbox.
pub async fn log_in(name: &str) -> Result<User> {
    let secrets = Path::new(SECRETS);
    let (tell, errors) = mpsc::unbounded_channel();
    let client = ConnectOptions::with_nkey(seed(name)?)
        .name(format!("compose test, {name}"))
        .add_root_certificates(secrets.join("ca.pem"))
        .require_tls(true)
        .custom_inbox_prefix(format!("_INBOX.{name}"))
        .retry_on_initial_connect()
        .event_callback(move |event| {
            let tell = tell.clone();
            async move {
                if let Event::ServerError(error) = event {
                    // Nobody may listen any more.
                    let _ = tell.send(error.to_string());
                }
            }
        })
        .connect(SERVER)
        .await?;
    Ok(User {
        name: name.to_owned(),
        client,
        errors,
    })
}

/// Sends a request once. `None`: no answer of the service in time, which says nothing.
pub async fn ask_once(client: &Client, subject: &str, body: &Value) -> Result<Option<Answer>> {
    let request = client.request(subject.to_owned(), body.to_string().into());
    let Ok(Ok(message)) = tokio::time::timeout(TRY_WITHIN, request).await else {
        return Ok(None);
    };
    let headers = message.headers.unwrap_or_default();
    if headers.get("Tasklatch-Protocol").is_none() {
        return Ok(None);
    }
    let body = serde_json::from_slice(&message.payload)?;
    Ok(Some(Answer { headers, body }))
}

/// Sends the same request until there is an answer that is not `retry`, as docs/protocol.md says under "Retrying".
pub async fn ask(client: &Client, subject: &str, body: &Value) -> Result<Answer> {
    let end = Instant::now() + RETRY_FOR;
    let mut again = interval(RETRY_AFTER);
    loop {
        again.tick().await;
        match ask_once(client, subject, body).await? {
            Some(answer) if answer.body["error"]["action"] != "retry" => return Ok(answer),
            _ if Instant::now() > end => {
                return Err(format!("no answer on {subject} for {} s", RETRY_FOR.as_secs()).into());
            }
            _ => {}
        }
    }
}
