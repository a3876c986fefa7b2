//! The two streams: results to standard output, all else to standard error.

use std::fmt::Display;
use std::io::{self, Write};

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use clap::builder::styling::{AnsiColor, Style};

use super::error::CliError;
use super::text::one_line;

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    fn choice(self) -> ColorChoice {
        match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::AlwaysAnsi,
            Self::Never => ColorChoice::Never,
        }
    }
}

/// How a command speaks.
#[derive(Clone, Copy, Debug)]
pub struct Ui {
    json: bool,
    quiet: bool,
    color: Color,
}

impl Ui {
    /// Speaks as the shared options ask.
    pub fn new(json: bool, quiet: bool, color: Color) -> Self {
        Self { json, quiet, color }
    }

    /// Whether standard output is to hold the JSON of the protocol and nothing else.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Whether only errors are to be told.
    pub fn quiet(&self) -> bool {
        self.quiet
    }

    /// Whether standard error shows colour.
    pub(super) fn colors_stderr(&self) -> bool {
        AutoStream::new(io::stderr(), self.color.choice()).current_choice() != ColorChoice::Never
    }

    /// Prints a result and a line break. Styles in it are left out where colour is not wanted.
    ///
    /// # Errors
    /// [`CliError::OutputClosed`] if nobody reads standard output any more, else a fault.
    pub fn print(&self, text: impl Display) -> Result<(), CliError> {
        let mut out = AutoStream::new(io::stdout(), self.color.choice()).lock();
        writeln!(out, "{text}")
            .and_then(|()| out.flush())
            .map_err(|error| output_failed(&error))
    }

    /// Prints bytes as they are and a line break.
    ///
    /// # Errors
    /// As [`Ui::print`].
    pub fn print_line_of_bytes(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)
            .and_then(|()| out.write_all(b"\n"))
            .and_then(|()| out.flush())
            .map_err(|error| output_failed(&error))
    }

    /// Prints bytes as they are.
    ///
    /// # Errors
    /// As [`Ui::print`].
    pub fn print_bytes(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)
            .and_then(|()| out.flush())
            .map_err(|error| output_failed(&error))
    }

    /// Tells people what is going on, unless they want it quiet.
    pub fn note(&self, text: impl Display) {
        if !self.quiet {
            self.tell(format_args!("{}", one_line(&text.to_string())));
        }
    }

    /// A note that begins with a word in colour.
    pub(super) fn note_of(&self, word: &str, color: AnsiColor, text: impl Display) {
        if !self.quiet {
            let (style, text) = (bold(color), one_line(&text.to_string()));
            self.tell(format_args!("{style}{word}{style:#}: {text}"));
        }
    }

    /// Tells what failed, and what to do next.
    pub fn error(&self, error: &CliError) {
        let (red, message) = (bold(AnsiColor::Red), one_line(&error.message()));
        self.tell(format_args!("{red}error{red:#}: {message}"));
        if let Some(hint) = error.hint() {
            let (cyan, hint) = (bold(AnsiColor::Cyan), one_line(&hint));
            self.tell(format_args!("{cyan}hint{cyan:#}: {hint}"));
        }
    }

    fn tell(&self, line: std::fmt::Arguments<'_>) {
        // Where standard error is closed there is nobody left to tell.
        let _ = writeln!(
            AutoStream::new(io::stderr(), self.color.choice()).lock(),
            "{line}"
        );
    }
}

pub(super) fn bold(color: AnsiColor) -> Style {
    color.on_default().bold()
}

fn output_failed(error: &io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => CliError::OutputClosed,
        _ => CliError::Fault(format!("cannot write to standard output: {error}")),
    }
}
