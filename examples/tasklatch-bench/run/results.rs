//! What a run has measured, and figures over its rounds.

use serde::{Deserialize, Serialize};

use super::unwritten::Written;
use crate::figures::Spread;
use crate::generate::{Measured, Usage};
use crate::proc::Machine;

/// A round in which making 4 KiB durable takes so many times the median of the run is noisy.
const SLOW_DISK: f64 = 2.0;

/// What was measured together, apart from the turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Setting {
    /// The case.
    pub case: String,
    /// How many requests were in flight.
    pub in_flight: u32,
    /// How many tasks were in the ledger to begin with.
    pub ledger_tasks: u64,
    /// The size of a report.
    pub report_bytes: usize,
}

/// What a round gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// What was measured.
    #[serde(flatten)]
    pub setting: Setting,
    /// Which turn it was.
    pub turn: u32,
    /// What came out.
    pub measured: Measured,
    /// The median time to make 4 KiB durable, right after.
    pub fdatasync_us: f64,
    /// What was written to the database, where nothing should be.
    pub written: Option<Written>,
    /// How far the events of the service were behind when the last answer had come.
    pub lag: Option<Behind>,
    /// Why its figures are doubtful.
    pub noise: Vec<String>,
}

/// How far events are behind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Behind {
    /// Changes that wait to be published. Each has one event, an accepted report two.
    pub changes: i64,
    /// How long the oldest of them has waited.
    pub seconds: f64,
}

impl Round {
    /// What one of the processes used.
    pub fn usage(&self, name: &str) -> Option<&Usage> {
        self.measured.usage.iter().find(|usage| usage.name == name)
    }
}

/// What the figures were measured with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// When the run began, in RFC 3339.
    pub date: String,
    /// The machine.
    pub machine: Machine,
    /// The version of tasklatch.
    pub tasklatch: String,
    /// The version of the server.
    pub nats_server: String,
    /// The command.
    pub command: String,
    /// How often everything was measured.
    pub rounds: u32,
    /// For how many seconds each time.
    pub window: f64,
    /// How many seconds all of it took.
    pub seconds: f64,
}

/// All rounds of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// In the order in which they were made.
    pub rounds: Vec<Round>,
}

impl Results {
    /// The settings that were measured, each once, in the order of their first round.
    pub fn settings(&self) -> Vec<&Setting> {
        let mut settings: Vec<&Setting> = Vec::new();
        for round in &self.rounds {
            if !settings.contains(&&round.setting) {
                settings.push(&round.setting);
            }
        }
        settings
    }

    /// The rounds of some settings.
    pub fn of(&self, wanted: impl Fn(&Setting) -> bool) -> impl Iterator<Item = &Round> {
        self.rounds
            .iter()
            .filter(move |round| wanted(&round.setting))
    }

    /// A figure over all rounds of some settings.
    pub fn spread(
        &self,
        wanted: impl Fn(&Setting) -> bool,
        figure: impl Fn(&Round) -> f64,
    ) -> Option<Spread> {
        Spread::of(self.of(wanted).map(figure))
    }

    /// How a figure of some settings compares with that of others, each time within one turn.
    pub fn ratio(
        &self,
        these: impl Fn(&Setting) -> bool,
        those: impl Fn(&Setting) -> bool,
        figure: impl Fn(&Round) -> f64,
    ) -> Option<Spread> {
        let ratios = self.of(these).filter_map(|round| {
            let other = self.of(&those).find(|other| other.turn == round.turn)?;
            Some(figure(round) / figure(other))
        });
        Spread::of(ratios)
    }

    /// The median of all times that 4 KiB took to be made durable, and their range.
    pub fn fdatasync_us(&self) -> Option<Spread> {
        self.spread(|_| true, |round| round.fdatasync_us)
    }

    /// Marks the rounds in which the disk was much slower than in others.
    pub fn mark_slow_disk(&mut self) {
        let Some(usual) = self.fdatasync_us() else {
            return;
        };
        for round in &mut self.rounds {
            let times = round.fdatasync_us / usual.median;
            if times > SLOW_DISK {
                round.noise.push(format!(
                    "the disk was {times:.1} times slower than in other rounds"
                ));
            }
        }
    }
}

/// Answers in a second.
pub fn per_second(round: &Round) -> f64 {
    round.measured.per_second
}

/// The median latency in microseconds.
pub fn median_us(round: &Round) -> f64 {
    round.measured.latency.median_us
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::generate::Latency;

    /// A round with this many answers in a second, each after a time that fits.
    pub fn round(case: &str, in_flight: u32, turn: u32, per_second: f64) -> Round {
        Round {
            setting: Setting {
                case: case.to_owned(),
                in_flight,
                ledger_tasks: 0,
                report_bytes: 600,
            },
            turn,
            measured: Measured {
                answered: 1,
                kinds: [0; 4],
                counted: 1,
                seconds: 1.0,
                per_second,
                latency: Latency {
                    median_us: 1e6 * f64::from(in_flight) / per_second,
                    ..Latency::default()
                },
                ended_early: false,
                usage: Vec::new(),
                others_share: 0.0,
                stolen_share: 0.0,
                each_second: Vec::new(),
            },
            fdatasync_us: 100.0,
            written: None,
            lag: None,
            noise: Vec::new(),
        }
    }

    #[test]
    fn ratios_are_taken_within_a_turn() {
        let rounds = vec![
            round("echo", 64, 1, 100.0),
            round("first", 64, 1, 20.0),
            round("first", 64, 2, 10.0),
            round("echo", 64, 2, 20.0),
            round("echo", 16, 3, 1.0),
            round("first", 64, 3, 77.0),
        ];
        let results = Results { rounds };
        let ratio = results.ratio(
            |setting| setting.case == "first",
            |setting| setting.case == "echo" && setting.in_flight == 64,
            per_second,
        );
        let expected = Spread {
            median: 0.35,
            least: 0.2,
            greatest: 0.5,
        };
        assert_eq!(ratio, Some(expected));
        assert_eq!(results.settings().len(), 3);
    }

    #[test]
    fn rounds_with_a_slow_disk_are_marked() {
        let mut results = Results {
            rounds: (1..=3).map(|turn| round("first", 1, turn, 1.0)).collect(),
        };
        results.rounds[1].fdatasync_us = 201.0;
        results.mark_slow_disk();
        let noisy: Vec<bool> = results
            .rounds
            .iter()
            .map(|round| !round.noise.is_empty())
            .collect();
        assert_eq!(noisy, [false, true, false]);
    }
}
