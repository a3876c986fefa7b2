//! JSON as content: what a report says, not the bytes that it was sent in.
//!
//! [`parse`] reads one JSON text strictly and keeps what a general JSON library throws away: the spelling of numbers
//! and the order of keys. `==` on [`Json`] is the equality of docs/protocol.md, "The same content". [`JsonText`] is the
//! same content as stored text, ready to be copied into an answer or an event.
//!
//! Nothing in here does I/O, and no result depends on the features that another crate turns on in `serde_json`.

use std::collections::{HashMap, HashSet};

use jiter::{Jiter, JiterError, JiterErrorType, JsonErrorType, Peek};
use serde::ser::{Error as _, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// The most levels that [`parse`] reads, whatever its caller allows.
///
/// It is what `serde_json` reads by default, so that text written from here can be read elsewhere, and it bounds the
/// stack that reading, comparing, cloning and dropping take.
pub const MAX_LEVELS: usize = 127;

/// The most characters of somebody else's text that a message repeats.
const QUOTED_CHARS: usize = 64;

/// The longest JSON Pointer in an error, in bytes.
const POINTER_BYTES: usize = 1024;

/// A JSON value as content.
///
/// [`parse`] makes it; its values have no repeated keys and at most [`MAX_LEVELS`] levels. Serialized with
/// `serde_json` it is compact text with numbers and the order of keys as they were read; other serializers do not
/// know how to write its numbers.
///
/// # Equality
///
/// `==` compares decoded values (docs/protocol.md, "The same content"): objects by their set of keys
/// in any order, arrays in order, strings by code points, and numbers by their exact mathematical value at any size,
/// so that `1`, `1.0` and `10e-1` are equal, and `1e400` and `1e401` are not. It takes time in proportion to the text.
#[derive(Clone, Debug)]
pub enum Json {
    /// `null`, which is a value: `{"a": null}` is not `{}`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as the text that it was written in (RFC 8259 section 6).
    Number(Box<str>),
    /// A string, with its escapes decoded.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object, its members in the order written. No key comes twice in what [`parse`] makes.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Gives the compact JSON text of this value.
    ///
    /// # Panics
    ///
    /// If a [`Json::Number`] that was built by hand holds text that is not JSON. [`parse`] makes none.
    pub fn to_text(&self) -> String {
        Box::<str>::from(self.to_raw()).into()
    }

    /// Gives how deeply arrays and objects are nested: 0 for a scalar, 1 for `{}`, 2 for `{"a":[]}`.
    pub fn levels(&self) -> usize {
        let inside = match self {
            Json::Array(items) => items.iter().map(Json::levels).max(),
            Json::Object(members) => members.iter().map(|(_, value)| value.levels()).max(),
            _ => return 0,
        };
        1 + inside.unwrap_or(0)
    }

    #[expect(
        clippy::expect_used,
        reason = "it only fails for a number built by hand, as documented"
    )]
    fn to_raw(&self) -> Box<RawValue> {
        to_raw_value(self).expect("every number in it is JSON")
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Json::Null, Json::Null) => true,
            (Json::Bool(a), Json::Bool(b)) => a == b,
            (Json::Number(a), Json::Number(b)) => same_number(a, b),
            (Json::String(a), Json::String(b)) => a == b,
            (Json::Array(a), Json::Array(b)) => a == b,
            (Json::Object(a), Json::Object(b)) => a.len() == b.len() && by_key(a) == by_key(b),
            _ => false,
        }
    }
}

impl Eq for Json {}

/// The members of an object by their key. The map is seeded at random, so that no choice of keys makes it slow.
fn by_key(members: &[(String, Json)]) -> HashMap<&str, &Json> {
    members
        .iter()
        .map(|(key, value)| (key.as_str(), value))
        .collect()
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Null => serializer.serialize_unit(),
            Json::Bool(value) => serializer.serialize_bool(*value),
            Json::Number(text) => serde_json::from_str::<&RawValue>(text)
                .map_err(S::Error::custom)?
                .serialize(serializer),
            Json::String(text) => serializer.serialize_str(text),
            Json::Array(items) => serializer.collect_seq(items),
            Json::Object(members) => {
                serializer.collect_map(members.iter().map(|(key, value)| (key, value)))
            }
        }
    }
}

