//! What the wire cases of `tests/` do not reach: exact limits, pointers and fields of refusals.

use super::*;

fn report_text(extra: &str) -> String {
    format!(r#"{{"task_id":"t-1","status":"completed","summary":"done"{extra}}}"#)
}

fn decode_as(endpoint: Endpoint, payload: &str) -> Result<Request, Refusal> {
    decode(endpoint, Some("t-1"), payload.as_bytes(), || {
        "t-made".to_owned()
    })
}

fn refusal(endpoint: Endpoint, payload: &str) -> Refusal {
    decode_as(endpoint, payload).unwrap_err()
}

#[test]
fn each_text_limit_holds_to_the_byte() {
    let limits = [
        (
            Endpoint::Create,
            "title",
            limits::TITLE_BYTES,
            r#"{"title":"V"}"#,
        ),
        (
            Endpoint::Cancel,
            "reason",
            limits::REASON_BYTES,
            r#"{"task_id":"t","reason":"V"}"#,
        ),
        (
            Endpoint::Review,
            "note",
            limits::NOTE_BYTES,
            r#"{"task_id":"t","verdict":"approved","note":"V"}"#,
        ),
        (
            Endpoint::Review,
            "reviewer",
            limits::REVIEWER_BYTES,
            r#"{"task_id":"t","verdict":"approved","reviewer":"V"}"#,
        ),
        (
            Endpoint::Report,
            "summary",
            limits::SUMMARY_BYTES,
            r#"{"task_id":"t","status":"failed","summary":"V"}"#,
        ),
    ];
    for (endpoint, field, limit, payload) in limits {
        let of = |bytes: usize| payload.replace('V', &"x".repeat(bytes));
        assert!(
            decode_as(endpoint, &of(limit)).is_ok(),
            "{field} at its limit"
        );
        let over = refusal(endpoint, &of(limit + 1));
        assert_eq!(over.field, Some(format!("/{field}")));
        assert_eq!(
            (over.limit, over.actual),
            (Some(limit as u64), Some(limit as u64 + 1)),
            "{field}"
        );
    }
}

#[test]
fn the_size_of_a_report_is_that_of_its_text_as_the_service_writes_it() {
    // White space and escapes that need not be there do not count.
    let spaced = report_text(&format!(
        ",{}\"artifacts\":[\"a\"]",
        " ".repeat(limits::REPORT_BYTES)
    ));
    assert!(decode_as(Endpoint::Report, &spaced).is_ok());
    let artifacts: Vec<String> = (0..100)
        .map(|_| format!("\"{}\"", "x".repeat(limits::ARTIFACT_BYTES)))
        .collect();
    let large = report_text(&format!(",\"artifacts\":[{}]", artifacts.join(",")));
    let refusal = refusal(Endpoint::Report, &large);
    assert_eq!(refusal.limit, Some(limits::REPORT_BYTES as u64));
    assert_eq!(refusal.actual, Some(large.len() as u64));
}

#[test]
fn evidence_of_64_levels_passes_and_of_65_does_not() {
    let of = |levels: usize| {
        let inner = levels - 1;
        report_text(&format!(
            ",\"evidence\":{{\"a\":{}{}}}",
            "[".repeat(inner),
            "]".repeat(inner)
        ))
    };
    assert!(decode_as(Endpoint::Report, &of(limits::EVIDENCE_LEVELS)).is_ok());
    let over = refusal(Endpoint::Report, &of(limits::EVIDENCE_LEVELS + 1));
    assert_eq!(over.field.as_deref(), Some("/evidence"));
    assert_eq!(over.limit, Some(64));
}

#[test]
fn metadata_of_32_levels_passes_and_of_33_does_not() {
    let of = |levels: usize| {
        format!(
            r#"{{"title":"x","metadata":{}{}}}"#,
            "{\"a\":".repeat(levels - 1) + "{}",
            "}".repeat(levels - 1)
        )
    };
    assert!(decode_as(Endpoint::Create, &of(limits::METADATA_LEVELS)).is_ok());
    assert_eq!(
        refusal(Endpoint::Create, &of(limits::METADATA_LEVELS + 1))
            .field
            .as_deref(),
        Some("/metadata")
    );
}

#[test]
fn a_subject_and_a_body_that_name_different_tasks_do_not_match() {
    let refusal = refusal(
        Endpoint::ReportOfTask,
        r#"{"task_id":"t-2","status":"failed","summary":"s"}"#,
    );
    assert_eq!(refusal.code, Code::SelectorMismatch);
}

#[test]
fn a_subject_names_the_task_for_a_body_without_a_selector() {
    let request = decode_as(
        Endpoint::ReportOfTask,
        r#"{"status":"failed","summary":"s"}"#,
    )
    .unwrap();
    let Request::Change(Change::Report { selector, .. }) = request else {
        panic!("{request:?}")
    };
    assert_eq!(selector, Selector::TaskId("t-1".to_owned()));
}

#[test]
fn a_pane_has_at_most_128_characters_and_no_control_characters() {
    let of = |pane: &str| format!(r#"{{"pane_id":"{pane}"}}"#);
    assert!(decode_as(Endpoint::Get, &of(&"ü".repeat(128))).is_ok());
    assert_eq!(
        refusal(Endpoint::Get, &of(&"ü".repeat(129))).actual,
        Some(129)
    );
    assert_eq!(
        refusal(Endpoint::Get, &of("\\u0007")).field.as_deref(),
        Some("/pane_id")
    );
    assert_eq!(
        refusal(Endpoint::Get, &of("")).field.as_deref(),
        Some("/pane_id")
    );
}

#[test]
fn an_unknown_key_is_named_and_escaped_as_a_pointer() {
    assert_eq!(
        refusal(Endpoint::Report, &report_text(",\"a/b~c\":1"))
            .field
            .as_deref(),
        Some("/a~1b~0c")
    );
}

#[test]
fn a_message_repeats_little_of_what_a_stranger_sent() {
    let long = "k".repeat(100_000);
    assert!(
        refusal(Endpoint::Report, &report_text(&format!(",\"{long}\":1")))
            .message
            .len()
            < 300
    );
    assert!(
        refusal(
            Endpoint::Report,
            &format!(r#"{{"task_id":"t","status":"{long}"}}"#)
        )
        .message
        .len()
            < 300
    );
}

#[test]
fn a_list_asks_for_1_to_1000_tasks_and_for_words_that_exist() {
    let listed = |payload: &str| match decode_as(Endpoint::List, payload).unwrap() {
        Request::List(query) => query,
        other => panic!("{other:?}"),
    };
    assert_eq!(listed("{}").limit, limits::LIST_TASKS_DEFAULT);
    assert_eq!(listed(r#"{"limit":1000}"#).limit, 1000);
    assert_eq!(
        listed(r#"{"disposition":["none","rework"]}"#).disposition,
        Some(vec![None, Some(ReviewVerdict::Rework)])
    );
    for (payload, field) in [
        (r#"{"limit":0}"#, "/limit"),
        (r#"{"limit":1001}"#, "/limit"),
        (r#"{"limit":1.5}"#, "/limit"),
        (r#"{"lifecycle":[]}"#, "/lifecycle"),
        (r#"{"lifecycle":["working","done"]}"#, "/lifecycle/1"),
        (r#"{"lifecycle":"working"}"#, "/lifecycle"),
        (r#"{"updated_since":"yesterday"}"#, "/updated_since"),
    ] {
        assert_eq!(
            refusal(Endpoint::List, payload).field.as_deref(),
            Some(field),
            "{payload}"
        );
    }
}

#[test]
fn a_task_created_without_an_id_gets_one() {
    let Ok(Request::Change(Change::Create(new))) = decode_as(Endpoint::Create, r#"{"title":"x"}"#)
    else {
        panic!("refused")
    };
    assert_eq!(new.task_id, "t-made");
}
