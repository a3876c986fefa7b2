//! A client that is made anew when it ends, and subscriptions that live on with the next one.
//!
//! The task of an async-nats client ends for good when a message makes it panic, as a header with a lone carriage return
//! does, and when the server once does not know its login. Neither is a reason for the service to end: what was under way
//! is lost like with any lost connection, and its senders try again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::{Client, Message, SubscribeError, Subscriber};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;

use super::outage::cause_of_end;
use super::proof::{Place, Subscriptions};
use super::{CONNECT_RETRY, Connection, Door, RoundTripError, round_trip};

/// A client that lived no longer is not replaced at once: whoever has clients end one after the other must not keep a core
/// busy.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// How long it then takes. Good clients wait as long too.
const SHORT_LIFE_PAUSE: Duration = Duration::from_millis(20);

/// The client of the moment.
#[derive(Clone, Debug)]
pub(super) struct Current {
    pub(super) client: Arc<Client>,
    /// How often those before it had connected.
    connects_before: u64,
    is_alive: bool,
    /// How many clients there were, this one too.
    pub(super) number: u64,
}

impl Current {
    pub(super) fn first(client: Client) -> Self {
        Self {
            client: Arc::new(client),
            connects_before: 0,
            is_alive: true,
            number: 1,
        }
    }

    /// How often the server was connected to.
    pub(super) fn connects(&self) -> u64 {
        self.connects_before + connects_of(&self.client)
    }

    pub(super) fn state(&self) -> State {
        match self.is_alive {
            true => self.client.connection_state(),
            false => State::Disconnected,
        }
    }
}

fn connects_of(client: &Client) -> u64 {
    let statistics = client.statistics();
    statistics
        .connects
        .load(std::sync::atomic::Ordering::SeqCst)
}

/// Puts another client in the place of each that ends, for as long as somebody uses it.
pub(super) async fn keep_alive(door: Door, tell: watch::Sender<Current>) {
    loop {
        let client = tell.borrow().client.clone();
        let begun = Instant::now();
        tokio::select! {
            () = end_of(&client) => {}
            () = tell.closed() => return,
        }
        tell.send_modify(|current| current.is_alive = false);
        door.happenings.lost();
        door.happenings.outage.ended(cause_of_end());
        if begun.elapsed() < SHORT_LIFE {
            tokio::time::sleep(SHORT_LIFE_PAUSE).await;
        }
        let next = loop {
            match door.enter().await {
                Ok(client) => break client,
                Err(error) => {
                    door.happenings.outage.failed(&error.to_string());
                    tokio::time::sleep(CONNECT_RETRY).await;
                }
            }
        };
        tell.send_modify(|current| {
            *current = Current {
                connects_before: current.connects(),
                client: Arc::new(next),
                is_alive: true,
                number: current.number + 1,
            };
        });
    }
}

/// Waits until a client has ended. Its subscriptions end with it.
async fn end_of(client: &Client) {
    if let Ok(mut life) = client.subscribe(client.new_inbox()).await {
        while life.next().await.is_some() {}
    }
}

/// A subscription that outlives the client that it began with.
#[derive(Debug)]
pub struct Lasting {
    current: watch::Receiver<Current>,
    place: Place,
    subject: String,
    queue_group: Option<&'static str>,
    messages: Subscriber,
}

impl Lasting {
    pub(super) async fn begin(
        mut current: watch::Receiver<Current>,
        subscriptions: Arc<Subscriptions>,
        subject: String,
        queue_group: Option<&'static str>,
    ) -> Result<Self, SubscribeError> {
        let Current { client, number, .. } = current.borrow_and_update().clone();
        let messages = subscribe(&client, &subject, queue_group).await?;
        Ok(Self {
            current,
            place: Place::take(subscriptions, number),
            subject,
            queue_group,
            messages,
        })
    }

    /// The next message, however long it takes. May be dropped while it waits.
    pub async fn next(&mut self) -> Message {
        loop {
            if let Some(message) = self.messages.next().await {
                return message;
            }
            let current = self.current.borrow_and_update().clone();
            let subscribed = subscribe(&current.client, &self.subject, self.queue_group);
            match subscribed.await {
                Ok(messages) if current.is_alive => {
                    self.messages = messages;
                    self.place.made_again(current.number);
                }
                _ => {
                    if self.current.changed().await.is_err() {
                        // The runtime is on its way down.
                        std::future::pending::<()>().await;
                    }
                }
            }
        }
    }

    /// Ends the subscription.
    pub async fn end(self, connection: &Connection, within: Duration) -> Ending {
        Ending::begin(connection, self.messages, within).await
    }
}

/// A number of messages that no subscription comes to, and that no nats-server takes for one: it reads nine digits at most,
/// and otherwise ends the subscription at once, as it does without a number.
const NEVER: u64 = 10_000_000_000;

/// A subscription that ends: gives what the server has sent for it by then.
///
/// async-nats forgets a subscription when it sends `UNSUB`, or a moment later if it is drained, and drops what the server has
/// sent by then. With a number of messages to come to it keeps it; the server must end it all the same. A round trip shows
/// that the server has, and that all has come. Should a server take the number for what it says, it goes on until then, and
/// what it sends in that moment is lost.
pub struct Ending {
    messages: Subscriber,
    proof: BoxFuture<'static, Result<(), RoundTripError>>,
    proved: Option<Result<(), RoundTripError>>,
}

impl Ending {
    /// Has the server end a subscription of this connection, which it must confirm within so long.
    pub async fn begin(
        connection: &Connection,
        mut messages: Subscriber,
        within: Duration,
    ) -> Self {
        // If the client has ended, the round trip says so.
        let _ = messages.unsubscribe_after(NEVER).await;
        let connection = connection.clone();
        Self {
            messages,
            proof: async move { round_trip(&connection, within).await }.boxed(),
            proved: None,
        }
    }

    /// The next message; `None` once all have come, or as many as come in time.
    pub async fn next(&mut self) -> Option<Message> {
        if self.proved.is_none() {
            tokio::select! {
                biased;
                proved = &mut self.proof => {
                    self.proved = Some(proved);
                    // Nothing more comes; what has come stays. If the client has ended, so has this.
                    let _ = self.messages.unsubscribe().await;
                }
                Some(message) = self.messages.next() => return Some(message),
            }
        }
        self.messages.next().await
    }

    /// Whether the server has confirmed the end, after [`next`](Self::next) gave `None`.
    ///
    /// # Errors
    /// [`RoundTripError`] if it has not.
    pub fn proved(self) -> Result<(), RoundTripError> {
        self.proved.unwrap_or(Ok(()))
    }
}

async fn subscribe(
    client: &Client,
    subject: &str,
    queue_group: Option<&'static str>,
) -> Result<Subscriber, SubscribeError> {
    match queue_group {
        Some(group) => {
            client
                .queue_subscribe(subject.to_owned(), group.to_owned())
                .await
        }
        None => client.subscribe(subject.to_owned()).await,
    }
}
