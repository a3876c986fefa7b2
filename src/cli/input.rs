//! Values of options that may come from a file or from standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::error::CliError;
use crate::content::{self, JsonText};

/// The most that is read of one file. It is far above every limit of the protocol, so that the service says which limit
/// is passed, and bounds what a wrong path can take.
const INPUT_BYTES: u64 = 8 * 1024 * 1024;

/// Reads the values of one command. Standard input can be had once.
#[derive(Default)]
pub(super) struct Inputs {
    stdin_of: Option<&'static str>,
}

impl Inputs {
    /// The bytes that a value stands for: `@FILE` a file, `-` standard input, `@@text` the text `@text`, and all else
    /// itself.
    pub(super) fn bytes(&mut self, option: &'static str, value: &str) -> Result<Vec<u8>, CliError> {
        match value.strip_prefix('@') {
            Some(literal) if literal.starts_with('@') => Ok(literal.as_bytes().to_vec()),
            Some(path) => self.file(option, Path::new(path)).map_err(|error| {
                let literal = format!("for a text that begins with @, write @{value}");
                if error.exit_code() == super::error::EXIT_FIX {
                    error.hinted(literal)
                } else {
                    error
                }
            }),
            None if value == "-" => self.stdin(option),
            None => Ok(value.as_bytes().to_vec()),
        }
    }

    /// The bytes of a file, or of standard input for `-`.
    pub(super) fn file_or_stdin(
        &mut self,
        option: &'static str,
        path: &Path,
    ) -> Result<Vec<u8>, CliError> {
        if path.as_os_str() == "-" {
            self.stdin(option)
        } else {
            self.file(option, path)
        }
    }

    /// As [`Inputs::bytes`], as text.
    pub(super) fn text(&mut self, option: &'static str, value: &str) -> Result<String, CliError> {
        String::from_utf8(self.bytes(option, value)?).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            CliError::Usage(format!(
                "{option}: what {} holds is not UTF-8: invalid at byte {at}",
                shown(value)
            ))
        })
    }

    /// As [`Inputs::bytes`], as one JSON value, kept as it is written.
    pub(super) fn json(&mut self, option: &'static str, value: &str) -> Result<JsonText, CliError> {
        let bytes = self.bytes(option, value)?;
        let wrong = |why: &dyn std::fmt::Display| {
            CliError::Usage(format!(
                "{option}: {} is no JSON that can be sent: {why}",
                shown(value)
            ))
        };
        // The strict reading finds what would make it more than one value in the report, or two things at once.
        content::parse(&bytes, content::MAX_LEVELS).map_err(|error| wrong(&error))?;
        let text = String::from_utf8(bytes).map_err(|error| wrong(&error))?;
        JsonText::from_stored(text).map_err(|error| wrong(&error))
    }

    fn file(&mut self, option: &'static str, path: &Path) -> Result<Vec<u8>, CliError> {
        let name = path.display();
        File::open(path)
            .and_then(read_bounded)
            .map_err(|error| CliError::Usage(format!("{option}: cannot read {name}: {error}")))
    }

    fn stdin(&mut self, option: &'static str) -> Result<Vec<u8>, CliError> {
        if let Some(earlier) = self.stdin_of.replace(option) {
            return Err(CliError::Usage(format!(
                "{earlier} and {option} both read standard input, which can be read once; put one of them in a file"
            )));
        }
        read_bounded(io::stdin().lock()).map_err(|error| {
            CliError::Usage(format!("{option}: cannot read standard input: {error}"))
        })
    }
}

fn read_bounded(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(INPUT_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > INPUT_BYTES {
        return Err(io::Error::other(
            "it is larger than 8 MiB, which no service takes",
        ));
    }
    Ok(bytes)
}

/// What a value is called in a message, without repeating much of it.
fn shown(value: &str) -> String {
    match value {
        "-" => "standard input".to_owned(),
        file if file.starts_with('@') && !file.starts_with("@@") => file[1..].to_owned(),
        _ => "the value".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(value: &str) -> Result<String, String> {
        let read = Inputs::default().json("--evidence", value);
        read.map(|text| text.get().to_owned())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn evidence_keeps_its_spelling() {
        let text = r#"{ "b":1.00, "a": 1e400, "n":9007199254740993 }"#;
        assert_eq!(json(text).unwrap(), text);
        assert_eq!(json(" {}\n").unwrap().trim(), "{}");
    }

    #[test]
    fn evidence_cannot_break_out_of_its_place_in_the_report() {
        for bad in [
            "{},\"status\":\"failed\"",
            "{}{}",
            "{}]",
            "",
            "nope",
            "{\"a\":1,\"a\":2}",
            "{\"a\":NaN}",
        ] {
            let error = json(bad).unwrap_err();
            assert!(
                error.starts_with("--evidence: the value is no JSON that can be sent: "),
                "{error}"
            );
        }
    }

    #[test]
    fn a_value_is_itself_a_file_or_a_literal_at_sign() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary");
        std::fs::write(&path, "two\nlines\n").unwrap();
        let read = |value: &str| Inputs::default().text("--summary", value);
        assert_eq!(read("done").unwrap(), "done");
        assert_eq!(
            read(&format!("@{}", path.display())).unwrap(),
            "two\nlines\n"
        );
        assert_eq!(read("@@ann did it").unwrap(), "@ann did it");
        let error = read("@ann did it").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(
            error
                .message()
                .starts_with("--summary: cannot read ann did it: "),
            "{error}"
        );
        assert_eq!(
            error.hint().unwrap(),
            "for a text that begins with @, write @@ann did it"
        );
    }

    #[test]
    fn standard_input_can_be_had_once() {
        let mut inputs = Inputs {
            stdin_of: Some("--summary"),
        };
        let error = inputs.text("--evidence", "-").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("--summary and --evidence both read standard input"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_not_utf_8_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("binary");
        std::fs::write(&path, b"ab\xff").unwrap();
        let error = Inputs::default()
            .text("--summary", &format!("@{}", path.display()))
            .unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("binary holds is not UTF-8: invalid at byte 2"),
            "{error}"
        );
    }
}
