//! A NATS server of its own for every round.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::process::{From, Process};
use crate::failure::{During, Result};

/// How long a server may take to start.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// How the server is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As it comes.
    Plain,
    /// With JetStream, which syncs to disk every two minutes if nothing is said.
    JetStream,
    /// With JetStream that syncs to disk before it acknowledges.
    JetStreamSyncAlways,
}

/// A running server. It is killed when this is dropped.
pub struct Broker {
    process: Process,
    /// Where it listens, as host:port.
    pub address: String,
}

impl Broker {
    /// Starts a server on a free port, with its files in `folder`.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start(binary: &Path, kind: Kind, folder: &Path) -> Result<Self> {
        let mut command = Command::new(binary);
        command.args(["--addr", "127.0.0.1", "--port", "-1"]);
        if kind != Kind::Plain {
            let sync = match kind {
                Kind::JetStreamSyncAlways => "sync_interval: always",
                _ => "",
            };
            let store = folder.join("jetstream");
            let file = folder.join("nats.conf");
            std::fs::write(
                &file,
                format!("jetstream {{ store_dir: {store:?}\n{sync}\n}}\n"),
            )
            .during(format_args!("write {}", file.display()))?;
            command.arg("--config").arg(file);
        }
        let mut process = Process::start("nats-server", &mut command)?;
        let address = process
            .wait_for("an address", READY_WITHIN, |from, line| {
                let (_, address) = line.split_once("Listening for client connections on ")?;
                (from == From::Err).then(|| address.trim().to_owned())
            })
            .await?;
        process
            .wait_for("word that it is ready", READY_WITHIN, |_, line| {
                line.contains("Server is ready").then_some(())
            })
            .await?;
        Ok(Self { process, address })
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// The version of the server.
///
/// # Errors
/// If there is none.
pub fn version(binary: &Path) -> Result<String> {
    let output = Command::new(binary)
        .arg("--version")
        .output()
        .during(format_args!(
            "run {} (`make setup` fetches it, TASKLATCH_TEST_NATS_SERVER or --nats-server names it)",
            binary.display()
        ))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
