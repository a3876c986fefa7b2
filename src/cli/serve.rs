//! `tasklatch serve`: the service.

use std::path::Path;

use super::error::{CliError, EXIT_FAULT};
use super::signals::Signals;
use super::{Shared, Ui, logging};
use crate::config::ServeOptions;
use crate::service::{self, Config, Service};

pub(super) async fn run(options: ServeOptions, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    logging::start(&options.log, "info", ui)?;
    note_panics_of_the_client();
    // What is wrong with the options is a wrong command, not a fault of the service.
    shared.nats.addresses()?;
    shared.nats.connect_options()?;
    shared.check_inbox()?;
    let signals = Signals::listen()?;
    signals.exit_on_second(EXIT_FAULT);
    let database = options.database.clone();
    let nats_urls = shared.nats.shown_urls();
    let config = Config {
        nats: shared.nats,
        subjects: shared.service.prefix.clone(),
        database: options.database,
        http: options.http.0,
        allow_other_ledgers: options.allow_other_ledgers,
        max_in_hand: options.max_in_hand,
        max_log_size: options.max_log_size,
        events: options.events,
        outbox: options.outbox,
        durable_reports: options.durable_reports,
        otlp_endpoint: options.otlp_endpoint,
    };
    let Some(service) = start(config, &signals, ui).await? else {
        return Ok(());
    };
    announce(
        &service,
        &database,
        shared.service.prefix.prefix(),
        &nats_urls,
        ui,
    )?;
    service.run_until(signals.first().clone()).await?;
    ui.note("stopped: all that was accepted is kept");
    Ok(())
}

/// Anybody can have the NATS client panic in its own task, once a message. The connection notes that, now and then, and is
/// made anew; the rest of it is for those who look for it.
fn note_panics_of_the_client() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| match info.location() {
        Some(at) if at.file().contains("async-nats") => {
            tracing::debug!(error = %info, "the NATS client panics");
        }
        _ => usual(info),
    }));
}

/// Starts the service; `None` if a signal came before it was ready.
pub(super) async fn start(
    config: Config,
    signals: &Signals,
    ui: &Ui,
) -> Result<Option<Service>, CliError> {
    // What may have been applied by then without an answer is answered when it is sent again.
    tokio::select! {
        service = service::start(config) => Ok(Some(service?)),
        () = signals.first().cancelled() => {
            ui.note("stopped before the service was ready");
            Ok(None)
        }
    }
}

/// Prints the line that says that the service is ready.
pub(super) fn announce(
    service: &Service,
    database: &Path,
    prefix: &str,
    nats_urls: &str,
    ui: &Ui,
) -> Result<(), CliError> {
    let ledger_id = service.ledger_id();
    let database = database.display();
    let http = service.http_addr().map(|address| address.to_string());
    let printed = if ui.json() {
        let ready = serde_json::json!({"ready": {
            "ledger_id": ledger_id,
            "database": database.to_string(),
            "prefix": prefix,
            "nats": nats_urls,
            "http": http,
        }});
        ui.print(ready)
    } else {
        let http = http.unwrap_or_else(|| "off".to_owned());
        ui.print(format_args!(
            "ready: ledger {ledger_id} in {database}, requests on {prefix}.> at {nats_urls}, http on {http}"
        ))
    };
    // A service outlives whoever started it and read its first line.
    match printed {
        Err(CliError::OutputClosed) => Ok(()),
        printed => printed,
    }
}
