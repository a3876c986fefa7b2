//! Two JSON texts, A and B, with a zero byte between them.
//!
//! Each is read exactly where the reference reads it. A and B are equal exactly where the reference says so. A is equal
//! to itself written in other words, and as canonical text; A with one change is not, however that is written. A with a key repeated is refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tasklatch_fuzz::content::{Json, JsonText, MAX_LEVELS, parse};
use tasklatch_fuzz::reference::{Value, read, same};
use tasklatch_fuzz::rewrite::{Choices, changed, respelled, with_repeated_key};

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let [a, b] = [(); 2].map(|()| parts.next().unwrap_or_default());
    let choices = &mut Choices::new(data);

    let (a, b) = (both_read(a, MAX_LEVELS), both_read(b, MAX_LEVELS));
    if let (Some(a), Some(b)) = (&a, &b) {
        check_pair(a, b);
    }
    for (json, value) in [a, b].into_iter().flatten() {
        let text = json.to_text();
        let (canonical, _) = both_read(text.as_bytes(), json.levels()).expect("it was read before");
        assert_eq!(canonical, json);
        assert_eq!(canonical.to_text(), text);
        if let Some(fewer) = json.levels().checked_sub(1) {
            assert!(both_read(text.as_bytes(), fewer).is_none());
        }

        let respelled_text = respelled(&value, choices);
        let again = both_read(respelled_text.as_bytes(), MAX_LEVELS).expect("it is JSON");
        assert!(
            same(&value, &again.1),
            "the rewriting is wrong: {respelled_text}"
        );
        assert_eq!(again.0, json, "{respelled_text}");
        check_pair(&(json.clone(), value.clone()), &again);

        if let Some(repeated) = with_repeated_key(&value, choices) {
            let repeated = respelled(&repeated, choices);
            assert!(
                both_read(repeated.as_bytes(), MAX_LEVELS).is_none(),
                "{repeated}"
            );
        }

        let other = changed(&value, choices);
        assert!(!same(&value, &other), "the change is none: {other:?}");
        let other = respelled(&other, choices);
        // One more array may be a level too many.
        if let Some(other) = both_read(other.as_bytes(), MAX_LEVELS) {
            check_pair(&(json, value), &other);
        }
    }
});

/// Reads a text in both ways, which agree on whether it can be read.
fn both_read(text: &[u8], max_levels: usize) -> Option<(Json, Value)> {
    let (json, value) = (parse(text, max_levels), read(text, max_levels));
    assert_eq!(json.is_ok(), value.is_some(), "{json:?} and {value:?}");
    json.ok().zip(value)
}

/// Checks that two values, and their stored texts, are equal exactly where the reference says so.
fn check_pair((a, a_value): &(Json, Value), (b, b_value): &(Json, Value)) {
    let wanted = same(a_value, b_value);
    assert_eq!(a == b, wanted, "{a:?} and {b:?}");
    assert_eq!(b == a, wanted, "{b:?} and {a:?}");
    assert_eq!(JsonText::from(a) == JsonText::from(b), wanted);
}
