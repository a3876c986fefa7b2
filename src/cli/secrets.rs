//! `tasklatch secrets`: makes what a secured NATS server and its users need.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::error::CliError;
use super::{Shared, Ui};
use crate::secrets::{self, NewWorker, Role, SecretsError};
use crate::task::Timestamp;

/// What can be done with secrets.
#[derive(Subcommand, Debug)]
pub(super) enum SecretsCommand {
    /// Make what is missing of keys, permissions and certificates; what is there is kept
    Make(MakeOptions),
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

    /// A name or address that clients know the server by, beside localhost; repeatable
    #[arg(long, value_delimiter = ',', value_name = "HOST")]
    host: Vec<String>,
}

pub(super) fn run(command: SecretsCommand, shared: &Shared, ui: &Ui) -> Result<(), CliError> {
    let SecretsCommand::Make(options) = command;
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
