//! A server, a responder and a load generator, put up for one round and taken down after it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tasklatch::ledger::{OutboxReader, open_read_only};
use tasklatch::task::Timestamp;
use tempfile::TempDir;

use super::broker::Broker;
use super::design::{Design, Responder, Tasks};
use super::machine::wait_until_at_rest;
use super::process::{From, Process};
use super::results::Behind;
use crate::failure::{During, Result};
use crate::generate::{Expect, Measured, Workload};
use crate::respond::{READY, store};

/// How long a responder may take to start, with the tasks that it makes itself.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// How long the service may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(60);

/// What a run may take longer than it should before it is given up.
const GENERATE_MARGIN: Duration = Duration::from_secs(60);

/// How many seconds making tasks may take.
const PREPARE_WITHIN: Duration = Duration::from_secs(300);

/// How many requests are in flight while tasks are made.
const PREPARE_IN_FLIGHT: u32 = 1024;

/// By what names the processes of a stand are told of.
pub const SERVER: &str = "server";
/// As above.
pub const RESPONDER: &str = "responder";

/// The programs, and where they may write.
#[derive(Debug)]
pub struct Programs {
    /// This one.
    pub own: PathBuf,
    /// The service.
    pub service: PathBuf,
    /// Python 3.
    pub python: PathBuf,
    /// The NATS server.
    pub nats_server: PathBuf,
    /// Where rounds have their files.
    pub scratch: PathBuf,
    /// For how long a responder must do nothing to be at rest.
    pub look: Duration,
}

/// What the load generator is to do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// What is sent.
    pub workload: Workload,
    /// How many requests are in flight.
    pub in_flight: u32,
    /// The number of the first task.
    pub first_task: u64,
    /// How many there are.
    pub tasks: u64,
    /// The size of a report.
    pub report_bytes: usize,
    /// Seconds before the window, and its length; `None` if all tasks are used and all counts.
    pub window: Option<(f64, f64)>,
    /// Tell of each second.
    pub each_second: bool,
}

/// A server with a responder.
pub struct Stand<'p> {
    programs: &'p Programs,
    design: &'static Design,
    broker: Broker,
    responder: Process,
    database: PathBuf,
    // Dropped last, when nobody writes to it any more.
    folder: TempDir,
}

impl<'p> Stand<'p> {
    /// Puts it up. `tasks` is how many a responder of our own must have.
    ///
    /// # Errors
    /// If one of them does not start.
    pub async fn put_up(
        programs: &'p Programs,
        design: &'static Design,
        database: Option<&Path>,
        tasks: u64,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("round-")
            .tempdir_in(&programs.scratch)
            .during(format_args!(
                "make a folder in {}",
                programs.scratch.display()
            ))?;
        let broker = Broker::start(&programs.nats_server, design.broker, folder.path()).await?;
        let database = database.map_or_else(|| folder.path().join("tasklatch.db"), Path::to_owned);
        let responder = start_responder(programs, design, &broker, &database, tasks).await?;
        Ok(Self {
            programs,
            design,
            broker,
            responder,
            database,
            folder,
        })
    }

    /// The folder of this round.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file of the service.
    pub fn database(&self) -> &Path {
        &self.database
    }

    /// The process ID of the responder.
    pub fn responder_pid(&self) -> u32 {
        self.responder.pid()
    }

    /// Makes the tasks that a case needs, where the responder has not made them itself, and waits until all that this
    /// brings about is done.
    ///
    /// # Errors
    /// If they cannot be made.
    pub async fn prepare(&mut self, tasks: Tasks, load: &Load) -> Result<()> {
        let by_requests = matches!(self.design.responder, Responder::Service(_));
        let all = |workload| Load {
            workload,
            in_flight: PREPARE_IN_FLIGHT,
            window: None,
            each_second: false,
            ..*load
        };
        if by_requests && matches!(tasks, Tasks::Fresh | Tasks::Reported(_)) {
            self.generate(&all(Workload::Create)).await?;
        }
        if by_requests && matches!(tasks, Tasks::Reported(_)) {
            self.generate(&all(Workload::First)).await?;
        }
        self.wait_until_at_rest().await
    }

    /// Waits until the responder has nothing left to do.
    ///
    /// # Errors
    /// If it goes on.
    pub async fn wait_until_at_rest(&self) -> Result<()> {
        wait_until_at_rest(self.responder.pid(), self.programs.look).await
    }

