//! The command line: one file a verb. All but `serve`, `dev`, `snapshot`, `events` and `ledger` talk through
//! [`crate::client`].

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand};

use crate::client::Client;
use crate::config::{DEFAULT_PREFIX, NatsOptions, ServeOptions};
use crate::wire::{PrefixError, Subjects};

mod config;
mod dev;
mod error;
mod events;
mod health;
mod input;
mod layers;
mod ledger;
mod logging;
mod pages;
mod report;
mod secrets;
mod serve;
mod show;
mod signals;
mod since;
pub mod snapshot;
mod task;
mod text;
mod ui;
mod watch;
mod which;

use layers::{Layers, LayersError};

pub use error::{CliError, EXIT_DONE, EXIT_FAULT, EXIT_FIX, EXIT_NO_TASK, EXIT_RETRY, EXIT_STOP};
pub use ui::{Color, Ui};

/// A task's first accepted report latches; a retry reads it back; nothing overwrites it.
#[derive(Parser, Debug)]
#[command(
    name = "tasklatch",
    version,
    max_term_width = 100,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = error::EXIT_CODES_HELP
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,

    #[command(flatten)]
    shared: Shared,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Run the service: take reports and requests, and publish events
    Serve(ServeOptions),
    /// Run a NATS server and the service together on this machine, for trying things out
    Dev(dev::DevOptions),
    /// Report how a task ended; sending the same report again is always safe
    Report(report::ReportOptions),
    /// Create, read, start, cancel and review tasks
    #[command(subcommand, after_help = error::EXIT_CODES_HELP)]
    Task(task::TaskCommand),
    /// Show events as they come, one a line
    Watch(watch::WatchOptions),
    /// Save, verify and restore snapshots of all tasks
    #[command(subcommand, after_help = error::EXIT_CODES_HELP)]
    Snapshot(snapshot::SnapshotCommand),
    /// Send events again that the event stream lacks, or that could not be published
    #[command(subcommand, after_help = error::EXIT_CODES_HELP)]
    Events(events::EventsCommand),
    /// Check and back up the database of a service
    #[command(subcommand, after_help = error::EXIT_CODES_HELP)]
    Ledger(ledger::LedgerCommand),
    /// Check the configuration, or show where each value came from
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Make the keys, permissions and certificates of a secured NATS server
    #[command(subcommand)]
    Secrets(secrets::SecretsCommand),
    /// Ask a service on this machine whether it is ready
    Health(health::HealthOptions),
    /// Print the completions for a shell
    Completions(pages::CompletionsOptions),
    /// Print a manual page
    Man(pages::ManOptions),
}

/// Options of every verb.
#[derive(Args, Debug)]
struct Shared {
    #[command(flatten)]
    config: FileOptions,

    #[command(flatten)]
    output: OutputOptions,

    #[command(flatten)]
    nats: NatsOptions,

    #[command(flatten)]
    service: ServiceOptions,
}

/// Where further options are.
#[derive(Args, Debug)]
#[command(next_help_heading = "Configuration options")]
struct FileOptions {
    /// TOML file with options of every verb and of serve; options and environment variables come before it
    #[arg(long, global = true, env = "TASKLATCH_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Which ledger.
#[derive(Args, Debug)]
pub struct DatabaseOption {
    /// Database file of the service
    #[arg(
        long,
        env = "TASKLATCH_DATABASE",
        default_value = "tasklatch.db",
        value_name = "FILE"
    )]
    database: PathBuf,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Output options")]
struct OutputOptions {
    /// Print exactly the JSON of the protocol, one value a line, and nothing else
    #[arg(long, global = true, env = "TASKLATCH_JSON", value_parser = FalseyValueParser::new())]
    json: bool,

    /// Tell nothing on standard error but errors
    #[arg(long, short, global = true, env = "TASKLATCH_QUIET", value_parser = FalseyValueParser::new())]
    quiet: bool,

    /// When to use colour; NO_COLOR is heeded
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_COLOR",
        value_enum,
        default_value_t = Color::Auto,
        value_name = "WHEN"
    )]
    color: Color,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "NATS options")]
struct ServiceOptions {
    /// Subject prefix of the service
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_PREFIX",
        default_value = DEFAULT_PREFIX,
        value_parser = parse_prefix,
        value_name = "SUBJECT"
    )]
    prefix: Subjects,

    /// How long to wait for a connection, and for an answer, such as 500ms or 5s
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_TIMEOUT",
        default_value = "5s",
        value_parser = parse_timeout,
        value_name = "DURATION"
    )]
    timeout: Duration,
}

