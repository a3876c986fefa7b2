//! How the service is, for those who ask from outside.

use std::sync::Mutex;

use async_nats::Client;
use async_nats::connection::State;
use serde::Serialize;

/// What the parts of the service say of themselves.
#[derive(Debug)]
pub struct Health {
    nats: Client,
    troubles: Mutex<Troubles>,
}

#[derive(Debug, Default)]
struct Troubles {
    store: Option<String>,
    relay: Option<String>,
    stopping: bool,
}

/// The answer of `/ready`.
#[derive(Debug, Serialize)]
pub struct Readiness {
    /// Whether requests are served as they should be.
    pub ready: bool,
    /// Why not, for people.
    pub reasons: Vec<String>,
}

impl Health {
    /// Watches a connection.
    pub fn new(nats: Client) -> Self {
        Self {
            nats,
            troubles: Mutex::default(),
        }
    }

    /// The store took a batch.
    pub fn store_ok(&self) {
        self.with(|troubles| troubles.store = None);
    }

    /// The store failed.
    pub fn store_failed(&self, why: &str) {
        self.with(|troubles| troubles.store = Some(format!("the store cannot be written: {why}")));
    }

    /// Whether the last batch failed.
    pub fn is_store_in_trouble(&self) -> bool {
        let mut in_trouble = false;
        self.with(|troubles| in_trouble = troubles.store.is_some());
        in_trouble
    }

    /// Events go out.
    pub fn relay_ok(&self) {
        self.with(|troubles| troubles.relay = None);
    }

    /// Events are delayed.
    pub fn relay_failed(&self, why: &str) {
        self.with(|troubles| troubles.relay = Some(format!("events are delayed: {why}")));
    }

    /// The service takes on no more work.
    pub fn stopping(&self) {
        self.with(|troubles| troubles.stopping = true);
    }

    /// Whether the service is ready, and if not, why.
    pub fn readiness(&self) -> Readiness {
        let mut reasons = Vec::new();
        if self.nats.connection_state() != State::Connected {
            reasons.push("not connected to the NATS server".to_owned());
        }
        self.with(|troubles| {
            reasons.extend(troubles.store.clone());
            reasons.extend(troubles.relay.clone());
            reasons.extend(
                troubles
                    .stopping
                    .then(|| "the service is stopping".to_owned()),
            );
        });
        Readiness {
            ready: reasons.is_empty(),
            reasons,
        }
    }

    fn with(&self, look: impl FnOnce(&mut Troubles)) {
        // A panic while the lock is held cannot leave these texts half-written.
        let mut troubles = self
            .troubles
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        look(&mut troubles);
    }
}
