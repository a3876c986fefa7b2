//! The fault suite: the real service and a real nats-server, workers that do not give up, and trouble after trouble.
//!
//! ```console
//! cargo test --test torture -- --seconds 60 --seed 7     # some troubles
//! make torture MINUTES=20 SEED=7                         # the long form
//! ```
//!
//! | option | does |
//! | --- | --- |
//! | `--seconds N`, `--minutes N` | how long trouble is made; 40 seconds if nothing is said |
//! | `--seed N` | the same sequence of troubles again; when in it they strike is up to the machine |
//! | `--events core\|jetstream` | how the service publishes; `jetstream` if nothing is said |
//! | `--only WORD` | only troubles whose name has this in it, such as `disk` |
//! | `--no-durable` | no report goes through the report stream |
//!
//! How it goes: workers create tasks, start, report, cancel and review them all the time, each report with its retries,
//! some of them sent by several at once, some with another content, some that can never be right. They connect to
//! nats-server past the proxy through which the service does, or through another. Meanwhile a deck of troubles is dealt
//! by seeded dice. After each, the service must answer again by itself; it is started again only if it has ended, and if
//! it ended for a fault, it must have said `error:` and why.
//!
//! Every few troubles the workers rest, and all that is there is checked against what the workers were told: answers
//! ([`checks::Checker::ask_again`]), the ledger's file ([`checks::ledger_verify`], by the command that ships and by numbers of its own) and events ([`archive`]). A check that does not
//! hold ends the suite: it names the check, the task, what was expected and seen, and keeps its working folder.
//!
//! The database lives on a small file system in memory that nobody else sees, so that its disk can be full: the suite
//! starts itself anew by `unshare` for that. The clock is turned by a few lines of C (`clock.c`), as libfaketime crashes
//! in a program with an allocator of its own.

// clippy's allow-unwrap-in-tests does not reach a test without the harness.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod answers;
mod archive;
mod checks;
mod model;
#[path = "../it/support/port.rs"]
mod port;
mod proxy;
mod stage;
mod troubles;
mod workers;

use std::os::unix::process::CommandExt;
use std::panic::AssertUnwindSafe;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use checks::Checker;
use model::{Dice, Failure, Shared};
use stage::Stage;
use workers::Crew;

/// Set for the run that has file systems of its own.
const INSIDE: &str = "TASKLATCH_TORTURE_INSIDE";

/// How many troubles come between two checks of everything, and in the long form, where there is more to check.
const ROUNDS_PER_CHECK: usize = 3;
const ROUNDS_PER_CHECK_LONG: usize = 8;

/// From this on it is the long form.
const LONG: Duration = Duration::from_secs(300);

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Options {
    length: Duration,
    seed: u64,
    /// `core` or `jetstream`.
    events: String,
    only: String,
    durable: bool,
}

impl Options {
    /// Reads the command line; `None` if nothing is to be run. What cargo test passes on to every test is no mistake here.
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            length: Duration::from_secs(40),
            seed: Dice::roll_seed(),
            events: "jetstream".to_owned(),
            only: String::new(),
            durable: true,
        };
        while let Some(word) = words.next() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => {
                    (name.to_owned(), Some(value.to_owned()))
                }
                _ => (word, None),
            };
            let mut value = || {
                let value = value.clone().or_else(|| words.next());
                value.ok_or_else(|| format!("{name} needs a value"))
            };
            let number = |text: String| {
                text.parse::<u64>()
                    .map_err(|_| format!("not a number: {text}"))
            };
            match name.as_str() {
                "--seconds" => options.length = Duration::from_secs(number(value()?)?),
                "--minutes" => options.length = Duration::from_secs(60 * number(value()?)?),
                "--seed" => options.seed = number(value()?)?,
                "--events" => options.events = value()?,
                "--only" => options.only = value()?,
                "--no-durable" => options.durable = false,
                "--list" => {
                    println!("torture: test");
                    return Ok(None);
                }
                "--ignored" => return Ok(None),
                "--test-threads" | "--skip" | "--format" | "--color" | "--logfile" | "-Z" => {
                    drop(value()?)
                }
                flag if flag.starts_with('-') => {}
                filter if "torture".contains(filter) => {}
                _ => return Ok(None),
            }
        }
        match options.events.as_str() {
            "core" | "jetstream" => Ok(Some(options)),
            other => Err(format!("--events is core or jetstream, and not {other}")),
        }
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(mistake) => {
            eprintln!("error: {mistake}");
            return ExitCode::from(2);
        }
    };
    if std::env::var_os(INSIDE).is_none() {
        return start_inside(options.seed);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(options))
}

