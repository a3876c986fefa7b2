//! A progress bar for what takes longer than a second, on a terminal only.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::Ui;
use crate::cli::error::EXIT_FAULT;
use crate::cli::signals::Signals;
use crate::snapshot::{Phase, Progress};

/// What is over sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// The progress of one command.
pub(super) struct Bar {
    began: Instant,
    wanted: bool,
    signals: Signals,
    phase: Option<Phase>,
    bar: Option<ProgressBar>,
}

impl Bar {
    pub(super) fn new(ui: &Ui, signals: Signals) -> Self {
        let wanted = !ui.quiet() && !ui.json() && io::stderr().is_terminal();
        Self {
            began: Instant::now(),
            wanted,
            signals,
            phase: None,
            bar: None,
        }
    }

    /// Shows how far it has come, and says whether to go on.
    pub(super) fn show(&mut self, progress: Progress) -> ControlFlow<()> {
        if self.phase != Some(progress.phase) {
            self.clear();
            self.phase = Some(progress.phase);
            if progress.phase == Phase::Copying {
                // The reader may never read on, and there is nothing left to put in order.
                self.signals.exit_on_first(EXIT_FAULT);
            }
        }
        if self.wanted && self.began.elapsed() >= PATIENCE {
            let bar = self.bar.get_or_insert_with(|| new_bar(progress));
            bar.set_length(progress.total);
            bar.set_position(progress.done);
        }
        if self.signals.first().is_cancelled() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Takes the bar off the terminal.
    pub(super) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn new_bar(progress: Progress) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(progress.total), ProgressDrawTarget::stderr());
    let (what, amount) = match progress.phase {
        Phase::Saving => ("saving", "{human_pos} of {human_len} tasks"),
        Phase::Checking => ("checking", "{binary_bytes} of {binary_total_bytes}"),
        Phase::Loading => ("loading", "{binary_bytes} of {binary_total_bytes}"),
        Phase::Copying => ("writing", "{binary_bytes} of {binary_total_bytes}"),
    };
    let template = format!("{what} {{wide_bar}} {amount}, {{eta}} left");
    let style =
        ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style)
}
