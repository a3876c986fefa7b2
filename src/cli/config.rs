//! `tasklatch config`: checks the configuration and shows where each value came from.

use clap::{Arg, ArgMatches, CommandFactory, Subcommand};
use comfy_table::{Table, presets};
use serde_json::json;

use super::error::CliError;
use super::layers::{self, Layers};
use super::{Cli, Shared, Ui, logging};
use crate::config::{ServeOptions, unknown_variables};

/// What can be done with the configuration.
#[derive(Subcommand, Debug)]
pub(super) enum ConfigCommand {
    /// Check every value that `serve` would use, and the files that they name
    Check(Box<ServeOptions>),
    /// Show every value that `serve` would use, and where it came from
    Show(Box<ServeOptions>),
}

pub(super) fn run(
    command: &ConfigCommand,
    shared: &Shared,
    layers: &Layers,
    ui: &Ui,
) -> Result<(), CliError> {
    match command {
        ConfigCommand::Check(options) => check(options, shared, layers, ui),
        ConfigCommand::Show(_) => show(shared, layers, ui),
    }
}

fn check(
    options: &ServeOptions,
    shared: &Shared,
    layers: &Layers,
    ui: &Ui,
) -> Result<(), CliError> {
    let known = layers::variables(&Cli::command());
    let set: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .collect();
    for (name, meant) in unknown_variables(set.iter().map(String::as_str), &known) {
        let hint = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
        ui.note(format_args!(
            "warning: {name} is set and is no variable of an option{hint}"
        ));
    }
    let faults = shared.nats.faults().into_iter();
    let mut wrong: Vec<CliError> = faults.map(CliError::from).collect();
    if wrong.is_empty() {
        wrong.extend(shared.check_inbox().err());
    }
    wrong.extend(logging::filter(&options.log, "info").err());
    if let Some(last) = wrong.pop() {
        wrong.iter().for_each(|error| ui.error(error));
        return Err(last);
    }
    let file = layers.file.as_ref();
    let read = file.map_or_else(String::new, |file| format!(", {} among it", file.display()));
    ui.print(if ui.json() {
        json!({"ok": true, "file": file}).to_string()
    } else {
        format!("the configuration can be used{read}")
    })
}

fn show(shared: &Shared, layers: &Layers, ui: &Ui) -> Result<(), CliError> {
    let command = Cli::command();
    let matches = layers
        .matches
        .subcommand()
        .and_then(|(_, config)| config.subcommand())
        .map_or(&layers.matches, |(_, show)| show);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["OPTION", "VALUE", "FROM"]);
    for arg in layers::configurable(&command) {
        let name = arg.get_long().unwrap_or_default();
        let value = value(&arg, matches, shared);
        let from = layers.origin(&arg, matches);
        if ui.json() {
            ui.print(json!({"option": name, "value": value, "from": from}))?;
        } else {
            let value = value.unwrap_or_else(|| "-".to_owned());
            table.add_row([name, &value, from.as_deref().unwrap_or("-")]);
        }
    }
    if ui.json() {
        return Ok(());
    }
    let text = table.to_string();
    let lines = text.lines().map(str::trim_end);
    ui.print(lines.collect::<Vec<_>>().join("\n"))
}

/// What an option is set to, without what is secret in it; `None` if it is not set.
fn value(arg: &Arg, matches: &ArgMatches, shared: &Shared) -> Option<String> {
    let id = arg.get_id().as_str();
    if id == "nats_url" {
        return Some(shared.nats.shown_urls());
    }
    let mut raw = matches.get_raw(id)?;
    let text = raw.next()?.to_string_lossy().into_owned();
    let names_file = text.starts_with('@') && !text.starts_with("@@");
    // An address with a login in it is refused.
    let is_secret = arg.is_hide_env_values_set() && id != "otlp_endpoint";
    Some(match is_secret && !names_file {
        true => "(set)".to_owned(),
        false => text,
    })
}
