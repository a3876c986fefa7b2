//! What each role may do on the server: subjects that it may publish and subscribe to. All else is denied.

use std::fmt;

use crate::wire::{Endpoint, EventKind, StreamKind, Subjects};

use super::INBOX_PREFIX;

/// What a user of the server is there for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes requests, answers them and publishes events.
    Service,
    /// Creates, cancels and reviews tasks, and reads events, those of the past too.
    Coordinator,
    /// Reports, starts and reads tasks.
    Worker,
    /// Reports on one task.
    WorkerOf(String),
    /// Reads events as they come.
    Observer,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkerOf(task_id) => write!(f, "{} of task {task_id}", self.word()),
            _ => f.write_str(self.word()),
        }
    }
}

impl Role {
    /// The role in one word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Coordinator => "coordinator",
            Self::Worker | Self::WorkerOf(_) => "worker",
            Self::Observer => "observer",
        }
    }

    fn publishes(&self, subjects: &Subjects) -> Vec<String> {
        let of = |endpoints: &[Endpoint]| -> Vec<String> {
            endpoints.iter().map(|one| subjects.of(*one)).collect()
        };
        match self {
            Self::Service => service_publishes(subjects),
            Self::Coordinator => {
                let mut all = of(&Endpoint::ALL);
                all.extend(reads_events(subjects));
                all.push("$SRV.>".to_owned());
                all
            }
            Self::Worker => {
                let mut all = of(&[
                    Endpoint::Report,
                    Endpoint::ReportOfTask,
                    Endpoint::Start,
                    Endpoint::Get,
                    Endpoint::List,
                ]);
                all.push(subjects.queued_report_of("*"));
                all
            }
            Self::WorkerOf(task_id) => {
                vec![
                    subjects.report_of(task_id),
                    subjects.queued_report_of(task_id),
                ]
            }
            // A request to JetStream names a subject for its answer, and the server publishes there without asking whether
            // the sender may. So events of the past are for coordinators.
            Self::Observer => Vec::new(),
        }
    }

    fn subscribes(&self, name: &str, subjects: &Subjects) -> Vec<String> {
        let mut all = vec![format!("{INBOX_PREFIX}.{name}.>")];
        match self {
            Self::Service => {
                all.extend(Endpoint::ALL.iter().map(|one| subjects.of(*one)));
                all.push("$SRV.>".to_owned());
            }
            Self::Coordinator | Self::Observer => all.push(subjects.all_of(StreamKind::Events)),
            Self::Worker | Self::WorkerOf(_) => {}
        }
        all
    }
}

/// Answers, events, dead letters, and of JetStream what the service does with its own three streams.
fn service_publishes(subjects: &Subjects) -> Vec<String> {
    let mut all = vec![
        format!("{INBOX_PREFIX}.>"),
        subjects.event(EventKind::Result, "*"),
        subjects.event(EventKind::Task, "*"),
        subjects.dead("*"),
        "$SRV.PING.tasklatch".to_owned(),
        "$JS.API.STREAM.NAMES".to_owned(),
    ];
    for kind in [StreamKind::Events, StreamKind::Reports, StreamKind::Dead] {
        let stream = subjects.stream(kind);
        for verb in ["INFO", "CREATE", "MSG.GET"] {
            all.push(format!("$JS.API.STREAM.{verb}.{stream}"));
        }
    }
    let reports = subjects.stream(StreamKind::Reports);
    for verb in [
        "CONSUMER.CREATE",
        "CONSUMER.DURABLE.CREATE",
        "CONSUMER.INFO",
        "CONSUMER.MSG.NEXT",
    ] {
        all.push(format!("$JS.API.{verb}.{reports}.>"));
    }
    all.push(format!("$JS.API.STREAM.MSG.DELETE.{reports}"));
    all.push(format!("$JS.ACK.{reports}.>"));
    all
}

/// What a reader of the event stream asks of JetStream.
fn reads_events(subjects: &Subjects) -> Vec<String> {
    let events = subjects.stream(StreamKind::Events);
    vec![
        format!("$JS.API.STREAM.INFO.{events}"),
        format!("$JS.API.CONSUMER.CREATE.{events}"),
        format!("$JS.API.CONSUMER.CREATE.{events}.>"),
        format!("$JS.API.CONSUMER.INFO.{events}.*"),
        format!("$JS.API.CONSUMER.DELETE.{events}.*"),
        format!("$JS.API.CONSUMER.MSG.NEXT.{events}.*"),
        format!("$JS.ACK.{events}.>"),
    ]
}

/// A user as nats-server's configuration has it.
pub(super) fn user(name: &str, key: &str, role: &Role, subjects: &Subjects) -> String {
    let allowed = |subjects: &[String]| match subjects {
        // A list without entries would allow all.
        [] => "{ deny: \">\" }".to_owned(),
        some => {
            let lines: String = some
                .iter()
                .map(|one| format!("        \"{one}\"\n"))
                .collect();
            format!("{{ allow: [\n{lines}      ] }}")
        }
    };
    let publish = allowed(&role.publishes(subjects));
    let subscribe = allowed(&role.subscribes(name, subjects));
    format!(
        "  {{ # {name}: {role}\n    nkey: {key}\n    permissions: {{\n      publish: {publish}\n      subscribe: {subscribe}\n    }}\n  }}\n"
    )
}
