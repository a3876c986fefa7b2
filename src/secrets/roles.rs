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
    /// Logs in, and may do nothing: shows that the server has read its configuration again.
    ReloadCheck,
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
            Self::ReloadCheck => "reload check",
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
            Self::Observer | Self::ReloadCheck => Vec::new(),
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
            Self::Worker | Self::WorkerOf(_) | Self::ReloadCheck => {}
        }
        all
    }
}

/// Answers, events, dead letters, and of JetStream what the service does with its own three streams.
fn service_publishes(subjects: &Subjects) -> Vec<String> {
    let mut all = vec![
        format!("{INBOX_PREFIX}.>"),
        // What the server has in place of the inboxes of other accounts.
        "_R_.>".to_owned(),
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
        format!("$JS.API.STREAM.MSG.GET.{events}"),
        format!("$JS.API.CONSUMER.CREATE.{events}"),
        format!("$JS.API.CONSUMER.CREATE.{events}.>"),
        format!("$JS.API.CONSUMER.INFO.{events}.*"),
        format!("$JS.API.CONSUMER.DELETE.{events}.*"),
        format!("$JS.API.CONSUMER.MSG.NEXT.{events}.*"),
        format!("$JS.ACK.{events}.>"),
    ]
}

/// A user of the server: its name, its public key, and what it is there for.
pub(super) struct User {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) role: Role,
}

impl User {
    fn is_worker(&self) -> bool {
        matches!(self.role, Role::Worker | Role::WorkerOf(_))
    }

    /// A worker has an account of its own. A server publishes an answer, and JetStream an acknowledgment, where the request
    /// says, and asks nobody; across accounts that place is in the account of the one who asked, and reaches nobody else.
    fn account(&self) -> String {
        match self.is_worker() {
            true => format!("WORKER_{}", self.name),
            false => ACCOUNT.to_owned(),
        }
    }

    /// As nats-server's configuration has it.
    fn text(&self, subjects: &Subjects) -> String {
        let Self { name, key, role } = self;
        let publish = allowed(&role.publishes(subjects));
        let subscribe = allowed(&role.subscribes(name, subjects));
        format!(
            "    {{ # {name}: {role}\n      nkey: {key}\n      permissions: {{\n        publish: {publish}\n        \
             subscribe: {subscribe}\n      }}\n    }}\n"
        )
    }
}

/// The account of the service.
const ACCOUNT: &str = "TASKLATCH";

fn allowed(subjects: &[String]) -> String {
    match subjects {
        // A list without entries would allow all.
        [] => "{ deny: \">\" }".to_owned(),
        some => {
            let lines = some.iter().map(|one| format!("          \"{one}\"\n"));
            format!("{{ allow: [\n{}        ] }}", lines.collect::<String>())
        }
    }
}

/// The accounts as nats-server's configuration has them.
pub(super) fn accounts(users: &[User], subjects: &Subjects) -> String {
    let (workers, others): (Vec<&User>, Vec<&User>) =
        users.iter().partition(|user| user.is_worker());
    let names: Vec<String> = workers.iter().map(|worker| worker.account()).collect();
    let names = names.join(", ");
    let of_others: String = others.iter().map(|user| user.text(subjects)).collect();
    let requests = Role::Worker.publishes(subjects);
    let requests = requests
        .iter()
        .map(|one| format!("    {{ service: \"{one}\", accounts: [{names}] }}\n"));
    let inboxes = workers.iter().map(|worker| {
        let (name, account) = (&worker.name, worker.account());
        format!("    {{ stream: \"{INBOX_PREFIX}.{name}.>\", accounts: [{account}] }}\n")
    });
    let exports: String = requests.chain(inboxes).collect();
    let mut text = format!(
        "{ACCOUNT} {{\n  jetstream: enabled\n  users: [\n{of_others}  ]\n  exports: [\n{exports}  ]\n}}\n"
    );
    for worker in workers {
        let (name, account) = (&worker.name, worker.account());
        let requests = worker.role.publishes(subjects);
        let requests = requests.iter().map(|one| {
            format!("    {{ service: {{ account: {ACCOUNT}, subject: \"{one}\" }} }}\n")
        });
        // Answers to durable reports, which go to a subject that a header names.
        let inbox = format!(
            "    {{ stream: {{ account: {ACCOUNT}, subject: \"{INBOX_PREFIX}.{name}.>\" }} }}\n"
        );
        let imports: String = requests.chain([inbox]).collect();
        let user = worker.text(subjects);
        text += &format!("{account} {{\n  users: [\n{user}  ]\n  imports: [\n{imports}  ]\n}}\n");
    }
    text
}
