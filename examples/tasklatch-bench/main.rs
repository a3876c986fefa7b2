//! The benchmark of tasklatch: how fast reports are accepted and repeated, next to what else could be built on NATS, and
//! whether that is as fast as it should be. `make bench` runs it; docs/performance.md tells what it measures and how.
//!
//! Three processes make a round: a NATS server, a responder (the service, or a design that it is compared with: see
//! `respond`) and the load generator (`generate`). The one that starts them (`run`) is idle meanwhile.

mod alone;
mod content;
mod failure;
mod figures;
mod generate;
mod lines;
mod proc;
mod respond;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::{During, Result};

/// Ends with 0 if every target was met, with 1 if one was missed, with 2 if the command was wrong, and with 3 if the
/// benchmark itself failed, or did not measure every target.
const EXIT_MISSED: u8 = 1;
const EXIT_FAILED: u8 = 3;

/// Measure tasklatch, and say whether it is as fast as it should be
#[derive(Parser, Debug)]
#[command(
    name = "tasklatch-bench",
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    // So that `make bench ARGS=…` can say otherwise than the Makefile.
    args_override_self = true,
    after_help = "Exit codes: 0 every target was met, 1 one was missed, 2 the command is wrong, 3 the benchmark failed or a target was not measured"
)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    run: run::Options,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Measure everything, or a part of it; this is what happens without a command
    Run(run::Options),
    /// Be the load generator: send requests, and print what was measured as JSON
    Generate(generate::Options),
    /// Be a responder other than the service
    Respond(respond::Options),
    /// Measure a report that is alone, without a NATS server: what the store takes of it
    Alone(alone::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.verb.unwrap_or(Verb::Run(cli.run)) {
        Verb::Run(options) => {
            start_runtime().and_then(|runtime| runtime.block_on(run::run(&options)))
        }
        Verb::Generate(options) => generate::generate(&options).and_then(|measured| {
            let line = serde_json::to_string(&measured).during("write the result as JSON")?;
            println!("{line}");
            Ok(run::Verdict::Met)
        }),
        Verb::Respond(options) => start_runtime()
            .and_then(|runtime| runtime.block_on(respond::respond(&options)))
            .map(|()| run::Verdict::Met),
        Verb::Alone(options) => start_runtime()
            .and_then(|runtime| runtime.block_on(alone::measure(&options)))
            .map(|()| run::Verdict::Met),
    };
    match done {
        Ok(run::Verdict::Met) => ExitCode::SUCCESS,
        Ok(run::Verdict::Missed) => ExitCode::from(EXIT_MISSED),
        Ok(run::Verdict::NotMeasured) => ExitCode::from(EXIT_FAILED),
        Err(failure) => {
            eprintln!("tasklatch-bench: {failure}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn start_runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Runtime::new().during("start the runtime")
}
