//! `tasklatch ledger`: checks the database of a service, and makes backups of it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::error::{CliError, EXIT_CODES_HELP};
use super::events::{find_stream, in_words};
use super::signals::Signals;
use super::text::counted;
use super::{DatabaseOption, Shared, Ui, parse_duration};
use crate::config::EventsMode;
use crate::operate::{self, BackedUp, BackupError, Verified};
use crate::task::Timestamp;

/// What can be done with a ledger.
#[derive(Subcommand, Debug)]
pub(super) enum LedgerCommand {
    /// Check the file, every rule between its tables, every task, and that the event stream has what was published
    Verify(VerifyOptions),
    /// Copy the database as of now into a new file, also while a service runs, and check the copy
    Backup(BackupOptions),
    /// Let go of tasks that ended before a time, with no service running on the database
    Prune(PruneOptions),
}

/// Options of `ledger verify`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct VerifyOptions {
    #[command(flatten)]
    database: DatabaseOption,

    /// Look in the event stream too, where the service publishes into it: jetstream; the database alone needs no NATS server: core
    #[arg(long, env = "TASKLATCH_EVENTS", value_enum, default_value_t = EventsMode::Core, value_name = "MODE")]
    events: EventsMode,
}

/// Options of `ledger backup`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct BackupOptions {
    /// File to make, which must not be there yet
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    database: DatabaseOption,
}

/// Options of `ledger prune`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct PruneOptions {
    /// Tasks that ended and were last changed before this go: so long ago, such as 90d, or a time of RFC 3339
    #[arg(long, value_parser = parse_before, value_name = "DURATION|TIME")]
    before: Before,

    /// Do it, which cannot be undone; otherwise it is only said how many tasks would go
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    database: DatabaseOption,
}

/// A time, as people say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Ago(Duration),
    At(Timestamp),
}

fn parse_before(text: &str) -> Result<Before, String> {
    if let Some(at) = Timestamp::parse(text) {
        return Ok(Before::At(at));
    }
    parse_duration(text)
        .map(Before::Ago)
        .map_err(|error| format!("{error}, or a time such as 2026-01-31T00:00:00Z"))
}

pub(super) async fn run(command: LedgerCommand, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    match command {
        LedgerCommand::Verify(options) => verify(options, shared, ui).await,
        LedgerCommand::Backup(options) => backup(&options, ui).await,
        LedgerCommand::Prune(options) => prune(&options, ui).await,
    }
}

async fn prune(options: &PruneOptions, ui: &Ui) -> Result<(), CliError> {
    let now = Timestamp::now();
    let before = match options.before {
        Before::Ago(time) => now.before(time),
        Before::At(at) => at,
    };
    let database = &options.database.database;
    let done = match options.yes {
        true => operate::prune(database, before, now).await,
        false => operate::count_prunable(database, before).await,
    };
    let tasks = done.map_err(in_words)?;
    match (ui.json(), options.yes) {
        (true, pruned) => {
            ui.print(json!({"tasks": tasks, "pruned": pruned, "before": before}))
        }
        (false, true) => ui.print(format_args!(
            "pruned {} last changed before {before}; new tasks use their room, and a backup is the file without it",
            counted(tasks, "task")
        )),
        (false, false) => ui.print(format_args!(
            "{} last changed before {before} would go; nothing was changed, --yes lets them go, with the service stopped",
            counted(tasks, "task")
        )),
    }
}

async fn backup(options: &BackupOptions, ui: &Ui) -> Result<(), CliError> {
    let signals = Signals::listen()?;
    let work = operate::backup(&options.database.database, &options.file, Timestamp::now());
    // What is half written goes with the work.
    let done = signals.first().run_until_cancelled(work).await;
    let BackedUp {
        tasks,
        bytes,
        ledger_id,
    } = match done {
        Some(done) => done.map_err(backup_in_words)?,
        None => {
            return Err(CliError::Fault(
                "interrupted; no backup was made".to_owned(),
            ));
        }
    };
    let file = options.file.display();
    match ui.json() {
        true => ui.print(json!({
            "file": file.to_string(),
            "tasks": tasks,
            "bytes": bytes,
            "ledger_id": ledger_id,
        })),
        false => ui.print(format_args!(
            "backed up {} of ledger {ledger_id} to {file}, {bytes} bytes; all rules hold in it",
            counted(tasks, "task")
        )),
    }
}

/// A failure with its exit code and what to do next.
fn backup_in_words(error: BackupError) -> CliError {
    let text = error.to_string();
    match error {
        BackupError::Ledger(error) => in_words(error),
        BackupError::Exists(_) => CliError::Usage(text).hinted("name another file"),
        BackupError::Io { .. } => CliError::Fault(text)
            .hinted("check that its folder is there, its permissions and the room on the disk; nothing half done is left"),
        BackupError::Broken(_) => CliError::Fault(text).hinted(
            "no backup was made; `tasklatch ledger verify` tells all that is wrong with the database",
        ),
    }
}

async fn verify(options: VerifyOptions, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    let events = match options.events {
        EventsMode::Jetstream => Some(find_stream("ledger verify", &shared).await?),
        EventsMode::Core => None,
    };
    let verified = operate::verify(
        &options.database.database,
        events.as_ref(),
        Timestamp::now(),
    );
    tell(&verified.await.map_err(in_words)?, ui)
}

fn tell(verified: &Verified, ui: &Ui) -> Result<(), CliError> {
    let Verified {
        tasks,
        events,
        broken,
    } = verified;
    if ui.json() {
        let broken = broken
            .iter()
            .map(|broken| json!({"rule": broken.rule, "offenders": broken.offenders}));
        ui.print(json!({
            "tasks": tasks,
            "events": events,
            "broken": broken.collect::<Vec<_>>(),
        }))?;
    } else if broken.is_empty() {
        let events = events.map_or_else(String::new, |count| {
            let events = counted(count, "published event");
            format!(", and {events} looked for in the stream")
        });
        let tasks = counted(*tasks, "task");
        ui.print(format_args!("all rules hold: {tasks}{events}"))?;
    } else {
        for broken in broken {
            let offenders = broken.offenders.join(", ");
            ui.print(format_args!("does not hold: {}: {offenders}", broken.rule))?;
        }
    }
    let lacks_events = |broken: &crate::ledger::Broken| broken.rule.starts_with("the event stream");
    match broken.len() {
        0 => Ok(()),
        1 if lacks_events(&broken[0]) => {
            Err(CliError::Fault("the event stream lacks events".to_owned())
                .hinted("`tasklatch events republish --since all` sends them again"))
        }
        count => Err(CliError::Fault(format!(
            "{count} rules do not hold in this database"
        ))
        .hinted(
            "stop the service, keep a copy of the file, and restore the last good snapshot or backup",
        )),
    }
}
