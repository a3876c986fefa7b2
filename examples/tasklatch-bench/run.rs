//! The run: it starts all else, and is idle while something is measured.

mod bench;
pub mod broker;
mod design;
mod ledgers;
pub mod machine;
mod output;
mod plot;
mod process;
mod results;
mod stand;
mod tables;
mod targets;
mod unwritten;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;
use tasklatch::task::Timestamp;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{During, Failure, Result};
use crate::figures;
use crate::proc::Machine;
use bench::{Bench, Pace, Turn};
use design::{CASES, Case, GROWTH, LEVELS, LONG, REPORT_SIZES, SIZES};
use ledgers::Ledgers;
use results::{About, Results};
use stand::Programs;
use targets::{Judgment, Target};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is well: every target was met, or none was to be judged.
    Met,
    /// A target was missed.
    Missed,
    /// None was missed, but not all were measured.
    NotMeasured,
}

/// The part of a window's length that comes before it and is not measured.
const WARM_UP_SHARE: f64 = 0.25;

/// Before the long run, in seconds.
const LONG_WARM_UP: f64 = 2.0;

/// A short run: everything once, for so many seconds, with so many tasks where a run makes many.
const SHORT_WINDOW: f64 = 0.15;
const SHORT_LONG: f64 = 1.2;
const SHORT_TASKS: u64 = 1500;
const SHORT_LOOK: Duration = Duration::from_millis(100);

/// No disk makes anything durable in less, in microseconds.
const NO_DISK_US: f64 = 15.0;

/// What is measured, and how.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How often everything is measured, in turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds that each is measured
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    pub window: f64,
    /// Seconds of the long run
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    pub long: f64,
    /// How many tasks the ledgers have that are compared
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,1000000,5000000",
        value_name = "NUMBERS"
    )]
    pub growth: Vec<u64>,
    /// Only this: all designs, what the targets need, or one case. Can be given more than once
    #[arg(long, value_name = "WORD", value_parser = PossibleValuesParser::new(design::words()))]
    pub only: Vec<String>,
    /// Only with so many requests in flight
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    pub levels: Vec<u32>,
    /// See quickly that everything works: everything once, for a moment. No figure is judged, and none is worth anything
    #[arg(long)]
    pub short: bool,
    /// Write everything to a file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the tables to a file, as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Put the tables into a page, between its lines bench:begin and bench:end
    #[arg(long, value_name = "FILE")]
    pub docs: Option<PathBuf>,
    /// Draw reports in a second against requests in flight, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// The service [default: tasklatch beside the folder of this program]
    #[arg(long, value_name = "FILE")]
    pub service: Option<PathBuf>,
    /// The NATS server
    #[arg(
        long,
        env = "TASKLATCH_TEST_NATS_SERVER",
        default_value = ".tools/bin/nats-server",
        value_name = "FILE"
    )]
    pub nats_server: PathBuf,
    /// Python 3, for the design that is written in it
    #[arg(long, default_value = "python3", value_name = "FILE")]
    pub python: PathBuf,
    /// Where databases and streams are kept meanwhile: a folder on the disk that is to be measured [default: beside this program]
    #[arg(long, value_name = "FOLDER")]
    pub scratch: Option<PathBuf>,
}

/// Measures what the options ask for.
///
/// # Errors
/// If the benchmark could not be made.
pub async fn run(options: &Options) -> Result<Verdict> {
    let mut terminate = signal(SignalKind::terminate()).during("listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).during("listen for signals")?;
    tokio::select! {
        done = run_all(options) => done,
        // What was started ends with the future above.
        _ = interrupt.recv() => Err(Failure::new("interrupted; what was measured is lost")),
        _ = terminate.recv() => Err(Failure::new("asked to stop; what was measured is lost")),
    }
}

async fn run_all(options: &Options) -> Result<Verdict> {
    let scratch = scratch(options)?;
    let programs = programs(options, scratch.path())?;
    let mut about = about(options, &programs)?;
    eprintln!(
        "tasklatch-bench on {} cores ({}), Linux {}, {}; with {}",
        about.machine.cores,
        about.machine.processor,
        about.machine.kernel,
        about.nats_server,
        programs.service.display(),
    );
    let disk = machine::fdatasync_us(scratch.path())?;
    if disk < NO_DISK_US {
        eprintln!(
            "note: making 4 KiB durable takes {} in {}, so no disk is measured; name a folder on one with --scratch",
            figures::time(disk),
            scratch.path().display()
        );
    }
    let started = Instant::now();
    let mut bench = Bench::new(&programs, Ledgers::new(scratch.path().to_owned()));
    measure(&mut bench, options).await?;
    about.seconds = started.elapsed().as_secs_f64();
    let mut results = bench.results;
    results.mark_slow_disk();
    if options.short {
        return short_verdict(&results);
    }
    let targets = targets::judge(&results);
    tell(options, &about, &results, &targets)?;
    Ok(verdict(&targets))
}

/// Everything, in turns.
async fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let rounds = if options.short { 1 } else { options.rounds };
    for turn in 1..=rounds {
        measure_designs(bench, options, turn).await?;
        measure_growth(bench, options, turn).await?;
        measure_sizes(bench, options, turn).await?;
    }
    measure_long(bench, options).await
}

