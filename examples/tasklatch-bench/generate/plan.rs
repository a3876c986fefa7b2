//! What is sent next.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::content::mix;

/// What a run sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Each task is created, once.
    Create,
    /// Each task is reported, once.
    First,
    /// Tasks that have their result are reported again, the same, over and over.
    Retries,
    /// Tasks that have their result are reported with another, over and over.
    Conflicts,
    /// Of 100 reports 80 are first ones, 15 are retries of those and 5 conflict with them.
    Mix,
}

/// The sort of a request, which says what its answer must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A new task.
    Create,
    /// The first report of a task.
    First,
    /// The same again.
    Retry,
    /// Another one.
    Conflict,
}

impl Kind {
    /// How many sorts there are.
    pub const COUNT: usize = 4;

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Create => "the creation",
            Self::First => "the first report",
            Self::Retry => "a retry",
            Self::Conflict => "a conflicting report",
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What of.
    pub kind: Kind,
    /// The number of the task.
    pub task: u64,
}

/// The order in which requests are sent.
pub struct Plan {
    workload: Workload,
    first_task: u64,
    tasks: u64,
    /// How many requests were made, and how many tasks were used for the first time.
    made: u64,
    used: u64,
    /// The tasks of a mix that have their result.
    accepted: Vec<u64>,
}

impl Plan {
    /// Over these tasks.
    pub fn new(workload: Workload, first_task: u64, tasks: u64) -> Self {
        Self {
            workload,
            first_task,
            tasks,
            made: 0,
            used: 0,
            accepted: Vec::new(),
        }
    }

    /// Whether there is nothing more to send.
    pub fn is_used_up(&self) -> bool {
        let cycles = matches!(self.workload, Workload::Retries | Workload::Conflicts);
        self.used == self.tasks && !cycles
    }

    /// The next request, if there is one.
    pub fn next(&mut self) -> Option<Request> {
        if self.is_used_up() || self.tasks == 0 {
            return None;
        }
        self.made += 1;
        Some(match self.workload {
            Workload::Create => self.new_task(Kind::Create),
            Workload::First => self.new_task(Kind::First),
            Workload::Retries => self.again(Kind::Retry),
            Workload::Conflicts => self.again(Kind::Conflict),
            Workload::Mix => self.mixed(),
        })
    }

    /// Takes note of an answer.
    pub fn answered(&mut self, request: Request) {
        if self.workload == Workload::Mix && request.kind == Kind::First {
            self.accepted.push(request.task);
        }
    }

    fn new_task(&mut self, kind: Kind) -> Request {
        let task = self.first_task + self.used;
        self.used += 1;
        Request { kind, task }
    }

    fn again(&self, kind: Kind) -> Request {
        let task = self.first_task + (self.made - 1) % self.tasks;
        Request { kind, task }
    }

    fn mixed(&mut self) -> Request {
        let dice = mix(self.made);
        let kind = match dice % 100 {
            _ if self.accepted.is_empty() => return self.new_task(Kind::First),
            0..80 => return self.new_task(Kind::First),
            80..95 => Kind::Retry,
            _ => Kind::Conflict,
        };
        let at = (dice >> 32) as usize % self.accepted.len();
        Request {
            kind,
            task: self.accepted[at],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_is_reported_once_and_retries_go_round() {
        let mut first = Plan::new(Workload::First, 10, 3);
        let tasks: Vec<u64> = std::iter::from_fn(|| first.next())
            .map(|request| request.task)
            .collect();
        assert_eq!(tasks, [10, 11, 12]);
        assert!(first.is_used_up());
        let mut retries = Plan::new(Workload::Retries, 10, 3);
        let tasks: Vec<u64> = (0..5)
            .filter_map(|_| retries.next())
            .map(|request| request.task)
            .collect();
        assert_eq!(tasks, [10, 11, 12, 10, 11]);
        assert!(!retries.is_used_up());
        assert_eq!(Plan::new(Workload::Retries, 0, 0).next(), None);
    }

    #[test]
    fn a_mix_has_its_shares_and_repeats_only_what_was_accepted() {
        let mut plan = Plan::new(Workload::Mix, 0, 100_000);
        let mut counts = [0_u32; Kind::COUNT];
        let mut accepted = 0;
        while let Some(request) = plan.next() {
            counts[request.kind as usize] += 1;
            if request.kind == Kind::First {
                assert_eq!(request.task, accepted);
                accepted += 1;
            } else {
                assert!(request.task < accepted);
            }
            plan.answered(request);
        }
        let all: u32 = counts.iter().sum();
        let percent = counts.map(|count| (100.0 * f64::from(count) / f64::from(all)).round());
        assert_eq!(percent, [0.0, 80.0, 15.0, 5.0]);
    }
}
