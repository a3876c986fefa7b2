//! Trouble that is tried again and again, in two lines of the log: when it comes, and when it is over.

use std::time::{Duration, Instant};

/// How soon trouble that says something else has another line: one cause shows in several ways.
const OTHER_INTERVAL: Duration = Duration::from_secs(60);

/// The trouble of one component, if it has any now.
#[derive(Debug, Default)]
pub struct Trouble(Option<State>);

#[derive(Debug)]
struct State {
    since: Instant,
    /// What was last logged, and when.
    text: String,
    logged: Instant,
    /// How often it failed.
    failures: u64,
}

impl Trouble {
    /// Counts a failure. Whether it is to be logged: the first is, and one that says something else, but no more than one
    /// in a minute.
    pub fn failed(&mut self, text: &str) -> bool {
        let now = Instant::now();
        let Some(state) = &mut self.0 else {
            self.0 = Some(State {
                since: now,
                text: text.to_owned(),
                logged: now,
                failures: 1,
            });
            return true;
        };
        state.failures += 1;
        let is_due = state.text != text && now >= state.logged + OTHER_INTERVAL;
        if is_due {
            state.text = text.to_owned();
            state.logged = now;
        }
        is_due
    }

    /// It works. Gives how long it did not, and how often it failed meanwhile, if it was in trouble.
    pub fn over(&mut self) -> Option<(Duration, u64)> {
        let state = self.0.take()?;
        Some((state.since.elapsed(), state.failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_logged_when_it_comes_and_counted_until_it_is_over() {
        let mut trouble = Trouble::default();
        assert!(trouble.failed("no server"));
        for _ in 0..3 {
            assert!(!trouble.failed("no server"), "the same again");
        }
        assert!(!trouble.failed("another"), "so soon after the last line");
        assert_eq!(trouble.over().map(|(_, failures)| failures), Some(5));
        assert_eq!(trouble.over(), None);
        assert!(trouble.failed("no server"), "it is new again");
    }
}
