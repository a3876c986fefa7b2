//! Ledgers to take snapshots of.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::content::JsonText;
use crate::ledger::{self, Applied, Circumstances, Command, Writer};
use crate::report::{Report, Selector};
use crate::snapshot::Progress;
use crate::task::{ReviewVerdict, Status, Task, Timestamp};
use crate::wire::{Change, NewTask};

/// Spellings that a careless copy would change.
pub(super) const HARD_EVIDENCE: &str = r#"{"z":1.0,"a":1e400,"n":18446744073709551617,"m":-0,"s":"\u0000😀","d":6.477856523538338e55}"#;

pub(super) fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// So many seconds after a fixed time.
pub(super) fn at(seconds: i64) -> Timestamp {
    let start = Timestamp::parse("2026-11-30T07:00:00Z").unwrap();
    Timestamp::from_micros(start.micros() + seconds * 1_000_000).unwrap()
}

pub(super) async fn open(database: &Path) -> Writer {
    let (ledger, writer) = ledger::open(database, "a test").await.unwrap();
    ledger.close().await;
    writer
}

pub(super) async fn apply(
    writer: &mut Writer,
    now: Timestamp,
    commands: Vec<Command>,
) -> Vec<Applied> {
    let circumstances = Circumstances {
        now,
        max_payload: 1024 * 1024,
    };
    let applied = writer.apply(&commands, circumstances).await;
    applied.into_iter().collect::<Result<_, _>>().unwrap()
}

fn json(text: &str) -> JsonText {
    JsonText::from(&crate::content::parse(text.as_bytes(), 127).unwrap())
}

fn new_task(task_id: &str) -> NewTask {
    let title = format!("Do {task_id}: \"äöü\" \u{1}");
    NewTask {
        task_id: task_id.to_owned(),
        pane_id: None,
        title,
        metadata: None,
        deadline: None,
    }
}

pub(super) fn create(task_id: &str) -> Command {
    Command::Change(Change::Create(new_task(task_id)))
}

fn selector(task_id: &str) -> Selector {
    Selector::TaskId(task_id.to_owned())
}

pub(super) fn report(task_id: &str, summary: &str, evidence: &str) -> Command {
    let report = Report {
        status: if task_id == "failed" {
            Status::Failed
        } else {
            Status::Completed
        },
        summary: summary.to_owned(),
        artifacts: vec!["branch:x".to_owned(), "\0".to_owned()],
        evidence: json(evidence),
    };
    Command::Change(Change::Report {
        selector: selector(task_id),
        report,
    })
}

fn start(task_id: &str) -> Command {
    Command::Change(Change::Start(selector(task_id)))
}

fn cancel(task_id: &str, reason: &str) -> Command {
    Command::Change(Change::Cancel {
        selector: selector(task_id),
        reason: Some(reason.to_owned()),
    })
}

fn review(task_id: &str, verdict: ReviewVerdict, note: &str) -> Command {
    Command::Change(Change::Review {
        selector: selector(task_id),
        verdict,
        note: Some(note.to_owned()),
        reviewer: None,
    })
}

/// One of the things that can happen to a task.
pub(super) fn any_command(step: usize, task_id: &str, deadline: Timestamp) -> Command {
    match step {
        0 => Command::Change(Change::Create(NewTask {
            deadline: Some(deadline),
            ..new_task(task_id)
        })),
        1 => create(task_id),
        2 => start(task_id),
        3 => report(task_id, "ok", r#"{"a":1.0}"#),
        4 => cancel(task_id, ""),
        5 => review(task_id, ReviewVerdict::Rework, &deadline.to_string()),
        _ => Command::Sweep,
    }
}

/// A ledger with tasks in every lifecycle and with all that a task can have. The events of the last five revisions have
/// not been published.
pub(super) async fn various_ledger(folder: &Path) -> PathBuf {
    let database = folder.join("ledger.db");
    let mut writer = open(&database).await;
    apply(&mut writer, at(1), various_tasks()).await;
    apply(&mut writer, at(2), various_ends()).await;
    apply(&mut writer, at(61), vec![Command::Sweep]).await;
    let published = writer.last_seq();
    let waiting = vec![
        create("twice"),
        start("twice"),
        report("twice", "ok", HARD_EVIDENCE),
        review("twice", ReviewVerdict::Approved, "good"),
        report("quiet", "ok", "{}"),
    ];
    apply(&mut writer, at(62), waiting).await;
    apply(&mut writer, at(63), vec![Command::Published(published)]).await;
    writer.close().await.unwrap();
    database
}

fn various_tasks() -> Vec<Command> {
    let with_all = NewTask {
        pane_id: Some("w1:p2".to_owned()),
        metadata: Some(json(r#"{"b":1.0,"a":[]}"#)),
        deadline: Some(at(10_000)),
        ..new_task("completed")
    };
    let due = NewTask {
        deadline: Some(at(60)),
        ..new_task("expired")
    };
    vec![
        create("submitted"),
        create("working"),
        Command::Change(Change::Create(with_all)),
        create("failed"),
        create("rejected"),
        create("canceled"),
        Command::Change(Change::Create(due)),
        create("deep"),
    ]
}

fn various_ends() -> Vec<Command> {
    let rejected = Report {
        status: Status::Rejected,
        summary: "no".to_owned(),
        artifacts: Vec::new(),
        evidence: json("{}"),
    };
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(63), "]".repeat(63));
    vec![
        start("working"),
        start("completed"),
        report("completed", "done\0 twice", HARD_EVIDENCE),
        report("failed", "sorry", "{}"),
        review("failed", ReviewVerdict::Rework, "once more"),
        review("failed", ReviewVerdict::Blocked, ""),
        Command::Change(Change::Report {
            selector: selector("rejected"),
            report: rejected,
        }),
        cancel("canceled", "not needed"),
        report("deep", "ok", &deep),
        create("quiet"),
    ]
}

/// The line of a task that was just created.
pub(super) fn new_task_line(task_id: &str) -> String {
    format!(
        r#"{{"task_id":"{task_id}","pane_id":null,"title":"x","lifecycle":"submitted","metadata":null,"deadline":null,"reason":null,"result":null,"disposition":null,"revision":1,"created_at":"2026-11-30T07:00:00.000000Z","updated_at":"2026-11-30T07:00:00.000000Z"}}"#
    )
}

pub(super) fn task(line: &str) -> Task {
    serde_json::from_str(line).unwrap()
}

pub(super) fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

pub(super) fn task_lines(file: &Path) -> Vec<String> {
    lines(file)
        .into_iter()
        .filter(|line| line.starts_with(r#"{"task_id""#))
        .collect()
}

pub(super) fn event_lines(file: &Path) -> Vec<String> {
    lines(file)
        .into_iter()
        .filter(|line| line.starts_with(r#"{"unpublished_event""#))
        .collect()
}

pub(super) fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

pub(super) fn sha256(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

/// A file of these lines, with an end that fits them.
pub(super) fn sealed(lines: &[String]) -> String {
    let tasks = lines
        .iter()
        .filter(|line| line.contains(r#"{"task_id""#) && !line.contains("unpublished"))
        .count();
    let before: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let sum = sha256(&before);
    format!("{before}{{\"end\":true,\"tasks\":{tasks},\"sha256\":\"{sum}\"}}\n")
}