/// Starts this program again where it may mount file systems that nobody else sees.
fn start_inside(seed: u64) -> ExitCode {
    let ways: [&[&str]; 2] = [&["unshare", "-m"], &["unshare", "-Urm"]];
    let works = |way: &&&[&str]| {
        let try_it = Command::new(way[0])
            .args(&way[1..])
            .args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"])
            .output();
        try_it.is_ok_and(|output| output.status.success())
    };
    let Some(way) = ways.iter().find(works) else {
        eprintln!(
            "error: this machine allows no file system of one's own (`unshare -m mount -t tmpfs tmpfs /mnt` and the same \
             with -Urm fail), so that a full disk cannot be tested here; run it as root or allow user namespaces"
        );
        return ExitCode::FAILURE;
    };
    let failed = Command::new(way[0])
        .args(&way[1..])
        .arg(std::env::current_exe().unwrap())
        .args(std::env::args().skip(1))
        // Before the rest may say otherwise, so that a seed that was rolled is rolled once.
        .args(["--seed", &seed.to_string()])
        .env(INSIDE, "1")
        .exec();
    eprintln!("error: {} does not start: {failed}", way[0]);
    ExitCode::FAILURE
}

async fn run(options: Options) -> ExitCode {
    println!(
        "torture: seed {}, {} s, events {}",
        options.seed,
        options.length.as_secs(),
        options.events
    );
    let shared = Arc::new(Shared::new(&options));
    let mut stage = Stage::set(&options, shared.clone()).await;
    // A fault of the suite itself must keep the folder too.
    let playing = AssertUnwindSafe(play(&mut stage, &options)).catch_unwind();
    let outcome = tokio::select! {
        outcome = playing => outcome.unwrap_or_else(|_| {
            Err(Failure::new("the suite itself works", "-", "no panic", "the panic above"))
        }),
        failure = shared.failed() => Err(failure),
    };
    let (code, kept) = match outcome {
        Ok(()) => (ExitCode::SUCCESS, None),
        Err(failure) => {
            println!("{failure}");
            (ExitCode::FAILURE, Some(stage.keep().await))
        }
    };
    println!("{}", shared.counts);
    match kept {
        Some(folder) => println!(
            "torture: FAILED with seed {}; all is kept in {}",
            options.seed,
            folder.display()
        ),
        None => println!("torture: all checks held, seed {}", options.seed),
    }
    code
}

/// Deals troubles until the time is over, with checks in between and at the end.
async fn play(stage: &mut Stage, options: &Options) -> Result<(), Failure> {
    stage.recover(false).await?;
    let mut checker = Checker::new(stage).await;
    let crew = Crew::hire(stage, options).await;
    let mut dice = Dice::new(options.seed);
    let mut deck = Vec::new();
    let begin = Instant::now();
    let rounds_per_check = match options.length < LONG {
        true => ROUNDS_PER_CHECK,
        false => ROUNDS_PER_CHECK_LONG,
    };
    let mut round = 0;
    while begin.elapsed() < options.length {
        if deck.is_empty() {
            deck = troubles::deck(&mut dice, &options.only);
            if deck.is_empty() {
                let check = "a trouble has the word of --only in its name";
                return Err(Failure::new(check, "-", &options.only, "none"));
            }
        }
        let trouble = deck.pop().unwrap();
        round += 1;
        let started = Instant::now();
        stage.moment(&mut dice).await;
        let told = trouble.to_string();
        trouble
            .make(stage)
            .await
            .map_err(|failure| failure.during(round, &told))?;
        let made = started.elapsed();
        let may_end = trouble.may_end_the_service();
        stage
            .recover(may_end)
            .await
            .map_err(|failure| failure.during(round, &told))?;
        println!(
            "{:>5.1}s round {round}: {told}, {:.1} s; answers again after {:.1} s",
            begin.elapsed().as_secs_f32(),
            made.as_secs_f32(),
            (started.elapsed() - made).as_secs_f32()
        );
        if round % rounds_per_check == 0 {
            let rest = crew.rest().await?;
            checker
                .check(stage, false)
                .await
                .map_err(|failure| failure.during(round, &told))?;
            drop(rest);
        }
    }
    let rest = crew.rest().await?;
    checker.check(stage, true).await?;
    drop(rest);
    stage.stop_service().await?;
    crew.go_home();
    Ok(())
}
