//! Why the benchmark could not go on, for people.

use std::fmt::Display;

/// What happened, to what. The benchmark itself failed; a target that was missed is no failure.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl Failure {
    /// A failure in these words.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// What can fail.
pub type Result<T> = std::result::Result<T, Failure>;

/// Says what was being done when something failed.
pub trait During<T> {
    /// Turns an error into `cannot {what}: {error}`.
    ///
    /// # Errors
    /// The one that was there.
    fn during(self, what: impl Display) -> Result<T>;
}

impl<T, E: Display> During<T> for std::result::Result<T, E> {
    fn during(self, what: impl Display) -> Result<T> {
        self.map_err(|error| Failure(format!("cannot {what}: {error}")))
    }
}