/// Says whether two texts of JSON numbers have the same mathematical value, exactly and at any size.
fn same_number(a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    let (a, b) = (Decimal::of(a), Decimal::of(b));
    if a.digits != b.digits {
        return false;
    }
    let zero = a.digits.is_empty();
    zero || (a.negative == b.negative && a.exponent.minus(b.exponent) == Some(b.point - a.point))
}

/// A number taken apart: `0.digits` times ten to the power of `exponent + point`.
struct Decimal<'a> {
    negative: bool,
    /// The significant digits, without zeros at either end; none for zero.
    digits: String,
    /// How far the decimal point is to the right of the first digit. Never further than the text is long.
    point: i128,
    exponent: Exponent<'a>,
}

impl<'a> Decimal<'a> {
    fn of(text: &'a str) -> Self {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, ""));
        let magnitude = mantissa.strip_prefix('-');
        let (whole, fraction) = {
            let unsigned = magnitude.unwrap_or(mantissa);
            unsigned.split_once('.').unwrap_or((unsigned, ""))
        };
        let all = [whole, fraction].concat();
        let significant = all.trim_start_matches('0');
        Decimal {
            negative: magnitude.is_some(),
            digits: significant.trim_end_matches('0').to_owned(),
            point: whole.len() as i128 - (all.len() - significant.len()) as i128,
            exponent: Exponent::of(exponent),
        }
    }
}

/// The written exponent of a number, which may have more digits than any integer type.
#[derive(Clone, Copy)]
struct Exponent<'a> {
    sign: i128,
    digits: &'a [u8],
}

impl<'a> Exponent<'a> {
    fn of(text: &'a str) -> Self {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        Exponent {
            sign,
            digits: digits.as_bytes(),
        }
    }

    /// Gives `self - other`, or nothing where it is beyond 2^64 and so further than any two points can be apart.
    ///
    /// It subtracts digit by digit from the front: a difference that has once become that large only grows with the
    /// digits that follow. So it takes one pass over the digits, where converting them to a big integer first would
    /// take a time that grows with their square.
    fn minus(self, other: Self) -> Option<i128> {
        const FURTHEST: i128 = 1 << 64;
        let length = self.digits.len().max(other.digits.len());
        let mut difference = 0;
        for place in (0..length).rev() {
            difference = difference * 10 + self.digit(place) - other.digit(place);
            if !(-FURTHEST..=FURTHEST).contains(&difference) {
                return None;
            }
        }
        Some(difference)
    }

    /// The signed digit at `place`, counted from the last one; 0 in front of the first one.
    fn digit(self, place: usize) -> i128 {
        let index = self.digits.len().checked_sub(place + 1);
        index.map_or(0, |index| {
            self.sign * (i128::from(self.digits[index]) - i128::from(b'0'))
        })
    }
}

/// What is wrong with a text that [`parse`] refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParseError {
    /// Where it is, as a JSON Pointer (RFC 6901): the innermost value that was being read, or the repeated member.
    /// `None` where the whole text is at fault. One that would be longer than 1 KiB names an enclosing value instead.
    pub pointer: Option<String>,
    /// What is wrong, for people: one line, with offsets in bytes from 0, and little of the text itself.
    pub message: String,
    /// What sort of fault it is, for programs.
    pub kind: ParseErrorKind,
}

/// The sorts of [`ParseError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// Not JSON by RFC 8259, a byte order mark, a lone surrogate, or something after the value.
    Syntax,
    /// An object has a key twice.
    RepeatedKey,
    /// Arrays and objects are nested more deeply than allowed.
    TooDeep,
    /// The bytes are not UTF-8.
    InvalidUtf8,
}

