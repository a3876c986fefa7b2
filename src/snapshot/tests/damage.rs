//! Files that are not good, and that nothing is made or changed because of them.

use std::path::{Path, PathBuf};

use super::ledgers::*;
use super::restore_from;
use crate::snapshot::*;

/// A good file and a folder for what is made of it.
pub(super) struct Given {
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Given {
    pub(super) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = tempfile::tempdir().unwrap();
        let database = various_ledger(source.path()).await;
        let mut bytes = Vec::new();
        save_to(&database, &mut bytes, at(900), &mut go_on)
            .await
            .unwrap();
        Self { folder, bytes }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes.clone()).unwrap()
    }

    /// The lines without the end.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.text().lines().map(str::to_owned).collect();
        lines.pop();
        lines
    }

    pub(super) fn write(&self, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join("snapshot.jsonl");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Tries to restore these bytes, and gives what is wrong with them, having seen that nothing was made.
    pub(super) async fn refused(&self, bytes: &[u8]) -> Damage {
        let file = self.write(bytes);
        let error =
            match restore_from(&file, &self.folder.path().join("new.db"), Pending::Publish).await {
                Ok(restored) => panic!(
                    "restored {restored:?} from {:?}",
                    String::from_utf8_lossy(bytes)
                ),
                Err(error) => error,
            };
        assert_eq!(names_in(self.folder.path()), ["snapshot.jsonl"]);
        let SnapshotError::BadFile(damage) = error else {
            panic!("{error}")
        };
        let shown = damage.to_string();
        assert!(
            shown.starts_with(&format!("{}: line {}", file.display(), damage.place.line)),
            "{shown}"
        );
        assert!(damage.place.offset <= bytes.len() as u64, "{shown}");
        let before = &bytes[..damage.place.offset as usize];
        assert_eq!(
            before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1,
            damage.place.line,
            "{shown}"
        );
        damage
    }

    /// The same for an edited line and an end that fits it.
    pub(super) async fn refused_edit(&self, line: &str, from: &str, to: &str) -> Damage {
        let mut lines = self.lines();
        let at = lines
            .iter()
            .position(|text| text.contains(line))
            .unwrap_or_else(|| panic!("no {line}"));
        assert!(lines[at].contains(from), "{from} is not in {}", lines[at]);
        lines[at] = lines[at].replacen(from, to, 1);
        let damage = self.refused(sealed(&lines).as_bytes()).await;
        assert_eq!(damage.place.line, at as u64 + 1, "{damage}");
        damage
    }

    /// The same for a line of a task, with a part of what is said of it.
    pub(super) async fn refused_task(&self, task: &str, from: &str, to: &str, part: &str) {
        let line = format!("{{\"task_id\":\"{task}\"");
        let damage = self.refused_edit(&line, from, to).await;
        assert_eq!(damage.kind, DamageKind::Altered, "{damage}");
        assert!(damage.what.contains(part), "{to}: {damage}");
    }
}

#[tokio::test]
async fn a_file_that_is_cut_short_anywhere_is_refused() {
    let given = Given::new().await;
    let ends: Vec<usize> = (0..given.bytes.len())
        .filter(|&at| given.bytes[at] == b'\n')
        .collect();
    let mut cuts: Vec<usize> = (0..given.bytes.len()).step_by(397).collect();
    cuts.extend(
        ends.iter()
            .flat_map(|&end| [end, end + 1])
            .filter(|&at| at < given.bytes.len()),
    );
    cuts.extend((given.bytes.len() - 30..given.bytes.len()).step_by(7));
    for cut in cuts {
        let damage = given.refused(&given.bytes[..cut]).await;
        let expected = if cut == 0 {
            DamageKind::NotASnapshot
        } else {
            DamageKind::CutShort
        };
        assert_eq!(damage.kind, expected, "at {cut}: {damage}");
    }
}

#[tokio::test]
async fn a_changed_byte_anywhere_is_refused() {
    let given = Given::new().await;
    for at in (0..given.bytes.len())
        .step_by(809)
        .chain([given.bytes.len() - 10, given.bytes.len() - 1])
    {
        for other in [b'x', b' ', b'\n', 0, 0xff, given.bytes[at] ^ 1] {
            let mut bytes = given.bytes.clone();
            bytes[at] = other;
            if bytes != given.bytes {
                given.refused(&bytes).await;
            }
        }
    }
}

