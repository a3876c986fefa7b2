//! What is sent and stored: the same task, report, answer and events for every design, in the sizes of real ones.

use tasklatch::content::JsonText;
use tasklatch::task::{Lifecycle, Status, Task, TaskResult, Timestamp};

use crate::failure::{During, Failure, Result};

/// How long a task ID is: a UUID.
pub const TASK_ID_BYTES: usize = 36;

/// The usual size of a report's payload.
pub const REPORT_BYTES: usize = 600;

/// The task that makes the usual answer 900 bytes long.
const TITLE: &str = "Make the login test reliable";
const METADATA: &str = r#"{"repo":"web"}"#;

const SUMMARY: &str = "The test read the clock twice and compared the two. It reads it once now, and passed 2000 runs in a row.";
const OTHER_SUMMARY: &str = "The test read the clock twice and compared the two. It reads it once now, and failed 2 of 2000 runs after.";
const ARTIFACTS: &str = r#"["branch:fix/login-clock","pr:118"]"#;

/// Where the ID goes in a text; no other part of a payload holds this character.
const ID_PLACE: &str = "\u{1}";

/// The moment of the first task, in milliseconds and in microseconds since 1970.
const FIRST_MILLIS: u64 = 1_782_000_000_000;
const FIRST_MICROS: i64 = 1_782_000_000_000_000;

/// The ID of a task: a UUIDv7 by its form, later ones greater, as of tasks that were made one after the other.
pub fn task_id(index: u64) -> [u8; TASK_ID_BYTES] {
    let random = mix(index);
    let value = (u128::from(FIRST_MILLIS + index) << 80)
        | (0x7 << 76)
        | (u128::from(random >> 52) << 64)
        | (0x8 << 60)
        | u128::from(random & 0x0fff_ffff_ffff_ffff);
    let mut text = [b'-'; TASK_ID_BYTES];
    let mut nibbles = (0..32)
        .rev()
        .map(|place| (value >> (4 * place)) as usize & 0xf);
    for (at, byte) in text.iter_mut().enumerate() {
        if !matches!(at, 8 | 13 | 18 | 23) {
            *byte = nibbles
                .next()
                .map_or(b'0', |nibble| b"0123456789abcdef"[nibble]);
        }
    }
    text
}

/// The ID of a task as text.
pub fn task_id_text(index: u64) -> String {
    task_id(index)
        .iter()
        .map(|&byte| char::from(byte))
        .collect()
}

/// Scatters a number over all bits (SplitMix64).
pub fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A payload in which only the task ID varies.
pub struct Template {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Template {
    fn of(text: &str) -> Self {
        // Every text below has the place in it; one without would be sent without an ID, and refused.
        let (before, after) = text.split_once(ID_PLACE).unwrap_or((text, ""));
        Self {
            before: before.into(),
            after: after.into(),
        }
    }

    /// The payload that creates a task.
    pub fn create() -> Self {
        Self::of(&format!(
            r#"{{"task_id":"{ID_PLACE}","title":"{TITLE}","metadata":{METADATA}}}"#
        ))
    }

    /// The report of a task, in this many bytes.
    ///
    /// # Errors
    /// If that is too few.
    pub fn report(bytes: usize) -> Result<Self> {
        report_with(SUMMARY, bytes).map(|text| Self::of(&text))
    }

    /// Another report for the same task.
    ///
    /// # Errors
    /// If `bytes` is too few.
    pub fn conflicting_report(bytes: usize) -> Result<Self> {
        report_with(OTHER_SUMMARY, bytes).map(|text| Self::of(&text))
    }

    /// How long the payload is.
    pub fn len(&self) -> usize {
        self.before.len() + TASK_ID_BYTES + self.after.len()
    }

    /// Writes the payload for a task.
    pub fn write(&self, task: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.before);
        out.extend_from_slice(&task_id(task));
        out.extend_from_slice(&self.after);
    }
}

fn report_with(summary: &str, bytes: usize) -> Result<String> {
    let with = |log: &str| {
        let evidence = evidence(log);
        format!(
            r#"{{"task_id":"{ID_PLACE}","status":"completed","summary":"{summary}","artifacts":{ARTIFACTS},"evidence":{evidence}}}"#
        )
    };
    let rest = bytes.checked_sub(with("").len() - ID_PLACE.len() + TASK_ID_BYTES);
    let log = rest.and_then(log_lines);
    log.map(|log| with(&log))
        .ok_or_else(|| Failure::new(format!("no report has {bytes} bytes; ask for 500 or more")))
}

fn evidence(log: &str) -> String {
    format!(
        r#"{{"tests":{{"passed":214,"failed":0,"skipped":3}},"seconds":12.50,"commit":"4f0c5d2e9b7a41d3a86e1f07c2b95d6ea8130f42","log":[{log}]}}"#
    )
}