/// Reads one JSON value from `text`, which must hold that and nothing else but white space.
///
/// `max_levels` is how deeply arrays and objects may be nested, counted as in [`Json::levels`]; more than
/// [`MAX_LEVELS`] is never read. Numbers may have any size and any number of digits. The caller limits the length of
/// the text; time and memory are in proportion to it.
///
/// # Errors
///
/// It refuses what RFC 8259 refuses, and also what two readers could understand differently (docs/protocol.md,
/// "Report"): a byte order mark, invalid UTF-8 anywhere, a lone surrogate, `NaN` and infinities, a key that comes
/// twice in one object, however it is spelled, and anything after the value.
pub fn parse(text: &[u8], max_levels: usize) -> Result<Json, ParseError> {
    read_all(text, max_levels.min(MAX_LEVELS)).map_err(ParseError::from)
}

fn read_all(text: &[u8], max_levels: usize) -> Result<Json, Fault> {
    if text.starts_with(b"\xef\xbb\xbf") {
        return Err(Fault::syntax(
            "starts with a byte order mark; send UTF-8 without one".to_owned(),
        ));
    }
    let text = str::from_utf8(text).map_err(|error| {
        let message = format!("not UTF-8: invalid at byte {}", error.valid_up_to());
        Fault::new(ParseErrorKind::InvalidUtf8, message)
    })?;
    if text.trim_ascii().is_empty() {
        return Err(Fault::syntax(
            "empty: there is no JSON value in it".to_owned(),
        ));
    }
    let mut reader = Reader {
        text,
        rest: Jiter::new(text.as_bytes()),
        rest_from: 0,
        max_levels,
    };
    let first = reader.rest.peek().map_err(|error| reader.fault(&error))?;
    let value = reader.value(first, 0)?;
    reader.rest.finish().map_err(|error| reader.fault(&error))?;
    Ok(value)
}

/// Reads values from a text, token by token.
struct Reader<'t> {
    text: &'t str,
    /// Reads the text from the byte `rest_from` on. It keeps no state but its place, so it can be set down anywhere
    /// between two tokens.
    rest: Jiter<'t>,
    rest_from: usize,
    max_levels: usize,
}

impl<'t> Reader<'t> {
    /// Reads the value that begins with `first`, inside of `level` arrays and objects.
    fn value(&mut self, first: Peek, level: usize) -> Result<Json, Fault> {
        match first {
            Peek::Null => self
                .rest
                .known_null()
                .map(|()| Json::Null)
                .map_err(|error| self.fault(&error)),
            Peek::True | Peek::False => self
                .rest
                .known_bool(first)
                .map(Json::Bool)
                .map_err(|error| self.fault(&error)),
            Peek::String => {
                let read = self
                    .rest
                    .known_str()
                    .map(|text| Json::String(text.to_owned()));
                read.map_err(|error| self.fault(&error))
            }
            Peek::Array | Peek::Object if level >= self.max_levels => {
                let message = format!(
                    "nested deeper than {} levels, at byte {}",
                    self.max_levels,
                    self.place()
                );
                Err(Fault::new(ParseErrorKind::TooDeep, message))
            }
            Peek::Array => self.array(level + 1),
            Peek::Object => self.object(level + 1),
            Peek::NaN | Peek::Infinity => {
                let message = format!(
                    "not JSON: NaN and Infinity are not numbers in JSON, at byte {}",
                    self.place()
                );
                Err(Fault::syntax(message))
            }
            _ if first.is_num() => self.number(first),
            _ => Err(Fault::syntax(format!(
                "not JSON: expected a value at byte {}",
                self.place()
            ))),
        }
    }

