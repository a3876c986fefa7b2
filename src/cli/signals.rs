//! Ctrl-C and SIGTERM: the first asks to end in order, the second ends at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::error::CliError;

/// The signals that this process has been sent.
#[derive(Clone, Debug)]
pub(super) struct Signals {
    first: CancellationToken,
    second: CancellationToken,
}

impl Signals {
    /// Catches both signals from now on.
    pub(super) fn listen() -> Result<Self, CliError> {
        let fault = |error| CliError::Fault(format!("cannot listen for signals: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(fault)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(fault)?;
        let signals = Self {
            first: CancellationToken::new(),
            second: CancellationToken::new(),
        };
        let Self { first, second } = signals.clone();
        tokio::spawn(async move {
            for token in [first, second] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                token.cancel();
            }
        });
        Ok(signals)
    }

    /// Asks to end in order.
    pub(super) fn first(&self) -> &CancellationToken {
        &self.first
    }

    /// Asks to end at once.
    pub(super) fn second(&self) -> &CancellationToken {
        &self.second
    }

    /// Ends the process at the first signal.
    pub(super) fn exit_on_first(&self, code: u8) {
        exit_on(self.first.clone(), code);
    }

    /// Ends the process at the second signal.
    pub(super) fn exit_on_second(&self, code: u8) {
        exit_on(self.second.clone(), code);
    }
}

fn exit_on(token: CancellationToken, code: u8) {
    tokio::spawn(async move {
        token.cancelled().await;
        std::process::exit(code.into());
    });
}
