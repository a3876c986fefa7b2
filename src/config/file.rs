//! The configuration file: TOML, one key for each option, named like it (docs/configuration.md).

use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::{ConfigError, read_small_file};

/// How alike two names must be for one to be taken for a misspelling of the other, from 0 to 1.
const ALIKE: f64 = 0.8;

/// What the environment variables of options begin with.
const VARIABLES: &str = "TASKLATCH_";

/// An option that the file may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOption {
    /// Its name without the dashes.
    pub name: String,
    /// Names that it had before, which still work.
    pub old_names: Vec<String>,
    /// Whether it is on or off, and has no value else.
    pub is_switch: bool,
}

/// A value that the file gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The option.
    pub name: String,
    /// The value, as it would stand on the command line; `true` or `false` for a switch.
    pub value: String,
    /// Where it stands in the file, from 1.
    pub line: usize,
}

/// Reads a configuration file: what it sets, and everything that is wrong with it. An error never shows a value.
pub fn read_file(path: &Path, options: &[FileOption]) -> (Vec<Setting>, Vec<ConfigError>) {
    let text = match read_small_file("--config", path) {
        Ok(text) => text,
        Err(error) => return (Vec::new(), vec![error]),
    };
    let at = |span: Option<Range<usize>>| {
        let start = span.map_or(0, |span| span.start);
        text.bytes()
            .take(start)
            .filter(|byte| *byte == b'\n')
            .count()
            + 1
    };
    let table = match DeTable::parse(&text) {
        Ok(table) => table.into_inner(),
        Err(error) => {
            let line = at(error.span());
            let why = error.message();
            let error = format!("{}:{line}: not TOML: {why}", path.display());
            return (Vec::new(), vec![ConfigError(error)]);
        }
    };
    let (mut settings, mut errors) = (Vec::new(), Vec::new());
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let written = key.get_ref().as_ref();
        let name = name_of(written, options);
        let line = at(Some(key.span()));
        let is_twice = settings
            .iter()
            .any(|setting: &Setting| setting.name == name);
        match setting(name, value.get_ref(), options) {
            Ok(_) if is_twice => errors.push(ConfigError(format!(
                "{}:{line}: {written} is another name of an option that is set above",
                path.display()
            ))),
            Ok(value) => settings.push(Setting {
                name: name.to_owned(),
                value,
                line,
            }),
            Err(why) => errors.push(ConfigError(format!("{}:{line}: {why}", path.display()))),
        }
    }
    (settings, errors)
}

/// The name of the option that has this name, or had it before.
fn name_of<'a>(written: &'a str, options: &'a [FileOption]) -> &'a str {
    let mut options = options.iter();
    let old = |option: &&FileOption| option.old_names.iter().any(|old| old == written);
    options.find(old).map_or(written, |option| &option.name)
}

fn setting(name: &str, value: &DeValue<'_>, options: &[FileOption]) -> Result<String, String> {
    let Some(option) = options.iter().find(|option| option.name == name) else {
        let meant = nearest(name, options.iter().map(|option| option.name.as_str()));
        let hint = meant.map_or_else(
            || "`tasklatch config show` lists those that there are".to_owned(),
            |meant| format!("did you mean {meant}?"),
        );
        return Err(format!("there is no option {name}; {hint}"));
    };
    match value {
        DeValue::Boolean(on) if option.is_switch => Ok(on.to_string()),
        _ if option.is_switch => Err(format!("{name} is on or off: write true or false")),
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().replace('_', "")),
        _ => Err(format!("{name} takes a string or a whole number")),
    }
}

/// Environment variables that are named as if they were of an option and are of none, each with what was meant, if that can
/// be guessed.
pub fn unknown_variables<'a>(
    set: impl Iterator<Item = &'a str>,
    known: &[String],
) -> Vec<(String, Option<String>)> {
    let unknown =
        set.filter(|name| name.starts_with(VARIABLES) && !known.iter().any(|known| known == name));
    unknown
        .map(|name| {
            let meant = nearest(name, known.iter().map(String::as_str));
            (name.to_owned(), meant.map(str::to_owned))
        })
        .collect()
}

fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}
