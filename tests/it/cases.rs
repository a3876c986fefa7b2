//! Content that is, or is not, the same; and content that is not understood: the cases of `tests/cases`, and those that
//! people met in the field. Each is sent to the service, again after a crash, and again after a restore.

mod payloads;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::support::{Reply, Stage};

/// Two reports on one task, and whether they have the same content.
struct Pair {
    name: String,
    first: String,
    second: String,
    /// The fields that differ; none if they are the same.
    differs: Vec<String>,
}

/// The lines of a file of cases.
fn lines(file: &str) -> Vec<Value> {
    let path = format!("{}/tests/cases/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!lines.is_empty());
    lines
}

/// A pair whose reports differ in their evidence alone, if at all.
fn of_evidence(first: &str, second: &str, same: bool) -> Pair {
    let report = |evidence: &str| {
        format!(
            r#"{{"task_id":"{{ID}}","status":"completed","summary":"s","evidence":{evidence}}}"#
        )
    };
    Pair {
        name: format!("{first} and {second}"),
        first: report(first),
        second: report(second),
        differs: if same {
            vec![]
        } else {
            vec!["evidence".to_owned()]
        },
    }
}

/// A pair of numbers, in both orders.
fn of_numbers(first: &str, second: &str, same: bool) -> [Pair; 2] {
    let one = |first: &str, second: &str| {
        of_evidence(
            &format!(r#"{{"n":{first}}}"#),
            &format!(r#"{{"n":{second}}}"#),
            same,
        )
    };
    [one(first, second), one(second, first)]
}

/// The tokens of numbers in a JSON text, outside its strings.
fn number_tokens(json: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let (mut in_string, mut escaped, mut token) = (false, false, String::new());
    for c in json.chars().chain([' ']) {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else if c.is_ascii_digit() || "+-.".contains(c) || (!token.is_empty() && "eE".contains(c))
        {
            token.push(c);
        } else {
            in_string = c == '"';
            if !token.is_empty() {
                tokens.push(std::mem::take(&mut token));
            }
        }
    }
    tokens
}

/// The evidence in an answer or a report, as it is written there.
fn evidence_text(report_or_result: &RawValue) -> String {
    #[derive(serde::Deserialize)]
    struct HasEvidence {
        #[serde(default)]
        evidence: Option<Box<RawValue>>,
    }
    let part: HasEvidence = serde_json::from_str(report_or_result.get()).unwrap();
    part.evidence
        .map_or("{}".to_owned(), |evidence| evidence.get().to_owned())
}

fn result_text(task: &[u8]) -> Box<RawValue> {
    #[derive(serde::Deserialize)]
    struct HasResult {
        result: Box<RawValue>,
    }
    serde_json::from_slice::<HasResult>(task).unwrap().result
}

/// Whether an answer is what a pair calls for, given what the first report was answered.
fn check(pair: &Pair, first: &Reply, reply: &Reply) -> Result<(), String> {
    match (reply.outcome(), pair.differs.is_empty()) {
        (Some("replayed"), true) if reply.body == first.body => Ok(()),
        (Some("replayed"), true) => {
            Err("the answer is not the first one, byte for byte".to_owned())
        }
        (None, false) if reply.error()["differs"] == json!(pair.differs) => Ok(()),
        (outcome, _) => Err(format!(
            "outcome {outcome:?}, {}",
            String::from_utf8_lossy(&reply.body)
        )),
    }
}

/// Runs pairs against the service, then again after a crash and after a restore; and gives what went wrong, by name.
async fn run_pairs(pairs: &[Pair]) -> Vec<String> {
    let mut stage = Stage::set().await;
    let mut wrong = Vec::new();
    let mut firsts = Vec::new();
    let mut observer = stage.observer().await;
    for (number, pair) in pairs.iter().enumerate() {
        let task_id = format!("case-{number}");
        stage.worker.create(&task_id).await;
        let report = pair.first.replace("{ID}", &task_id);
        let first = stage
            .worker
            .ask_bytes("tasklatch.report", report.clone())
            .await;
        if first.outcome() == Some("accepted") {
            let sent = evidence_text(&serde_json::from_str::<Box<RawValue>>(&report).unwrap());
            let answered = evidence_text(&result_text(&first.body));
            if number_tokens(&sent) != number_tokens(&answered) {
                wrong.push(format!("{}: {sent} was answered as {answered}", pair.name));
            }
        } else {
            wrong.push(format!(
                "{}: the first was not accepted: {:?}",
                pair.name,
                first.json()
            ));
        }
        firsts.push(first);
    }
    for round in ["at once", "after a crash", "after a restore"] {
        match round {
            "after a crash" => stage.crash_and_restart().await,
            "after a restore" => stage.move_to_a_restored_ledger().await,
            _ => {}
        }
        // A crash may have events published once more.
        observer.all_so_far().await;
        for (number, (pair, first)) in pairs.iter().zip(&firsts).enumerate() {
            let task_id = format!("case-{number}");
            for (which, text, same) in [
                ("second", &pair.second, false),
                ("first again", &pair.first, true),
            ] {
                let reply = stage
                    .worker
                    .ask_bytes("tasklatch.report", text.replace("{ID}", &task_id))
                    .await;
                let equal = Pair {
                    name: String::new(),
                    first: String::new(),
                    second: String::new(),
                    differs: vec![],
                };
                if let Err(why) = check(if same { &equal } else { pair }, first, &reply) {
                    wrong.push(format!("{} ({round}, {which}): {why}", pair.name));
                }
            }
            if stage.worker.get(&task_id).await.body != first.body {
                wrong.push(format!("{} ({round}): the task has changed", pair.name));
            }
        }
        let events = observer.ids_so_far().await;
        if !events.is_empty() {
            wrong.push(format!("{round}: events {events:?}"));
        }
    }
    wrong
}

async fn assert_pairs(pairs: Vec<Pair>) {
    let wrong = run_pairs(&pairs).await;
    assert!(
        wrong.is_empty(),
        "{} of {} cases:\n{}",
        wrong.len(),
        pairs.len(),
        wrong.join("\n")
    );
}

#[tokio::test]
async fn each_case_of_same_content_is_judged_right_and_answered_in_its_first_spelling_at_once_after_a_crash_and_a_restore()
 {
    let text = |case: &Value, key: &str| case[key].as_str().unwrap().to_owned();
    let pair = |case: &Value| Pair {
        name: text(case, "name"),
        first: text(case, "first"),
        second: text(case, "second"),
        differs: match &case["differs"] {
            Value::Null => vec![],
            differs => serde_json::from_value(differs.clone()).unwrap(),
        },
    };
    let cases = lines("same-content.jsonl");
    for case in &cases {
        assert_eq!(case["same"], case["differs"].is_null(), "{case}");
    }
    assert_pairs(cases.iter().map(pair).collect()).await;
}

/// The payload of a case, with `{ID}` standing for a task's ID, also inside what is given in base 64.
fn payload(case: &Value, task_id: &str) -> Vec<u8> {
    if let Some(text) = case["payload"].as_str() {
        return text.replace("{ID}", task_id).into_bytes();
    }
    let bytes = base64(case["payload_base64"].as_str().unwrap());
    let mut replaced = Vec::new();
    let mut rest = &bytes[..];
    while let Some(at) = rest.windows(4).position(|window| window == b"{ID}") {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(task_id.as_bytes());
        rest = &rest[at + 4..];
    }
    replaced.extend_from_slice(rest);
    replaced
}

fn base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.trim_end_matches('=').bytes().map(|byte| {
        u32::try_from(
            ALPHABET
                .iter()
                .position(|&digit| digit == byte)
                .expect("base 64"),
        )
        .unwrap()
    });
    let digits: Vec<u32> = digits.collect();
    let mut bytes = Vec::new();
    for group in digits.chunks(4) {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - group.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}

#[tokio::test]
async fn each_case_of_a_refused_report_is_refused_with_its_code_and_field_and_changes_and_tells_nothing()
 {
    let stage = Stage::set().await;
    let mut wrong = Vec::new();
    let cases = lines("refused-reports.jsonl");
    let mut observer = stage.observer_from_now().await;
    for (number, case) in cases.iter().enumerate() {
        let name = case["name"].as_str().unwrap();
        for state in ["open", "completed"] {
            let task_id = format!("{state}-{number}");
            stage.worker.create(&task_id).await;
            if state == "completed" {
                stage
                    .worker
                    .report(&json!({"task_id": task_id, "status": "completed", "summary": "done"}))
                    .await;
            }
            let before = stage.worker.get(&task_id).await.body;
            observer.all_so_far().await;
            let reply = stage
                .worker
                .ask_bytes("tasklatch.report", payload(case, &task_id))
                .await;
            let error = reply.json()["error"].clone();
            if error["code"] != case["code"] {
                wrong.push(format!("{name} ({state}): {}", reply.json()));
            } else if !case["field"].is_null() && error["field"] != case["field"] {
                wrong.push(format!("{name} ({state}): the field is {}", error["field"]));
            }
            if error["action"] != "fix" {
                wrong.push(format!(
                    "{name} ({state}): the action is {}",
                    error["action"]
                ));
            }
            if stage.worker.get(&task_id).await.body != before {
                wrong.push(format!("{name} ({state}): the task has changed"));
            }
            let events = observer.ids_so_far().await;
            if !events.is_empty() {
                wrong.push(format!("{name} ({state}): events {events:?}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} complaints:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
#[tokio::test]
async fn doubles_that_parsers_read_one_unit_off_match_their_own_retry_and_keep_their_digits() {
    let numbers = [
        "6.477856523538338e55",
        "7.508520672616366e-13",
        "6.477856523538339e+55",
        "1.7976931348623157e308",
        "5e-324",
        "2.2250738585072014e-308",
        "0.1",
        "0.30000000000000004",
    ];
    let mut pairs: Vec<Pair> = numbers
        .iter()
        .flat_map(|number| of_numbers(number, number, true))
        .collect();
    pairs.extend(of_numbers(
        "6.477856523538338e55",
        "6.477856523538339e+55",
        false,
    ));
    pairs.extend(of_numbers(
        "6.477856523538338e55",
        "6.47785652353834e+55",
        false,
    ));
    assert_pairs(pairs).await;
}
#[tokio::test]
async fn numbers_of_one_value_are_one_content_however_they_are_written_and_the_first_spelling_is_answered()
 {
    let pairs = [
        ("1", "1.0"),
        ("100", "1e2"),
        ("1e2", "1E+2"),
        ("1e2", "100.0"),
        ("0", "-0"),
        ("0.0", "-0.0"),
        ("0", "-0.0e5"),
        ("0.1", "0.10"),
        ("10e-1", "1"),
        ("0.00005", "0.5e-4"),
        ("1e400", "10e399"),
        ("1E400", "0.1e401"),
        ("1e-400", "10e-401"),
        ("0e999999999999999999999", "0"),
        ("1e99999999999999999999", "10e99999999999999999998"),
        (
            "123456789012345678901234567890",
            "1.2345678901234567890123456789e29",
        ),
    ];
    assert_pairs(
        pairs
            .iter()
            .flat_map(|(first, second)| of_numbers(first, second, true))
            .collect(),
    )
    .await;
}
#[tokio::test]
async fn numbers_that_differ_in_any_digit_are_different_content_at_any_size() {
    let pairs = [
        ("18446744073709551616", "18446744073709551617"),
        ("9007199254740993", "9007199254740992"),
        ("9007199254740993", "9007199254740992.0"),
        ("1e-400", "0.0"),
        ("1e-400", "1e-401"),
        ("1e400", "1e401"),
        ("1e400", "-1e400"),
        ("1", "-1"),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567891",
        ),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("-9223372036854775808", "-9223372036854775809"),
        ("1e99999999999999999999", "1e99999999999999999998"),
        ("1", "1.0000000000000000000000000000000000001"),
    ];
    assert_pairs(
        pairs
            .iter()
            .flat_map(|(first, second)| of_numbers(first, second, false))
            .collect(),
    )
    .await;
}

/// Null is a value, and so is what looks like a marker of a JSON library
#[tokio::test]
async fn null_and_objects_that_look_like_markers_are_values_like_any_other() {
    let mut pairs = vec![
        of_evidence(r#"{"a":null}"#, "{}", false),
        of_evidence("{}", r#"{"a":null}"#, false),
        of_evidence(r#"{"a":null}"#, r#"{"a":0}"#, false),
        of_evidence(r#"{"a":[null]}"#, r#"{"a":[]}"#, false),
    ];
    for marker in [
        "$serde_json::private::Number",
        "$serde_json::private::RawValue",
    ] {
        let object = format!(r#"{{"a":{{"{marker}":"12"}}}}"#);
        pairs.push(of_evidence(&object, &object, true));
        pairs.push(of_evidence(&object, r#"{"a":12}"#, false));
        pairs.push(of_evidence(r#"{"a":12}"#, &object, false));
        pairs.push(of_evidence(&object, r#"{"a":"12"}"#, false));
        pairs.push(of_evidence(&object, &object.replace("12", "12.0"), false));
    }
    assert_pairs(pairs).await;
}
