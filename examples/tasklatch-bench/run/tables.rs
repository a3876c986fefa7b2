//! The results as tables, for terminals and for Markdown.

use comfy_table::{CellAlignment, Table, presets};

use super::design::{CASES, GROWTH, LEVELS, LONG, SIZES};
use super::results::{Results, Round, Setting, median_us, per_second};
use super::stand::{RESPONDER, SERVER};
use super::targets::{Bound, Judgment, Target};
use crate::figures::{Spread, grouped, short, time};
use crate::generate::GENERATOR;

/// The header of a column that holds words. All others, but the first, hold figures.
const WORDS: &str = "what it is";

/// A table with its heading.
pub struct Grid {
    title: &'static str,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    fn new(title: &'static str, header: &[&str]) -> Self {
        Self {
            title,
            header: header.iter().map(|&cell| cell.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// As Markdown, which can be read in a terminal too.
    pub fn to_markdown(&self) -> String {
        let mut table = Table::new();
        table
            .load_style(presets::ASCII_MARKDOWN)
            .set_header(&self.header)
            .add_rows(&self.rows);
        for (column, header) in table.column_iter_mut().zip(&self.header).skip(1) {
            if header != WORDS {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        format!("### {}\n\n{table}\n", self.title)
    }
}

/// All tables that have something in them.
pub fn all(results: &Results, targets: Option<&[Target]>) -> Vec<Grid> {
    let mut grids = vec![
        rates(results),
        designs(results),
        growth(results),
        sizes(results),
        long(results),
    ];
    if let Some(targets) = targets {
        grids.insert(0, judged(targets));
    }
    grids.retain(|grid| !grid.rows.is_empty());
    grids
}

fn judged(targets: &[Target]) -> Grid {
    let mut grid = Grid::new(
        "Targets",
        &["target", "must be", "median", "range of rounds", "verdict"],
    );
    for target in targets {
        let (bound, figure) = (bound(target.bound), target.figure);
        let verdict = match target.judgment {
            Judgment::Met => "met",
            Judgment::Missed => "MISSED",
            Judgment::NotMeasured => "not measured",
        };
        grid.rows.push(vec![
            format!("{}. {}", target.number, target.what),
            bound,
            figure.map_or_else(String::new, |figure| short(figure.median)),
            figure.map_or_else(String::new, range),
            verdict.to_owned(),
        ]);
    }
    grid
}

fn bound(bound: Bound) -> String {
    match bound {
        Bound::AtLeast(least) => format!("at least {}", plain(least)),
        Bound::AtMost(0.0) => "none".to_owned(),
        Bound::AtMost(most) => format!("at most {}", plain(most)),
    }
}

/// A bound as it was set.
fn plain(number: f64) -> String {
    format!("{number}")
}

fn range(spread: Spread) -> String {
    format!("{} to {}", short(spread.least), short(spread.greatest))
}

fn rates(results: &Results) -> Grid {
    let mut grid = Grid::new("Reports in a second, by requests in flight", &["design"]);
    grid.header.extend(LEVELS.iter().map(u32::to_string));
    grid.header.push(WORDS.to_owned());
    for case in CASES {
        let cells: Vec<Option<Spread>> = LEVELS
            .iter()
            .map(|level| {
                let wanted =
                    |setting: &Setting| setting.case == case.name && setting.in_flight == *level;
                results.spread(wanted, per_second)
            })
            .collect();
        if cells.iter().any(Option::is_some) {
            let mut row = vec![case.name.to_owned()];
            row.extend(
                cells
                    .iter()
                    .map(|cell| cell.map_or_else(String::new, |spread| short(spread.median))),
            );
            row.push(case.what.to_owned());
            grid.rows.push(row);
        }
    }
    grid
}

fn designs(results: &Results) -> Grid {
    let mut grid = Grid::new(
        "Each in full: medians of the rounds",
        &[
            "design",
            "in flight",
            "reports/s",
            "range",
            "of echo",
            "median",
            "p99",
            "cores: server",
            "responder",
            "generator",
            "MiB",
        ],
    );
    for case in CASES {
        for level in LEVELS {
            let is = |name: &'static str| {
                move |setting: &Setting| setting.case == name && setting.in_flight == level
            };
            let Some(rate) = results.spread(is(case.name), per_second) else {
                continue;
            };
            let of_echo = results.ratio(is(case.name), is("echo"), per_second);
            let figure = |of: &dyn Fn(&Round) -> f64| median(results, is(case.name), of);
            grid.rows.push(vec![
                case.name.to_owned(),
                level.to_string(),
                short(rate.median),
                range(rate),
                of_echo.map_or_else(String::new, |ratio| short(ratio.median)),
                time(figure(&median_us)),
                time(figure(&p99_us)),
                cores(figure(&|round| cores_of(round, SERVER))),
                cores(figure(&|round| cores_of(round, RESPONDER))),
                cores(figure(&|round| cores_of(round, GENERATOR))),
                short(figure(&resident_mib)),
            ]);
        }
    }
    grid
}

fn growth(results: &Results) -> Grid {
    let mut grid = Grid::new(
        "First reports for new tasks, with many tasks in the ledger",
        &[
            "tasks there",
            "in flight",
            "reports/s",
            "of an empty ledger",
            "range",
            "service, MiB",
            "at most",
        ],
    );
    for setting in results.settings() {
        if setting.case != GROWTH.name {
            continue;
        }
        let these = |other: &Setting| other == setting;
        let empty = |other: &Setting| {
            other.case == GROWTH.name
                && other.ledger_tasks == 0
                && other.in_flight == setting.in_flight
        };
        let ratio = results.ratio(these, empty, per_second);
        grid.rows.push(vec![
            grouped(setting.ledger_tasks as f64),
            setting.in_flight.to_string(),
            short(median(results, these, per_second)),
            ratio.map_or_else(String::new, |ratio| short(ratio.median)),
            ratio.map_or_else(String::new, range),
            short(median(results, these, resident_mib)),
            short(greatest(results, these, peak_mib)),
        ]);
    }
    grid
}

fn sizes(results: &Results) -> Grid {
    let mut grid = Grid::new(
        "First reports of other sizes",
        &[
            "bytes",
            "in flight",
            "reports/s",
            "MB/s",
            "median",
            "p99",
            "service, MiB",
            "at most",
        ],
    );
    for setting in results.settings() {
        if setting.case != SIZES.name {
            continue;
        }
        let these = |other: &Setting| other == setting;
        let rate = median(results, these, per_second);
        grid.rows.push(vec![
            grouped(setting.report_bytes as f64),
            setting.in_flight.to_string(),
            short(rate),
            short(rate * setting.report_bytes as f64 / 1e6),
            time(median(results, these, median_us)),
            time(median(results, these, p99_us)),
            short(median(results, these, resident_mib)),
            short(greatest(results, these, peak_mib)),
        ]);
    }
    grid
}

fn long(results: &Results) -> Grid {
    let mut grid = Grid::new(
        "The long run",
        &[
            "seconds",
            "in flight",
            "reports/s",
            "slowest second",
            "median",
            "p99",
            "p99.9",
            "longest",
            "p99 against median",
        ],
    );
    for round in results.of(|setting| setting.case == LONG.name) {
        let measured = &round.measured;
        let latency = measured.latency;
        let slowest = measured
            .each_second
            .iter()
            .map(|second| second.answers)
            .min();
        grid.rows.push(vec![
            short(measured.seconds),
            round.setting.in_flight.to_string(),
            short(measured.per_second),
            slowest.map_or_else(String::new, |answers| short(answers as f64)),
            time(latency.median_us),
            time(latency.p99_us),
            time(latency.p999_us),
            time(latency.max_us),
            short(latency.p99_us / latency.median_us),
        ]);
    }
    grid
}

/// What to know of the conditions, in a few sentences.
pub fn conditions(results: &Results) -> String {
    let rounds = results.rounds.len();
    let noisy = results
        .rounds
        .iter()
        .filter(|round| !round.noise.is_empty())
        .count();
    let early = results
        .rounds
        .iter()
        .filter(|round| round.measured.ended_early)
        .count();
    let mut text = format!("{rounds} rounds.");
    if let Some(disk) = results.fdatasync_us() {
        text += &format!(
            " Making 4 KiB durable took {} (median; {} to {} from round to round).",
            time(disk.median),
            time(disk.least),
            time(disk.greatest)
        );
    }
    if noisy > 0 {
        text += &format!(
            " {noisy} of them were noisy: other processes were busy, or the disk was slow; the figures are those of a machine that does something else too."
        );
    } else {
        text += " None was noisy.";
    }
    if early > 0 {
        text += &format!(" In {early} of them the tasks were used up before the time was over.");
    }
    text
}

/// The median of a figure over the rounds of a setting, which has some.
fn median(
    results: &Results,
    wanted: impl Fn(&Setting) -> bool,
    figure: impl Fn(&Round) -> f64,
) -> f64 {
    results
        .spread(wanted, figure)
        .map_or(f64::NAN, |spread| spread.median)
}

fn greatest(
    results: &Results,
    wanted: impl Fn(&Setting) -> bool,
    figure: impl Fn(&Round) -> f64,
) -> f64 {
    results
        .spread(wanted, figure)
        .map_or(f64::NAN, |spread| spread.greatest)
}

fn p99_us(round: &Round) -> f64 {
    round.measured.latency.p99_us
}

fn cores_of(round: &Round, name: &str) -> f64 {
    round.usage(name).map_or(f64::NAN, |usage| usage.cores)
}

fn cores(number: f64) -> String {
    format!("{number:.2}")
}

fn resident_mib(round: &Round) -> f64 {
    let usage = round.usage(RESPONDER);
    usage.map_or(f64::NAN, |usage| usage.memory.resident_kib as f64 / 1024.0)
}

fn peak_mib(round: &Round) -> f64 {
    let usage = round.usage(RESPONDER);
    usage.map_or(f64::NAN, |usage| usage.memory.peak_kib as f64 / 1024.0)
}
