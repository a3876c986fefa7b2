//! What is logged, to standard error.

use std::backtrace::BacktraceStatus;
use std::io;

use tracing_subscriber::filter::EnvFilter;

use super::Ui;
use super::error::CliError;
use crate::config::{LogFormat, LogOptions};
use crate::nats::{LogPace, note_client_panic};

/// What is logged. The NATS client library logs each try to connect, of which the service has one line when a connection is
/// lost and one when it is back; so its lines are left out, unless they are asked for by name, or all details are.
pub(super) fn filter(options: &LogOptions, default: &str) -> Result<EnvFilter, CliError> {
    let text = options.log.as_deref().unwrap_or(default);
    let asks_for_all = |part: &str| ["debug", "trace"].contains(&part.trim());
    let filter = match text.contains("async_nats") || text.split(',').any(asks_for_all) {
        true => text.to_owned(),
        false => format!("{text},async_nats=error"),
    };
    EnvFilter::try_new(filter).map_err(|error| {
        CliError::Usage(format!(
            "--log {text:?} is no filter: {error}; write a level such as info, or info,tasklatch=debug"
        ))
    })
}

/// Starts logging for this process.
pub(super) fn start(options: &LogOptions, default_filter: &str, ui: &Ui) -> Result<(), CliError> {
    let filter = filter(options, default_filter)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(ui.colors_stderr());
    let started = match options.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| CliError::Fault(format!("cannot start logging: {error}")))
}

/// Has every panic of this process logged as an error with its place: in whatever format the log has, and above what is
/// filtered by default. Anybody can have a task of the NATS client panic, once a message, so of those there is one line in
/// five seconds.
pub(super) fn log_panics() {
    let pace = LogPace::default();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(ToString::to_string);
        let place = place.as_deref().unwrap_or("an unknown place");
        let message = info.payload_as_str().unwrap_or("without a message");
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        let backtrace = std::backtrace::Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
        let backtrace = backtrace.as_ref().map(tracing::field::display);
        if !place.contains("async-nats") {
            tracing::error!(
                panic.place = place,
                panic.message = message,
                panic.thread = thread,
                panic.backtrace = backtrace,
                "a task panicked"
            );
            return;
        }
        // Where crates are kept is of no use to anybody.
        let place = &place[place.find("async-nats").unwrap_or_default()..];
        note_client_panic(place.to_owned());
        if pace.is_due() {
            tracing::error!(
                panic.place = place,
                panic.message = message,
                panic.thread = thread,
                panic.backtrace = backtrace,
                "a task of the NATS client panicked, which ends its connection; another one is made"
            );
        }
    }));
}
