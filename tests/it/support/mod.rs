//! What tests stand on: a real nats-server, the real service, and a client that knows only the protocol.
//!
//! Nothing here waits for a fixed time: it waits for a signal, with [`DEADLINE`] as the end of patience.

pub mod bench;
mod broker;
mod burst;
mod load;
mod observer;
mod outside;
mod port;
mod proxy;
mod secured;
mod service;
pub mod stage;
mod stream;
mod worker;

pub use broker::{Broker, binary as broker_binary, copy_folder};
pub use burst::Burst;
pub use load::{Dice, Witness, eventually, first_of_each, insist, pair_of_each};
pub use observer::{Observer, Seen};
pub use outside::{Outside, commit_cut_off, http_get};
pub use port::free_port;
pub use proxy::{Held, Proxy};
pub use secured::{Secured, User};
pub use service::{BINARY, Service, serve_command, signal};
pub use stream::EventStream;
pub use worker::{Reply, Worker, full_report};

use std::time::Duration;

/// The end of patience, for everything that a test waits for.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A broker, a service on a fresh database and a worker: what most tests begin with.
pub struct Stage {
    pub broker: Broker,
    pub service: Service,
    pub worker: Worker,
    pub folder: tempfile::TempDir,
}

impl Stage {
    /// Sets the stage.
    pub async fn set() -> Self {
        Self::set_with(&[]).await
    }

    /// Sets the stage with options of `serve`.
    pub async fn set_with(options: &[&str]) -> Self {
        Self::on(Broker::start().await, options).await
    }

    /// Sets the stage on a server of the test's own.
    pub async fn on(broker: Broker, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let service = Service::start(&broker, &folder.path().join("ledger.db"), options).await;
        let worker = Worker::connect(&broker).await;
        Self {
            broker,
            service,
            worker,
            folder,
        }
    }

    /// An observer that has seen nothing yet and will miss nothing from here on.
    pub async fn observer(&self) -> Observer {
        Observer::watch(&self.broker).await
    }

    /// Where the database is.
    pub fn database(&self) -> std::path::PathBuf {
        self.folder.path().join("ledger.db")
    }
}
