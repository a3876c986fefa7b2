//! What holds for all content, by generated samples and an independent reference.

use num_bigint::BigInt;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

use super::*;

/// Texts of JSON values, spelled in many ways, by a grammar of its own; keys may repeat.
fn json_text() -> impl Strategy<Value = String> {
    let string = || r#""([ -!#-\[\]-~é€😀]|\\["\\/bfnrt]|\\u[0-9a-cA-C][0-9a-fA-F]{3}|\\ud83d\\ude0[0-9a-f]){0,20}""#;
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?",
        string(),
    ];
    let text = leaf.prop_recursive(6, 40, 5, move |inner| {
        let space = "[ \t\r\n]{0,2}";
        let items = prop::collection::vec(
            (space, inner.clone()).prop_map(|(space, value)| space + &value),
            0..5,
        );
        let members = prop::collection::vec((string(), space, inner), 0..5);
        prop_oneof![
            items.prop_map(|items| format!("[{}]", items.join(","))),
            members.prop_map(|members| {
                let member =
                    |(key, space, value)| format!("{space}{key}{space}:{space}{value}{space}");
                format!(
                    "{{{}}}",
                    members
                        .into_iter()
                        .map(member)
                        .collect::<Vec<_>>()
                        .join(",")
                )
            }),
        ]
    });
    ("[ \n]{0,2}", text, "[ \n]{0,2}").prop_map(|(before, text, after)| before + &text + &after)
}

/// A JSON text with a few bytes of it changed, so that it is nearly JSON.
fn mutated_text() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![3 => prop::sample::select(br#"{}[],:"\u0189dDeE.+-ntf "#.to_vec()), 1 => any::<u8>()];
    let changes = prop::collection::vec((any::<Index>(), 0..3, byte), 1..4);
    (json_text(), changes).prop_map(|(text, changes)| {
        let mut text = text.into_bytes();
        for (index, change, byte) in changes {
            let at = index.index(text.len() + 1);
            match change {
                0 => text.insert(at, byte),
                1 if at < text.len() => text[at] = byte,
                _ if at < text.len() => drop(text.remove(at)),
                _ => text.truncate(at / 2),
            }
        }
        text
    })
}

/// Whether `value` has the structure, keys and strings that `serde_json` read; the spelling of numbers aside.
fn has_shape_of(value: &Json, reference: &Value) -> bool {
    match (value, reference) {
        (Json::Null, Value::Null) | (Json::Number(_), Value::Number(_)) => true,
        (Json::Bool(a), Value::Bool(b)) => a == b,
        (Json::String(a), Value::String(b)) => a == b,
        (Json::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| has_shape_of(a, b))
        }
        (Json::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, a)| b.get(key).is_some_and(|b| has_shape_of(a, b)))
        }
        _ => false,
    }
}

/// Checks that `parse` reads exactly what `serde_json` reads, apart from repeated keys and numbers beyond a double.
fn check_against_serde_json(text: &[u8]) -> Result<(), TestCaseError> {
    match (
        parse(text, MAX_LEVELS),
        serde_json::from_slice::<Value>(text),
    ) {
        (Ok(value), Ok(reference)) => prop_assert!(has_shape_of(&value, &reference)),
        (Err(error), Ok(_)) => {
            prop_assert_eq!(error.kind, ParseErrorKind::RepeatedKey, "{}", error)
        }
        (Ok(_), Err(error)) => prop_assert!(
            error.to_string().starts_with("number out of range"),
            "{}",
            error
        ),
        (Err(_), Err(_)) => {}
    }
    Ok(())
}

/// A number as `whole.fraction` times ten to the power of `exponent`, with few values so that equal ones are common.
#[derive(Clone, Debug)]
struct Parts {
    negative: bool,
    whole: u64,
    fraction: String,
    exponent: i64,
}

impl Parts {
    fn strategy() -> impl Strategy<Value = Parts> {
        let whole =
            prop_oneof![3 => prop::sample::select(vec![0, 1, 10, 100, 12, 120]), 1 => any::<u64>()];
        (any::<bool>(), whole, "(|0|00|5|50|05|[0-9]{1,5})", -6i64..6).prop_map(
            |(negative, whole, fraction, exponent)| Parts {
                negative,
                whole,
                fraction,
                exponent,
            },
        )
    }

    fn text(&self) -> String {
        let sign = if self.negative { "-" } else { "" };
        let point = if self.fraction.is_empty() { "" } else { "." };
        format!(
            "{sign}{}{point}{}e{}",
            self.whole, self.fraction, self.exponent
        )
    }

    /// The value times 10^20, which is an integer for every value that the strategy makes.
    fn scaled(&self) -> BigInt {
        let digits: BigInt = format!("{}{}", self.whole, self.fraction).parse().unwrap();
        let power = 20 + self.exponent - self.fraction.len() as i64;
        let magnitude = digits * BigInt::from(10).pow(u32::try_from(power).unwrap());
        if self.negative { -magnitude } else { magnitude }
    }
}

