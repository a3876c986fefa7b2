//! `tasklatch events`: events that are parked or that the event stream lacks, and how to send them again.

use clap::{Args, Subcommand};
use serde_json::json;

use super::error::{CliError, EXIT_CODES_HELP};
use super::since::{Since, parse_since};
use super::text::counted;
use super::{DatabaseOption, Shared, Ui};
use crate::config::EventsMode;
use crate::ledger::{FaultKind, OpenError, Parked};
use crate::nats;
use crate::operate::{self, EventStream, OperateError, Sent, To};
use crate::task::Timestamp;

/// What can be done with events.
#[derive(Subcommand, Debug)]
pub(super) enum EventsCommand {
    /// Send the published events that the event stream lacks, after it was lost or set back
    Republish(RepublishOptions),
    /// Show the events that could not be published as they are
    Parked(ParkedOptions),
    /// Send parked events, once what kept them from it is mended
    Resend(ResendOptions),
}

/// How the service publishes events.
#[derive(Args, Debug)]
pub(super) struct EventsOption {
    /// How the service publishes events
    #[arg(long, env = "TASKLATCH_EVENTS", value_enum, default_value_t = EventsMode::default(), value_name = "MODE")]
    pub events: EventsMode,
}

/// Options of `events republish`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct RepublishOptions {
    /// Only events of changes from this time on, such as 1h or 2d; all is as far back as --keep-events goes
    #[arg(long, value_parser = parse_since, value_name = "DURATION|all")]
    since: Since,

    #[command(flatten)]
    database: DatabaseOption,
}

/// Options of `events parked`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct ParkedOptions {
    #[command(flatten)]
    database: DatabaseOption,
}

/// Options of `events resend`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct ResendOptions {
    /// Only this event, by its ID as `events parked` shows it
    #[arg(value_name = "EVENT")]
    event: Option<String>,

    #[command(flatten)]
    events: EventsOption,

    #[command(flatten)]
    database: DatabaseOption,
}

pub(super) async fn run(command: EventsCommand, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    match command {
        EventsCommand::Republish(options) => republish(options, shared, ui).await,
        EventsCommand::Parked(options) => parked(&options, ui).await,
        EventsCommand::Resend(options) => resend(options, shared, ui).await,
    }
}

/// Connects, and finds the event stream.
pub(super) async fn find_stream(verb: &str, shared: &Shared) -> Result<EventStream, CliError> {
    let client = shared.connect(verb, |_| {}).await?;
    let subjects = shared.service.prefix.clone();
    EventStream::find(client.nats().clone(), subjects)
        .await
        .map_err(in_words)
}

async fn republish(options: RepublishOptions, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    let now = Timestamp::now();
    let since = options.since.start(now);
    let stream = find_stream("events republish", &shared).await?;
    let sent = operate::republish(&options.database.database, since, &stream, now).await;
    tell_sent(sent.map_err(in_words)?, ui)
}

async fn parked(options: &ParkedOptions, ui: &Ui) -> Result<(), CliError> {
    let parked = operate::parked(&options.database.database).await;
    let parked = parked.map_err(in_words)?;
    for Parked {
        event,
        parked_at,
        content,
    } in &parked
    {
        let id = content.id();
        match ui.json() {
            true => {
                ui.print(json!({"id": id, "reason": event.reason, "parked_at": parked_at}))?;
            }
            false => ui.print(format_args!("{id}  since {parked_at}: {}", event.reason))?,
        }
    }
    if parked.is_empty() {
        ui.note("no event is parked");
    }
    Ok(())
}

async fn resend(options: ResendOptions, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    let database = &options.database.database;
    let mut parked = operate::parked(database).await.map_err(in_words)?;
    if let Some(id) = &options.event {
        parked.retain(|parked| parked.content.id() == *id);
        if parked.is_empty() {
            return Err(CliError::Usage(format!("no event {id} is parked"))
                .hinted("`tasklatch events parked` shows which are"));
        }
    }
    let sent = match options.events.events {
        EventsMode::Jetstream => {
            let stream = find_stream("events resend", &shared).await?;
            operate::resend(database, &parked, To::Stream(&stream)).await
        }
        EventsMode::Core => {
            let connection = nats::connect(&shared.nats, "tasklatch events resend").await;
            let connection = connection.map_err(|error| CliError::Fault(error.to_string()))?;
            operate::refuse_covered(&connection.client(), &shared.service.prefix)
                .await
                .map_err(in_words)?;
            let to = To::Core(&connection, &shared.service.prefix);
            operate::resend(database, &parked, to).await
        }
    };
    tell_sent(sent.map_err(in_words)?, ui)
}

fn tell_sent(sent: Sent, ui: &Ui) -> Result<(), CliError> {
    let Sent {
        sent: count,
        present,
        refused,
        too_large,
    } = &sent;
    match ui.json() {
        true => ui.print(serde_json::to_value(&sent).unwrap_or_default())?,
        false => ui.print(format_args!(
            "{count} sent, {present} were in the stream, {refused} refused as duplicates, {} too large",
            too_large.len()
        ))?,
    }
    for event in too_large {
        ui.note(format_args!("too large: {event}"));
    }
    if *refused > 0 {
        return Err(CliError::NotNow(format!(
            "the stream lacks {} and remembers the IDs",
            counted(*refused, "event")
        ))
        .hinted("send the same again once its duplicate window is over"));
    }
    match too_large.len() {
        0 => Ok(()),
        count => {
            let events = counted(count as u64, "event");
            Err(CliError::Fault(format!("still too large: {events}")).hinted(
                "raise the server's max_payload or the stream's maximum, and send the same again",
            ))
        }
    }
}

/// A failure with its exit code and what to do next.
pub(super) fn in_words(error: OperateError) -> CliError {
    let text = error.to_string();
    match error {
        OperateError::Open(
            OpenError::Io { .. } | OpenError::Sqlite { .. } | OpenError::Migrate { .. },
        ) => CliError::Fault(text),
        OperateError::Open(_) => CliError::Usage(text),
        OperateError::Covered(_) => CliError::Usage(text)
            .hinted("the service publishes into it, so give --events jetstream as the service has it"),
        OperateError::Stream { .. } => CliError::NotNow(text).hinted(
            "a service with --events jetstream makes the stream; check --prefix, and the permissions on $JS.API.>",
        ),
        OperateError::NotKept => CliError::Usage(text)
            .hinted("read the tasks with `tasklatch task list --updated-since` instead"),
        OperateError::Store(fault) if fault.kind() == FaultKind::Passing => CliError::NotNow(text)
            .hinted("the database is busy or its disk full; run the same again"),
        OperateError::Store(_) => CliError::Fault(text).hinted("check the disk"),
        OperateError::Lookup(_)
        | OperateError::Publish { .. }
        | OperateError::PublishCore { .. }
        | OperateError::RoundTrip(_) => CliError::NotNow(text)
            .hinted("what was sent is not sent twice, so run the same again"),
    }
}
