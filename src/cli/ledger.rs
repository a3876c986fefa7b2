//! `tasklatch ledger`: checks the database of a service.

use clap::{Args, Subcommand};
use serde_json::json;

use super::error::{CliError, EXIT_CODES_HELP};
use super::events::{EventsOption, find_stream, in_words};
use super::{DatabaseOption, Shared, Ui};
use crate::config::EventsMode;
use crate::operate::{self, Verified};
use crate::task::Timestamp;

/// What can be done with a ledger.
#[derive(Subcommand, Debug)]
pub(super) enum LedgerCommand {
    /// Check the file, every rule between its tables, every task, and that the event stream has what was published
    Verify(VerifyOptions),
}

/// Options of `ledger verify`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct VerifyOptions {
    #[command(flatten)]
    database: DatabaseOption,

    #[command(flatten)]
    events: EventsOption,
}

pub(super) async fn run(command: LedgerCommand, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    let LedgerCommand::Verify(options) = command;
    let events = match options.events.events {
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
            format!(", and {count} published events were looked for in the stream")
        });
        ui.print(format_args!("all rules hold: {tasks} tasks{events}"))?;
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
