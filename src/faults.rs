//! Places at which a test has the process die, as a power cut would have it, between two steps that a promise stands on.
//! In a build for release there are none.

/// A place between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// What a batch changes was decided, and is not durable.
    BeforeCommit,
    /// It is durable, and nobody knows.
    AfterCommit,
    /// An answer was handed to the connection.
    AfterReply,
    /// Events were handed to the connection.
    AfterPublish,
    /// Events are known to be published, and the cursor does not say so.
    BeforeCursor,
}

/// Ends the process if the environment asks for it: `TASKLATCH_DIE_AT=after-commit:3` at the third time that it comes past
/// [`Point::AfterCommit`].
#[cfg(debug_assertions)]
pub fn pass(point: Point) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static DEATH: LazyLock<Option<(Point, u64)>> = LazyLock::new(|| {
        let text = std::env::var("TASKLATCH_DIE_AT").ok()?;
        let (name, times) = text.split_once(':')?;
        let point = match name {
            "before-commit" => Point::BeforeCommit,
            "after-commit" => Point::AfterCommit,
            "after-reply" => Point::AfterReply,
            "after-publish" => Point::AfterPublish,
            "before-cursor" => Point::BeforeCursor,
            _ => return None,
        };
        Some((point, times.parse().ok()?))
    });
    static PASSED: AtomicU64 = AtomicU64::new(0);
    if let Some((death, times)) = *DEATH
        && death == point
        && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == times
    {
        std::process::abort();
    }
}

/// Nothing: this is a build for release.
#[cfg(not(debug_assertions))]
pub fn pass(_: Point) {}
