//! What is logged, to standard error.

use std::io;

use tracing_subscriber::filter::EnvFilter;

use super::Ui;
use super::error::CliError;
use crate::config::{LogFormat, LogOptions};

/// What is logged.
pub(super) fn filter(options: &LogOptions, default: &str) -> Result<EnvFilter, CliError> {
    let text = options.log.as_deref().unwrap_or(default);
    EnvFilter::try_new(text).map_err(|error| {
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
