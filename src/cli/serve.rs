//! `tasklatch serve`: the service.

use std::path::Path;

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;

use super::error::{CliError, EXIT_FAULT};
use super::signals::Signals;
use super::{Shared, Ui, logging};
use crate::config::ServeOptions;
use crate::service::{self, Config, Service};

pub(super) async fn run(options: ServeOptions, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    logging::start(&options.log, "info", ui)?;
    logging::log_panics();
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
        max_wal_size: options.max_wal_size,
        events: options.events,
        outbox: options.outbox,
        durable_reports: options.durable_reports,
        otlp_endpoint: options.otlp_endpoint,
    };
    let Some(service) = start(config, &signals, ui).await? else {
        return Ok(());
    };
    let address = Address {
        database: &database,
        prefix: shared.service.prefix.prefix(),
        nats_urls: &nats_urls,
    };
    run_until(service, signals.first(), &address, ui, || {}).await?;
    ui.note("stopped: all that was accepted is kept");
    Ok(())
}

/// Runs the service until a stop is asked for, and says when it is ready: to the terminal, and to systemd if that asks. Then
/// `when_ready` has its turn.
pub(super) async fn run_until(
    service: Service,
    stop: &CancellationToken,
    address: &Address<'_>,
    ui: &Ui,
    when_ready: impl FnOnce(),
) -> Result<(), CliError> {
    let ready = service.until_ready();
    let line = ReadyLine::of(&service, address);
    let running = service.run_until(stop.clone());
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => return Ok(ended?),
        () = ready => {}
        () = stop.cancelled() => {}
    }
    if !stop.is_cancelled() {
        tell_systemd(NotifyState::Ready);
        if let Err(error) = line.print(ui) {
            // What was asked to stop stops in order, whatever the reason.
            stop.cancel();
            running.await?;
            return Err(error);
        }
        when_ready();
    }
    tokio::select! {
        ended = &mut running => return Ok(ended?),
        () = stop.cancelled() => tell_systemd(NotifyState::Stopping),
    }
    Ok(running.await?)
}

/// Tells systemd, if it has started this process with `Type=notify`.
fn tell_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(error = %error, "systemd cannot be told how the service is");
    }
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

/// Where a service is reached.
pub(super) struct Address<'a> {
    pub(super) database: &'a Path,
    pub(super) prefix: &'a str,
    pub(super) nats_urls: &'a str,
}

/// The line that says that the service is ready.
struct ReadyLine<'a> {
    ledger_id: String,
    http: Option<String>,
    address: &'a Address<'a>,
}

impl<'a> ReadyLine<'a> {
    fn of(service: &Service, address: &'a Address<'a>) -> Self {
        Self {
            ledger_id: service.ledger_id().to_owned(),
            http: service.http_addr().map(|address| address.to_string()),
            address,
        }
    }

    fn print(self, ui: &Ui) -> Result<(), CliError> {
        let Self {
            ledger_id,
            http,
            address,
        } = self;
        let Address {
            database,
            prefix,
            nats_urls,
        } = address;
        let database = database.display();
        let printed = if ui.json() {
            ui.print(serde_json::json!({"ready": {
                "ledger_id": ledger_id,
                "database": database.to_string(),
                "prefix": prefix,
                "nats": nats_urls,
                "http": http,
            }}))
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
}
