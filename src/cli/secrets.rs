//! `tasklatch secrets`: makes what a secured NATS server and its users need, and checks that the server has read it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::json;

use super::error::CliError;
use super::{Shared, Ui};
use crate::secrets::{self, INBOX_PREFIX, NewWorker, RELOAD_CHECK, Role, SecretsError};
use crate::task::Timestamp;
use crate::wire::Endpoint;

/// What can be done with secrets.
#[derive(Subcommand, Debug)]
pub(super) enum SecretsCommand {
    /// Make what is missing of keys, permissions and certificates; what is there is kept
    Make(MakeOptions),
    /// Check that the server has read what `make` made last, and lets each client in; run after a reload of the server
    Check(CheckOptions),
}

/// Options of `secrets make`.
#[derive(Args, Debug)]
#[command(
    after_help = "DIR/nats is for the server, DIR/service for the service, DIR/clients/NAME.nk for the client NAME, which sets\n\
                  --nats-nkey @NAME.nk --nats-tls-ca ca.pem --inbox-prefix _INBOX.NAME. DIR/ca/ca.key signs certificates.\n\n\
                  Exit codes:\n   0  made, or there already\n   1  a file cannot be read or written\n   2  the command is wrong"
)]
pub(super) struct MakeOptions {
    /// Folder to make them in
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// A further worker, beside `worker`; with a task ID it may report on that task and do nothing else; repeatable
    #[arg(long, value_delimiter = ',', value_name = "NAME[=TASK_ID]")]
    worker: Vec<String>,

    /// A further coordinator, beside `coordinator`; repeatable
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    coordinator: Vec<String>,

    /// A name or address that clients know the server by, beside localhost; repeatable
    #[arg(long, value_delimiter = ',', value_name = "HOST")]
    host: Vec<String>,
}

/// Options of `secrets check`.
#[derive(Args, Debug)]
#[command(
    after_help = "It logs in as each client of DIR/clients, and asks the service for something that changes nothing, so the service must run.\n\n\
                  Exit codes:\n   0  the server has read it, and each client is let in and replied to\n   1  not in time\n   2  the command is wrong"
)]
pub(super) struct CheckOptions {
    /// Folder that they were made in; of it only clients/ is read
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// How long the server may take
    #[arg(long, default_value = "5s", value_parser = super::parse_duration, value_name = "DURATION")]
    within: Duration,
}

/// How often it is looked whether the server has read it.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(super) fn run(command: SecretsCommand, shared: &Shared, ui: &Ui) -> Result<(), CliError> {
    match command {
        SecretsCommand::Make(options) => make(&options, shared, ui),
        SecretsCommand::Check(options) => super::on_this_thread(check(&options, shared, ui)),
    }
}

async fn check(options: &CheckOptions, shared: &Shared, ui: &Ui) -> Result<(), CliError> {
    let end = Instant::now() + options.within;
    let mut clients = secrets::clients(&options.dir).map_err(in_words)?;
    // First the one whose key is new: with it in, all is read, and who was removed is out.
    let read = clients.remove_entry(RELOAD_CHECK);
    let Some(read) = read else {
        return Err(CliError::Usage(format!(
            "{} has no clients/{RELOAD_CHECK}.nk; run `tasklatch secrets make` on it first",
            options.dir.display()
        )));
    };
    for (name, role) in std::iter::once(read).chain(clients) {
        while let Err(why) = try_client(&options.dir, &name, &role, shared).await {
            if Instant::now() >= end {
                return Err(not_in_time(&name, &role, &why));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        if role != Role::ReloadCheck {
            ui.note(format_args!("{name}: let in"));
        }
    }
    ui.print("the server has read it, and lets each client in")
}

fn not_in_time(name: &str, role: &Role, why: &str) -> CliError {
    match role {
        Role::ReloadCheck => CliError::Fault(format!(
            "the NATS server has not read what was made last: {why}"
        ))
        .hinted("have it reload its configuration (`nats-server --signal reload=PID`), and look into its log"),
        _ => CliError::Fault(format!("the client {name} cannot work: {why}")).hinted(
            "a new worker needs a second reload of the server, and the service must run; then run this again",
        ),
    }
}

/// Logs in as a client, and has the service reply to what changes nothing.
async fn try_client(dir: &Path, name: &str, role: &Role, shared: &Shared) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let folder = dir.join("clients");
    let login = shared.nats.of_client(
        &folder.join(format!("{name}.nk")),
        &folder.join("ca.pem"),
        format!("{INBOX_PREFIX}.{name}"),
    );
    let addresses = login.addresses().map_err(|error| said(&error))?;
    let connect = login.connect_options().map_err(|error| said(&error))?;
    let connect = connect.connect(addresses);
    let client = tokio::time::timeout(shared.service.timeout, connect).await;
    let client = client.map_err(|_| "the server does not reply".to_owned())?;
    let client = client.map_err(|error| said(&error))?;
    let subjects = &shared.service.prefix;
    let (subject, payload) = match role {
        Role::Coordinator | Role::Worker => {
            // No task has this ID, as one that is made has another form; if somebody gave it, it is read and no more.
            (subjects.of(Endpoint::Get), r#"{"task_id":"reload-check"}"#)
        }
        // A report without content is refused.
        Role::WorkerOf(task_id) => (subjects.report_of(task_id), "{}"),
        Role::Observer | Role::ReloadCheck | Role::Service => return Ok(()),
    };
    let reply = client.request(subject, payload.into());
    let reply = tokio::time::timeout(shared.service.timeout, reply).await;
    let reply = reply.map_err(|_| "the service does not reply".to_owned())?;
    reply.map(drop).map_err(|error| said(&error))
}

fn make(options: &MakeOptions, shared: &Shared, ui: &Ui) -> Result<(), CliError> {
    let workers = options
        .worker
        .iter()
        .map(|text| match text.split_once('=') {
            Some((name, task_id)) => NewWorker::new(name, Some(task_id)),
            None => NewWorker::new(text, None),
        });
    let workers = workers.collect::<Result<Vec<_>, _>>().map_err(in_words)?;
    let subjects = &shared.service.prefix;
    let made = secrets::make(
        &options.dir,
        subjects,
        &options.host,
        &workers,
        &options.coordinator,
        Timestamp::now(),
    )
    .map_err(in_words)?;
    for path in &made.files {
        ui.note(format_args!("made {}", path.display()));
    }
    for (name, role) in &made.users {
        if ui.json() {
            let task_id = match role {
                Role::WorkerOf(task_id) => Some(task_id),
                _ => None,
            };
            ui.print(json!({"user": name, "role": role.word(), "task_id": task_id}))?;
        } else {
            ui.print(format_args!("{name}: {role}"))?;
        }
    }
    Ok(())
}

fn in_words(error: SecretsError) -> CliError {
    match error {
        SecretsError::Name(_) | SecretsError::TaskId(_) => CliError::Usage(error.to_string()),
        error => CliError::Fault(error.to_string()),
    }
}
