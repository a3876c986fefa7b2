//! Tests of reading and comparing content, against `serde_json` and against arithmetic with big integers.

#![allow(clippy::unwrap_used)]

use num_bigint::BigInt;

use super::*;

mod properties;

fn read(text: &str) -> Json {
    parse(text.as_bytes(), MAX_LEVELS).unwrap_or_else(|error| panic!("{text:.80}: {error}"))
}

fn refused(text: impl AsRef<[u8]>) -> ParseError {
    let text = text.as_ref();
    match parse(text, MAX_LEVELS) {
        Ok(value) => panic!("{} was read as {value:?}", String::from_utf8_lossy(text)),
        Err(error) => error,
    }
}

fn assert_same(a: &str, b: &str) {
    assert_eq!(read(a), read(b), "{a:.80} and {b:.80}");
    assert_eq!(read(b), read(a), "{b:.80} and {a:.80}");
}

fn assert_different(a: &str, b: &str) {
    assert_ne!(read(a), read(b), "{a:.80} and {b:.80}");
    assert_ne!(read(b), read(a), "{b:.80} and {a:.80}");
}

fn stored(text: &str) -> JsonText {
    JsonText::from_stored(text.to_owned()).unwrap()
}

#[test]
fn a_float_that_loses_its_last_digit_elsewhere_keeps_its_text() {
    for number in ["6.477856523538338e55", "7.508520672616366e-13"] {
        let text = format!(r#"{{"x":{number}}}"#);
        assert_eq!(read(&text).to_text(), text);
        assert_eq!(stored(&read(&text).to_text()), JsonText::from(&read(&text)));
    }
    assert_different("6.477856523538338e55", "6.477856523538339e55");
}

#[test]
fn numbers_of_one_value_are_the_same_however_they_are_spelled() {
    for spellings in [
        &[
            "1", "1.0", "1e0", "10e-1", "0.1e1", "1E+0", "1e-0", "1e+00000",
        ][..],
        &["100", "1e2", "1E+2", "100.0", "0.001e5", "1000e-1"],
        &[
            "0",
            "-0",
            "0.0",
            "-0.0",
            "0e999",
            "-0e-999",
            "0e99999999999999999999",
        ],
        &["0.1", "0.10", "1e-1"],
        &["0.00005", "0.5e-4", "5E-5"],
        &["-1.5", "-15e-1", "-0.15e1"],
        &["1e400", "10e399", "0.1e401"],
    ] {
        for a in spellings {
            spellings.iter().for_each(|b| assert_same(a, b));
        }
    }
}

#[test]
fn numbers_of_different_values_are_different_however_close() {
    for (a, b) in [
        ("9007199254740993", "9007199254740992"),
        ("18446744073709551616", "18446744073709551617"),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567891",
        ),
        ("0.1000000000000000055511151231257827", "0.1"),
        ("1e-400", "0.0"),
        ("1e400", "1e401"),
        ("1e400", "-1e400"),
        ("1e400", "1e-400"),
        ("1", "10"),
        ("1", "-1"),
        ("1.01", "1.1"),
        ("10.1", "1.01"),
    ] {
        assert_different(a, b);
    }
}

#[test]
fn exponents_around_every_integer_width_compare_exactly() {
    for bits in [31, 32, 63, 64, 65, 127, 128, 200] {
        let limit = BigInt::from(2).pow(bits);
        let (below, above) = (&limit - 1, &limit + 1);
        assert_same(&format!("1e{limit}"), &format!("10e{below}"));
        assert_same(&format!("1e{limit}"), &format!("0.1e{above}"));
        assert_same(&format!("1e-{limit}"), &format!("0.1e-{below}"));
        assert_same(&format!("1e-{limit}"), &format!("10e-{above}"));
        assert_different(&format!("1e{limit}"), &format!("1e{above}"));
        assert_different(&format!("1e{limit}"), &format!("1e-{limit}"));
    }
}

#[test]
fn exponents_of_hundreds_of_thousands_of_digits_compare_exactly() {
    let (nines, zeros) = ("9".repeat(300_000), "0".repeat(300_000));
    assert_same(&format!("1e{nines}"), &format!("1.0E+000{nines}"));
    assert_same(&format!("10e{nines}"), &format!("1e1{zeros}"));
    assert_same(&format!("1e-{nines}"), &format!("10e-1{zeros}"));
    assert_different(&format!("1e{nines}"), &format!("1e1{zeros}"));
    assert_different(&format!("1e{nines}"), &format!("1e{nines}9"));
    assert_different(&format!("1e{nines}"), &format!("1e-{nines}"));
    assert_same(&format!("0e{nines}"), "0");
}