async fn measure_designs(bench: &mut Bench<'_>, options: &Options, turn: u32) -> Result<()> {
    for level in LEVELS {
        for case in CASES {
            if case.levels.contains(&level) && is_wanted(options, case, level) {
                bench
                    .round(Turn::of(case, level, turn, pace(options)))
                    .await?;
            }
        }
    }
    Ok(())
}

async fn measure_growth(bench: &mut Bench<'_>, options: &Options, turn: u32) -> Result<()> {
    for &level in GROWTH.levels {
        for ledger_tasks in growth(options) {
            if is_wanted(options, &GROWTH, level) {
                let growth = Turn::of(&GROWTH, level, turn, pace(options));
                bench
                    .round(Turn {
                        ledger_tasks,
                        ..growth
                    })
                    .await?;
            }
        }
    }
    Ok(())
}

async fn measure_sizes(bench: &mut Bench<'_>, options: &Options, turn: u32) -> Result<()> {
    for (report_bytes, level) in REPORT_SIZES {
        if is_wanted(options, &SIZES, level) {
            let sizes = Turn::of(&SIZES, level, turn, pace(options));
            bench
                .round(Turn {
                    report_bytes,
                    ..sizes
                })
                .await?;
        }
    }
    Ok(())
}

async fn measure_long(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let (warm_up, window) = match options.short {
        true => (SHORT_WINDOW, SHORT_LONG),
        false => (LONG_WARM_UP, options.long),
    };
    let pace = Pace {
        warm_up,
        window,
        ..pace(options)
    };
    for &level in LONG.levels {
        if is_wanted(options, &LONG, level) {
            let long = Turn::of(&LONG, level, 1, pace);
            bench
                .round(Turn {
                    each_second: true,
                    ..long
                })
                .await?;
        }
    }
    Ok(())
}

fn pace(options: &Options) -> Pace {
    if options.short {
        return Pace {
            warm_up: WARM_UP_SHARE * SHORT_WINDOW,
            window: SHORT_WINDOW,
            quiet: false,
            tasks_max: SHORT_TASKS,
        };
    }
    Pace {
        warm_up: WARM_UP_SHARE * options.window,
        window: options.window,
        quiet: true,
        tasks_max: u64::MAX,
    }
}

fn growth(options: &Options) -> Vec<u64> {
    let mut sizes = options.growth.clone();
    if options.short {
        sizes
            .iter_mut()
            .for_each(|tasks| *tasks = (*tasks).min(SHORT_TASKS));
        sizes.dedup();
    }
    sizes
}

/// Whether to measure this. Echo is what others are compared with, so it comes along.
fn is_wanted(options: &Options, case: &Case, level: u32) -> bool {
    let asked_for = |case: &Case| is_asked_for(options, case, level);
    let compared = || {
        CASES
            .iter()
            .any(|other| other.levels.contains(&level) && asked_for(other))
    };
    asked_for(case) || (case.name == "echo" && compared())
}

fn is_asked_for(options: &Options, case: &Case, level: u32) -> bool {
    let takes_turns = CASES.iter().any(|other| other.name == case.name);
    let asked_for = |word: &String| match word.as_str() {
        "designs" => takes_turns,
        "targets" => targets::needs(case.name, level),
        word => word == case.name,
    };
    (options.only.is_empty() || options.only.iter().any(asked_for))
        && (options.levels.is_empty() || options.levels.contains(&level))
}

/// Prints the tables, and writes the files that were asked for.
fn tell(options: &Options, about: &About, results: &Results, targets: &[Target]) -> Result<()> {
    let grids = tables::all(results, Some(targets));
    for grid in &grids {
        println!("\n{}", grid.to_markdown());
    }
    println!("{}", tables::conditions(results));
    let markdown = output::markdown(about, results, &grids);
    if let Some(file) = &options.json {
        output::json(file, about, results, targets)?;
    }
    if let Some(file) = &options.markdown {
        output::write(file, &markdown)?;
    }
    if let Some(page) = &options.docs {
        let picture = options
            .plot
            .as_deref()
            .and_then(|plot| output::picture(page, plot));
        output::fill_in(page, &(markdown + &picture.unwrap_or_default()))?;
    }
    if let Some(file) = &options.plot {
        output::write(file, &plot::svg(results)?)?;
    }
    Ok(())
}

