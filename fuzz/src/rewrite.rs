//! Values written in other words, and values changed. What is done follows from the fuzzer's input.

use num_bigint::{BigInt, Sign};

use crate::reference::{Value, scientific};

/// What is chosen, in an order that follows from the fuzzer's input alone, so that a finding can be run again.
///
/// It is scattered from a hash: the bytes of an input that must be JSON are too much alike to choose by.
pub struct Choices(u64);

impl Choices {
    pub fn new(input: &[u8]) -> Self {
        // FNV-1a.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Choices(input.iter().fold(0xcbf2_9ce4_8422_2325, step))
    }

    /// A number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Writes a value as JSON in one of the many ways that are the same content.
pub fn respelled(value: &Value, choices: &mut Choices) -> String {
    let mut text = String::new();
    spell(value, choices, &mut text);
    text
}

fn spell(value: &Value, choices: &mut Choices, text: &mut String) {
    space(choices, text);
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(value) => text.push_str(&value.to_string()),
        Value::Number(number) => spell_number(number, choices, text),
        Value::String(string) => spell_string(string, choices, text),
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at > 0 { "," } else { "" });
                spell(item, choices, text);
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            text.push('{');
            let mut comma = "";
            while !members.is_empty() {
                let (key, member) = members.remove(choices.below(members.len()));
                text.push_str(comma);
                comma = ",";
                space(choices, text);
                spell_string(key, choices, text);
                space(choices, text);
                text.push(':');
                spell(member, choices, text);
            }
            text.push('}');
        }
    }
    space(choices, text);
}

fn space(choices: &mut Choices, text: &mut String) {
    text.push_str(choices.of(&["", "", "", "", " ", "\n", "\t", "\r\n "]));
}

fn spell_string(string: &str, choices: &mut Choices, text: &mut String) {
    text.push('"');
    for char in string.chars() {
        let short = match char {
            '"' | '\\' | '/' => Some(char),
            '\u{8}' => Some('b'),
            '\u{c}' => Some('f'),
            '\n' => Some('n'),
            '\r' => Some('r'),
            '\t' => Some('t'),
            _ => None,
        };
        let as_it_is = char >= ' ' && char != '"' && char != '\\';
        match (choices.below(4), short) {
            (0 | 1, _) if as_it_is => text.push(char),
            (0 | 2, Some(short)) => text.extend(['\\', short]),
            (way, _) => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    text.push_str(&match way {
                        3 => format!("\\u{unit:04X}"),
                        _ => format!("\\u{unit:04x}"),
                    });
                }
            }
        }
    }
    text.push('"');
}

fn spell_number(number: &str, choices: &mut Choices, text: &mut String) {
    let (digits, mut exponent) = scientific(number);
    let negative = digits.sign() == Sign::Minus;
    let mut digits = digits.magnitude().to_string();
    if digits == "0" {
        exponent = BigInt::from(choices.of(&[0, 0, -1, 400, i64::MAX]));
        text.push_str(choices.of(&["", "-"]));
    } else if negative {
        text.push('-');
    }
    match choices.below(3) {
        0 => {}
        1 => {
            let zeros = choices.below(40);
            digits.push_str(&"0".repeat(zeros));
            exponent -= zeros;
        }
        _ => {
            while digits.len() > 1 && digits.ends_with('0') {
                digits.pop();
                exponent += 1;
            }
        }
    }
    // In front of them zeros are only for a fraction to stand on.
    digits.insert_str(0, &"0".repeat(choices.below(3)));
    let (whole, fraction) = digits.split_at(choices.below(digits.len() + 1));
    exponent += fraction.len();
    let whole = whole.trim_start_matches('0');
    text.push_str(if whole.is_empty() { "0" } else { whole });
    if !fraction.is_empty() {
        text.push('.');
        text.push_str(fraction);
    }
    if exponent != BigInt::ZERO || choices.below(2) == 1 {
        text.push_str(choices.of(&["e", "E"]));
        match exponent.sign() {
            Sign::Minus => text.push('-'),
            _ => text.push_str(choices.of(&["", "+"])),
        }
        text.push_str(choices.of(&["", "0", "000"]));
        text.push_str(&exponent.magnitude().to_string());
    }
}

