//! The fields of one JSON object, taken out one by one. What is left at the end was not understood.

use super::{limits, may_be_in_task_id};
use crate::content::{Json, JsonText};
use crate::task::Timestamp;
use crate::wire::{Code, Refusal};

/// The fields of a request that have not been taken yet. A field that is `null` is a field that was left out.
pub(super) struct Fields {
    code: Code,
    fields: Vec<(String, Json)>,
}

impl Fields {
    pub(super) fn new(code: Code, fields: Vec<(String, Json)>) -> Self {
        Self { code, fields }
    }

    pub(super) fn refuse_whole(&self, message: impl Into<String>) -> Refusal {
        Refusal::new(self.code, message)
    }

    pub(super) fn refuse(&self, name: &str, message: impl Into<String>) -> Refusal {
        Refusal::new(self.code, message).at(pointer(name))
    }

    fn too_large(&self, name: &str, unit: &str, limit: usize, actual: usize) -> Refusal {
        self.refuse(
            name,
            format!("{name} has {actual} {unit}; the limit is {limit}"),
        )
        .over(limit, actual)
    }

    fn wrong_type(&self, name: &str, wanted: &str, found: &Json) -> Refusal {
        self.refuse(
            name,
            format!("{name} is {}; it must be {wanted}", kind(found)),
        )
    }

    fn take(&mut self, name: &str) -> Option<Json> {
        let at = self.fields.iter().position(|(key, _)| key == name)?;
        match self.fields.swap_remove(at).1 {
            Json::Null => None,
            value => Some(value),
        }
    }

    pub(super) fn required<T>(&self, name: &str, value: Option<T>) -> Result<T, Refusal> {
        value
            .ok_or_else(|| self.refuse(name, format!("{name} is missing, or null; it is required")))
    }

    /// Refuses what is over the limit when all of it is written as compact JSON.
    pub(super) fn check_size(&mut self, whole: &str, limit: usize) -> Result<(), Refusal> {
        let object = Json::Object(std::mem::take(&mut self.fields));
        let actual = object.to_text().len();
        if let Json::Object(fields) = object {
            self.fields = fields;
        }
        if actual > limit {
            let message = format!("{whole} has {actual} bytes of JSON; the limit is {limit}");
            return Err(self.refuse_whole(message).over(limit, actual));
        }
        Ok(())
    }

