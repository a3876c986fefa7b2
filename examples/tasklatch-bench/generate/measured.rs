//! The part of a run that counts, and what is told of it.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::plan::Kind;
use super::{Latency, Options, seconds};
use crate::failure::{Failure, Result};
use crate::proc::{MachineTimes, Memory, cpu_seconds, share};

/// What a run measured. One line of JSON between processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// How many requests were answered as they should, warm-up and all.
    pub answered: u64,
    /// Of those, how many were creations, first reports, retries and conflicting reports.
    pub kinds: [u64; Kind::COUNT],
    /// How many were answered in the window.
    pub counted: u64,
    /// How long the window was.
    pub seconds: f64,
    /// Answers in a second of the window.
    pub per_second: f64,
    /// How long those took.
    pub latency: Latency,
    /// The tasks were used up before the window was over.
    pub ended_early: bool,
    /// What each watched process used in the window, and this one.
    pub usage: Vec<Usage>,
    /// The share of the machine that other processes used in the window.
    pub others_share: f64,
    /// The share of the machine that was taken away from it in the window.
    pub stolen_share: f64,
    /// Each second of the window, if asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each_second: Vec<Second>,
}

/// What a process used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// Which.
    pub name: String,
    /// How many cores it kept busy.
    pub cores: f64,
    /// Its memory at the end of the window.
    pub memory: Memory,
}

/// What one second was like.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Second {
    /// Answers.
    pub answers: u64,
    /// Their median, in microseconds.
    pub median_us: f64,
    /// Their 99th percentile, in microseconds.
    pub p99_us: f64,
}

/// The name by which the load generator itself is told of.
pub const GENERATOR: &str = "generator";

/// Where a run stands.
enum Phase {
    WarmUp,
    Open(Sample),
    Closed { opened: Sample, closed: Sample },
}

/// The time, and what the processes had used by then.
struct Sample {
    at: Instant,
    machine: MachineTimes,
    cpu_seconds: Vec<f64>,
    memory: Vec<Memory>,
}

/// The part of a run that counts.
pub struct Window {
    started: Instant,
    warm_up: Duration,
    /// `None` if all that is sent counts.
    length: Option<Duration>,
    each_second: bool,
    watched: Vec<(String, u32)>,
    phase: Phase,
    ended_early: bool,
    times: Vec<Duration>,
    /// How many times there were at the end of each second.
    marks: Vec<usize>,
}

impl Window {
    /// Begins with the warm-up.
    pub fn new(options: &Options) -> Result<Self> {
        let mut watched = options.watch.clone();
        watched.push((GENERATOR.to_owned(), std::process::id()));
        let mut window = Self {
            started: Instant::now(),
            warm_up: seconds(options.warm_up)?,
            length: options.window.map(seconds).transpose()?,
            each_second: options.seconds,
            watched,
            phase: Phase::WarmUp,
            ended_early: false,
            times: Vec::new(),
            marks: Vec::new(),
        };
        if window.warm_up.is_zero() {
            window.phase = Phase::Open(window.sample(window.started)?);
        }
        Ok(window)
    }

    fn sample(&self, at: Instant) -> Result<Sample> {
        let pids = || self.watched.iter().map(|(_, pid)| *pid);
        Ok(Sample {
            at,
            machine: MachineTimes::now()?,
            cpu_seconds: pids().map(cpu_seconds).collect::<Result<_>>()?,
            memory: pids().map(Memory::of).collect::<Result<_>>()?,
        })
    }

    /// An answer has come.
    pub fn count(&mut self, took: Duration) {
        if matches!(self.phase, Phase::Open(_)) {
            self.times.push(took);
        }
    }

    /// Opens or closes the window after all that had come by `now` was counted.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn look_at_the_clock(&mut self, now: Instant, used_up: bool) -> Result<()> {
        match &self.phase {
            Phase::WarmUp if now - self.started >= self.warm_up => {
                self.phase = Phase::Open(self.sample(now)?);
            }
            Phase::WarmUp if used_up => {
                self.ended_early = true;
                self.phase = Phase::Closed {
                    opened: self.sample(now)?,
                    closed: self.sample(now)?,
                };
            }
            Phase::Open(opened) => {
                let open_for = now - opened.at;
                if self.each_second && open_for.as_secs() as usize > self.marks.len() {
                    self.marks.push(self.times.len());
                }
                // Without a length the last answer closes the window.
                let Some(length) = self.length else {
                    return Ok(());
                };
                self.ended_early = used_up && open_for < length;
                if self.ended_early || open_for >= length {
                    self.close(now)?;
                }
            }
            Phase::WarmUp | Phase::Closed { .. } => {}
        }
        Ok(())
    }

    /// Whether nothing more need be sent.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Closed { .. })
    }

    /// Closes the window if it is open.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn close(&mut self, now: Instant) -> Result<()> {
        let closed = match self.phase {
            Phase::Open(_) => self.sample(now)?,
            _ => return Ok(()),
        };
        if let Phase::Open(opened) = std::mem::replace(&mut self.phase, Phase::WarmUp) {
            self.phase = Phase::Closed { opened, closed };
        }
        Ok(())
    }

    /// What the run measured. Where the tasks were used up in the warm-up, the window is empty, and only the rate means
    /// anything.
    ///
    /// # Errors
    /// If the window was never closed, or no answer came in it.
    pub fn measured(mut self, kinds: [u64; Kind::COUNT]) -> Result<Measured> {
        let phase = std::mem::replace(&mut self.phase, Phase::WarmUp);
        let Phase::Closed { opened, closed } = phase else {
            return Err(Failure::new("the run ended before it was measured"));
        };
        let answered = kinds.iter().sum();
        let counted = self.times.len() as u64;
        if counted == 0 && !self.ended_early {
            return Err(Failure::new(
                "no request was answered in the window; make it longer",
            ));
        }
        let seconds = (closed.at - opened.at).as_secs_f64();
        let per_second = match counted {
            0 => share(answered as f64, (closed.at - self.started).as_secs_f64()),
            counted => counted as f64 / seconds,
        };
        let usage = self.usage(&opened, &closed);
        let machine = closed.machine.since(opened.machine);
        let own: f64 = usage.iter().map(|usage| usage.cores * seconds).sum();
        Ok(Measured {
            answered,
            kinds,
            counted,
            seconds,
            per_second,
            each_second: self.seconds(),
            latency: Latency::of(&mut self.times),
            ended_early: self.ended_early,
            usage,
            others_share: share((machine.working - own).max(0.0), machine.all),
            stolen_share: share(machine.stolen, machine.all),
        })
    }

    fn usage(&self, opened: &Sample, closed: &Sample) -> Vec<Usage> {
        let seconds = (closed.at - opened.at).as_secs_f64();
        let used = opened.cpu_seconds.iter().zip(&closed.cpu_seconds);
        self.watched
            .iter()
            .zip(used)
            .zip(&closed.memory)
            .map(|(((name, _), (before, after)), memory)| Usage {
                name: name.clone(),
                cores: share(after - before, seconds),
                memory: *memory,
            })
            .collect()
    }

    fn seconds(&mut self) -> Vec<Second> {
        let mut from = 0;
        let mut told = Vec::with_capacity(self.marks.len());
        for &to in &self.marks {
            // Sorting within a second changes no percentile of the whole.
            let latency = Latency::of(&mut self.times[from..to]);
            told.push(Second {
                answers: (to - from) as u64,
                median_us: latency.median_us,
                p99_us: latency.p99_us,
            });
            from = to;
        }
        told
    }
}