/// A value that differs from `value` in one place.
pub fn changed(value: &Value, choices: &mut Choices) -> Value {
    match value {
        Value::Null => choices.of(&[
            || Value::Bool(false),
            || Value::Number("0".to_owned()),
            || Value::String(String::new()),
            || Value::Array(Vec::new()),
            || Value::Object(Vec::new()),
        ])(),
        Value::Bool(value) => Value::Bool(!value),
        Value::Number(number) => changed_number(number, choices),
        Value::String(string) => changed_string(string, choices),
        Value::Array(items) => Value::Array(changed_items(items, choices)),
        Value::Object(members) => Value::Object(changed_members(members, choices)),
    }
}

fn changed_number(number: &str, choices: &mut Choices) -> Value {
    let (mut digits, mut exponent) = scientific(number);
    let nonzero = digits != BigInt::ZERO;
    match choices.below(5) {
        1 if nonzero => digits = -digits,
        2 if nonzero => exponent += choices.of(&[-1, 1, 10, i64::MAX]),
        3 => return Value::String(number.to_owned()),
        4 => digits -= 1,
        _ => digits += BigInt::from(10).pow(choices.below(number.len()) as u32),
    }
    Value::Number(format!("{digits}e{exponent}"))
}

fn changed_string(string: &str, choices: &mut Choices) -> Value {
    let mut other = string.to_owned();
    match choices.below(4) {
        1 if !string.is_empty() => drop(other.pop()),
        2 => other.insert(0, choices.of(&['\0', ' ', 'a', '\u{301}', '😀'])),
        3 => return Value::Null,
        _ => other.push(choices.of(&['\n', ' ', '0', 'é', '\u{85}', '\u{ffff}'])),
    }
    Value::String(other)
}

fn changed_items(items: &[Value], choices: &mut Choices) -> Vec<Value> {
    let mut items = items.to_vec();
    let at = choices.below(items.len() + 1);
    match choices.below(4) {
        1 if at < items.len() => drop(items.remove(at)),
        2 => items.push(Value::Null),
        _ if at < items.len() => items[at] = changed(&items[at], choices),
        _ => items.insert(at, Value::Array(Vec::new())),
    }
    items
}

fn changed_members(members: &[(String, Value)], choices: &mut Choices) -> Vec<(String, Value)> {
    let mut members = members.to_vec();
    let at = choices.below(members.len() + 1);
    let mut new_key = members
        .get(at)
        .map_or(String::new(), |(key, _)| key.clone());
    while members.iter().any(|(key, _)| *key == new_key) {
        new_key.push(choices.of(&['a', '\0', '😀']));
    }
    match choices.below(5) {
        1 if at < members.len() => drop(members.remove(at)),
        2 => members.push((new_key, Value::Null)),
        3 if at < members.len() => members[at].0 = new_key,
        _ if at < members.len() => members[at].1 = changed(&members[at].1, choices),
        _ => members.push((new_key, Value::Bool(true))),
    }
    members
}

/// A value in which an object has a member twice, the second time with any value; nothing where no object has members.
pub fn with_repeated_key(value: &Value, choices: &mut Choices) -> Option<Value> {
    let mut places = Vec::new();
    find_members(value, &mut Vec::new(), &mut places);
    let mut value = value.clone();
    if !places.is_empty() {
        let place = &places[choices.below(places.len())];
        let mut object = &mut value;
        for step in place {
            object = match object {
                Value::Array(items) => &mut items[*step],
                Value::Object(members) => &mut members[*step].1,
                _ => unreachable!("only those have something inside"),
            };
        }
        if let Value::Object(members) = object {
            let (key, member) = members[choices.below(members.len())].clone();
            let again = choices.of(&[true, false]);
            members.push((key, if again { member } else { Value::Null }));
        }
    }
    (!places.is_empty()).then_some(value)
}

/// Notes the way to each object that has members.
fn find_members(value: &Value, way: &mut Vec<usize>, places: &mut Vec<Vec<usize>>) {
    let inside: Vec<&Value> = match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(members) => members.iter().map(|(_, member)| member).collect(),
        _ => return,
    };
    if matches!(value, Value::Object(_)) && !inside.is_empty() {
        places.push(way.clone());
    }
    for (step, value) in inside.into_iter().enumerate() {
        way.push(step);
        find_members(value, way, places);
        way.pop();
    }
}