    /// How far the events of the service are behind.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub async fn lag(&self) -> Result<Option<Behind>> {
        if !matches!(self.design.responder, Responder::Service(_)) {
            return Ok(None);
        }
        let connection = open_read_only(&self.database).await;
        let connection = connection.during("look into the outbox")?;
        let lag = OutboxReader::new(connection).lag().await;
        let lag = lag.during("look into the outbox")?;
        Ok(Some(Behind {
            changes: lag.changes,
            seconds: lag.seconds(Timestamp::now()),
        }))
    }

    /// Stops the responder and starts it again, so that it has nothing in memory.
    ///
    /// # Errors
    /// If it does not stop or start.
    pub async fn restart_responder(&mut self) -> Result<()> {
        self.responder.stop(STOP_WITHIN).await?;
        self.responder =
            start_responder(self.programs, self.design, &self.broker, &self.database, 0).await?;
        self.wait_until_at_rest().await
    }

    /// Takes it down. The service is asked to stop, which it must do well; what else there is is killed.
    ///
    /// # Errors
    /// If the service does not stop well.
    pub async fn take_down(mut self) -> Result<()> {
        match self.design.responder {
            Responder::Service(_) => self.responder.stop(STOP_WITHIN).await,
            _ => Ok(()),
        }
    }

    /// Sends a load, and gives what was measured.
    ///
    /// # Errors
    /// If a request was not answered as it should be, or the responder ended.
    pub async fn generate(&mut self, load: &Load) -> Result<Measured> {
        let mut command = Command::new(&self.programs.own);
        command.arg("generate");
        for (name, value) in self.arguments(load) {
            command.arg(format!("--{name}={value}"));
        }
        if load.each_second {
            command.arg("--seconds");
        }
        let within = load.window.map_or(PREPARE_WITHIN, |(warm_up, window)| {
            GENERATE_MARGIN + Duration::from_secs_f64(warm_up + window)
        });
        let mut generator = Process::start("the load generator", &mut command)?;
        let result = generator
            .wait_for("a result", within, |from, line| {
                (from == From::Out).then(|| line.to_owned())
            })
            .await;
        let line = match (result, self.responder.has_ended()?) {
            (Err(failure), Some(status)) => {
                let why = format!("ended by itself ({status}) while {failure}");
                return Err(self.responder.failure(&why));
            }
            (result, _) => result?,
        };
        generator.ended(within).await?;
        serde_json::from_str(&line).during("read what the load generator printed")
    }

    fn arguments(&self, load: &Load) -> Vec<(&'static str, String)> {
        let expect = match self.design.expect {
            Expect::Any => "any",
            Expect::Outcome => "outcome",
            Expect::Protocol => "protocol",
        };
        let workload = match load.workload {
            Workload::Create => "create",
            Workload::First => "first",
            Workload::Retries => "retries",
            Workload::Conflicts => "conflicts",
            Workload::Mix => "mix",
        };
        let mut arguments = vec![
            ("server", self.broker.address.clone()),
            ("workload", workload.to_owned()),
            ("in-flight", load.in_flight.to_string()),
            ("first-task", load.first_task.to_string()),
            ("tasks", load.tasks.to_string()),
            ("report-bytes", load.report_bytes.to_string()),
            ("expect", expect.to_owned()),
            ("watch", format!("{SERVER}={}", self.broker.pid())),
            ("watch", format!("{RESPONDER}={}", self.responder.pid())),
        ];
        if let Some((warm_up, window)) = load.window {
            arguments.push(("warm-up", warm_up.to_string()));
            arguments.push(("window", window.to_string()));
        }
        arguments
    }
}

async fn start_responder(
    programs: &Programs,
    design: &Design,
    broker: &Broker,
    database: &Path,
    tasks: u64,
) -> Result<Process> {
    if matches!(
        design.responder,
        Responder::OwnWithStore(_) | Responder::Python
    ) {
        store::make(database, tasks).await?;
    }
    let mut command = responder_command(programs, design.responder, &broker.address, tasks);
    command.arg("--database").arg(database);
    // What the surroundings say to a service is not meant for this one.
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TASKLATCH_") {
            command.env_remove(name);
        }
    }
    let mut process = Process::start(design.name, &mut command)?;
    process
        .wait_for("word that it is ready", READY_WITHIN, |from, line| {
            // The service says more in the same line.
            (from == From::Out && line.starts_with(READY)).then_some(())
        })
        .await?;
    Ok(process)
}

fn responder_command(
    programs: &Programs,
    responder: Responder,
    server: &str,
    tasks: u64,
) -> Command {
    match responder {
        Responder::Service(options) => {
            let mut command = Command::new(&programs.service);
            command
                .args(["serve", "--http", "off"])
                .arg(format!("--nats-url=nats://{server}"))
                .args(options);
            command
        }
        Responder::Own(name) | Responder::OwnWithStore(name) => {
            let mut command = Command::new(&programs.own);
            command
                .args(["respond", name, "--server", server])
                .args(["--tasks", &tasks.to_string()]);
            command
        }
        Responder::Python => {
            let folder = env!("CARGO_MANIFEST_DIR");
            let mut command = Command::new(&programs.python);
            command
                .arg(format!("{folder}/examples/tasklatch-bench/consumer.py"))
                .args(["--server", server])
                .env("PYTHONPATH", format!("{folder}/.tools/py"));
            command
        }
    }
}
