//! Rounds: each is put up, prepared, measured and taken down.

use std::collections::HashMap;
use std::time::Instant;

use super::design::{Case, Responder, Tasks};
use super::ledgers::{Filling, Ledgers};
use super::machine::{fdatasync_us, wait_until_quiet};
use super::results::{Results, Round, Setting};
use super::stand::{Load, Programs, Stand};
use super::unwritten::Watched;
use crate::content::REPORT_BYTES;
use crate::failure::{Failure, Result};
use crate::figures::{short, time};
use crate::generate::Measured;

/// A window is noisy in which others use this share of the machine, or more.
const NOISY_SHARE: f64 = 0.1;

/// How many more tasks are made than a design is known, or thought, to use.
const TASKS_SPARE: f64 = 1.3;

/// With how many requests in flight a design answers half as many as it can at most, about.
const LEVEL_OF_HALF: f64 = 64.0;

/// Tasks for designs that look at none: more than are ever used.
const TASKS_ENOUGH: u64 = 1_000_000_000;

/// A window must have had this share of its time before the tasks were used up; else the round is made again.
const WINDOW_SHARE_LEAST: f64 = 0.6;

/// How often a round is made with more tasks.
const ATTEMPTS: u32 = 3;

/// How long a round is measured, and how carefully.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Seconds before the window.
    pub warm_up: f64,
    /// Seconds of the window.
    pub window: f64,
    /// Whether to wait for the machine to be quiet.
    pub quiet: bool,
    /// The most tasks that are made, if there is a limit.
    pub tasks_max: u64,
}

/// What is to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The case.
    pub case: &'static Case,
    /// How many requests are in flight.
    pub in_flight: u32,
    /// Which turn it is.
    pub turn: u32,
    /// How many tasks are in the ledger to begin with.
    pub ledger_tasks: u64,
    /// The size of a report.
    pub report_bytes: usize,
    /// How long.
    pub pace: Pace,
    /// Tell of each second.
    pub each_second: bool,
}

impl Turn {
    /// With the usual reports and an empty ledger.
    pub fn of(case: &'static Case, in_flight: u32, turn: u32, pace: Pace) -> Self {
        Self {
            case,
            in_flight,
            turn,
            ledger_tasks: 0,
            report_bytes: REPORT_BYTES,
            pace,
            each_second: false,
        }
    }

    fn setting(&self) -> Setting {
        Setting {
            case: self.case.name.to_owned(),
            in_flight: self.in_flight,
            ledger_tasks: self.ledger_tasks,
            report_bytes: self.report_bytes,
        }
    }
}

/// Makes rounds, and keeps what they gave.
pub struct Bench<'p> {
    programs: &'p Programs,
    ledgers: Ledgers,
    started: Instant,
    /// What each setting was last seen to answer in a second.
    rates: HashMap<Setting, f64>,
    /// All rounds so far.
    pub results: Results,
}

impl<'p> Bench<'p> {
    /// With these programs; ledgers are kept until the end in this folder.
    pub fn new(programs: &'p Programs, ledgers: Ledgers) -> Self {
        Self {
            programs,
            ledgers,
            started: Instant::now(),
            rates: HashMap::new(),
            results: Results::default(),
        }
    }

    /// Measures once, or again if there were too few tasks.
    ///
    /// # Errors
    /// If something does not start, or a request is not answered as it should be.
    pub async fn round(&mut self, turn: Turn) -> Result<()> {
        for attempt in 1..=ATTEMPTS {
            let round = self.attempt(&turn).await.map_err(|failure| {
                let (case, level) = (turn.case.name, turn.in_flight);
                Failure::new(format!(
                    "{case}, {level} in flight, round {}: {failure}",
                    turn.turn
                ))
            })?;
            self.rates.insert(turn.setting(), round.measured.per_second);
            let short = round.measured.seconds < WINDOW_SHARE_LEAST * turn.pace.window;
            let again = round.measured.ended_early && short && attempt < ATTEMPTS;
            eprintln!("{}", self.line(&round, again));
            if !again {
                self.results.rounds.push(round);
                return Ok(());
            }
        }
        Ok(())
    }

    async fn attempt(&mut self, turn: &Turn) -> Result<Round> {
        let tasks = self.tasks_needed(turn);
        let ledger = match turn.case.tasks {
            Tasks::Stored(_) => Some((Filling::Reported, tasks)),
            Tasks::StoredOpen => Some((Filling::Open, tasks)),
            _ if turn.ledger_tasks > 0 => Some((Filling::Reported, turn.ledger_tasks)),
            _ => None,
        };
        let stored = match ledger {
            Some((filling, tasks)) => Some(self.ledgers.get(filling, tasks).await?),
            None => None,
        };
        let prepared = matches!(turn.case.tasks, Tasks::Stored(_) | Tasks::StoredOpen);
        let load = Load {
            workload: turn.case.workload,
            in_flight: turn.in_flight,
            first_task: match &stored {
                Some(stored) if !prepared => stored.next_task,
                _ => 0,
            },
            tasks,
            report_bytes: turn.report_bytes,
            window: Some((turn.pace.warm_up, turn.pace.window)),
            each_second: turn.each_second,
        };
        let made = if turn.case.tasks == Tasks::None {
            0
        } else {
            tasks
        };
        let database = stored.as_ref().map(|stored| stored.database.as_path());
        let mut stand = Stand::put_up(self.programs, turn.case.design, database, made).await?;
        if let (Some((filling, tasks)), false) = (ledger, prepared) {
            self.ledgers.grew(filling, tasks, load.tasks);
        }
        let round = measure(&mut stand, turn, &load).await?;
        stand.take_down().await?;
        Ok(round)
    }