    fn array(&mut self, level: usize) -> Result<Json, Fault> {
        let mut items = Vec::new();
        let mut next = self
            .rest
            .known_array()
            .map_err(|error| self.fault(&error))?;
        while let Some(first) = next {
            let index = items.len();
            items.push(
                self.value(first, level)
                    .map_err(|fault| fault.inside(&index.to_string()))?,
            );
            next = self.rest.array_step().map_err(|error| self.fault(&error))?;
        }
        Ok(Json::Array(items))
    }

    fn object(&mut self, level: usize) -> Result<Json, Fault> {
        let mut members = Vec::new();
        let first = self.rest.known_object().map(|key| key.map(str::to_owned));
        let mut next = first.map_err(|error| self.fault(&error))?;
        while let Some(key) = next {
            let value = self.member(level).map_err(|fault| fault.inside(&key))?;
            members.push((key, value));
            let step = self.rest.next_key().map(|key| key.map(str::to_owned));
            next = step.map_err(|error| self.fault(&error))?;
        }
        match repeated_key(&members) {
            Some(key) => {
                let message = format!("the key {} appears twice", quoted(key));
                Err(Fault::new(ParseErrorKind::RepeatedKey, message).inside(key))
            }
            None => Ok(Json::Object(members)),
        }
    }

    fn member(&mut self, level: usize) -> Result<Json, Fault> {
        let first = self.rest.peek().map_err(|error| self.fault(&error))?;
        self.value(first, level)
    }

    fn number(&mut self, first: Peek) -> Result<Json, Fault> {
        let from = self.place();
        let mut read = self.rest.known_number_bytes(first).map(|_| ());
        if let Err(JiterError {
            error_type: JiterErrorType::JsonError(JsonErrorType::NumberOutOfRange),
            ..
        }) = read
        {
            read = self.number_from_its_last_whole_digit(from);
        }
        read.map_err(|error| self.fault(&error))?;
        Ok(Json::Number(self.text[from..self.place()].into()))
    }

    /// Reads the number at `from`, which has more digits in front of its point than jiter reads (4300).
    ///
    /// The last one of those digits begins a number too, with the same fraction and exponent, so jiter reads that.
    fn number_from_its_last_whole_digit(&mut self, from: usize) -> Result<(), JiterError> {
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let number = &self.text.as_bytes()[from..];
        let sign = number.iter().take_while(|byte| !is_digit(byte)).count();
        let digits = number[sign..]
            .iter()
            .take_while(|byte| is_digit(byte))
            .count();
        self.rest_from = from + sign + digits.saturating_sub(1);
        self.rest = Jiter::new(&self.text.as_bytes()[self.rest_from..]);
        self.rest.next_number_bytes().map(|_| ())
    }

    /// The byte of the text that is read next.
    fn place(&self) -> usize {
        self.rest_from + self.rest.current_index()
    }

    fn fault(&self, error: &JiterError) -> Fault {
        let place = self.rest_from + error.index;
        let JiterErrorType::JsonError(error) = &error.error_type else {
            return Fault::syntax(format!("not JSON: {} at byte {place}", error.error_type));
        };
        Fault::syntax(match error {
            JsonErrorType::LoneLeadingSurrogateInHexEscape
            | JsonErrorType::UnexpectedEndOfHexEscape => {
                format!(
                    "a lone surrogate in a string: \\ud800 to \\udfff only come in pairs, at byte {place}"
                )
            }
            error => format!("not JSON: {} at byte {place}", in_words(error)),
        })
    }
}