    pub(super) fn optional_text(
        &mut self,
        name: &str,
        min_bytes: usize,
        max_bytes: usize,
    ) -> Result<Option<String>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) if text.len() < min_bytes => {
                Err(self.refuse(name, format!("{name} is empty")))
            }
            Some(Json::String(text)) if text.len() > max_bytes => {
                Err(self.too_large(name, "bytes", max_bytes, text.len()))
            }
            Some(Json::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type(name, "a string", &other)),
        }
    }

    pub(super) fn task_id(&mut self) -> Result<Option<String>, Refusal> {
        match self.optional_text("task_id", 1, limits::TASK_ID_BYTES)? {
            Some(text) => self.checked_task_id(text).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn checked_task_id(&self, text: String) -> Result<String, Refusal> {
        if text.len() > limits::TASK_ID_BYTES {
            return Err(self.too_large("task_id", "bytes", limits::TASK_ID_BYTES, text.len()));
        }
        if text.is_empty() || !text.bytes().all(may_be_in_task_id) {
            let message =
                "task_id may hold A-Z a-z 0-9 _ and - only, so that it is one subject token";
            return Err(self.refuse("task_id", message));
        }
        Ok(text)
    }

    pub(super) fn pane_id(&mut self) -> Result<Option<String>, Refusal> {
        let Some(text) = self.optional_text("pane_id", 1, limits::PANE_ID_CHARS * 4)? else {
            return Ok(None);
        };
        let chars = text.chars().count();
        if chars > limits::PANE_ID_CHARS {
            return Err(self.too_large("pane_id", "characters", limits::PANE_ID_CHARS, chars));
        }
        if text.chars().any(char::is_control) {
            return Err(self.refuse("pane_id", "pane_id holds a control character"));
        }
        Ok(Some(text))
    }

    pub(super) fn word<T: std::fmt::Display>(
        &mut self,
        name: &str,
        from_word: impl Fn(&str) -> Option<T>,
        all: &[T],
    ) -> Result<Option<T>, Refusal> {
        let words: Vec<String> = all.iter().map(ToString::to_string).collect();
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(word)) => match from_word(&word) {
                Some(value) => Ok(Some(value)),
                None => Err(self.refuse(name, unknown_word(name, &word, &words.join(", ")))),
            },
            Some(other) => Err(self.wrong_type(name, "a string", &other)),
        }
    }

    pub(super) fn words<T>(
        &mut self,
        name: &str,
        from_word: impl Fn(&str) -> Option<T>,
        all: &[&str],
    ) -> Result<Option<Vec<T>>, Refusal> {
        let items = match self.take(name) {
            None => return Ok(None),
            Some(Json::Array(items)) => items,
            Some(other) => return Err(self.wrong_type(name, "an array of strings", &other)),
        };
        if items.is_empty() {
            let message = format!(
                "{name} is an empty array, which nothing can match; leave it out to match all"
            );
            return Err(self.refuse(name, message));
        }
        let one = |(at, item): (usize, &Json)| {
            let here = format!("{name}/{at}");
            match item {
                Json::String(word) => from_word(word)
                    .ok_or_else(|| self.refuse(&here, unknown_word(name, word, &all.join(", ")))),
                other => Err(self.wrong_type(&here, "a string", other)),
            }
        };
        items
            .iter()
            .enumerate()
            .map(one)
            .collect::<Result<Vec<T>, Refusal>>()
            .map(Some)
    }

    pub(super) fn artifacts(&mut self) -> Result<Vec<String>, Refusal> {
        let items = match self.take("artifacts") {
            None => return Ok(Vec::new()),
            Some(Json::Array(items)) => items,
            Some(other) => return Err(self.wrong_type("artifacts", "an array of strings", &other)),
        };
        if items.len() > limits::ARTIFACTS {
            return Err(self.too_large("artifacts", "items", limits::ARTIFACTS, items.len()));
        }
        let one = |(at, item)| {
            let here = format!("artifacts/{at}");
            match item {
                Json::String(text) if text.is_empty() => {
                    Err(self.refuse(&here, format!("{here} is empty; leave it out")))
                }
                Json::String(text) if text.len() > limits::ARTIFACT_BYTES => {
                    Err(self.too_large(&here, "bytes", limits::ARTIFACT_BYTES, text.len()))
                }
                Json::String(text) => Ok(text),
                other => Err(self.wrong_type(&here, "a string", &other)),
            }
        };
        items.into_iter().enumerate().map(one).collect()
    }

    pub(super) fn object(
        &mut self,
        name: &str,
        max_bytes: usize,
        max_levels: usize,
    ) -> Result<Option<JsonText>, Refusal> {
        let value = match self.take(name) {
            None => return Ok(None),
            Some(value @ Json::Object(_)) => value,
            Some(other) => return Err(self.wrong_type(name, "an object", &other)),
        };
        let levels = value.levels();
        if levels > max_levels {
            return Err(self.too_large(name, "levels", max_levels, levels));
        }
        let text = JsonText::from(&value);
        if text.get().len() > max_bytes {
            return Err(self.too_large(name, "bytes of JSON", max_bytes, text.get().len()));
        }
        Ok(Some(text))
    }

    pub(super) fn time(&mut self, name: &str) -> Result<Option<Timestamp>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => match Timestamp::parse(&text) {
                Some(time) => Ok(Some(time)),
                None => Err(self.refuse(
                    name,
                    format!(
                        "{name} is no RFC 3339 time with an offset, such as 2026-11-30T07:41:22Z"
                    ),
                )),
            },
            Some(other) => Err(self.wrong_type(name, "a string with an RFC 3339 time", &other)),
        }
    }

    pub(super) fn number(
        &mut self,
        name: &str,
        min: usize,
        max: usize,
    ) -> Result<Option<usize>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Number(text)) => match text.parse() {
                Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
                _ => Err(self.refuse(
                    name,
                    format!("{name} must be a whole number from {min} to {max}"),
                )),
            },
            Some(other) => Err(self.wrong_type(name, "a whole number", &other)),
        }
    }

    /// Refuses the first field that nobody took.
    pub(super) fn close(self) -> Result<(), Refusal> {
        match self.fields.first() {
            None => Ok(()),
            Some((key, _)) => {
                let shown: String = key.chars().take(SHOWN_CHARS).collect();
                let message = format!(
                    "the key {shown:?} is not known here; nothing is dropped in silence, so leave it out"
                );
                let escaped = key.replace('~', "~0").replace('/', "~1");
                let refusal = self.refuse_whole(message);
                // A key may be as long as the payload; a pointer that long helps nobody.
                Err(if key.len() <= limits::TASK_ID_BYTES {
                    refusal.at(format!("/{escaped}"))
                } else {
                    refusal
                })
            }
        }
    }
}

/// How much of a stranger's text a message repeats.
const SHOWN_CHARS: usize = 64;

fn pointer(name: &str) -> String {
    format!("/{name}")
}

fn unknown_word(name: &str, word: &str, known: &str) -> String {
    let shown: String = word.chars().take(SHOWN_CHARS).collect();
    format!("{name} {shown:?} is not known; use one of {known}")
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}