fn parse_prefix(text: &str) -> Result<Subjects, PrefixError> {
    Subjects::new(text)
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("it must be longer than nothing".to_owned()),
        timeout => Ok(timeout),
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write a duration such as 500ms, 5s or 1h 30m"))
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os()))
}

/// Runs one command line, the name of the program in front, and gives its exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<_> = args.into_iter().collect();
    let unread = layers::unread_variables(&args);
    let (cli, layers) = match layers::parse(args) {
        Ok(parsed) => parsed,
        Err(LayersError::File(errors)) => {
            let ui = Ui::new(false, false, Color::Auto);
            errors.iter().for_each(|error| ui.error(error));
            return EXIT_FIX;
        }
        Err(LayersError::Line(error)) => {
            // Where standard error is closed there is nobody left to tell.
            let _ = error.print();
            if !error.use_stderr() {
                return EXIT_DONE;
            }
            tell_unread(&unread, &Ui::new(false, false, Color::Auto));
            return EXIT_FIX;
        }
    };
    let output = &cli.shared.output;
    let ui = Ui::new(output.json, output.quiet, output.color);
    tell_unread(&unread, &ui);
    match execute(cli, &layers, &ui) {
        Ok(()) => EXIT_DONE,
        Err(error) => {
            if let (true, Some(body)) = (ui.json(), error.refusal_body()) {
                // The exit code says more than a closed output.
                let _ = ui.print_line_of_bytes(body);
            }
            if !matches!(error, CliError::OutputClosed) {
                ui.error(&error);
            }
            error.exit_code()
        }
    }
}

/// Tells of variables that are set and that nothing reads, though they are named like options of the command.
fn tell_unread(unread: &[String], ui: &Ui) {
    if !unread.is_empty() {
        ui.note(format_args!(
            "warning: not read from the environment: {}; what a command does and what a report contains is taken from the \
             command line alone",
            unread.join(", ")
        ));
    }
}

fn execute(cli: Cli, layers: &Layers, ui: &Ui) -> Result<(), CliError> {
    let shared = cli.shared;
    match cli.verb {
        Verb::Serve(options) => on_all_cores(serve::run(options, shared, ui)),
        Verb::Dev(options) => on_all_cores(dev::run(options, shared, ui)),
        Verb::Report(options) => on_this_thread(report::run(options, shared, ui)),
        Verb::Task(command) => on_this_thread(task::run(command, shared, ui)),
        // The main thread may wait for whoever reads standard output; the connection must not.
        Verb::Watch(options) => on_all_cores(watch::run(options, shared, ui)),
        Verb::Snapshot(command) => snapshot::run(command, ui),
        Verb::Events(command) => on_all_cores(events::run(command, shared, ui)),
        Verb::Ledger(command) => on_all_cores(ledger::run(command, shared, ui)),
        Verb::Config(command) => config::run(&command, &shared, layers, ui),
        Verb::Secrets(command) => secrets::run(command, &shared, ui),
        Verb::Health(options) => health::run(&options, ui),
        Verb::Completions(options) => pages::completions(&options, ui),
        Verb::Man(options) => pages::man(&options, ui),
    }
}

fn on_all_cores(command: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    // The database has threads of its own, and so have events: with as many threads more as there are cores, all of them
    // only push each other about.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.saturating_sub(1).max(1))
        .enable_all()
        .build();
    runtime
        .map_err(|error| no_runtime(&error))?
        .block_on(command)
}

fn on_this_thread(command: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|error| no_runtime(&error))?
        .block_on(command)
}

fn no_runtime(error: &std::io::Error) -> CliError {
    CliError::Fault(format!(
        "this machine gives no thread or event queue to work with: {error}"
    ))
}

impl Shared {
    /// Sees that answers can come to the inboxes.
    fn check_inbox(&self) -> Result<(), CliError> {
        let prefix = self.nats.inbox_prefix.as_deref().unwrap_or("_INBOX");
        let subjects = &self.service.prefix;
        if subjects.may_answer_to(prefix) {
            return Ok(());
        }
        Err(CliError::Usage(format!(
            "--inbox-prefix {prefix} lies under --prefix {}, where the service sends no answers; choose another",
            subjects.prefix()
        )))
    }

