//! A file line by line, none longer than the limit, with the checksum of all that came before.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};

use sha2::{Digest, Sha256};

use super::damage::Place;
use super::format::LINE_BYTES_MAX;

const BUFFER_BYTES: usize = 256 * 1024;

/// What stands at the current place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// A line with its line break.
    Line,
    /// Something that the file ends in the middle of.
    CutShort,
    /// A line over the limit.
    TooLong,
    /// The end of the file.
    End,
}

/// Reads a file from its beginning.
pub(super) struct Lines<'f> {
    from: BufReader<&'f mut File>,
    line: Vec<u8>,
    place: Place,
    /// Of all lines before the current one.
    before: Sha256,
}

impl<'f> Lines<'f> {
    pub(super) fn new(file: &'f mut File) -> io::Result<Self> {
        file.rewind()?;
        Ok(Self {
            from: BufReader::with_capacity(BUFFER_BYTES, file),
            line: Vec::new(),
            place: Place { line: 0, offset: 0 },
            before: Sha256::new(),
        })
    }

    pub(super) fn advance(&mut self) -> io::Result<At> {
        self.before.update(&self.line);
        self.place.line += 1;
        self.place.offset += self.line.len() as u64;
        self.line.clear();
        let with_break = LINE_BYTES_MAX as u64 + 1;
        self.from
            .by_ref()
            .take(with_break)
            .read_until(b'\n', &mut self.line)?;
        Ok(match self.line.last() {
            Some(b'\n') => At::Line,
            Some(_) if self.line.len() > LINE_BYTES_MAX => At::TooLong,
            Some(_) => At::CutShort,
            None => At::End,
        })
    }

    /// The current line without its line break, or the beginning of it.
    pub(super) fn text(&self) -> &[u8] {
        self.line.strip_suffix(b"\n").unwrap_or(&self.line)
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// The checksum of all lines before the current one, in hexadecimal.
    pub(super) fn sha256_before(&self) -> String {
        hex::encode(self.before.clone().finalize())
    }
}
