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

#[rustfmt::skip]
const OTHER_SPELLINGS: &[Edit] = &[
    ("submitted", r#""pane_id":null,"#, "", "not as tasklatch writes it"),
    ("submitted", r#""pane_id":null,"#, r#""pane_id": null,"#, "not as tasklatch writes it"),
    ("submitted", r#""pane_id":null,"#, r#""pane_id":null,"colour":1,"#, "unknown field `colour`"),
    ("submitted", r#""revision":1"#, r#""revision":1.0"#, "invalid type: floating point"),
    ("submitted", r#""revision":1"#, r#""revision":1,"revision":1"#, "appears twice"),
    ("submitted", r#"00:01.000000Z","updated"#, r#"00:01Z","updated"#, "not as tasklatch writes it"),
    ("submitted", r#"07:00:01.000000Z","updated"#, r#"08:00:01.000000+01:00","updated"#, "not as tasklatch writes it"),
    ("submitted", r#""title":"Do"#, r#""title":"\u0044o"#, "not as tasklatch writes it"),
    ("submitted", r#""title":"Do"#, r#""title":"\ud800Do"#, "lone surrogate"),
    ("submitted", r#""lifecycle":"submitted""#, r#""lifecycle":"Submitted""#, "unknown variant"),
    ("submitted", "}", "} ", "not as tasklatch writes it"),
    ("submitted", "}", "}{}", "more text after the value"),
    ("submitted", "{", " {", "as tasklatch writes them"),
    ("completed", r#""evidence":{"z""#, r#""evidence":{ "z""#, "evidence is not as tasklatch writes it"),
    ("completed", r#""evidence":{"z""#, r#""evidence":{"\u007a""#, "evidence is not as tasklatch writes it"),
    ("completed", r#""d":6"#, r#""z":6"#, "appears twice"),
    ("completed", r#""metadata":{"b":1.0,"#, r#""metadata":{"b":1.0, "#, "metadata is not as tasklatch writes it"),
];

#[tokio::test]
async fn a_task_line_in_any_other_spelling_is_refused() {
    let given = Given::new().await;
    for (task, from, to, part) in OTHER_SPELLINGS {
        given.refused_task(task, from, to, part).await;
    }
}

/// A task, what of it is replaced, by what, and what is said of it.
type Edit = (&'static str, &'static str, &'static str, &'static str);

#[rustfmt::skip]
const AGAINST_A_RULE: &[Edit] = &[
    ("submitted", r#""submitted","pane"#, r#""sub.mitted","pane"#, "task_id holds more than"),
    ("submitted", r#""submitted","pane"#, r#""","pane"#, "task_id has 0 bytes"),
    ("submitted", r#""pane_id":null"#, r#""pane_id":"""#, "pane_id has 0 characters"),
    ("submitted", r#""pane_id":null"#, r#""pane_id":"a\tb""#, "control character"),
    ("submitted", r#""metadata":null"#, r#""metadata":[]"#, "metadata is not an object"),
    ("submitted", r#""reason":null"#, r#""reason":"x""#, "not canceled"),
    ("submitted", r#""revision":1"#, r#""revision":0"#, "takes"),
    ("submitted", r#""revision":1"#, r#""revision":2"#, "takes"),
    ("working", r#""revision":2"#, r#""revision":3"#, "takes"),
    ("failed", r#""revision":4"#, r#""revision":9223372036854775807"#, "takes"),
    ("submitted", r#""lifecycle":"submitted""#, r#""lifecycle":"completed""#, "there is no result"),
    ("working", r#""revision":2"#, r#""revision":1"#, "takes"),
    ("completed", r#""status":"completed""#, r#""status":"failed""#, "the result's status is failed"),
    ("completed", r#""lifecycle":"completed""#, r#""lifecycle":"working""#, "the result's status"),
    ("completed", r#""summary":"done\u0000 twice""#, r#""summary":" \n""#, "blank"),
    ("completed", r#""artifacts":["#, r#""artifacts":["","#, "artifacts/0: an artifact has 0 bytes"),
    ("deep", r#""evidence":{"a":["#, r#""evidence":{"a":[0,["#, "not JSON"),
    ("failed", r#""reviewed_at":"2026-11-30T07:00:02"#, r#""reviewed_at":"2026-11-30T07:00:00"#, "reviewed_at"),
    ("failed", r#""reported_at":"2026-11-30T07:00:02"#, r#""reported_at":"2026-11-30T07:00:00"#, "reported_at"),
    ("failed", r#""revision":4"#, r#""revision":2"#, "takes"),
    ("expired", r#""deadline":"2026-11-30T07:01:00.000000Z""#, r#""deadline":null"#, "no deadline had come"),
    ("expired", r#""deadline":"2026"#, r#""deadline":"2027"#, "no deadline had come"),
    ("expired", r#""deadline":"2026"#, r#""deadline":"2025"#, "deadline is not after"),
    ("expired", r#""updated_at":"2026"#, r#""updated_at":"2025"#, "updated_at is before"),
    ("canceled", r#""disposition":null"#, APPROVED, "without a result"),
];

const APPROVED: &str = r#""disposition":{"verdict":"approved","note":null,"reviewer":null,"reviewed_at":"2026-11-30T07:00:02.000000Z"}"#;

#[tokio::test]
async fn a_task_that_breaks_a_rule_is_refused() {
    let given = Given::new().await;
    for (task, from, to, part) in AGAINST_A_RULE {
        given.refused_task(task, from, to, part).await;
    }
}

#[tokio::test]
async fn a_task_over_a_limit_is_refused() {
    let given = Given::new().await;
    let long = |field: &str, bytes: usize| format!("\"{field}\":\"{}", "x".repeat(bytes));
    let deep = format!(
        "\"evidence\":{{\"b\":{}1{},",
        r#"{"a":"#.repeat(65),
        "}".repeat(65)
    );
    let large = format!("\"evidence\":{{{}\",", long("x", 262_144));
    for (task, from, to, part) in [
        (
            "submitted",
            "\"title\":\"",
            long("title", 1024),
            "title has",
        ),
        (
            "failed",
            "\"note\":\"",
            long("note", 16_385),
            "note has 16385",
        ),
        ("completed", "\"evidence\":{", large, "evidence has"),
        ("deep", "\"evidence\":{", deep, "levels"),
    ] {
        given.refused_task(task, from, &to, part).await;
    }
}

/// An event, and the same.
#[rustfmt::skip]
const UNFIT: &[Edit] = &[
    ("twice.1.task", r#""specversion":"1.0""#, r#""specversion":"1.1""#, "specversion is not what"),
    ("twice.1.task", "twice.1.task", "twice.1.tusk", "id is not what"),
    ("twice.1.task", r#""tasklatch/"#, r#""tasklatch/0"#, "source is not what"),
    ("twice.1.task", r#""time":"2026"#, r#""time":"2027"#, "time is not what"),
    ("twice.1.task", r#""subject":"twice""#, r#""subject":"quiet""#, "subject is not what"),
    ("twice.1.task", "application/json", "text/json", "datacontenttype is not what"),
    ("twice.1.task", "tasklatch.task.updated", "tasklatch.result.accepted", "does not follow"),
    ("twice.1.task", "tasklatch.task.updated", "tasklatch.task.gone", "unknown variant"),
    ("twice.1.task", r#""data":{"#, r#""data":{"x":1,"#, "is not a task"),
    ("twice.1.task", r#""data":{"#, r#""data":{ "#, "data is not what"),
    ("twice.1.task", r#"{"task_id":"twice""#, r#"{"task_id":"other""#, "which is not in the snapshot"),
    ("twice.1.task", r#"{"task_id":"twice""#, r#"{"task_id":"quiet""#, "is not what"),
    ("twice.1.task", r#""title":"Do"#, r#""title":"To"#, "data is not what"),
    ("twice.1.task", r#""revision":1"#, r#""revision":9"#, "takes"),
    ("twice.1.task", r#""revision":1"#, r#""revision":0"#, "takes"),
    ("twice.2.task", r#""lifecycle":"working""#, r#""lifecycle":"expired""#, "no deadline had come"),
    ("twice.3.result", r#""summary":"ok""#, r#""summary":"no""#, "data is not what"),
    ("twice.3.result", r#""evidence":{"z""#, r#""evidence":{ "z""#, "data is not what"),
    ("twice.3.task", r#""summary":"ok""#, r#""summary":"no""#, "data is not what"),
    ("twice.4.task", r#""note":"good""#, r#""note":"bad""#, "cannot have come from"),
];

#[tokio::test]
async fn an_unpublished_event_that_does_not_fit_its_task_is_refused() {
    let given = Given::new().await;
    for (event, from, to, part) in UNFIT {
        let damage = given.refused_edit(event, from, to).await;
        assert_eq!(damage.kind, DamageKind::Altered, "{damage}");
        assert!(damage.what.contains(part), "{event} {to}: {damage}");
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
