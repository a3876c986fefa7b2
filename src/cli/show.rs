//! Tasks and events for people.

use clap::builder::styling::{AnsiColor, Style};
use comfy_table::{Cell, CellAlignment, Color, ColumnConstraint, Table, Width, presets};
use serde::Deserialize;

use super::text::{cut, instant, lines, one_line, relative, to_the_second, visible};
use crate::task::{Lifecycle, Task, TaskResult, Timestamp};
use crate::wire::{CloudEvent, EventKind};

/// How much of a title or summary stands in one line of many.
const LINE_CHARS: usize = 60;

/// One task as aligned lines of a key and a value. What is absent is left out.
pub(super) fn task(task: &Task, now: Timestamp) -> String {
    let mut rows: Vec<(&str, Vec<String>)> = Vec::new();
    let mut row = |key, value: String| rows.push((key, vec![value]));
    row("task", visible(&task.task_id));
    row("title", one_line(&task.title));
    let style = style_of(task.lifecycle);
    row("lifecycle", format!("{style}{}{style:#}", task.lifecycle));
    if let Some(pane_id) = &task.pane_id {
        row("pane", one_line(pane_id));
    }
    if let Some(reason) = &task.reason {
        rows.push(("reason", lines(reason)));
    }
    if let Some(result) = &task.result {
        rows.push(("reported", vec![instant(result.reported_at, now)]));
        rows.push(("summary", lines(&result.summary)));
        if !result.artifacts.is_empty() {
            rows.push((
                "artifacts",
                result.artifacts.iter().map(|item| one_line(item)).collect(),
            ));
        }
        if result.evidence.get() != "{}" {
            rows.push(("evidence", vec![one_line(result.evidence.get())]));
        }
    }
    if let Some(review) = &task.disposition {
        let by = review
            .reviewer
            .as_deref()
            .map(|name| format!(" by {}", one_line(name)));
        let when = instant(review.reviewed_at, now);
        rows.push((
            "review",
            vec![format!(
                "{}{}, {when}",
                review.verdict,
                by.unwrap_or_default()
            )],
        ));
        if let Some(note) = &review.note {
            rows.push(("note", lines(note)));
        }
    }
    if let Some(metadata) = &task.metadata {
        rows.push(("metadata", vec![one_line(metadata.get())]));
    }
    if let Some(deadline) = task.deadline {
        rows.push(("deadline", vec![instant(deadline, now)]));
    }
    rows.push(("revision", vec![task.revision.to_string()]));
    rows.push(("created", vec![instant(task.created_at, now)]));
    rows.push(("updated", vec![instant(task.updated_at, now)]));
    aligned(&rows)
}

fn aligned(rows: &[(&str, Vec<String>)]) -> String {
    let width = rows.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    let bold = Style::new().bold();
    let mut text = Vec::new();
    for (key, values) in rows {
        for (at, value) in values.iter().enumerate() {
            let key = if at == 0 { key } else { "" };
            text.push(format!("{bold}{key:width$}{bold:#}  {value}"));
        }
        if values.is_empty() {
            text.push(format!("{bold}{key}{bold:#}"));
        }
    }
    text.join("\n")
}

/// Tasks as a table, page by page.
#[derive(Default)]
pub(super) struct Pages {
    /// How wide the columns were so far, so that one page stands under the other.
    widths: Vec<u16>,
}

impl Pages {
    /// The next page, the first one with a header.
    pub(super) fn next(&mut self, tasks: &[Task], now: Timestamp) -> String {
        let mut table = table(tasks, now);
        if self.widths.is_empty() {
            table.set_header(["TASK", "LIFECYCLE", "REVIEW", "PANE", "UPDATED", "TITLE"]);
        }
        let mut widths = table.column_max_content_widths();
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if let (Some(earlier), Some(width)) = (self.widths.get(at), widths.get_mut(at)) {
                *width = (*width).max(*earlier);
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(*width + 2)));
            }
        }
        self.widths = widths;
        table
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect::<Vec<_>>()
            .join("\n")
    }
}

fn table(tasks: &[Task], now: Timestamp) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).enforce_styling();
    for task in tasks {
        let lifecycle = Cell::new(task.lifecycle.as_str());
        let lifecycle = match color_of(task.lifecycle) {
            Some(color) => lifecycle.fg(color),
            None => lifecycle,
        };
        let review = task
            .disposition
            .as_ref()
            .map_or("-", |review| review.verdict.as_str());
        let pane = task
            .pane_id
            .as_deref()
            .map_or_else(|| "-".to_owned(), |pane| cut(pane, 24));
        table.add_row([
            Cell::new(visible(&task.task_id)),
            lifecycle,
            Cell::new(review),
            Cell::new(pane),
            Cell::new(relative(task.updated_at, now)).set_alignment(CellAlignment::Right),
            Cell::new(cut(&task.title, LINE_CHARS)),
        ]);
    }
    table
}

/// An event on one line.
pub(super) fn event(event: &CloudEvent) -> String {
    let time = to_the_second(event.time);
    let kind = event.kind.word();
    let task_id = visible(&event.subject);
    let Some((revision, lifecycle, text)) = told(event) else {
        return format!(
            "{time}  {kind:6}  {task_id}  {}",
            cut(event.data.get(), LINE_CHARS)
        );
    };
    let style = style_of(lifecycle);
    format!("{time}  {kind:6}  {task_id}  r{revision}  {style}{lifecycle:9}{style:#}  {text}")
}

