//! How fast tasklatch should be, and whether it is.

use serde::{Deserialize, Serialize};

use super::design::{GROWTH, LONG};
use super::results::{Results, Round, Setting, median_us, per_second};
use super::stand::RESPONDER;
use crate::figures::Spread;

/// The size of the ledger that two targets speak of.
const MANY_TASKS: u64 = 5_000_000;

/// Where a figure must lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Here or above.
    AtLeast(f64),
    /// Here or below.
    AtMost(f64),
}

/// Whether it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgment {
    /// Yes.
    Met,
    /// No.
    Missed,
    /// There is no figure.
    NotMeasured,
}

/// A target with its figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    /// Its number.
    pub number: u32,
    /// What is measured.
    pub what: String,
    /// Where its median must lie.
    pub bound: Bound,
    /// What came out.
    pub figure: Option<Spread>,
    /// Whether that is good enough.
    pub judgment: Judgment,
}

fn target(number: u32, what: impl Into<String>, bound: Bound, figure: Option<Spread>) -> Target {
    let judgment = match (figure, bound) {
        (None, _) => Judgment::NotMeasured,
        (Some(figure), Bound::AtLeast(least)) if figure.median >= least => Judgment::Met,
        (Some(figure), Bound::AtMost(most)) if figure.median <= most => Judgment::Met,
        _ => Judgment::Missed,
    };
    Target {
        number,
        what: what.into(),
        bound,
        figure,
        judgment,
    }
}

/// A case with so many requests in flight.
fn is(case: &'static str, in_flight: u32) -> impl Fn(&Setting) -> bool + Copy {
    move |setting| setting.case == case && setting.in_flight == in_flight
}

/// New tasks in a ledger that had so many.
fn grown(ledger_tasks: u64) -> impl Fn(&Setting) -> bool + Copy {
    move |setting| {
        setting.case == GROWTH.name
            && setting.in_flight == 1024
            && setting.ledger_tasks == ledger_tasks
    }
}