    /// Connects to NATS for one command.
    async fn connect(
        &self,
        verb: &str,
        on_event: impl Fn(&async_nats::Event) + Send + Sync + 'static,
    ) -> Result<Client, CliError> {
        self.check_inbox()?;
        let subjects = self.service.prefix.clone();
        let options = self
            .nats
            .connect_options()?
            .name(format!("tasklatch {verb}"));
        let addresses = self.nats.addresses()?;
        Client::connect(options, addresses, subjects, self.service.timeout, on_event)
            .await
            .map_err(|error| CliError::Connect {
                urls: self.nats.shown_urls(),
                error,
            })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("tasklatch").chain(line.split_whitespace()))
    }

    fn commands(command: &Command) -> Vec<Command> {
        let inner = command.get_subcommands().flat_map(commands);
        std::iter::once(command.clone()).chain(inner).collect()
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// The options that have a variable, beside those of `serve` and `dev`: the connection, output, which database and how
    /// its service is set up, and which pane one is.
    const VARIABLES: &[&str] = &[
        "color",
        "config",
        "database",
        "events",
        "http",
        "inbox-prefix",
        "json",
        "nats-creds",
        "nats-nkey",
        "nats-password",
        "nats-tls-ca",
        "nats-tls-cert",
        "nats-tls-key",
        "nats-token",
        "nats-url",
        "nats-user",
        "pane",
        "prefix",
        "quiet",
        "timeout",
    ];

    #[test]
    fn an_option_has_a_variable_of_its_name_if_it_is_on_the_list_or_one_of_serve_or_dev_and_a_help_text()
     {
        for command in commands(&Cli::command()) {
            let mut options = command.get_opts();
            let is_service = command.get_name() == "dev"
                || options.any(|option| option.get_long() == Some("max-in-hand"));
            for option in command.get_opts() {
                let long = option.get_long().unwrap_or_default();
                if ["help", "version"].contains(&long) {
                    continue;
                }
                let here = format!("{} --{long}", command.get_name());
                // A pane of a new task, or one to list, is what the command does.
                let is_selector =
                    long != "pane" || command.get_positionals().any(|arg| arg.get_id() == "task");
                let has_one = is_service || (VARIABLES.contains(&long) && is_selector);
                let expected = has_one.then(|| layers::variable_of(long));
                let variable = option
                    .get_env()
                    .map(|name| name.to_string_lossy().into_owned());
                assert_eq!(variable, expected, "{here}");
                assert!(option.get_help().is_some(), "{here}");
            }
        }
    }

    #[test]
    fn the_help_of_every_verb_that_asks_a_service_tells_the_exit_codes() {
        for mut command in commands(&Cli::command()) {
            let silent = [
                "serve",
                "dev",
                "completions",
                "man",
                "health",
                "help",
                "secrets",
                "make",
                "config",
                "check",
                "show",
            ];
            if !silent.contains(&command.get_name()) {
                let help = command.render_long_help().to_string();
                assert!(help.contains("nobody answered"), "{}", command.get_name());
            }
        }
    }

    #[test]
    fn secrets_never_show_in_help() {
        for command in commands(&Cli::command()) {
            for option in command.get_opts().filter(|option| {
                let long = option.get_long().unwrap_or("");
                ["password", "token", "nkey", "url"]
                    .iter()
                    .any(|word| long.contains(word))
            }) {
                assert!(option.is_hide_env_values_set(), "{:?}", option.get_long());
            }
        }
    }

    #[test]
    fn shared_options_stand_before_or_after_the_verb() {
        for line in [
            "--json --prefix p task list --timeout 1s",
            "task list --json --prefix p --timeout 1s",
        ] {
            let shared = parse(line).unwrap().shared;
            assert!(shared.output.json, "{line}");
            assert_eq!(shared.service.prefix.prefix(), "p", "{line}");
            assert_eq!(shared.service.timeout, Duration::from_secs(1), "{line}");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_what_to_write() {
        for (line, part) in [
            ("--prefix a.* task list", "is no subject prefix"),
            ("--timeout 0s task list", "longer than nothing"),
            ("--timeout soon task list", "write a duration such as"),
            ("serve --max-in-hand 0", "0 is not in 1..=65536"),
            ("serve --max-wal-size 4GB", "write a size such as"),
            ("serve --max-wal-size 31MiB", "it must be 32MiB or more"),
            ("serve --http nowhere", "give an address and a port"),
            (
                "serve --events rabbit",
                "[possible values: core, jetstream]",
            ),
            ("report t-1", "--summary"),
            (
                "report t-1 --summary x --status done",
                "[possible values: completed, failed, rejected]",
            ),
            ("report --from f --summary x", "cannot be used with"),
            ("task create", "TITLE"),
            ("task review t-1", "--verdict"),
            (
                "task list --lifecycle open",
                "[possible values: submitted, working,",
            ),
            ("task list --limit 1001", "1001 is not in 1..=1000"),
            ("", "Usage"),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(part), "{line}: {error}");
        }
    }
}