#[tokio::test]
async fn what_is_no_snapshot_is_told_apart() {
    let given = Given::new().await;
    let mut with_mark = b"\xef\xbb\xbf".to_vec();
    with_mark.extend_from_slice(&given.bytes);
    let long = vec![b'x'; LINE_BYTES_MAX * 2];
    for (bytes, part) in [
        (Vec::new(), "the file is empty"),
        (vec![0; 4096], "NUL bytes"),
        (vec![0; LINE_BYTES_MAX + 4096], "NUL bytes"),
        (with_mark, "byte order mark"),
        (b"SQLite format 3\0\x10\0".to_vec(), "this is a database"),
        (b"hello\nworld\n".to_vec(), "does not begin as a snapshot"),
        (
            b"{\"task_id\":\"x\"}\n".to_vec(),
            "does not begin as a snapshot",
        ),
        (long, "does not begin as a snapshot"),
    ] {
        let damage = given.refused(&bytes).await;
        assert_eq!(damage.kind, DamageKind::NotASnapshot, "{damage}");
        assert!(damage.what.contains(part), "{damage}");
    }
}

#[tokio::test]
async fn a_snapshot_of_a_newer_format_says_so_whatever_else_is_in_it() {
    let given = Given::new().await;
    let head = r#"{"tasklatch_snapshot":2,"made_at":"tomorrow"}"#;
    let damage = given.refused(format!("{head}\n[]\n").as_bytes()).await;
    assert_eq!(damage.kind, DamageKind::Newer);
    assert_eq!(
        damage.what,
        "the snapshot has format 2; this version of tasklatch knows up to format 1"
    );
    for version in ["0", "-1", "1.0", "\"1\"", "null", "1e400"] {
        let text = given
            .text()
            .replacen(r#"shot":1,"#, &format!(r#"shot":{version},"#), 1);
        assert_eq!(
            given.refused(text.as_bytes()).await.kind,
            DamageKind::Altered,
            "{version}"
        );
    }
}

#[tokio::test]
async fn a_line_over_the_limit_is_refused_without_being_read_whole() {
    let given = Given::new().await;
    let mut bytes = given.bytes.clone();
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    bytes.splice(
        end..end,
        std::iter::repeat_n(b' ', LINE_BYTES_MAX + 1).chain([b'\n']),
    );
    let damage = given.refused(&bytes).await;
    assert_eq!((damage.kind, damage.place.line), (DamageKind::Altered, 2));
    assert!(
        damage.what.contains("longer than 2097152 bytes"),
        "{damage}"
    );
    bytes.remove(end);
    assert!(!given.refused(&bytes).await.what.contains("longer"));
}

#[tokio::test]
async fn lines_that_are_missing_doubled_swapped_or_added_are_refused() {
    let given = Given::new().await;
    let text = given.text();
    let lines: Vec<&str> = text.lines().collect();
    let joined = |lines: &[&str]| {
        lines
            .iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    for at in 0..lines.len() {
        let mut fewer = lines.clone();
        fewer.remove(at);
        given.refused(joined(&fewer).as_bytes()).await;
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at]);
        given.refused(joined(&doubled).as_bytes()).await;
        let mut swapped = lines.clone();
        swapped.swap(at, at.saturating_sub(1));
        if at > 0 {
            given.refused(joined(&swapped).as_bytes()).await;
        }
    }
    for added in [
        "",
        "{}",
        "null",
        r#"{"end":false}"#,
        r#"{"end":true,"tasks":0,"sha256":""}"#,
    ] {
        for at in [0, 1, 5, 15, lines.len()] {
            let mut more = lines.clone();
            more.insert(at, added);
            given.refused(joined(&more).as_bytes()).await;
        }
    }
    given.refused(format!("{text}{text}").as_bytes()).await;
    given.refused(format!("{text} ").as_bytes()).await;
    let windows = given.refused(text.replace('\n', "\r\n").as_bytes()).await;
    assert!(windows.what.contains("CR LF"), "{windows}");
}

#[tokio::test]
async fn the_end_must_count_the_tasks_and_sum_the_lines() {
    let given = Given::new().await;
    let text = given.text();
    for (from, to, part) in [
        (
            "\"tasks\":10",
            "\"tasks\":11",
            "the end says 11 tasks, but there are 10",
        ),
        ("\"sha256\":\"", "\"sha256\":\"0", "the checksum is not"),
        ("\"end\":true", "\"end\":false", "end is not true"),
        ("Do working", "Do nothing", "the checksum is not"),
    ] {
        let damage = given.refused(text.replacen(from, to, 1).as_bytes()).await;
        assert!(damage.what.contains(part), "{damage}");
        assert_eq!(damage.place.line, 19, "{damage}");
    }
    let empty = Path::new("/dev/null");
    let error = restore_from(empty, &given.folder.path().join("new.db"), Pending::Drop)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("the file is empty"), "{error}");
}