#[test]
fn numbers_may_have_any_number_of_digits() {
    for digits in [4299, 4300, 4301, 4302, 5000, 200_000] {
        let long = "7".repeat(digits);
        for number in [
            long.clone(),
            format!("-{long}"),
            format!("{long}.5e-3"),
            format!("0.{long}"),
            long + "0",
        ] {
            let text = format!(r#"{{"a":[{number} , {number}],"b":"c"}}"#);
            assert_eq!(read(&text).to_text(), text.replace(' ', ""));
        }
    }
    let zeros = "0".repeat(5000);
    assert_same(&format!("1{zeros}"), "1e5000");
    assert_different(&format!("1{zeros}"), "1e5001");
}

#[test]
fn long_numbers_obey_the_grammar_and_faults_after_them_are_found_in_their_place() {
    let long = "7".repeat(5000);
    for tail in [".", ".e1", "e", "e+", "-", "+", ".5.5", "e1.5", "x", " 1"] {
        let error = refused(format!("[{long}{tail}]"));
        assert_eq!(error.kind, ParseErrorKind::Syntax, "{tail}");
    }
    assert_eq!(refused(format!("0{long}")).kind, ParseErrorKind::Syntax);
    assert!(
        refused(format!("[{long},]"))
            .message
            .ends_with("at byte 5002")
    );
}

#[test]
fn numbers_that_only_other_formats_allow_are_refused() {
    for text in [
        "01",
        "-01",
        "00",
        "1.",
        "+1",
        ".5",
        "-.5",
        "-",
        "1e",
        "1e+",
        "1.e1",
        "0x1",
        "1_0",
        "1e1.0",
        "--1",
        "1a",
        "NaN",
        "Infinity",
        "-Infinity",
        "-NaN",
        "nan",
        "inf",
        "１",
    ] {
        assert_eq!(refused(text).kind, ParseErrorKind::Syntax, "{text}");
        assert_eq!(
            refused(format!("[{text}]")).kind,
            ParseErrorKind::Syntax,
            "{text}"
        );
    }
    assert!(refused(r#"{"a":NaN}"#).message.contains("NaN"));
}

#[test]
fn objects_are_the_same_in_any_order_and_arrays_are_not() {
    assert_same(r#"{"a":1,"b":2}"#, r#"{ "b" : 2, "a" : 1 }"#);
    assert_same(
        r#"{"x":{"a":1,"b":[{"c":1,"d":2}]}}"#,
        r#"{"x":{"b":[{"d":2.0,"c":1}],"a":1}}"#,
    );
    assert_different("[1,2]", "[2,1]");
    assert_different("[1]", "[1,1]");
    assert_different(r#"{"a":1}"#, r#"{"a":1,"b":1}"#);
    assert_different(r#"{"a":1,"b":2}"#, r#"{"a":2,"b":1}"#);
}

#[test]
fn null_false_zero_and_the_empty_values_are_all_different() {
    let values = [
        "null",
        "false",
        "true",
        "0",
        "1",
        r#""""#,
        r#""0""#,
        r#""null""#,
        "[]",
        "{}",
        "[null]",
    ];
    for (i, a) in values.iter().enumerate() {
        for (j, b) in values.iter().enumerate() {
            assert_eq!(read(a) == read(b), i == j, "{a} and {b}");
        }
    }
    assert_different(r#"{"a":null}"#, "{}");
}

#[test]
fn strings_are_compared_by_code_points_after_decoding() {
    assert_same(r#""\u0041\/\ud83d\ude00\n""#, "\"A/😀\\u000a\"");
    assert_same(r#"{"\u0061":1}"#, r#"{"a":1}"#);
    assert_different("\"\u{e9}\"", "\"e\u{301}\"");
    assert_different(r#""x ""#, r#""x""#);
    assert_different(r#""x""#, r#""X""#);
}

#[test]
fn objects_that_look_like_markers_of_a_library_stay_objects() {
    for marker in [
        "$serde_json::private::Number",
        "$serde_json::private::RawValue",
    ] {
        let text = format!(r#"{{"a":{{"{marker}":"12"}},"b":{{"{marker}":"[1]"}}}}"#);
        let value = read(&text);
        assert_eq!(value.to_text(), text);
        assert_eq!(
            serde_json::to_string(&JsonText::from(&value)).unwrap(),
            text
        );
        assert_eq!(serde_json::from_str::<JsonText>(&text).unwrap().get(), text);
        assert_ne!(value, read(r#"{"a":12,"b":[1]}"#));
        assert_ne!(stored(&text), stored(r#"{"a":12,"b":[1]}"#));
    }
}

#[test]
fn repeated_keys_are_refused_at_any_depth_and_in_any_spelling() {
    for (text, pointer) in [
        (r#"{"ok":true,"ok":false}"#, "/ok"),
        (r#"{"ok":1,"ok":1}"#, "/ok"),
        (r#"{"ok":true,"\u006fk":false}"#, "/ok"),
        (r#"{"x":[0,{"a":1,"b":2,"a":{}}]}"#, "/x/1/a"),
        (r#"{"":{"":1,"":2}}"#, "//"),
        (r#"{"a/b":{"~":1,"~":2}}"#, "/a~1b/~0"),
    ] {
        let error = refused(text);
        assert_eq!(
            (error.kind, error.pointer.as_deref()),
            (ParseErrorKind::RepeatedKey, Some(pointer)),
            "{text}"
        );
    }
    assert_eq!(
        refused(r#"{"a":1,"a":2}"#).message,
        r#"the key "a" appears twice"#
    );
    read(r#"{"a":{"a":{"a":1}},"A":[{"a":1},{"a":1}]}"#);
}

#[test]
fn nesting_is_read_up_to_the_limit_and_no_further() {
    let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    assert_eq!(parse(b"1", 0).unwrap().levels(), 0);
    assert_eq!(parse(b"{}", 1).unwrap().levels(), 1);
    assert_eq!(parse(br#"{"a":[],"b":1}"#, 2).unwrap().levels(), 2);
    assert_eq!(parse(b"[]", 0).unwrap_err().kind, ParseErrorKind::TooDeep);
    assert_eq!(parse(nested(64).as_bytes(), 64).unwrap().levels(), 64);
    let error = parse(nested(66).as_bytes(), 65).unwrap_err();
    assert_eq!(error.kind, ParseErrorKind::TooDeep);
    assert_eq!(error.message, "nested deeper than 65 levels, at byte 65");
    assert_eq!(error.pointer, Some("/0".repeat(65)));
}

#[test]
fn no_caller_can_have_the_stack_overflow() {
    for text in [
        "[".repeat(100_000),
        r#"{"a":"#.repeat(100_000),
        "[".repeat(100_000) + &"]".repeat(100_000),
    ] {
        assert_eq!(
            parse(text.as_bytes(), usize::MAX).unwrap_err().kind,
            ParseErrorKind::TooDeep
        );
    }
    let text = format!(r#"{{"a":"{}"}}"#, "[".repeat(100_000));
    assert_eq!(parse(text.as_bytes(), 1).unwrap().to_text(), text);
}

#[test]
fn what_is_read_at_the_deepest_can_be_read_by_serde_json() {
    let text = "[".repeat(MAX_LEVELS) + &"]".repeat(MAX_LEVELS);
    assert_eq!(read(&text), read(&read(&text).to_text()));
    serde_json::from_str::<serde_json::Value>(&text).unwrap();
}

#[test]
fn lone_surrogates_are_refused_and_pairs_are_not() {
    for text in [
        r#""\ud800""#,
        r#""cut \ud83d""#,
        r#""\ude00""#,
        r#""\ud83d\ud83d""#,
        r#""\ude00\ud83d""#,
        r#""\ud83dx""#,
        r#""\ud83d\n""#,
        r#""\uD83D\u0041""#,
        r#"{"\ud800":1}"#,
        r#"{"a":1,"\udfff":1}"#,
        r#"[{"a":["\ud83d"]}]"#,
    ] {
        let error = refused(text);
        assert_eq!(error.kind, ParseErrorKind::Syntax);
        assert!(
            error.message.starts_with("a lone surrogate"),
            "{text}: {error}"
        );
    }
    assert_eq!(
        refused(r#"{"a":["x","\ud83d"]}"#).pointer.as_deref(),
        Some("/a/1")
    );
    assert_eq!(read(r#""\ud83d\ude00""#), Json::String("😀".to_owned()));
    assert_eq!(read(r#""\\ud83d""#), Json::String(r"\ud83d".to_owned()));
}

#[test]
fn a_byte_order_mark_is_refused_by_name() {
    let error = refused("\u{feff}{}");
    assert_eq!(
        error.message,
        "starts with a byte order mark; send UTF-8 without one"
    );
    assert_eq!((error.kind, error.pointer), (ParseErrorKind::Syntax, None));
    assert_eq!(read("\"\u{feff}\""), Json::String("\u{feff}".to_owned()));
}

#[test]
fn bytes_that_are_not_utf_8_are_refused_wherever_they_are() {
    let texts: [&[u8]; 8] = [
        b"\xff",
        b"\"\xff\"",
        b"{\"\xc3\x28\":1}",
        b"{\"a\":\"\xed\xa0\x80\"}",
        b"[\"\xf0\x9f\x98\"]",
        b"{} \xff",
        b"\xff\xfe{\0}\0",
        b"\xfe\xff\0{\0}",
    ];
    for text in texts {
        let error = refused(text);
        assert_eq!(
            (error.kind, error.pointer),
            (ParseErrorKind::InvalidUtf8, None),
            "{text:?}"
        );
    }
    assert_eq!(
        refused(b"{\"a\":\"\xff\"}").message,
        "not UTF-8: invalid at byte 6"
    );
    assert_eq!(refused(b"{\0}\0").kind, ParseErrorKind::Syntax);
}

#[test]
fn nothing_is_not_a_value() {
    for text in ["", " ", "\r\n\t "] {
        let error = refused(text);
        assert_eq!((error.kind, error.pointer), (ParseErrorKind::Syntax, None));
        assert!(error.message.starts_with("empty"));
    }
}

#[test]
fn anything_after_the_value_is_refused() {
    for text in [
        "{} x",
        "{}{}",
        "1 2",
        "null,",
        "[]]",
        "{}\0",
        "\"a\"\"b\"",
        "nulls",
    ] {
        let error = refused(text);
        assert_eq!(
            (error.kind, error.pointer.as_deref()),
            (ParseErrorKind::Syntax, None),
            "{text}"
        );
        assert!(
            error
                .message
                .starts_with("not JSON: more text after the value at byte"),
            "{text}: {error}"
        );
    }
    read(" {} \r\n");
}

#[test]
fn a_fault_in_the_text_is_said_with_its_place() {
    for (text, pointer, message) in [
        ("hello", None, "not JSON: expected a value at byte 0"),
        (
            r#"{"a":"comp"#,
            Some("/a"),
            "not JSON: the text is cut short at byte 10",
        ),
        (
            r#"{"a":[1 2]}"#,
            Some("/a"),
            "not JSON: expected `,` or `]` at byte 8",
        ),
        (
            r#"{"a":[1,]}"#,
            Some("/a"),
            "not JSON: a comma with nothing after it at byte 8",
        ),
        (
            r#"{"a":{"b":nul}}"#,
            Some("/a/b"),
            "not JSON: expected `true`, `false` or `null` at byte 13",
        ),
        (
            r#"{"a" 1}"#,
            None,
            "not JSON: expected `:` after a key at byte 5",
        ),
        (
            "{'a':1}",
            None,
            "not JSON: expected a key in double quotes at byte 1",
        ),
        (
            "[\"a\nb\"]",
            Some("/0"),
            "not JSON: a control character in a string at byte 3",
        ),
        (
            r#"["\x"]"#,
            Some("/0"),
            "not JSON: an escape that JSON does not have at byte 3",
        ),
    ] {
        let error = refused(text);
        assert_eq!(
            (error.pointer.as_deref(), error.message.as_str()),
            (pointer, message),
            "{text}"
        );
    }
}

#[test]
fn errors_repeat_little_of_the_text_and_stay_on_one_line() {
    let key = "ä\\n".repeat(5000);
    let error = refused(format!(r#"{{"outer":{{"{key}":1,"{key}":2}}}}"#));
    assert_eq!(error.kind, ParseErrorKind::RepeatedKey);
    assert!(
        error.message.chars().count() < 200 && !error.message.contains('\n'),
        "{error}"
    );
    assert_eq!(error.pointer.as_deref(), Some("/outer"));
}

#[test]
fn stored_text_is_compared_by_content_and_given_as_it_is() {
    assert_eq!(
        stored(r#"{"a":1,"b":[1e2]}"#),
        stored(r#"{"b":[100],"a":1.0}"#)
    );
    assert_ne!(stored(r#"{"a":1}"#), stored(r#"{"a":2}"#));
    let text = JsonText::from(&read(r#"{ "b" : [ 1.50 , -0 ] , "a" : "\u0041" }"#));
    assert_eq!(text.get(), r#"{"b":[1.50,-0],"a":"A"}"#);
    assert_eq!(
        serde_json::to_string(&[&text]).unwrap(),
        r#"[{"b":[1.50,-0],"a":"A"}]"#
    );
    assert_eq!(
        serde_json::from_str::<Vec<JsonText>>(r#"[{"n":1e400}]"#).unwrap()[0].get(),
        r#"{"n":1e400}"#
    );
}

#[test]
fn stored_text_that_parse_refuses_is_equal_to_itself_only() {
    let (a, b) = (r#"{"a":1,"a":2}"#, r#"{"a":1, "a":2}"#);
    assert_eq!(stored(a), stored(a));
    assert_ne!(stored(a), stored(b));
    for text in ["", "{", "1 2", "nul", "01"] {
        assert!(JsonText::from_stored(text.to_owned()).is_err(), "{text}");
    }
}
