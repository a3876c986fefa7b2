//! Payloads that JSON libraries and databases trip over: NUL, deep nesting, half surrogates, repeated keys, what is no JSON.

use serde_json::{Value, json};

use super::{Pair, assert_pairs};
use crate::support::Stage;
#[tokio::test]
async fn a_nul_in_a_string_is_a_character_like_any_other_and_nothing_is_cut_off_at_it() {
    let report = |summary: &str, artifact: &str, key: &str| {
        json!({"task_id": "{ID}", "status": "completed", "summary": summary, "artifacts": [artifact], "evidence": {key: 1}}).to_string()
    };
    let first = report("a\0b", "\0", "k\0y");
    let differing = |second: String, field: &str| Pair {
        name: format!("NUL in {field}"),
        first: first.clone(),
        second,
        differs: vec![field.to_owned()],
    };
    let mut pairs: Vec<Pair> = ["a\0c", "a", "a\0", "ab"]
        .into_iter()
        .map(|summary| differing(report(summary, "\0", "k\0y"), "summary"))
        .collect();
    pairs.push(differing(report("a\0b", "\0\0", "k\0y"), "artifacts"));
    pairs.push(differing(report("a\0b", "\0", "k\0z"), "evidence"));
    pairs.push(differing(report("a\0b", "\0", "k"), "evidence"));
    pairs.push(Pair {
        name: "the same".to_owned(),
        first: first.clone(),
        second: first.clone(),
        differs: vec![],
    });
    assert_pairs(pairs).await;

    let stage = Stage::set().await;
    let mut observer = stage.observer_from_now().await;
    stage
        .worker
        .create_with(
            json!({"task_id": "t", "title": "a\0title", "pane_id": "p", "metadata": {"k\0": "\0"}}),
        )
        .await;
    let reply = stage
        .worker
        .ask_bytes("tasklatch.report", first.replace("{ID}", "t"))
        .await;
    let task = reply.task();
    assert_eq!(task["title"], "a\0title");
    assert_eq!(task["metadata"], json!({"k\0": "\0"}));
    assert_eq!(task["result"]["summary"], "a\0b");
    assert_eq!(task["result"]["artifacts"], json!(["\0"]));
    assert_eq!(task["result"]["evidence"], json!({"k\0y": 1}));
    let events = observer.all_so_far().await;
    assert_eq!(events[1].json()["result"], task["result"]);
    assert_eq!(events[2].payload, reply.body);
    let nul_in_id = stage
        .worker
        .report(&json!({"task_id": "t\0", "status": "completed", "summary": "s"}))
        .await;
    assert_eq!(nul_in_id.code(), "invalid_report");
}
#[tokio::test]
async fn evidence_of_64_levels_survives_answer_event_list_and_snapshot_for_any_reader_of_json() {
    let mut stage = Stage::set().await;
    let mut observer = stage.observer_from_now().await;
    stage.worker.create("t").await;
    let nested = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
    let report = |levels: usize| {
        format!(
            r#"{{"task_id":"t","status":"completed","summary":"s","evidence":{}}}"#,
            nested(levels)
        )
    };
    let send = async |stage: &Stage, levels: usize| {
        stage
            .worker
            .ask_bytes("tasklatch.report", report(levels))
            .await
    };
    for levels in [65, 126, 127, 128, 20_000] {
        let refused = send(&stage, levels).await;
        assert_eq!(
            (refused.code(), refused.error()["field"].clone()),
            ("invalid_report".to_owned(), json!("/evidence"))
        );
    }
    let accepted = send(&stage, 64).await;
    assert_eq!(accepted.outcome(), Some("accepted"));
    let evidence: Value = serde_json::from_str(&nested(64)).unwrap();
    assert_eq!(accepted.task()["result"]["evidence"], evidence);
    for event in &observer.all_so_far().await[1..] {
        assert_eq!(event.json()["result"]["evidence"], evidence);
    }
    let list = stage
        .worker
        .ask("tasklatch.task.list", &json!({"lifecycle": ["completed"]}))
        .await;
    assert_eq!(list.json()["tasks"][0]["result"]["evidence"], evidence);
    stage.move_to_a_restored_ledger().await;
    assert_eq!(send(&stage, 64).await.body, accepted.body);
    // Brackets in a string are no levels.
    stage.worker.create("u").await;
    let text = json!({"task_id": "u", "status": "completed", "summary": "s", "evidence": {"a": "[".repeat(200_000)}});
    assert_eq!(stage.worker.report(&text).await.outcome(), Some("accepted"));
}
#[tokio::test]
async fn half_of_a_surrogate_pair_is_refused_wherever_it_stands_and_a_whole_pair_is_its_character()
{
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let report = |summary: &str, artifact: &str, key: &str| {
        format!(
            r#"{{"task_id":"t","status":"completed","summary":"{summary}","artifacts":["{artifact}"],"evidence":{{"{key}":1}}}}"#
        )
    };
    for half in [
        r"\ud83d",
        r"\ude00",
        r"a\ud83db",
        r"\ude00\ud83d",
        r"\ud83d\ud83d",
        r"\uD83D\n",
    ] {
        for text in [
            report(half, "a", "k"),
            report("s", half, "k"),
            report("s", "a", half),
        ] {
            let refused = stage
                .worker
                .ask_bytes("tasklatch.report", text.clone())
                .await;
            assert_eq!(refused.code(), "invalid_report", "{text}");
            assert_eq!(refused.error()["action"], "fix", "{text}");
        }
    }
    let pair = report(r"\ud83d\ude00", r"\uD83D\uDE00", r"\ud83d\uDE00");
    let accepted = stage.worker.ask_bytes("tasklatch.report", pair).await;
    assert_eq!(accepted.task()["result"]["summary"], "😀");
    let replayed = stage
        .worker
        .ask_bytes("tasklatch.report", report("😀", "😀", "😀"))
        .await;
    assert_eq!(replayed.outcome(), Some("replayed"));
    let replaced = stage
        .worker
        .ask_bytes("tasklatch.report", report("\u{fffd}", "😀", "😀"))
        .await;
    assert_eq!(replaced.error()["differs"], json!(["summary"]));
}
#[tokio::test]
async fn a_key_that_is_repeated_at_any_depth_or_in_another_spelling_is_refused() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    for evidence in [
        r#"{"ok":true,"ok":false}"#,
        r#"{"ok":true,"\u006fk":true}"#,
        r#"{"a":[{"b":{"c":1,"c":1}}]}"#,
        r#"{"":1,"":1}"#,
    ] {
        let text = format!(
            r#"{{"task_id":"t","status":"completed","summary":"s","evidence":{evidence}}}"#
        );
        assert_eq!(
            stage
                .worker
                .ask_bytes("tasklatch.report", text)
                .await
                .code(),
            "invalid_report",
            "{evidence}"
        );
    }
    for text in [
        r#"{"task_id":"t","status":"failed","summary":"s","status":"completed"}"#,
        r#"{"task_id":"t","task_id":"t","status":"failed","summary":"s"}"#,
        r#"{"task_id":"t","status":"failed","summary":"s","summ\u0061ry":"s"}"#,
    ] {
        assert_eq!(
            stage
                .worker
                .ask_bytes("tasklatch.report", text)
                .await
                .code(),
            "invalid_report",
            "{text}"
        );
    }
    assert_eq!(stage.worker.get("t").await.task()["revision"], 1);
}
#[tokio::test]
async fn what_is_not_one_json_object_in_utf_8_is_refused_with_an_answer() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    let good = r#"{"task_id":"t","status":"completed","summary":"s"}"#;
    let utf_16: Vec<u8> = good.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let with_evidence = |value: &str| {
        good.replace("}", &format!(r#","evidence":{{"a":{value}}}}}"#))
            .into_bytes()
    };
    let mut bad: Vec<Vec<u8>> = [
        "NaN",
        "Infinity",
        "-Infinity",
        "01",
        "+1",
        "1.",
        ".5",
        "1e",
        "-",
        "0x1",
        "'a'",
        "tru",
        "undefined",
    ]
    .map(with_evidence)
    .to_vec();
    bad.extend([
        utf_16,
        b" \n\t ".to_vec(),
        vec![0xff, 0xfe],
        vec![0],
        vec![b'{'],
        b"null".to_vec(),
        b"\"x\"".to_vec(),
    ]);
    bad.push(format!("\u{feff}{good}").into_bytes());
    bad.push(format!("{good}{good}").into_bytes());
    bad.push(format!("{good},").into_bytes());
    bad.push(good.replace('}', ",}").into_bytes());
    bad.push(good.replace('s', "s\u{0}").into_bytes());
    bad.push(good.replace("\"s\"", "\"a\nb\"").into_bytes());
    for payload in bad {
        let refused = stage
            .worker
            .ask_bytes("tasklatch.report", payload.clone())
            .await;
        assert_eq!(
            refused.code(),
            "invalid_report",
            "{:?}",
            String::from_utf8_lossy(&payload)
        );
    }
    let padded = format!(" \r\n\t{good}\n ");
    assert_eq!(
        stage
            .worker
            .ask_bytes("tasklatch.report", padded)
            .await
            .outcome(),
        Some("accepted")
    );
}
