//! An independent reader of JSON as content, to compare `content` with.
//!
//! `serde_json` finds the values in the text, and this takes them apart level by level, so that number text and
//! repeated keys show. `content` reads with another parser. Numbers are compared as big integers. It may be slow.

use num_bigint::BigInt;
use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

/// A JSON value. Made by [`read`], it has no repeated keys.
#[derive(Clone, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    /// As it is written.
    Number(String),
    String(String),
    Array(Vec<Value>),
    Object(Vec<(String, Value)>),
}

/// Reads a text that is to hold one value of at most `max_levels` levels; nothing where it must be refused.
pub fn read(text: &[u8], max_levels: usize) -> Option<Value> {
    let text = str::from_utf8(text).ok()?;
    value(serde_json::from_str(text).ok()?, max_levels)
}

fn value(text: &RawValue, levels: usize) -> Option<Value> {
    let text = text.get();
    let inside = || levels.checked_sub(1);
    Some(match text.as_bytes().first()? {
        b'n' => Value::Null,
        b't' => Value::Bool(true),
        b'f' => Value::Bool(false),
        b'"' => Value::String(serde_json::from_str(text).ok()?),
        b'[' => {
            let inside = inside()?;
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            let items = items.into_iter().map(|item| value(item, inside));
            Value::Array(items.collect::<Option<_>>()?)
        }
        b'{' => {
            let inside = inside()?;
            let members = serde_json::Deserializer::from_str(text)
                .deserialize_map(Members)
                .ok()?;
            let mut object: Vec<(String, Value)> = Vec::new();
            for (key, member) in members {
                if object.iter().any(|(other, _)| *other == key) {
                    return None;
                }
                object.push((key, value(member, inside)?));
            }
            Value::Object(object)
        }
        _ => Value::Number(text.to_owned()),
    })
}

/// All members of an object, also those whose key came before.
struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}

/// Whether two values are the same content (docs/protocol.md, "The same content").
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Number(a), Value::Number(b)) => same_number(a, b),
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let in_b = |(key, a): &(String, Value)| member(b, key).is_some_and(|b| same(a, b));
            a.len() == b.len() && a.iter().all(in_b)
        }
        _ => false,
    }
}

/// The member of an object with this key.
pub fn member<'v>(members: &'v [(String, Value)], key: &str) -> Option<&'v Value> {
    let found = members.iter().find(|(other, _)| other == key);
    found.map(|(_, value)| value)
}

fn same_number(a: &str, b: &str) -> bool {
    let ((a_digits, a_exponent), (b_digits, b_exponent)) = (scientific(a), scientific(b));
    if a_digits == BigInt::ZERO || b_digits == BigInt::ZERO {
        return a_digits == b_digits;
    }
    let (high, low, apart) = if a_exponent >= b_exponent {
        (a_digits, b_digits, a_exponent - b_exponent)
    } else {
        (b_digits, a_digits, b_exponent - a_exponent)
    };
    // Further apart than there are digits, no digits make up for it, and the power would be too large to take.
    match u32::try_from(apart) {
        Ok(apart) if apart as usize <= a.len() + b.len() => {
            high * BigInt::from(10).pow(apart) == low
        }
        _ => false,
    }
}

/// The text of a JSON number as an integer and the power of ten that it is multiplied with.
pub fn scientific(text: &str) -> (BigInt, BigInt) {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let integer = |text: &str| text.parse::<BigInt>().expect("digits, with a sign");
    (
        integer(&format!("{whole}{fraction}")),
        integer(exponent) - fraction.len(),
    )
}
