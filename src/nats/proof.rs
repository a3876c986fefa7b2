//! Proof that the server has all subscriptions of a connection, so that what is sent now is received.
//!
//! That the connection is there says nothing of that: subscriptions are sent after it, and a flush only says that the
//! operating system has them. A round trip on the same connection proves it, as the server takes what one connection sends
//! in order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::{Connection, ERROR_GRACE, RoundTripError, round_trip};

/// How long the server may take for one round trip before the next is begun.
const PROVE_WITHIN: Duration = Duration::from_secs(5);

/// How often it is looked whether subscriptions have to be proved again; a subscription that was made again is noticed at once.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The subscriptions of a connection, and whether the server is proved to have them.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Which client each was last made with, by its number.
    clients: HashMap<u64, u64>,
    next: u64,
    /// Which connection they were proved on, by how often the server was connected to by then.
    proved: Option<u64>,
    /// Why the last try proved nothing.
    error: Option<String>,
}

/// The place of a subscription among those of its connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    subscriptions: Arc<Subscriptions>,
    number: u64,
}

impl Place {
    /// A new subscription was made with this client. It is not proved.
    pub(super) fn take(subscriptions: Arc<Subscriptions>, client: u64) -> Self {
        let mut state = subscriptions.lock();
        state.next += 1;
        let number = state.next;
        state.clients.insert(number, client);
        state.proved = None;
        drop(state);
        Self {
            subscriptions,
            number,
        }
    }

    /// The subscription was made again, with another client.
    pub(super) fn made_again(&self, client: u64) {
        self.subscriptions
            .lock()
            .clients
            .insert(self.number, client);
        self.subscriptions.changed.notify_one();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.subscriptions.lock().clients.remove(&self.number);
    }
}

impl Subscriptions {
    fn are_made_with(&self, client: u64) -> bool {
        self.lock().clients.values().all(|&made| made == client)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Why what is sent to a subscription of this connection may not be received now, for people; `None` if the server is
    /// connected to and proved to have all subscriptions.
    pub fn trouble(&self) -> Option<String> {
        if !self.is_connected() {
            let outage = self.happenings.outage.shown();
            let outage = outage.map(|outage| format!(" {outage}"));
            return Some(format!(
                "not connected to the NATS server{}",
                outage.unwrap_or_default()
            ));
        }
        if self.happenings.is_subscription_refused() {
            return Some(
                "the NATS server refuses a subscription; its error is in the log: check the permissions of the login"
                    .to_owned(),
            );
        }
        let state = self.subscriptions.lock();
        if state.clients.is_empty() || state.proved == Some(self.connects()) {
            return None;
        }
        let why = state.error.as_deref();
        Some(format!(
            "waiting for the NATS server to confirm that it has the subscriptions{}",
            why.map(|why| format!(" ({why})")).unwrap_or_default()
        ))
    }

    /// Proves that the server has all subscriptions, which were made with the client of the moment.
    ///
    /// # Errors
    /// [`RoundTripError`] if it was not proved within so long.
    pub async fn prove_subscriptions(&self, within: Duration) -> Result<(), RoundTripError> {
        let connects = self.connects();
        round_trip(self, within).await?;
        // An error about a subscription comes before the echo, but by another task.
        tokio::time::sleep(ERROR_GRACE).await;
        if self.happenings.is_subscription_refused() {
            return Err(RoundTripError::ServerError);
        }
        let mut state = self.subscriptions.lock();
        state.proved = Some(connects);
        state.error = None;
        Ok(())
    }

    /// Has the subscriptions proved again whenever the connection is another one, for as long as it is let.
    pub async fn keep_proved(self) {
        loop {
            let is_proved = self.subscriptions.lock().proved == Some(self.connects());
            let are_made = self.subscriptions.are_made_with(self.client_number());
            if self.is_connected() && !is_proved && are_made {
                let proved = self.prove_subscriptions(PROVE_WITHIN).await;
                let error = proved.err().map(|error| error.to_string());
                self.subscriptions.lock().error = error;
            }
            tokio::select! {
                () = self.subscriptions.changed.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }
}