/// A case, and how many requests are in flight.
type Point = (&'static str, u32);

/// The targets that compare rates: number, words, at least how many times the second the first is, and the two.
const RATES: [(u32, &str, f64, Point, Point); 9] = [
    (
        1,
        "first reports, 1024 in flight, against echo",
        0.13,
        ("first", 1024),
        ("echo", 1024),
    ),
    (
        2,
        "first reports, 64 in flight, against echo",
        0.17,
        ("first", 64),
        ("echo", 64),
    ),
    (
        3,
        "first reports, 1024 in flight, against per-report",
        25.0,
        ("first", 1024),
        ("per-report", 1024),
    ),
    (
        4,
        "first reports, 256 in flight, against kv-create-always",
        6.0,
        ("first", 256),
        ("kv-create-always", 256),
    ),
    (
        5,
        "first reports, 256 in flight, against kv-whole",
        1.8,
        ("first", 256),
        ("kv-whole", 256),
    ),
    (
        7,
        "retries, 64 in flight, against echo",
        0.5,
        ("retries", 64),
        ("echo", 64),
    ),
    (
        7,
        "retries, 256 in flight, against echo",
        0.5,
        ("retries", 256),
        ("echo", 256),
    ),
    (
        7,
        "retries, 1024 in flight, against echo",
        0.5,
        ("retries", 1024),
        ("echo", 1024),
    ),
    (
        11,
        "first reports, 1024 in flight, with events in the event stream, against events by plain NATS",
        0.6,
        ("first-stream", 1024),
        ("first", 1024),
    ),
];

/// Every target with what the results say of it.
pub fn judge(results: &Results) -> Vec<Target> {
    let rates = RATES.iter().map(|&(number, what, least, these, those)| {
        let ratio = results.ratio(is(these.0, these.1), is(those.0, those.1), per_second);
        target(number, what, Bound::AtLeast(least), ratio)
    });
    let latency = results.ratio(is("first", 1), is("echo", 1), median_us);
    let many_tasks = results.ratio(grown(MANY_TASKS), grown(0), per_second);
    let long = results.spread(is(LONG.name, 64), p99_to_median);
    let at_most = |number, what, most, figure| target(number, what, Bound::AtMost(most), figure);
    let mut targets: Vec<Target> = rates.collect();
    targets.extend([
        at_most(
            6,
            "median latency of first reports, 1 in flight, against echo",
            2.9,
            latency,
        ),
        at_most(
            7,
            "rounds of retries in which anything was written to the database",
            0.0,
            writes(results),
        ),
        target(
            8,
            "first reports, 1024 in flight, with 5 million tasks against an empty ledger",
            Bound::AtLeast(0.75),
            many_tasks,
        ),
        at_most(
            9,
            "99th percentile against median of the long run",
            4.0,
            long,
        ),
        at_most(
            10,
            "peak memory of the service with 5 million tasks, in MiB",
            256.0,
            peak_mib(results),
        ),
    ]);
    targets.sort_by_key(|target| target.number);
    targets
}

/// How many rounds of retries wrote something: one figure for all of them.
fn writes(results: &Results) -> Option<Spread> {
    let mut watched = results
        .of(|setting| setting.case.starts_with("retries"))
        .filter_map(|round| round.written.as_ref())
        .peekable();
    watched.peek()?;
    let count = watched.filter(|written| !written.is_nothing()).count();
    Spread::of([count as f64])
}

fn p99_to_median(round: &Round) -> f64 {
    round.measured.latency.p99_us / round.measured.latency.median_us
}

fn peak_mib(results: &Results) -> Option<Spread> {
    let wanted =
        |setting: &Setting| setting.case == GROWTH.name && setting.ledger_tasks == MANY_TASKS;
    let peaks = results
        .of(wanted)
        .filter_map(|round| round.usage(RESPONDER));
    Spread::of(peaks.map(|usage| usage.memory.peak_kib as f64 / 1024.0))
}

/// Whether a target needs a case with so many requests in flight, of those that take turns.
pub fn needs(case: &str, in_flight: u32) -> bool {
    match case {
        "echo" | "first" => true,
        "retries" => in_flight >= 64,
        "per-report" | "first-stream" => in_flight == 1024,
        "kv-create-always" | "kv-whole" => in_flight == 256,
        name => name == GROWTH.name || name == LONG.name,
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::round;
    use super::super::unwritten::Written;
    use super::*;

    fn judged(rounds: Vec<Round>) -> Vec<(u32, Judgment)> {
        let targets = judge(&Results { rounds });
        targets
            .iter()
            .map(|target| (target.number, target.judgment))
            .collect()
    }

    #[test]
    fn nothing_measured_meets_nothing() {
        let judged = judged(Vec::new());
        assert!(
            judged
                .iter()
                .all(|(_, judgment)| *judgment == Judgment::NotMeasured)
        );
        let numbers: Vec<u32> = judged.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn the_median_decides_and_the_bound_itself_is_met() {
        let with = |first: [f64; 3]| {
            let rounds = (1..).zip(first).flat_map(|(turn, rate)| {
                [
                    round("echo", 1024, turn, 100.0),
                    round("first", 1024, turn, rate),
                ]
            });
            judged(rounds.collect())[0].1
        };
        assert_eq!(with([13.0, 13.0, 1.0]), Judgment::Met);
        assert_eq!(with([12.9, 12.9, 99.0]), Judgment::Missed);
    }

    #[test]
    fn latency_is_met_from_below() {
        let with = |first| {
            let rounds = vec![round("echo", 1, 1, 1000.0), round("first", 1, 1, first)];
            judged(rounds)[5].1
        };
        assert_eq!(with(400.0), Judgment::Met);
        assert_eq!(with(300.0), Judgment::Missed);
    }

    #[test]
    fn one_write_during_retries_is_too_many() {
        let with = |committed| {
            let mut round = round("retries-wide", 64, 1, 1.0);
            let (files, bytes) = (Vec::new(), 0);
            round.written = Some(Written {
                committed,
                files,
                bytes,
            });
            judged(vec![round])[9].1
        };
        assert_eq!(with(false), Judgment::Met);
        assert_eq!(with(true), Judgment::Missed);
    }

    #[test]
    fn many_tasks_are_compared_with_none() {
        let with = |rate| {
            let mut many = round("growth", 1024, 1, rate);
            many.setting.ledger_tasks = MANY_TASKS;
            judged(vec![round("growth", 1024, 1, 100.0), many])[10]
        };
        assert_eq!(with(75.0), (8, Judgment::Met));
        assert_eq!(with(74.0), (8, Judgment::Missed));
    }
}