/// Values of a small domain, so that equal ones in different spellings are common.
fn small_value() -> impl Strategy<Value = Json> {
    let leaf = prop::sample::select(vec![
        "null",
        "0",
        "-0",
        "1",
        "1.0",
        "10e-1",
        r#""a""#,
        r#""\u0061""#,
    ]);
    leaf.prop_map(read).prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Json::Array),
            prop::collection::hash_map("[ab]", inner, 0..3)
                .prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    })
}

/// The same content with the members of every object in the reverse order.
fn reversed(value: &Json) -> Json {
    match value {
        Json::Array(items) => Json::Array(items.iter().map(reversed).collect()),
        Json::Object(members) => Json::Object(
            members
                .iter()
                .rev()
                .map(|(key, value)| (key.clone(), reversed(value)))
                .collect(),
        ),
        other => other.clone(),
    }
}

/// How many values there are, arrays and objects included.
fn values_in(value: &Json) -> usize {
    let inside: usize = match value {
        Json::Array(items) => items.iter().map(values_in).sum(),
        Json::Object(members) => members.iter().map(|(_, value)| values_in(value)).sum(),
        _ => 0,
    };
    1 + inside
}

/// The value with the one at `place`, counted depth first, put into an array; `place` is lowered by what is passed.
fn wrapped(value: &Json, place: &mut usize) -> Json {
    if *place == 0 {
        *place = usize::MAX;
        return Json::Array(vec![value.clone()]);
    }
    *place -= 1;
    match value {
        Json::Array(items) => Json::Array(items.iter().map(|item| wrapped(item, place)).collect()),
        Json::Object(members) => {
            let member = |(key, value): &(String, Json)| (key.clone(), wrapped(value, place));
            Json::Object(members.iter().map(member).collect())
        }
        other => other.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn valid_text_is_read_as_serde_json_reads_it(text in json_text()) {
        check_against_serde_json(text.as_bytes())?;
    }

    #[test]
    fn nearly_valid_text_is_refused_where_serde_json_refuses_it(text in mutated_text()) {
        check_against_serde_json(&text)?;
    }

    #[test]
    fn arbitrary_bytes_are_read_as_serde_json_reads_them(text in prop::collection::vec(any::<u8>(), 0..64)) {
        check_against_serde_json(&text)?;
    }

    #[test]
    fn written_text_has_the_same_content_and_writes_the_same(text in json_text()) {
        if let Ok(value) = parse(text.as_bytes(), MAX_LEVELS) {
            let written = value.to_text();
            prop_assert_eq!(read(&written).to_text(), written.as_str());
            prop_assert_eq!(&read(&written), &value);
            prop_assert_eq!(JsonText::from(&value), stored(text.trim()));
            prop_assert_eq!(&reversed(&value), &value);
        }
    }

    #[test]
    fn a_value_changed_anywhere_makes_other_content(text in json_text(), place in any::<Index>()) {
        if let Ok(value) = parse(text.as_bytes(), MAX_LEVELS) {
            let mut place = place.index(values_in(&value));
            let other = wrapped(&value, &mut place);
            prop_assert_ne!(&other, &value);
            prop_assert_ne!(&value, &other);
        }
    }

    #[test]
    fn numbers_are_equal_exactly_where_big_integers_are(a in Parts::strategy(), b in Parts::strategy()) {
        let same = a.scaled() == b.scaled();
        prop_assert_eq!(read(&a.text()) == read(&b.text()), same);
        prop_assert_eq!(read(&b.text()) == read(&a.text()), same);
    }

    #[test]
    fn moving_the_point_and_the_exponent_together_changes_nothing(
        digits in "[1-9][0-9]{0,8}", exponent in "-?(0|[1-9][0-9]{0,60})", zeros in 0..9usize,
    ) {
        let shifted: BigInt = exponent.parse::<BigInt>().unwrap() - zeros;
        let moved = read(&format!("{digits}{}e{shifted}", "0".repeat(zeros)));
        let one_off = read(&format!("{digits}{}e{}", "0".repeat(zeros), &shifted + 1));
        let value = read(&format!("{digits}e{exponent}"));
        prop_assert_eq!(&value, &moved);
        prop_assert_ne!(&value, &one_off);
    }

    #[test]
    fn equality_is_an_equivalence(a in small_value(), b in small_value(), c in small_value()) {
        prop_assert!(a == a.clone());
        prop_assert_eq!(a == b, b == a);
        prop_assert!(!(a == b && b == c) || a == c);
        prop_assert_eq!(JsonText::from(&a) == JsonText::from(&b), a == b);
    }
}
