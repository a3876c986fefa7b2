//! `tasklatch watch`: events as they come.

use std::num::NonZeroU64;

use async_nats::Event as ConnectionEvent;
use clap::Args;

use super::error::{CliError, EXIT_CODES_HELP};
use super::signals::Signals;
use super::{Shared, Ui, show, since};
use crate::client::{ClientError, Since, Watch, checked_task_id};
use crate::content::{self, JsonText, MAX_LEVELS};
use crate::task::Timestamp;
use crate::wire::{CloudEvent, EventKind};

/// Options of `watch`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct WatchOptions {
    /// Only events of this task
    #[arg(long, value_name = "ID")]
    task: Option<String>,

    /// Only accepted results
    #[arg(long)]
    result_only: bool,

    /// Begin with the events that the event stream has kept since then: a duration such as 1h, or all
    #[arg(long, value_parser = since::parse_since, value_name = "DURATION|all")]
    since: Option<since::Since>,

    /// End after so many events
    #[arg(long, value_name = "EVENTS")]
    count: Option<NonZeroU64>,
}

pub(super) async fn run(options: WatchOptions, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    let task_id = options.task.as_deref().map(checked_task_id).transpose()?;
    let signals = Signals::listen()?;
    let is_kept = options.since.is_some();
    let client = shared
        .connect("watch", note_connection(*ui, is_kept))
        .await?;
    let mut watch = match options.since {
        Some(since) => {
            let start = since.start(Timestamp::now());
            // Before any time that a server can be told, there is all.
            let start = start.filter(|start| start.micros() > 0);
            let since = start.map_or(Since::All, Since::Instant);
            (client.watch_since(task_id, options.result_only, since)).await?
        }
        None => client.watch(task_id).await?,
    };
    ui.note(format_args!(
        "watching {} on {}",
        watch.subject(),
        shared.nats.shown_urls()
    ));
    signals.exit_on_first(super::EXIT_DONE);
    show_events(&mut watch, &options, ui).await
}

async fn show_events(watch: &mut Watch, options: &WatchOptions, ui: &Ui) -> Result<(), CliError> {
    let mut left = options.count.map(NonZeroU64::get);
    while left != Some(0) {
        let Some(event) = watch.next().await else {
            return Err(ClientError::Nats("the connection was closed for good".into()).into());
        };
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                ui.note(format_args!("{error}; trying on, and leaving out nothing"));
                continue;
            }
        };
        let event = match event.cloud_event() {
            Ok(event) => event,
            Err(error) => {
                ui.note(format_args!("left out: {error}"));
                continue;
            }
        };
        if options.result_only && event.kind != EventKind::Result {
            continue;
        }
        match ui.json() {
            true => ui.print_line_of_bytes(&on_one_line(event)?)?,
            false => ui.print(show::event(&event))?,
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// The JSON format of CloudEvents. The data stays as it came, but for line breaks between its tokens.
fn on_one_line(mut event: CloudEvent) -> Result<Vec<u8>, CliError> {
    let fault = |error: &dyn std::error::Error| {
        CliError::Fault(format!("an event does not encode as JSON: {error}"))
    };
    if event.data.get().contains(['\n', '\r']) {
        let data = content::parse(event.data.get().as_bytes(), MAX_LEVELS)
            .map_err(|error| fault(&error))?;
        let text = JsonText::from(&data).get().to_owned();
        event.data =
            serde_json::value::RawValue::from_string(text).map_err(|error| fault(&error))?;
    }
    serde_json::to_vec(&event).map_err(|error| fault(&error))
}

/// Tells when events may be missing.
fn note_connection(ui: Ui, is_kept: bool) -> impl Fn(&ConnectionEvent) + Send + Sync + 'static {
    let connected_before = std::sync::atomic::AtomicBool::new(false);
    move |event| match event {
        ConnectionEvent::Connected => {
            if connected_before.swap(true, std::sync::atomic::Ordering::Relaxed) {
                ui.note("connected again: watching on");
            }
        }
        ConnectionEvent::Disconnected => {
            ui.note(match is_kept {
                true => {
                    "the connection to NATS is lost; what happens until it is back is shown then"
                }
                false => {
                    "the connection to NATS is lost; what happens until it is back is not shown"
                }
            });
        }
        ConnectionEvent::SlowConsumer(_) if !is_kept => {
            ui.note("events came faster than they could be shown, and some are lost");
        }
        ConnectionEvent::SlowConsumer(_)
        | ConnectionEvent::LameDuckMode
        | ConnectionEvent::Draining
        | ConnectionEvent::Closed
        | ConnectionEvent::ServerError(_)
        | ConnectionEvent::ClientError(_) => {}
    }
}
