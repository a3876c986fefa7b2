//! One command line out of four layers: options, environment variables, the configuration file, defaults, in that order. The
//! file's values are given to clap as defaults, so that the same parser reads a value wherever it comes from.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::{Cli, CliError};
use crate::config::{FileOption, Setting, read_file};

/// The verb whose options, beside those of every verb, a file may set.
const CONFIGURED_VERB: &str = "serve";

/// The option that names the file, which the file cannot set.
const CONFIG: &str = "config";

/// What a message shows in place of a value that is secret.
const SECRET: &str = "(a secret)";

/// The command line with all that was found.
pub(super) struct Layers {
    /// What clap found, for those who ask where a value came from.
    pub(super) matches: ArgMatches,
    /// The file, if one is read.
    pub(super) file: Option<PathBuf>,
    /// What it sets.
    pub(super) settings: Vec<Setting>,
}

/// Why there is no command line.
pub(super) enum LayersError {
    /// The command line, or an environment variable; also `--help` and `--version`.
    Line(clap::Error),
    /// The file: everything that is wrong with it.
    File(Vec<CliError>),
}

/// Reads a command line, the name of the program in front.
pub(super) fn parse(args: Vec<OsString>) -> Result<(Cli, Layers), LayersError> {
    let mut command = Cli::command();
    let file = config_file(&command, &args);
    let mut settings = Vec::new();
    if let Some(path) = &file {
        let options = configurable(&command);
        let known: Vec<FileOption> = options.iter().map(|(arg, _)| file_option(arg)).collect();
        let (read, errors) = read_file(path, &known);
        let mut errors: Vec<CliError> = errors.into_iter().map(CliError::from).collect();
        for setting in read {
            let arg = options
                .iter()
                .map(|(arg, _)| arg)
                .find(|arg| arg.get_long() == Some(&setting.name));
            match arg.map(|arg| refused(arg, &setting)) {
                Some(None) => settings.push(setting),
                Some(Some(why)) => {
                    let text = format!("{}:{}: {why}", path.display(), setting.line);
                    errors.push(CliError::Usage(text));
                }
                // What was read is known.
                None => {}
            }
        }
        if !errors.is_empty() {
            return Err(LayersError::File(errors));
        }
        command = with_defaults(command, &settings);
    }
    let mut matches = command
        .try_get_matches_from(args)
        .map_err(LayersError::Line)?;
    let layers = Layers {
        matches: matches.clone(),
        file,
        settings,
    };
    let cli = Cli::from_arg_matches_mut(&mut matches).map_err(LayersError::Line)?;
    Ok((cli, layers))
}

/// Which file is named, before anything else is looked at. A command line that is wrong is told so when it is read.
fn config_file(command: &Command, args: &[OsString]) -> Option<PathBuf> {
    let matches = command
        .clone()
        .ignore_errors(true)
        .try_get_matches_from(args)
        .ok()?;
    matches.get_one::<PathBuf>(CONFIG).cloned()
}

/// The options that a file may set, each with the verb that it is of: those of every verb, and those of the service.
pub(super) fn configurable(command: &Command) -> Vec<(Arg, Option<&'static str>)> {
    let of_all = command.get_arguments().filter(|arg| arg.is_global_set());
    let of_service = command
        .find_subcommand(CONFIGURED_VERB)
        .into_iter()
        .flat_map(Command::get_arguments);
    of_all
        .map(|arg| (arg.clone(), None))
        .chain(of_service.map(|arg| (arg.clone(), Some(CONFIGURED_VERB))))
        .filter(|(arg, _)| {
            arg.get_env().is_some() && arg.get_long().is_some_and(|long| long != CONFIG)
        })
        .collect()
}

/// Every environment variable of an option, of whatever verb.
pub(super) fn variables(command: &Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(Arg::get_env);
    let own = own.map(|name| name.to_string_lossy().into_owned());
    let inner = command.get_subcommands().flat_map(variables);
    own.chain(inner).collect()
}

fn file_option(arg: &Arg) -> FileOption {
    FileOption {
        name: arg.get_long().unwrap_or_default().to_owned(),
        is_switch: matches!(arg.get_action(), ArgAction::SetTrue),
    }
}

/// What the option's own parser has against a value.
fn refused(arg: &Arg, setting: &Setting) -> Option<String> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return None;
    }
    let alone = Arg::new("value")
        .long(setting.name.clone())
        .value_parser(arg.get_value_parser().clone());
    let line = [
        "tasklatch".to_owned(),
        format!("--{}={}", setting.name, setting.value),
    ];
    let error = Command::new("tasklatch")
        .arg(alone)
        .try_get_matches_from(line)
        .err()?;
    let text = error.to_string();
    // The last lines tell how to ask for help on the command line.
    let lines = text.lines().take_while(|line| !line.is_empty());
    let why = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    let why = why.strip_prefix("error: ").unwrap_or(&why);
    Some(match arg.is_hide_env_values_set() {
        true => why.replace(&setting.value, SECRET),
        false => why.to_owned(),
    })
}

/// Gives the values to every option of the name, of whatever verb, as long as it is the same one: it has the same variable.
fn with_defaults(mut command: Command, settings: &[Setting]) -> Command {
    let ids: Vec<(clap::Id, String)> = command
        .get_arguments()
        .filter_map(|arg| {
            let setting = settings
                .iter()
                .find(|setting| arg.get_long() == Some(&setting.name))?;
            arg.get_env()?;
            Some((arg.get_id().clone(), setting.value.clone()))
        })
        .collect();
    for (id, value) in ids {
        // What the file says is no default for people, and may be a secret; a switch shows none.
        command = command.mut_arg(id, |arg| {
            let is_switch = file_option(&arg).is_switch;
            arg.default_value(value).hide_default_value(!is_switch)
        });
    }
    command.mut_subcommands(|inner| with_defaults(inner, settings))
}

impl Layers {
    /// Where the value of an option came from, for people; `None` if it has none.
    pub(super) fn origin(&self, arg: &Arg, matches: &ArgMatches) -> Option<String> {
        let name = arg.get_long().unwrap_or_default();
        let setting = self.settings.iter().find(|setting| setting.name == name);
        match matches.value_source(arg.get_id().as_str())? {
            ValueSource::CommandLine => Some("flag".to_owned()),
            ValueSource::EnvVariable => {
                let variable = arg.get_env().unwrap_or_default().to_string_lossy();
                Some(format!("environment {variable}"))
            }
            _ => match (setting, &self.file) {
                (Some(setting), Some(file)) => {
                    Some(format!("file {}:{}", file.display(), setting.line))
                }
                _ => Some("default".to_owned()),
            },
        }
    }
}