/// In a short run a write where nothing must be written is the one thing besides errors that counts.
fn short_verdict(results: &Results) -> Result<Verdict> {
    let written = |round: &&results::Round| {
        round
            .written
            .as_ref()
            .is_some_and(|written| !written.is_nothing())
    };
    match results.rounds.iter().find(written) {
        Some(round) => Err(Failure::new(format!(
            "{} wrote to the database: {:?}",
            round.setting.case, round.written
        ))),
        None => {
            println!("everything works: {} rounds", results.rounds.len());
            Ok(Verdict::Met)
        }
    }
}

fn verdict(targets: &[Target]) -> Verdict {
    let numbers = |judgment| {
        let these = targets.iter().filter(|target| target.judgment == judgment);
        let mut numbers: Vec<String> = these.map(|target| target.number.to_string()).collect();
        numbers.dedup();
        numbers.join(", ")
    };
    let (missed, not_measured) = (numbers(Judgment::Missed), numbers(Judgment::NotMeasured));
    if !missed.is_empty() {
        println!("\nMISSED: target {missed}");
        Verdict::Missed
    } else if !not_measured.is_empty() {
        println!("\nno target was missed, but not all were measured: {not_measured}");
        Verdict::NotMeasured
    } else {
        println!("\nevery target was met");
        Verdict::Met
    }
}

fn about(options: &Options, programs: &Programs) -> Result<About> {
    Ok(About {
        date: Timestamp::now().to_string().chars().take(10).collect(),
        machine: Machine::this()?,
        tasklatch: env!("CARGO_PKG_VERSION").to_owned(),
        nats_server: broker::version(&programs.nats_server)?,
        command: command(std::env::args().skip(1)),
        rounds: options.rounds,
        window: options.window,
        seconds: 0.0,
    })
}

/// The command without what changes no figure: where things are, and where the results go.
fn command(arguments: impl Iterator<Item = String>) -> String {
    const PLACES: [&str; 8] = [
        "--json",
        "--markdown",
        "--docs",
        "--plot",
        "--service",
        "--nats-server",
        "--python",
        "--scratch",
    ];
    let mut shown = vec!["tasklatch-bench".to_owned()];
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let name = argument.split('=').next().unwrap_or_default();
        if !PLACES.contains(&name) {
            shown.push(argument);
        } else if name == argument {
            // Its value is an argument of its own.
            arguments.next();
        }
    }
    shown.join(" ")
}

/// target/release, if this program is target/release/examples/tasklatch-bench.
fn release_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().during("find this program")?;
    let folder = own.parent().and_then(Path::parent);
    Ok(folder.unwrap_or(Path::new(".")).to_owned())
}

/// A folder for all that is stored meanwhile. It goes away with the run.
fn scratch(options: &Options) -> Result<tempfile::TempDir> {
    let folder = match &options.scratch {
        Some(folder) => folder.clone(),
        None => release_folder()?,
    };
    std::fs::create_dir_all(&folder).during(format_args!("make {}", folder.display()))?;
    tempfile::Builder::new()
        .prefix("bench-")
        .tempdir_in(&folder)
        .during(format_args!("make a folder in {}", folder.display()))
}

fn programs(options: &Options, scratch: &Path) -> Result<Programs> {
    let service = match &options.service {
        Some(service) => service.clone(),
        None => release_folder()?.join("tasklatch"),
    };
    if !service.is_file() {
        return Err(Failure::new(format!(
            "there is no service at {}; build it with `make build`, or name it with --service",
            service.display()
        )));
    }
    Ok(Programs {
        own: std::env::current_exe().during("find this program")?,
        service,
        python: options.python.clone(),
        nats_server: options.nats_server.clone(),
        scratch: scratch.to_owned(),
        look: if options.short {
            SHORT_LOOK
        } else {
            machine::LOOK
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_told_without_the_places_of_files() {
        let words = "run --json a/b.json --rounds 3 --plot=c.svg --only first --service x";
        let told = command(words.split(' ').map(str::to_owned));
        assert_eq!(told, "tasklatch-bench run --rounds 3 --only first");
    }

    #[test]
    fn echo_comes_along_where_something_is_compared_with_it() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        let wanted = |words: &str| {
            let line = <Line as clap::Parser>::parse_from(words.split(' '));
            let mut wanted = Vec::new();
            for level in LEVELS {
                for case in CASES {
                    if case.levels.contains(&level) && is_wanted(&line.options, case, level) {
                        wanted.push((case.name, level));
                    }
                }
            }
            wanted
        };
        assert_eq!(
            wanted("run --only python --levels 64,1024"),
            [("echo", 64), ("python", 64)]
        );
        assert_eq!(wanted("run --only long"), []);
        assert!(wanted("run --only targets").contains(&("retries", 1024)));
        assert!(!wanted("run --only targets").contains(&("retries", 16)));
    }
}