/// Lines of a log as items of a JSON array, this many bytes of them.
fn log_lines(bytes: usize) -> Option<String> {
    const LINE: &str =
        r#""running tests/login.rs: reads_the_clock_once_per_session ... ok in 0.03 s""#;
    const SHORTEST: usize = r#""x""#.len();
    let mut log = String::with_capacity(bytes);
    while bytes - log.len() > LINE.len() + SHORTEST + 1 {
        log.push_str(LINE);
        log.push(',');
    }
    let filler = (bytes - log.len()).checked_sub(2)?;
    log.push('"');
    log.extend(std::iter::repeat_n('.', filler));
    log.push('"');
    Some(log)
}

/// Tasks as they are stored.
pub struct StoredTasks(Task);

impl StoredTasks {
    /// Open tasks, or those with the result of a report of this size.
    ///
    /// # Errors
    /// If that is too few bytes.
    pub fn new(report_bytes: Option<usize>) -> Result<Self> {
        let created_at = time(0)?;
        let mut task = Task {
            task_id: task_id_text(0),
            pane_id: None,
            title: TITLE.to_owned(),
            lifecycle: Lifecycle::Submitted,
            metadata: Some(json(METADATA)?),
            deadline: None,
            reason: None,
            result: None,
            disposition: None,
            revision: 1,
            created_at,
            updated_at: created_at,
        };
        if let Some(bytes) = report_bytes {
            task.accept(result(bytes, created_at)?, created_at);
        }
        Ok(Self(task))
    }

    /// One of them.
    ///
    /// # Errors
    /// If the index is beyond all times.
    pub fn at(&self, index: u64) -> Result<Task> {
        let created_at = time(index)?;
        let mut task = self.0.clone();
        task.task_id = task_id_text(index);
        task.created_at = created_at;
        task.updated_at = created_at;
        if let Some(result) = &mut task.result {
            result.reported_at = created_at;
        }
        Ok(task)
    }
}

/// The result that the report of `bytes` becomes.
fn result(bytes: usize, reported_at: Timestamp) -> Result<TaskResult> {
    #[derive(serde::Deserialize)]
    struct Parts {
        summary: String,
        artifacts: Vec<String>,
        evidence: JsonText,
    }
    let report = report_with(SUMMARY, bytes)?.replace(ID_PLACE, &task_id_text(0));
    let parts: Parts = serde_json::from_str(&report).during("read the report of the benchmark")?;
    Ok(TaskResult {
        status: Status::Completed,
        summary: parts.summary,
        artifacts: parts.artifacts,
        evidence: parts.evidence,
        reported_at,
    })
}

fn json(text: &str) -> Result<JsonText> {
    JsonText::from_stored(text.to_owned()).during("read JSON of the benchmark")
}

fn time(index: u64) -> Result<Timestamp> {
    i64::try_from(index)
        .ok()
        .and_then(|index| Timestamp::from_micros(FIRST_MICROS + 1000 * index))
        .ok_or_else(|| Failure::new(format!("there is no time for a task number {index}")))
}

/// The answer to an accepted report of the usual size, which designs that store nothing send for all.
///
/// # Errors
/// None that could happen: the content is fixed.
pub fn answer() -> Result<Vec<u8>> {
    let tasks = StoredTasks::new(Some(REPORT_BYTES))?;
    serde_json::to_vec(&tasks.at(0)?).during("write a task as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(template: &Template, task: u64) -> Vec<u8> {
        let mut out = Vec::new();
        template.write(task, &mut out);
        assert_eq!(out.len(), template.len());
        out
    }

    #[test]
    fn a_report_has_the_size_asked_for_and_is_json() {
        for bytes in [500, 600, 601, 700, 16 * 1024, 256 * 1024] {
            for template in [Template::report(bytes), Template::conflicting_report(bytes)] {
                let payload = payload(&template.unwrap(), 7);
                assert_eq!(payload.len(), bytes);
                let report: serde_json::Value = serde_json::from_slice(&payload).unwrap();
                assert_eq!(report["task_id"], task_id_text(7));
            }
        }
        assert!(Template::report(100).is_err());
    }

    #[test]
    fn the_answer_has_900_bytes() {
        let answer = answer().unwrap();
        assert!(
            (890..=910).contains(&answer.len()),
            "{} bytes",
            answer.len()
        );
    }

    #[test]
    fn task_ids_are_uuids_in_the_order_of_their_tasks() {
        let mut last = String::new();
        for index in [0, 1, 2, 999, 1000, 5_000_000] {
            let id = task_id_text(index);
            assert_eq!(uuid::Uuid::parse_str(&id).unwrap().get_version_num(), 7);
            assert!(id > last);
            last = id;
        }
    }
}
