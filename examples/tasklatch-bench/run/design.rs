//! What is measured: designs, and the cases that each is put through. To add a design, add it to `respond`
//! or give the service other options here, and name it in `CASES`.

use super::broker::Kind;
use crate::generate::{Expect, Workload};

/// Something that answers reports.
#[derive(Debug)]
pub struct Design {
    /// Its name.
    pub name: &'static str,
    /// The server that it needs.
    pub broker: Kind,
    /// The process that it is.
    pub responder: Responder,
    /// What its answers must be.
    pub expect: Expect,
    /// About how many reports in a second it answers with one in flight, and at most: so many tasks are made for the first
    /// round. Later rounds know better.
    pub guess: (f64, f64),
}

/// The process of a design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Responder {
    /// `tasklatch serve` with these options.
    Service(&'static [&'static str]),
    /// This program as a responder, by this name.
    Own(&'static str),
    /// The same, on a database with tasks that is made for it.
    OwnWithStore(&'static str),
    /// `consumer.py`, on such a database.
    Python,
}

/// How the tasks of a case come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tasks {
    /// It needs none.
    None,
    /// Each is used once, so there must be enough for the whole window.
    Fresh,
    /// So many, each with its result by a report.
    Reported(u64),
    /// So many, each with its result, in a ledger that was made for it and is not changed.
    Stored(u64),
    /// Each is used once, and there are enough in a ledger that was made for it.
    StoredOpen,
}

/// One way to use a design, measured with several numbers of requests in flight.
#[derive(Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What it is, for people.
    pub what: &'static str,
    /// The design.
    pub design: &'static Design,
    /// What is sent.
    pub workload: Workload,
    /// What must be there first.
    pub tasks: Tasks,
    /// The service is started again after the tasks were made, so that it has nothing in memory.
    pub cold: bool,
    /// Nothing must be written to the database meanwhile.
    pub writes_nothing: bool,
    /// How many requests are in flight.
    pub levels: &'static [u32],
}

/// All numbers of requests in flight.
pub const LEVELS: [u32; 5] = [1, 16, 64, 256, 1024];

const ECHO: Design = Design {
    name: "echo",
    broker: Kind::Plain,
    responder: Responder::Own("echo"),
    expect: Expect::Any,
    guess: (0.0, 0.0),
};

const ECHO_EVENTS: Design = Design {
    name: "echo-events",
    broker: Kind::Plain,
    responder: Responder::Own("echo-events"),
    expect: Expect::Any,
    guess: (0.0, 0.0),
};

/// The service with plain events, which costs what the designs it is compared with cost: those store no events.
pub const TASKLATCH: Design = Design {
    name: "tasklatch",
    broker: Kind::Plain,
    responder: Responder::Service(&["--events", "core"]),
    expect: Expect::Protocol,
    guess: (2_000.0, 50_000.0),
};

/// The service as it comes: with events in the event stream.
const TASKLATCH_STREAM: Design = Design {
    name: "tasklatch-stream",
    broker: Kind::JetStream,
    responder: Responder::Service(&["--events", "jetstream"]),
    guess: (1_500.0, 30_000.0),
    ..TASKLATCH
};

const PER_REPORT: Design = Design {
    name: "per-report",
    broker: Kind::Plain,
    responder: Responder::OwnWithStore("per-report"),
    expect: Expect::Outcome,
    guess: (1_000.0, 4_000.0),
};

const KV_CREATE: Design = Design {
    name: "kv-create",
    broker: Kind::JetStream,
    responder: Responder::Own("kv-create"),
    expect: Expect::Outcome,
    guess: (0.0, 0.0),
};

const KV_CREATE_ALWAYS: Design = Design {
    name: "kv-create-always",
    broker: Kind::JetStreamSyncAlways,
    ..KV_CREATE
};

const KV_WHOLE: Design = Design {
    name: "kv-whole",
    responder: Responder::Own("kv-whole"),
    guess: (1_000.0, 15_000.0),
    ..KV_CREATE
};

const KV_WHOLE_ALWAYS: Design = Design {
    name: "kv-whole-always",
    broker: Kind::JetStreamSyncAlways,
    guess: (300.0, 4_000.0),
    ..KV_WHOLE
};

const PYTHON: Design = Design {
    name: "python",
    broker: Kind::Plain,
    responder: Responder::Python,
    expect: Expect::Outcome,
    guess: (800.0, 3_000.0),
};

/// How many tasks retries go round in, and how many are more than a cache should hold.
const RETRIED: u64 = 10_000;
const RETRIED_WIDE: u64 = 400_000;

const PLAIN_CASE: Case = Case {
    name: "",
    what: "",
    design: &TASKLATCH,
    workload: Workload::First,
    tasks: Tasks::Fresh,
    cold: false,
    writes_nothing: false,
    levels: &LEVELS,
};

