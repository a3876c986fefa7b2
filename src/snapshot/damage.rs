//! What can be wrong with a snapshot file, and where.

use std::fmt;

/// The most characters of a description, which may repeat text of the file.
const WHAT_CHARS: usize = 400;

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, counted from 1.
    pub line: u64,
    /// Where that line begins, in bytes from 0.
    pub offset: u64,
}

/// The sorts of damage, by what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// It is something else.
    NotASnapshot,
    /// A later version of tasklatch wrote it in another format.
    Newer,
    /// Its end is missing.
    CutShort,
    /// It is not what a service wrote.
    Altered,
}

impl DamageKind {
    /// What to do next.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NotASnapshot => "give a file that `tasklatch snapshot save` has written",
            Self::Newer => "use the version of tasklatch that saved it, or a later one",
            Self::CutShort => "copy the file again from where it is whole, or save a new snapshot",
            Self::Altered => {
                "use the file as it was saved, unedited and copied as binary, or save a new snapshot"
            }
        }
    }
}

/// What is wrong with a snapshot file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// Where.
    pub place: Place,
    /// What sort of damage it is.
    pub kind: DamageKind,
    /// What it is, for people.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            place: Place { line, offset },
            what,
            ..
        } = self;
        write!(f, "{file}: line {line}, at byte {offset}: {what}")
    }
}

/// Damage whose place is known to the caller.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) kind: DamageKind,
    pub(super) what: String,
}

impl Wrong {
    pub(super) fn new(kind: DamageKind, what: impl Into<String>) -> Self {
        let mut what = what.into();
        if let Some((end, _)) = what.char_indices().nth(WHAT_CHARS) {
            what.truncate(end);
            what.push('…');
        }
        Self { kind, what }
    }

    pub(super) fn altered(what: impl Into<String>) -> Self {
        Self::new(DamageKind::Altered, what)
    }

    pub(super) fn at(self, file: &str, place: Place) -> Damage {
        Damage {
            file: file.to_owned(),
            place,
            kind: self.kind,
            what: self.what,
        }
    }
}
