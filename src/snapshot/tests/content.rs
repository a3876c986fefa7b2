//! Lines that say what no service would have written, in files that are whole and have the right checksum.

use super::damage::Given;
use super::ledgers::*;
use crate::snapshot::*;

#[tokio::test]
async fn a_task_that_comes_twice_is_refused_at_its_second_line_within_a_batch_and_across_batches() {
    let given = Given::new().await;
    let head = given.lines().remove(0);
    for (count, first, again) in [(3, 0, 2), (64, 0, 63), (65, 3, 64), (500, 17, 400)] {
        let mut lines: Vec<String> = (0..count)
            .map(|number| new_task_line(&format!("t{number}")))
            .collect();
        lines[again] = lines[first].replace("\"x\"", "\"y\"");
        lines.insert(0, head.clone());
        let damage = given.refused(sealed(&lines).as_bytes()).await;
        assert_eq!(damage.what, format!("task t{first} is there a second time"));
        assert_eq!(damage.place.line, again as u64 + 2);
    }
}

#[tokio::test]
async fn a_task_line_in_any_other_spelling_is_refused() {
    let given = Given::new().await;
    for (from, to, part) in [
        (r#""pane_id":null,"#, "", "not as tasklatch writes it"),
        (
            r#""pane_id":null,"#,
            r#""pane_id": null,"#,
            "not as tasklatch writes it",
        ),
        (
            r#""pane_id":null,"#,
            r#""pane_id":null,"colour":1,"#,
            "unknown field `colour`",
        ),
        (
            r#""revision":1"#,
            r#""revision":1.0"#,
            "invalid type: floating point",
        ),
        (
            r#""revision":1"#,
            r#""revision":1,"revision":1"#,
            "appears twice",
        ),
        (
            r#"00:01.000000Z","updated"#,
            r#"00:01Z","updated"#,
            "not as tasklatch writes it",
        ),
        (
            r#"07:00:01.000000Z","updated"#,
            r#"08:00:01.000000+01:00","updated"#,
            "not as tasklatch writes it",
        ),
        (
            r#""title":"Do"#,
            r#""title":"\u0044o"#,
            "not as tasklatch writes it",
        ),
        (r#""title":"Do"#, r#""title":"\ud800Do"#, "lone surrogate"),
        (
            r#""lifecycle":"submitted""#,
            r#""lifecycle":"Submitted""#,
            "unknown variant",
        ),
        (r#"}"#, r#"} "#, "not as tasklatch writes it"),
        (r#"}"#, r#"}{}"#, "more text after the value"),
    ] {
        let damage = given
            .refused_edit(r#"{"task_id":"submitted""#, from, to)
            .await;
        assert!(damage.what.contains(part), "{to}: {damage}");
    }
    for (from, to) in [
        (r#""evidence":{"z""#, r#""evidence":{ "z""#),
        (r#""evidence":{"z""#, r#""evidence":{"\u007a""#),
        (r#""d":6"#, r#""z":6"#),
        (r#""metadata":{"b":1.0,"#, r#""metadata":{"b":1.0, "#),
    ] {
        given
            .refused_edit(r#"{"task_id":"completed""#, from, to)
            .await;
    }
}

#[tokio::test]
async fn a_task_that_breaks_a_rule_is_refused() {
    let given = Given::new().await;
    let long = |bytes: usize| "x".repeat(bytes);
    let deep = format!("{}{}", r#"{"a":"#.repeat(65), "1");
    for (task, from, to, part) in [
        (
            "submitted",
            "\"submitted\",\"pane",
            "\"sub.mitted\",\"pane",
            "task_id holds more than",
        ),
        (
            "submitted",
            "\"submitted\",\"pane",
            "\"\",\"pane",
            "task_id has 0 bytes",
        ),
        (
            "submitted",
            "\"pane_id\":null",
            "\"pane_id\":\"\"",
            "pane_id has 0 characters",
        ),
        (
            "submitted",
            "\"pane_id\":null",
            "\"pane_id\":\"a\\tb\"",
            "control character",
        ),
        (
            "submitted",
            "\"metadata\":null",
            "\"metadata\":[]",
            "metadata is not an object",
        ),
        (
            "submitted",
            "\"reason\":null",
            "\"reason\":\"x\"",
            "not canceled",
        ),
        ("submitted", "\"revision\":1", "\"revision\":0", "too low"),
        (
            "submitted",
            "\"title\":\"",
            &format!("\"title\":\"{}", long(1024)),
            "title has",
        ),
        (
            "submitted",
            "\"lifecycle\":\"submitted\"",
            "\"lifecycle\":\"completed\"",
            "there is no result",
        ),
        ("working", "\"revision\":2", "\"revision\":1", "too low"),
        (
            "completed",
            "\"status\":\"completed\"",
            "\"status\":\"failed\"",
            "the result's status is failed",
        ),
        (
            "completed",
            "\"lifecycle\":\"completed\"",
            "\"lifecycle\":\"working\"",
            "the result's status",
        ),
        (
            "completed",
            "\"summary\":\"done\\u0000 twice\"",
            "\"summary\":\" \\n\"",
            "blank",
        ),
        (
            "completed",
            "\"artifacts\":[",
            "\"artifacts\":[\"\",",
            "artifacts/0 has 0 bytes",
        ),
        (
            "completed",
            "\"evidence\":{",
            &format!("\"evidence\":{{\"x\":\"{}\",", long(262_144)),
            "evidence has",
        ),
        (
            "deep",
            "\"evidence\":{\"a\":[",
            "\"evidence\":{\"a\":[0,[",
            "not JSON",
        ),
        (
            "deep",
            "\"evidence\":{",
            &format!("\"evidence\":{{\"b\":{deep}{},", "}".repeat(65)),
            "levels",
        ),
        (
            "failed",
            "\"note\":\"\"",
            &format!("\"note\":\"{}\"", long(16_385)),
            "note has 16385",
        ),
        (
            "failed",
            "\"reviewed_at\":\"2026-11-30T07:00:02",
            "\"reviewed_at\":\"2026-11-30T07:00:00",
            "reviewed_at",
        ),
        ("failed", "\"revision\":4", "\"revision\":2", "too low"),
        (
            "failed",
            "\"reported_at\":\"2026-11-30T07:00:02",
            "\"reported_at\":\"2026-11-30T07:00:00",
            "reported_at",
        ),
        (
            "expired",
            "\"deadline\":\"2026-11-30T07:01:00.000000Z\"",
            "\"deadline\":null",
            "no deadline had come",
        ),
        (
            "expired",
            "\"deadline\":\"2026-11-30T07:01:00",
            "\"deadline\":\"2027-11-30T07:01:00",
            "no deadline had come",
        ),
        (
            "expired",
            "\"deadline\":\"2026-11-30T07:01:00",
            "\"deadline\":\"2025-11-30T07:01:00",
            "deadline is not after",
        ),
        (
            "expired",
            "\"updated_at\":\"2026",
            "\"updated_at\":\"2025",
            "updated_at is before",
        ),
        (
            "canceled",
            "\"disposition\":null",
            APPROVED,
            "without a result",
        ),
    ] {
        let damage = given
            .refused_edit(&format!("{{\"task_id\":\"{task}\""), from, to)
            .await;
        assert_eq!(damage.kind, DamageKind::Altered, "{damage}");
        assert!(damage.what.contains(part), "{to}: {damage}");
    }
}

const APPROVED: &str = r#""disposition":{"verdict":"approved","note":null,"reviewer":null,"reviewed_at":"2026-11-30T07:00:02.000000Z"}"#;

#[tokio::test]
async fn an_unpublished_event_that_does_not_fit_its_task_is_refused() {
    let given = Given::new().await;
    for (event, from, to, part) in [
        (
            "twice.1.task",
            "\"specversion\":\"1.0\"",
            "\"specversion\":\"1.1\"",
            "specversion is not what",
        ),
        (
            "twice.1.task",
            "twice.1.task",
            "twice.1.tusk",
            "id is not what",
        ),
        (
            "twice.1.task",
            "\"tasklatch/",
            "\"tasklatch/0",
            "source is not what",
        ),
        (
            "twice.1.task",
            "\"time\":\"2026",
            "\"time\":\"2027",
            "time is not what",
        ),
        (
            "twice.1.task",
            "\"subject\":\"twice\"",
            "\"subject\":\"quiet\"",
            "subject is not what",
        ),
        (
            "twice.1.task",
            "application/json",
            "text/json",
            "datacontenttype is not what",
        ),
        (
            "twice.1.task",
            "tasklatch.task.updated",
            "tasklatch.result.accepted",
            "does not follow",
        ),
        (
            "twice.1.task",
            "tasklatch.task.updated",
            "tasklatch.task.gone",
            "unknown variant",
        ),
        (
            "twice.1.task",
            "\"data\":{",
            "\"data\":{\"x\":1,",
            "is not a task",
        ),
        (
            "twice.1.task",
            "{\"task_id\":\"twice\"",
            "{\"task_id\":\"other\"",
            "which is not in the snapshot",
        ),
        (
            "twice.1.task",
            "{\"task_id\":\"twice\"",
            "{\"task_id\":\"quiet\"",
            "is not what",
        ),
        (
            "twice.1.task",
            "\"title\":\"Do",
            "\"title\":\"To",
            "data is not what",
        ),
        (
            "twice.1.task",
            "\"revision\":1",
            "\"revision\":9",
            "cannot have come from",
        ),
        (
            "twice.1.task",
            "\"revision\":1",
            "\"revision\":0",
            "too low",
        ),
        (
            "twice.2.task",
            "\"lifecycle\":\"working\"",
            "\"lifecycle\":\"expired\"",
            "no deadline had come",
        ),
        (
            "twice.3.result",
            "\"summary\":\"ok\"",
            "\"summary\":\"no\"",
            "data is not what",
        ),
        (
            "twice.3.task",
            "\"summary\":\"ok\"",
            "\"summary\":\"no\"",
            "data is not what",
        ),
        (
            "twice.4.task",
            "\"note\":\"good\"",
            "\"note\":\"bad\"",
            "cannot have come from",
        ),
    ] {
        let at = given
            .lines()
            .iter()
            .position(|line| line.contains(event))
            .unwrap();
        let mut lines = given.lines();
        assert!(lines[at].contains(from), "{from} is not in {}", lines[at]);
        lines[at] = lines[at].replacen(from, to, 1);
        let damage = given.refused(sealed(&lines).as_bytes()).await;
        assert_eq!(damage.kind, DamageKind::Altered, "{damage}");
        assert!(damage.what.contains(part), "{event} {to}: {damage}");
        assert_eq!(damage.place.line, at as u64 + 1, "{damage}");
    }
}

#[tokio::test]
async fn unpublished_events_out_of_their_order_or_without_their_other_half_are_refused() {
    let given = Given::new().await;
    let place = |event: &str| {
        given
            .lines()
            .iter()
            .position(|line| line.contains(event))
            .unwrap()
    };
    let (first, second) = (place("twice.1.task"), place("twice.2.task"));
    let (result, task) = (place("twice.3.result"), place("twice.3.task"));
    type Edit<'e> = &'e dyn Fn(&mut Vec<String>);
    let edits: [(Edit<'_>, &str); 6] = [
        (
            &|lines| lines.swap(first, second),
            "comes after a later one",
        ),
        (
            &|lines| lines.insert(first, lines[first].clone()),
            "comes after a later one, or twice",
        ),
        (
            &|lines| drop(lines.remove(result)),
            "the event of the result is missing",
        ),
        (
            &|lines| drop(lines.remove(task)),
            "does not follow this result event",
        ),
        (
            &|lines| lines.swap(result, task),
            "the event of the result is missing",
        ),
        (
            &|lines| lines.truncate(result + 1),
            "does not follow this result event",
        ),
    ];
    for (edit, part) in edits {
        let mut lines = given.lines();
        edit(&mut lines);
        let damage = given.refused(sealed(&lines).as_bytes()).await;
        assert!(damage.what.contains(part), "{damage}");
    }
    // Those of other tasks may stand between.
    let mut lines = given.lines();
    let last = lines.len() - 1;
    let (a, b) = (lines.remove(last - 1), lines.remove(last - 1));
    lines.insert(first + 1, b);
    lines.insert(first + 1, a);
    let file = given.write(sealed(&lines).as_bytes());
    verify(&mut SnapshotFile::open(&file).unwrap(), &mut go_on)
        .await
        .unwrap();
}

#[tokio::test]
async fn text_of_the_file_in_a_message_is_cut_where_it_is_long() {
    let given = Given::new().await;
    let to = format!("\"{}\":1,\"pane_id\":null", "k".repeat(100_000));
    let damage = given
        .refused_edit(r#"{"task_id":"submitted""#, r#""pane_id":null"#, &to)
        .await;
    assert!(
        damage.what.len() < 1000 && damage.what.ends_with('…'),
        "{}",
        damage.what.len()
    );
}