/// Every case, in the order in which they take turns.
pub const CASES: &[Case] = &[
    Case {
        name: "echo",
        what: "a constant answer, nothing stored: what a NATS request costs at all",
        design: &ECHO,
        tasks: Tasks::None,
        ..PLAIN_CASE
    },
    Case {
        name: "echo-events",
        what: "the same, and two events published",
        design: &ECHO_EVENTS,
        tasks: Tasks::None,
        levels: &[64, 1024],
        ..PLAIN_CASE
    },
    Case {
        name: "first",
        what: "tasklatch: first reports",
        ..PLAIN_CASE
    },
    Case {
        name: "first-stream",
        what: "tasklatch: first reports, with events in the event stream",
        design: &TASKLATCH_STREAM,
        ..PLAIN_CASE
    },
    Case {
        name: "first-cold",
        what: "tasklatch: first reports, after it was started again",
        cold: true,
        levels: &[1, 64, 1024],
        ..PLAIN_CASE
    },
    Case {
        name: "retries",
        what: "tasklatch: retries over 10,000 tasks",
        workload: Workload::Retries,
        tasks: Tasks::Reported(RETRIED),
        writes_nothing: true,
        ..PLAIN_CASE
    },
    Case {
        name: "retries-wide",
        what: "tasklatch: retries over 400,000 tasks",
        workload: Workload::Retries,
        tasks: Tasks::Stored(RETRIED_WIDE),
        writes_nothing: true,
        levels: &[64],
        ..PLAIN_CASE
    },
    Case {
        name: "conflicts",
        what: "tasklatch: conflicting reports over 10,000 tasks",
        workload: Workload::Conflicts,
        tasks: Tasks::Reported(RETRIED),
        writes_nothing: true,
        levels: &[64],
        ..PLAIN_CASE
    },
    Case {
        name: "mix",
        what: "tasklatch: 80 % first reports, 15 % retries, 5 % conflicting",
        workload: Workload::Mix,
        levels: &[64, 1024],
        ..PLAIN_CASE
    },
    Case {
        name: "per-report",
        what: "async-nats and SQLite, a transaction for each report",
        design: &PER_REPORT,
        levels: &[64, 256, 1024],
        ..PLAIN_CASE
    },
    Case {
        name: "kv-create",
        what: "a JetStream bucket for results, synced every two minutes",
        design: &KV_CREATE,
        tasks: Tasks::None,
        levels: &[64, 256, 1024],
        ..PLAIN_CASE
    },
    Case {
        name: "kv-create-always",
        what: "the same, synced before it is acknowledged",
        design: &KV_CREATE_ALWAYS,
        tasks: Tasks::None,
        levels: &[64, 256, 1024],
        ..PLAIN_CASE
    },
    Case {
        name: "kv-whole",
        what: "JetStream buckets for results and tasks, synced every two minutes",
        design: &KV_WHOLE,
        levels: &[64, 256, 1024],
        ..PLAIN_CASE
    },
    Case {
        name: "kv-whole-always",
        what: "the same, synced before it is acknowledged",
        design: &KV_WHOLE_ALWAYS,
        levels: &[256],
        ..PLAIN_CASE
    },
    Case {
        name: "python",
        what: "nats-py and SQLite, a transaction for each report",
        design: &PYTHON,
        levels: &[64, 256],
        ..PLAIN_CASE
    },
];

/// First reports for new tasks in ledgers that hold many.
pub const GROWTH: Case = Case {
    name: "growth",
    what: "tasklatch: first reports, with many tasks in the ledger",
    levels: &[64, 1024],
    ..PLAIN_CASE
};

/// First reports of other sizes.
pub const SIZES: Case = Case {
    name: "sizes",
    what: "tasklatch: first reports of other sizes",
    ..PLAIN_CASE
};

/// The sizes of reports, and with how many in flight each is measured.
pub const REPORT_SIZES: [(usize, u32); 3] = [(600, 256), (16 * 1024, 256), (256 * 1024, 16)];

/// First reports for so long that the write-ahead log is folded into the database many times.
pub const LONG: Case = Case {
    name: "long",
    what: "tasklatch: first reports for a minute",
    tasks: Tasks::StoredOpen,
    levels: &[64],
    ..PLAIN_CASE
};

/// The words, besides the names of cases, by which a part of the run can be asked for: all that takes turns in `CASES`,
/// and what the targets need.
pub const PARTS: [&str; 2] = ["designs", "targets"];

/// Every word by which a part of the run can be asked for.
pub fn words() -> Vec<&'static str> {
    let others = [GROWTH.name, SIZES.name, LONG.name];
    let cases = CASES.iter().map(|case| case.name);
    PARTS.into_iter().chain(others).chain(cases).collect()
}