/// What an event tells: the revision, where the task stands, and a few words.
fn told(event: &CloudEvent) -> Option<(i64, Lifecycle, String)> {
    #[derive(Deserialize)]
    struct ResultData {
        revision: i64,
        result: TaskResult,
    }
    match event.kind {
        EventKind::Result => {
            let data: ResultData = serde_json::from_str(event.data.get()).ok()?;
            let text = cut(&data.result.summary, LINE_CHARS);
            Some((data.revision, data.result.status.into(), text))
        }
        EventKind::Task => {
            let task: Task = serde_json::from_str(event.data.get()).ok()?;
            let title = cut(&task.title, LINE_CHARS);
            let text = match task.disposition {
                Some(review) => format!("{title} ({})", review.verdict),
                None => title,
            };
            Some((task.revision, task.lifecycle, text))
        }
    }
}

fn style_of(lifecycle: Lifecycle) -> Style {
    match lifecycle {
        Lifecycle::Submitted => Style::new(),
        Lifecycle::Working => AnsiColor::Cyan.on_default(),
        Lifecycle::Completed => AnsiColor::Green.on_default(),
        Lifecycle::Failed | Lifecycle::Rejected => AnsiColor::Red.on_default(),
        Lifecycle::Canceled | Lifecycle::Expired => AnsiColor::Yellow.on_default(),
    }
}

fn color_of(lifecycle: Lifecycle) -> Option<Color> {
    match lifecycle {
        Lifecycle::Submitted => None,
        Lifecycle::Working => Some(Color::DarkCyan),
        Lifecycle::Completed => Some(Color::DarkGreen),
        Lifecycle::Failed | Lifecycle::Rejected => Some(Color::DarkRed),
        Lifecycle::Canceled | Lifecycle::Expired => Some(Color::DarkYellow),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}]0;b\u{7}\r\nc\u{9b}2J\u{202e}";

    fn hostile_task() -> Task {
        let text = serde_json::json!({
            "task_id": "t-1", "pane_id": HOSTILE, "title": HOSTILE, "lifecycle": "completed",
            "metadata": {"k\u{9b}": HOSTILE}, "deadline": "2026-11-30T08:00:00.000000Z", "reason": HOSTILE,
            "result": {
                "status": "completed", "summary": HOSTILE, "artifacts": [HOSTILE],
                "evidence": {"e": "\u{9b}2J"}, "reported_at": "2026-11-30T07:41:22.123456Z"
            },
            "disposition": {
                "verdict": "rework", "note": HOSTILE, "reviewer": HOSTILE,
                "reviewed_at": "2026-11-30T07:42:00.000000Z"
            },
            "revision": 3, "created_at": "2026-11-30T07:30:00.000000Z", "updated_at": "2026-11-30T07:42:00.000000Z"
        });
        serde_json::from_str(&text.to_string()).unwrap()
    }

    fn now() -> Timestamp {
        Timestamp::parse("2026-11-30T07:45:00Z").unwrap()
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn assert_harmless(text: &str) {
        let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        // Our own styles are the only escape sequences; without them nothing that acts is left.
        assert!(!plain(text).contains(acts), "{text:?}");
        assert!(text.contains(r"\u{9b}2J"), "{text:?}");
        assert!(!text.contains("\u{1b}]"), "{text:?}");
    }

    #[test]
    fn hostile_text_never_reaches_the_terminal_raw() {
        assert_harmless(&task(&hostile_task(), now()));
        assert_harmless(&Pages::default().next(&[hostile_task()], now()));
        let event_of = |kind, data: String| CloudEvent {
            specversion: "1.0".to_owned(),
            id: "i".to_owned(),
            source: "s".to_owned(),
            kind,
            time: now(),
            subject: "t-1".to_owned(),
            datacontenttype: "application/json".to_owned(),
            data: serde_json::value::RawValue::from_string(data).unwrap(),
        };
        let whole = serde_json::to_string(&hostile_task()).unwrap();
        assert_harmless(&event(&event_of(EventKind::Task, whole)));
        assert_harmless(&event(&event_of(
            EventKind::Task,
            "\"\u{9b}2J\"".to_owned(),
        )));
        let result = serde_json::to_string(&hostile_task().result).unwrap();
        let data = format!(r#"{{"task_id":"t-1","pane_id":null,"revision":2,"result":{result}}}"#);
        assert_harmless(&event(&event_of(EventKind::Result, data)));
    }

    #[test]
    fn a_task_is_shown_as_aligned_lines_without_what_is_absent() {
        let bare = Task {
            reason: None,
            disposition: None,
            result: None,
            metadata: None,
            ..hostile_task()
        };
        let bare = Task {
            title: "Fix it".to_owned(),
            pane_id: Some("w1:p2".to_owned()),
            ..bare
        };
        let expected = "\
task       t-1
title      Fix it
lifecycle  completed
pane       w1:p2
deadline   2026-11-30T08:00:00Z (in 15m)
revision   3
created    2026-11-30T07:30:00Z (15m ago)
updated    2026-11-30T07:42:00Z (3m ago)";
        assert_eq!(plain(&task(&bare, now())), expected);
    }

    #[test]
    fn tasks_are_shown_as_a_table_without_borders_or_trailing_space() {
        let one = Task {
            title: "Fix it".to_owned(),
            pane_id: None,
            ..hostile_task()
        };
        let two = Task {
            task_id: "t-long".to_owned(),
            lifecycle: Lifecycle::Working,
            disposition: None,
            ..one.clone()
        };
        let expected = "\
TASK    LIFECYCLE  REVIEW  PANE  UPDATED  TITLE
t-1     completed  rework  -      3m ago  Fix it
t-long  working    -       -      3m ago  Fix it";
        let mut pages = Pages::default();
        assert_eq!(plain(&pages.next(&[one.clone(), two], now())), expected);
        let second = "t-1     completed  rework  -      3m ago  Fix it";
        assert_eq!(plain(&pages.next(&[one], now())), second);
    }
}
