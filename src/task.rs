//! A task, the moves it may make, and the times in it. Nothing here does I/O.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use time::format_description::BorrowedFormatItem;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

use crate::content::JsonText;

/// An instant in microseconds since 1970-01-01T00:00:00Z, written as RFC 3339 in UTC with six digits and `Z`
/// (docs/protocol.md, "The task").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

const RFC3339_MICROS: &[BorrowedFormatItem<'static>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

/// The years that RFC 3339 can write, in microseconds: 0000-01-01 to the end of 9999.
const MICROS_RANGE: std::ops::RangeInclusive<i64> =
    -62_167_219_200_000_000..=253_402_300_799_999_999;

impl Timestamp {
    /// An instant from microseconds since the epoch; `None` outside the years 0 to 9999.
    pub fn from_micros(micros: i64) -> Option<Self> {
        MICROS_RANGE.contains(&micros).then_some(Self(micros))
    }

    /// Microseconds since the epoch.
    pub fn micros(self) -> i64 {
        self.0
    }

    /// The instant so long before this one, or the first there is.
    pub fn before(self, time: std::time::Duration) -> Self {
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros).max(*MICROS_RANGE.start()))
    }

    /// The instant so long after this one, or the last there is.
    pub fn after(self, time: std::time::Duration) -> Self {
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros).min(*MICROS_RANGE.end()))
    }

    /// Reads RFC 3339 with any offset. Digits past the microsecond are cut off.
    pub fn parse(text: &str) -> Option<Self> {
        let instant = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        let micros = instant.unix_timestamp_nanos().div_euclid(1_000);
        i64::try_from(micros).ok().and_then(Self::from_micros)
    }

    /// The clock of this machine. Called where a request enters; everything below takes the time as an argument.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock"
    )]
    pub fn now() -> Self {
        let micros = OffsetDateTime::now_utc()
            .unix_timestamp_nanos()
            .div_euclid(1_000);
        let (first, last) = MICROS_RANGE.into_inner();
        Self(i64::try_from(micros).unwrap_or(last).clamp(first, last))
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000)
            .ok()
            .and_then(|instant| {
                instant
                    .to_offset(UtcOffset::UTC)
                    .format(RFC3339_MICROS)
                    .ok()
            })
            .ok_or(std::fmt::Error)?;
        f.write_str(&text)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| de::Error::custom(format!("{text:?} is not an RFC 3339 time")))
    }
}

/// Declares an enum of protocol words with their texts, in both directions.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// Every value, in the order of the protocol.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as the protocol writes it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The value of a word of the protocol, which is case-sensitive.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
pub(crate) use words;

words! {
    /// Where a task stands (docs/protocol.md, "The task").
    Lifecycle {
        /// Created, not yet started.
        Submitted = "submitted",
        /// A worker said that it started.
        Working = "working",
        /// Ended by a report.
        Completed = "completed",
        /// Ended by a report.
        Failed = "failed",
        /// Ended by a report: the worker would not do it.
        Rejected = "rejected",
        /// Ended by a coordinator.
        Canceled = "canceled",
        /// Ended by its deadline.
        Expired = "expired",
    }
}

words! {
    /// How a report says that a task ended.
    Status {
        /// Done.
        Completed = "completed",
        /// Tried, not done.
        Failed = "failed",
        /// Not tried.
        Rejected = "rejected",
    }
}

words! {
    /// What a review says of a result.
    ReviewVerdict {
        /// The result stands.
        Approved = "approved",
        /// More work is wanted, as a new task.
        Rework = "rework",
        /// Something else must happen first.
        Blocked = "blocked",
    }
}

impl Lifecycle {
    /// Whether nothing can follow.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Submitted | Self::Working)
    }
}

impl From<Status> for Lifecycle {
    fn from(status: Status) -> Self {
        match status {
            Status::Completed => Self::Completed,
            Status::Failed => Self::Failed,
            Status::Rejected => Self::Rejected,
        }
    }
}

/// The accepted report of a task, with the time the service gave it. Written once, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskResult {
    /// How the task ended.
    pub status: Status,
    /// What the worker says of it.
    pub summary: String,
    /// What the worker made, in its order.
    pub artifacts: Vec<String>,
    /// A JSON object, with each number as the worker wrote it.
    pub evidence: JsonText,
    /// When the service accepted the report.
    pub reported_at: Timestamp,
}

