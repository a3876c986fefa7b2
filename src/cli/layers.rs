//! One command line out of four layers: options, environment variables, the configuration file, defaults, in that order. The
//! file's values are given to clap as defaults, so that the same parser reads a value wherever it comes from.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
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

/// The name of an option's variable, if it has one.
pub(super) fn variable_of(long: &str) -> String {
    format!("TASKLATCH_{}", long.to_uppercase().replace('-', "_"))
}

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
    let mut command = with_old_variables(Cli::command(), |name| std::env::var_os(name).is_some());
    let options = configurable(&command);
    let (file, has_login) = before_the_file(&command, &args);
    let mut settings = Vec::new();
    if let Some(path) = &file {
        settings = read(path, &options).map_err(LayersError::File)?;
        if has_login {
            settings.retain(|setting| !is_login(&setting.name));
        }
        command = with_defaults(command, &settings);
    }
    let secrets = secrets(&options);
    let mut matches = command
        .try_get_matches_from(args)
        .map_err(|error| LayersError::Line(without_secret(error, &secrets)))?;
    let layers = Layers {
        matches: matches.clone(),
        file,
        settings,
    };
    let cli = Cli::from_arg_matches_mut(&mut matches).map_err(LayersError::Line)?;
    Ok((cli, layers))
}

/// Has an option read the variable of its old name, where that is set and the one of its name is not. The old names of options
/// are their aliases.
fn with_old_variables(command: Command, is_set: impl Fn(&str) -> bool + Copy) -> Command {
    let renamed: Vec<_> = command
        .get_opts()
        .filter(|option| option.get_env().is_some())
        .filter(|option| !is_set(&variable_of(option.get_long().unwrap_or_default())))
        .filter_map(|option| {
            let mut old = option.get_all_aliases()?.into_iter().map(variable_of);
            Some((option.get_id().clone(), old.find(|old| is_set(old))?))
        })
        .collect();
    renamed
        .into_iter()
        .fold(command, |command, (id, old)| {
            command.mut_arg(id, |arg| arg.env(old))
        })
        .mut_subcommands(|inner| with_old_variables(inner, is_set))
}

/// Which file is named, and whether flags or variables say how to log in, before anything else is looked at. A command line
/// that is wrong is told so when it is read.
fn before_the_file(command: &Command, args: &[OsString]) -> (Option<PathBuf>, bool) {
    let lenient = command.clone().ignore_errors(true);
    let Ok(matches) = lenient.try_get_matches_from(args) else {
        return (None, false);
    };
    let options = command.get_arguments();
    let mut logins = options.filter(|arg| arg.get_long().is_some_and(is_login));
    let has_login = logins.any(|arg| matches.value_source(arg.get_id().as_str()).is_some());
    (matches.get_one::<PathBuf>(CONFIG).cloned(), has_login)
}

/// Whether an option says how to log in. One way of it replaces every other of a layer below.
fn is_login(name: &str) -> bool {
    matches!(
        name,
        "nats-creds" | "nats-user" | "nats-password" | "nats-token" | "nats-nkey"
    )
}

/// What a file sets, or everything that is wrong with it.
fn read(path: &Path, options: &[Arg]) -> Result<Vec<Setting>, Vec<CliError>> {
    let known: Vec<FileOption> = options.iter().map(file_option).collect();
    let (settings, errors) = read_file(path, &known);
    let mut errors: Vec<CliError> = errors.into_iter().map(CliError::from).collect();
    for setting in &settings {
        let mut options = options.iter();
        let option = options.find(|arg| arg.get_long() == Some(&setting.name));
        if let Some(why) = option.and_then(|arg| refused(arg, setting)) {
            let text = format!("{}:{}: {why}", path.display(), setting.line);
            errors.push(CliError::Usage(text));
        }
    }
    match errors.is_empty() {
        true => Ok(settings),
        false => Err(errors),
    }
}

/// The options that a file may set: those of every verb, and those of the service.
pub(super) fn configurable(command: &Command) -> Vec<Arg> {
    let of_all = command.get_arguments().filter(|arg| arg.is_global_set());
    let of_service = command
        .find_subcommand(CONFIGURED_VERB)
        .into_iter()
        .flat_map(Command::get_arguments);
    of_all
        .chain(of_service)
        .filter(|arg| arg.get_env().is_some() && arg.get_long().is_some_and(|long| long != CONFIG))
        .cloned()
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
        old_names: (arg.get_all_aliases().unwrap_or_default().into_iter())
            .map(str::to_owned)
            .collect(),
        is_switch: matches!(arg.get_action(), ArgAction::SetTrue),
    }
}

/// How a message names the options whose values it must not show.
fn secrets(options: &[Arg]) -> Vec<String> {
    let secret = options.iter().filter(|arg| arg.is_hide_env_values_set());
    let named = secret.filter_map(|arg| Some(format!("--{} ", arg.get_long()?)));
    named.collect()
}

/// A message about a value without the value, if it is of one of these options.
fn without_secret(mut error: clap::Error, secrets: &[String]) -> clap::Error {
    if let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg)
        && secrets.iter().any(|secret| arg.starts_with(secret))
    {
        error.insert(
            ContextKind::InvalidValue,
            ContextValue::String(SECRET.to_owned()),
        );
    }
    error
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
    let secrets = secrets(std::slice::from_ref(arg));
    let text = without_secret(error, &secrets).to_string();
    // The last lines tell how to ask for help on the command line.
    let lines = text.lines().take_while(|line| !line.is_empty());
    let why = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    Some(why.strip_prefix("error: ").unwrap_or(&why).to_owned())
}

/// Gives the values to every option of the name, of whatever verb. An option has the variable of its name, so that one name is
/// one option.
fn with_defaults(mut command: Command, settings: &[Setting]) -> Command {
    let ids: Vec<(clap::Id, String)> = command
        .get_arguments()
        .filter_map(|arg| {
            let setting = settings
                .iter()
                .find(|setting| arg.get_long() == Some(&setting.name))?;
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

/// The options of the verb of a command line that have no variable, though one of their name is set: each as `VARIABLE (give
/// --OPTION)`. A name that is a variable for another verb is no mistake. The command line may be wrong otherwise.
pub(super) fn unread_variables(args: &[OsString]) -> Vec<String> {
    let all = Cli::command();
    let known = variables(&all);
    let lenient = all.clone().ignore_errors(true);
    let Ok(matches) = lenient.try_get_matches_from(args) else {
        return Vec::new();
    };
    let (mut command, mut matches) = (&all, &matches);
    while let Some((name, inner)) = matches.subcommand() {
        let Some(verb) = command.find_subcommand(name) else {
            break;
        };
        (command, matches) = (verb, inner);
    }
    command
        .get_opts()
        .filter(|option| option.get_env().is_none())
        .filter_map(|option| Some((variable_of(option.get_long()?), option.get_long()?)))
        .filter(|(variable, _)| !known.contains(variable) && std::env::var_os(variable).is_some())
        .map(|(variable, long)| format!("{variable} (give --{long})"))
        .collect()
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