    fn tasks_needed(&self, turn: &Turn) -> u64 {
        match turn.case.tasks {
            Tasks::None => TASKS_ENOUGH,
            Tasks::Reported(tasks) | Tasks::Stored(tasks) => tasks.min(turn.pace.tasks_max),
            Tasks::Fresh | Tasks::StoredOpen => {
                let seconds = turn.pace.warm_up + turn.pace.window;
                (self.rate_expected(turn) * seconds * TASKS_SPARE) as u64
                    + 2 * u64::from(turn.in_flight)
            }
        }
    }

    /// What this setting answered before; else what is known of the like, or thought.
    fn rate_expected(&self, turn: &Turn) -> f64 {
        if let Some(known) = self.rates.get(&turn.setting()) {
            return *known;
        }
        let as_first = Setting {
            case: "first".to_owned(),
            ledger_tasks: 0,
            report_bytes: REPORT_BYTES,
            ..turn.setting()
        };
        let is_service = matches!(turn.case.design.responder, Responder::Service(_));
        let alike = self.rates.get(&as_first).filter(|_| is_service).copied();
        let (at_one, at_most) = turn.case.design.guess;
        let level = f64::from(turn.in_flight);
        let guess = alike.unwrap_or(at_one.max(at_most * level / (level + LEVEL_OF_HALF)));
        // Larger reports are fewer, but not by as much as they are larger.
        guess * (REPORT_BYTES as f64 / turn.report_bytes as f64).sqrt()
    }

    fn line(&self, round: &Round, again: bool) -> String {
        let measured = &round.measured;
        let setting = &round.setting;
        let mut text = format!(
            "{:>5.0} s  {}. {:<16} {:>5} in flight {:>9}/s  median {:>8}  p99 {:>8}  fdatasync {:>8}",
            self.started.elapsed().as_secs_f64(),
            round.turn,
            setting.case,
            setting.in_flight,
            short(measured.per_second),
            time(measured.latency.median_us),
            time(measured.latency.p99_us),
            time(round.fdatasync_us),
        );
        if setting.ledger_tasks > 0 {
            text += &format!("  {} tasks there", short(setting.ledger_tasks as f64));
        }
        if setting.report_bytes != REPORT_BYTES {
            text += &format!("  {} bytes", setting.report_bytes);
        }
        match &round.written {
            Some(written) if written.is_nothing() => text += "  nothing written",
            Some(written) => text += &format!("  WRITTEN: {written:?}"),
            None => {}
        }
        if let Some(lag) = round.lag.filter(|lag| lag.changes > 0) {
            text += &format!(
                "  events {} changes, {:.2} s behind",
                lag.changes, lag.seconds
            );
        }
        if measured.ended_early {
            text += &format!("  tasks used up after {:.2} s", measured.seconds);
        }
        if again {
            text += ", once more";
        }
        if !round.noise.is_empty() {
            text += &format!("  noisy: {}", round.noise.join(", "));
        }
        text
    }
}

async fn measure(stand: &mut Stand<'_>, turn: &Turn, load: &Load) -> Result<Round> {
    stand.prepare(turn.case.tasks, load).await?;
    if turn.case.cold {
        stand.restart_responder().await?;
    }
    let watched = match turn.case.writes_nothing {
        true => Some(Watched::begin(stand.database(), stand.responder_pid()).await?),
        false => None,
    };
    let quiet = !turn.pace.quiet || wait_until_quiet().await?;
    let measured = stand.generate(load).await?;
    let lag = stand.lag().await?;
    let written = match watched {
        Some(watched) => Some(watched.end().await?),
        None => None,
    };
    Ok(Round {
        setting: turn.setting(),
        turn: turn.turn,
        noise: match turn.pace.quiet {
            true => noise(quiet, &measured),
            false => Vec::new(),
        },
        measured,
        fdatasync_us: fdatasync_us(stand.folder())?,
        written,
        lag,
    })
}

fn noise(quiet: bool, measured: &Measured) -> Vec<String> {
    let mut noise = Vec::new();
    if !quiet {
        noise.push("the machine was busy before it".to_owned());
    }
    for (share, what) in [
        (measured.others_share, "other processes used"),
        (measured.stolen_share, "other machines took"),
    ] {
        if share > NOISY_SHARE {
            noise.push(format!("{what} {:.0} % of the machine", share * 100.0));
        }
    }
    noise
}
