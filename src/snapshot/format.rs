//! The lines of a snapshot file: what each of them is, and that it is written exactly as a service writes it. Each task
//! and event then has one spelling only, so that what was checked is what comes back.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::damage::{DamageKind, Wrong};
use crate::content::{self, Json, MAX_LEVELS};
use crate::task::{Task, Timestamp};
use crate::wire::CloudEvent;

/// The version of the format that is written and read here.
pub const FORMAT_VERSION: u64 = 1;

/// The longest line of a snapshot file in bytes. The limits of a task keep it far below.
pub const LINE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// How every snapshot file begins, whatever its version.
const BEGINNING: &[u8] = br#"{"tasklatch_snapshot":"#;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    pub(super) tasklatch_snapshot: u64,
    pub(super) created_at: Timestamp,
    pub(super) ledger_id: String,
}

/// The line of an event.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventLine {
    pub(super) unpublished_event: CloudEvent,
}

/// The last line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct End {
    pub(super) end: bool,
    pub(super) tasks: u64,
    pub(super) sha256: String,
}

/// Any line but the first.
pub(super) enum Line {
    Task(Box<Task>),
    Event(Box<CloudEvent>),
    End(End),
}

/// Whether a file that begins so may be a snapshot. `text` may be less than the first line.
pub(super) fn may_begin_with(text: &[u8]) -> bool {
    text.starts_with(BEGINNING) || BEGINNING.starts_with(text)
}

/// Says why a file that begins so is not a snapshot.
pub(super) fn not_a_snapshot(text: &[u8]) -> Wrong {
    let what = if text.is_empty() {
        "the file is empty"
    } else if text.starts_with(b"SQLite format 3\0") {
        "this is a database, not a snapshot of one"
    } else if text.starts_with(b"\xef\xbb\xbf") {
        "the file begins with a byte order mark, which no snapshot has"
    } else if text.contains(&0) {
        NUL_BYTES
    } else {
        "the file does not begin as a snapshot does"
    };
    Wrong::new(DamageKind::NotASnapshot, what)
}

pub(super) fn nul_bytes() -> Wrong {
    Wrong::altered(NUL_BYTES)
}

const NUL_BYTES: &str =
    "the line holds NUL bytes, as in a file that a crash has kept from the disk";

/// Reads the first line.
pub(super) fn decode_head(text: &[u8]) -> Result<Head, Wrong> {
    if !may_begin_with(text) {
        return Err(not_a_snapshot(text));
    }
    let json = parse(text)?;
    let version = match member(&json, "tasklatch_snapshot") {
        Some(Json::Number(version)) => version.parse::<u64>().ok(),
        _ => None,
    };
    match version {
        Some(FORMAT_VERSION) => {}
        Some(newer) if newer > FORMAT_VERSION => {
            let what = format!(
                "the snapshot has format {newer}; this version of tasklatch knows up to format {FORMAT_VERSION}"
            );
            return Err(Wrong::new(DamageKind::Newer, what));
        }
        _ => {
            return Err(Wrong::altered(
                "tasklatch_snapshot is not the number of a format",
            ));
        }
    }
    let head: Head = exactly(text)?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if !(1..=64).contains(&head.ledger_id.len()) || !head.ledger_id.bytes().all(plain) {
        return Err(Wrong::altered("ledger_id is not the identity of a ledger"));
    }
    Ok(head)
}

/// Reads any line but the first. Unless it is `checked`, it must be written exactly as the service writes it.
pub(super) fn decode(text: &[u8], checked: bool) -> Result<Line, Wrong> {
    if text.starts_with(br#"{"task_id":"#) {
        let task = if checked {
            loosely(text)
        } else {
            exactly(text)
        };
        return task.map(|task| Line::Task(Box::new(task)));
    }
    if text.starts_with(br#"{"unpublished_event":"#) {
        let line: EventLine = exactly(text)?;
        return Ok(Line::Event(Box::new(line.unpublished_event)));
    }
    if text.starts_with(br#"{"end":"#) {
        let end: End = exactly(text)?;
        return match end.end {
            true => Ok(Line::End(end)),
            false => Err(Wrong::altered("end is not true")),
        };
    }
    parse(text)?;
    Err(Wrong::altered(if text.starts_with(BEGINNING) {
        "a second snapshot begins here; one file holds one"
    } else {
        "the line is neither a task, nor an unpublished event, nor the end, as tasklatch writes them"
    }))
}

fn parse(text: &[u8]) -> Result<Json, Wrong> {
    if text.is_empty() {
        return Err(Wrong::altered("the line is empty"));
    }
    if text.contains(&0) {
        return Err(nul_bytes());
    }
    if text.ends_with(b"\r") {
        return Err(Wrong::altered(
            "the line ends in CR LF, as after a copy that was not binary",
        ));
    }
    content::parse(text, MAX_LEVELS).map_err(|error| {
        let pointer = error
            .pointer
            .map_or(String::new(), |pointer| format!(", in {pointer}"));
        Wrong::altered(format!("{}{pointer}", error.message))
    })
}

fn member<'j>(json: &'j Json, name: &str) -> Option<&'j Json> {
    let Json::Object(members) = json else {
        return None;
    };
    members
        .iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value)
}

/// The value of a line that is written exactly as the service writes it: all keys once and in their order, in one
/// spelling. JSON inside it is taken as it stands, and is for the caller to check.
fn exactly<T: DeserializeOwned + Serialize>(text: &[u8]) -> Result<T, Wrong> {
    let value = loosely(text)?;
    let written = serde_json::to_vec(&value).map_err(|error| not_understood(&error))?;
    if text == written {
        return Ok(value);
    }
    // The strict reading tells more of what is wrong, if it finds anything.
    parse(text)?;
    let at = text
        .iter()
        .zip(&written)
        .take_while(|(a, b)| a == b)
        .count();
    Err(Wrong::altered(format!(
        "the line is not as tasklatch writes it, from byte {at} of the line on"
    )))
}

fn loosely<T: DeserializeOwned>(text: &[u8]) -> Result<T, Wrong> {
    serde_json::from_slice(text).map_err(|error| match parse(text) {
        Err(wrong) => wrong,
        Ok(_) => not_understood(&error),
    })
}

fn not_understood(error: &serde_json::Error) -> Wrong {
    let message = error.to_string();
    // It counts lines in the text that it was given, which is one line.
    let message = message
        .rsplit_once(" at line ")
        .map_or(message.as_str(), |(what, _)| what);
    Wrong::altered(format!("{message}, at byte {} of the line", error.column()))
}