/// What jiter found, in words for people who have not read a JSON parser.
fn in_words(error: &JsonErrorType) -> String {
    let words = match error {
        JsonErrorType::EofWhileParsingList
        | JsonErrorType::EofWhileParsingObject
        | JsonErrorType::EofWhileParsingString
        | JsonErrorType::EofWhileParsingValue => "the text is cut short",
        JsonErrorType::ExpectedColon => "expected `:` after a key",
        JsonErrorType::ExpectedListCommaOrEnd => "expected `,` or `]`",
        JsonErrorType::ExpectedObjectCommaOrEnd => "expected `,` or `}`",
        JsonErrorType::KeyMustBeAString => "expected a key in double quotes",
        JsonErrorType::TrailingComma => "a comma with nothing after it",
        JsonErrorType::TrailingCharacters => "more text after the value",
        JsonErrorType::ExpectedSomeIdent => "expected `true`, `false` or `null`",
        JsonErrorType::InvalidNumber => "a number that is not written as JSON",
        JsonErrorType::InvalidEscape => "an escape that JSON does not have",
        JsonErrorType::ControlCharacterWhileParsingString => "a control character in a string",
        other => return other.to_string(),
    };
    words.to_owned()
}

/// Up to so many keys each is compared with those before it, which is cheaper than a set.
const FEW_KEYS: usize = 16;

/// The first key that comes a second time. The set is seeded at random, so that no choice of keys makes it slow.
fn repeated_key(members: &[(String, Json)]) -> Option<&str> {
    let mut keys = members.iter().map(|(key, _)| key.as_str());
    if members.len() <= FEW_KEYS {
        let comes_before = |&(at, key): &(usize, &str)| {
            let mut before = members[..at].iter();
            before.any(|(other, _)| other == key)
        };
        return keys.enumerate().find(comes_before).map(|(_, key)| key);
    }
    let mut seen = HashSet::with_capacity(members.len());
    keys.find(|key| !seen.insert(*key))
}

/// The text in quotes, on one line, cut where it is long.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// A [`ParseError`] whose place is still being found out.
struct Fault {
    kind: ParseErrorKind,
    message: String,
    /// The keys and indices that lead to the place, innermost first.
    path: Vec<String>,
}

impl Fault {
    fn new(kind: ParseErrorKind, message: String) -> Self {
        Fault {
            kind,
            message,
            path: Vec::new(),
        }
    }

    fn syntax(message: String) -> Self {
        Fault::new(ParseErrorKind::Syntax, message)
    }

    fn inside(mut self, step: &str) -> Self {
        self.path.push(step.replace('~', "~0").replace('/', "~1"));
        self
    }
}

impl From<Fault> for ParseError {
    fn from(fault: Fault) -> Self {
        let mut pointer = String::new();
        for step in fault.path.iter().rev() {
            if pointer.len() + 1 + step.len() > POINTER_BYTES {
                break;
            }
            pointer.push('/');
            pointer.push_str(step);
        }
        let pointer = Some(pointer).filter(|pointer| !pointer.is_empty());
        ParseError {
            pointer,
            message: fault.message,
            kind: fault.kind,
        }
    }
}

/// JSON text that is known to be good, as it is stored and as it is copied into answers and events.
///
/// `==` is content equality, as for [`Json`]. Both texts are read for that, unless they are identical; one that
/// [`parse`] refuses is equal to the identical text only.
///
/// It serializes, with `serde_json`, as the text itself, and deserializes to the text as it stands in the input. It
/// cannot be read through serde's buffering (`flatten`, `untagged`, internally tagged enums), which loses the text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JsonText(Box<RawValue>);

impl JsonText {
    /// Takes text that [`JsonText::get`] gave, back from where it was stored.
    ///
    /// # Errors
    ///
    /// If it is not one JSON value. It is not checked for what only [`parse`] refuses, such as repeated keys: that
    /// happened before it was stored.
    pub fn from_stored(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(JsonText)
    }

    /// Gives the text.
    pub fn get(&self) -> &str {
        self.0.get()
    }
}

/// Writes the value as compact text; it panics where [`Json::to_text`] does.
impl From<&Json> for JsonText {
    fn from(value: &Json) -> Self {
        JsonText(value.to_raw())
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        let content = |text: &JsonText| parse(text.get().as_bytes(), MAX_LEVELS).ok();
        self.get() == other.get()
            || content(self).is_some_and(|value| content(other) == Some(value))
    }
}

impl Eq for JsonText {}

#[cfg(test)]
mod tests;