/// The review of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disposition {
    /// What the reviewer decided.
    pub verdict: ReviewVerdict,
    /// Why, if said.
    pub note: Option<String>,
    /// Who, if said.
    pub reviewer: Option<String>,
    /// When the service took the review.
    pub reviewed_at: Timestamp,
}

/// A task as the protocol shows it (docs/protocol.md, "The task"): every key always there, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Names the task for ever.
    pub task_id: String,
    /// The seat it was given to.
    pub pane_id: Option<String>,
    /// What is to be done, for people.
    pub title: String,
    /// Where it stands.
    pub lifecycle: Lifecycle,
    /// A JSON object of the creator's.
    pub metadata: Option<JsonText>,
    /// When it expires without a result.
    pub deadline: Option<Timestamp>,
    /// Why it was canceled, if said.
    pub reason: Option<String>,
    /// The accepted report.
    pub result: Option<TaskResult>,
    /// The review of the result.
    pub disposition: Option<Disposition>,
    /// 1 at creation, plus one at every change.
    pub revision: i64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed; never goes backwards.
    pub updated_at: Timestamp,
}

impl Task {
    /// Whether the deadline has come for a task that has not ended: the one comparison that reports, reads and the
    /// sweep share. The instant of the deadline itself is too late, as a deadline must lie in the future when it is set.
    pub fn is_due(&self, now: Timestamp) -> bool {
        !self.lifecycle.is_terminal() && self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// `submitted → working`.
    pub fn start(&mut self, now: Timestamp) {
        debug_assert_eq!(self.lifecycle, Lifecycle::Submitted);
        self.lifecycle = Lifecycle::Working;
        self.changed(now);
    }

    /// An open task takes its result and with it its end. The result's time is the time of the change.
    pub fn accept(&mut self, result: TaskResult, now: Timestamp) {
        debug_assert!(self.result.is_none() && !self.lifecycle.is_terminal());
        self.lifecycle = result.status.into();
        self.changed(now);
        self.result = Some(TaskResult {
            reported_at: self.updated_at,
            ..result
        });
    }

    /// An open task is called off.
    pub fn cancel(&mut self, reason: Option<String>, now: Timestamp) {
        debug_assert!(!self.lifecycle.is_terminal());
        self.lifecycle = Lifecycle::Canceled;
        self.reason = reason;
        self.changed(now);
    }

    /// An open task whose deadline has come.
    pub fn expire(&mut self, now: Timestamp) {
        debug_assert!(self.is_due(now));
        self.lifecycle = Lifecycle::Expired;
        self.changed(now);
    }

    /// A task with a result is reviewed, or reviewed anew.
    pub fn review(
        &mut self,
        verdict: ReviewVerdict,
        note: Option<String>,
        reviewer: Option<String>,
        now: Timestamp,
    ) {
        debug_assert!(self.result.is_some());
        self.changed(now);
        self.disposition = Some(Disposition {
            verdict,
            note,
            reviewer,
            reviewed_at: self.updated_at,
        });
    }

    /// Counts a change. Time never goes backwards in a task, whatever the clock does.
    fn changed(&mut self, now: Timestamp) {
        self.revision += 1;
        self.updated_at = self.updated_at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_with_six_digits_and_z_and_read_with_any_offset() {
        let instant = Timestamp::parse("2026-11-30T09:41:22.1234567+02:00").unwrap();
        assert_eq!(instant.to_string(), "2026-11-30T07:41:22.123456Z");
        assert_eq!(Timestamp::parse(&instant.to_string()), Some(instant));
        let early = Timestamp::parse("1969-12-31T23:59:59.9999999Z").unwrap();
        assert_eq!(early.to_string(), "1969-12-31T23:59:59.999999Z");
    }

    #[test]
    fn what_is_not_rfc_3339_is_not_a_time() {
        for text in [
            "",
            "now",
            "2026-11-30",
            "2026-11-30 07:00",
            "20261130T070000Z",
            "2026-11-30T07:00:00",
        ] {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }

    #[test]
    fn years_beyond_what_rfc_3339_can_write_are_refused() {
        assert_eq!(Timestamp::from_micros(i64::MAX), None);
        assert_eq!(Timestamp::parse("9999-12-31T23:59:59-23:00"), None);
        assert_eq!(
            Timestamp::parse("9999-12-31T23:59:59.999999Z")
                .unwrap()
                .to_string(),
            "9999-12-31T23:59:59.999999Z"
        );
    }
}
