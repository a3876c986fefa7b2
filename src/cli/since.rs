//! How far back a command looks: a duration, or all.

use std::time::Duration;

use super::parse_duration;
use crate::task::Timestamp;

/// How far back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// So long.
    Ago(Duration),
    /// As far as there is something.
    All,
}

impl Since {
    /// The instant to begin with; `None` for all.
    pub(super) fn start(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Ago(time) => Some(now.before(time)),
            Self::All => None,
        }
    }
}

/// Reads the option.
pub(super) fn parse_since(text: &str) -> Result<Since, String> {
    match text {
        "all" => Ok(Since::All),
        text => parse_duration(text)
            .map(Since::Ago)
            .map_err(|error| format!("{error}, or all")),
    }
}
