//! Subjects under one prefix (docs/protocol.md, "Names").

/// The longest subject for an answer.
const REPLY_BYTES_MAX: usize = 1024;

/// The subjects of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subjects {
    prefix: String,
}

/// A prefix that cannot be a NATS subject.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{prefix:?} is no subject prefix: use tokens of printable characters joined by single dots, without wildcards or `$` in front"
)]
pub struct PrefixError {
    prefix: String,
}

/// A request endpoint (docs/protocol.md, "Names").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A report with its selector in the body.
    Report,
    /// A report with the task ID as the last token of the subject.
    ReportOfTask,
    /// Creates a task.
    Create,
    /// Reads one task.
    Get,
    /// Reads many tasks.
    List,
    /// Says that work on a task has begun.
    Start,
    /// Calls a task off.
    Cancel,
    /// Reviews a result.
    Review,
}

impl Endpoint {
    /// Every endpoint, in the order of the protocol.
    pub const ALL: [Self; 8] = [
        Self::Report,
        Self::ReportOfTask,
        Self::Create,
        Self::Get,
        Self::List,
        Self::Start,
        Self::Cancel,
        Self::Review,
    ];

    /// The name in service discovery.
    pub fn name(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::ReportOfTask => "report-of-task",
            Self::Create => "task-create",
            Self::Get => "task-get",
            Self::List => "task-list",
            Self::Start => "task-start",
            Self::Cancel => "task-cancel",
            Self::Review => "task-review",
        }
    }

    /// Whether reports come here.
    pub fn is_report(self) -> bool {
        matches!(self, Self::Report | Self::ReportOfTask)
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::ReportOfTask => "report.*",
            Self::Create => "task.create",
            Self::Get => "task.get",
            Self::List => "task.list",
            Self::Start => "task.start",
            Self::Cancel => "task.cancel",
            Self::Review => "task.review",
        }
    }
}

/// A JetStream stream of the protocol (docs/protocol.md, "Names").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Events.
    Events,
    /// Reports of workers that do not wait.
    Reports,
    /// Reports that can never be applied.
    Dead,
}

impl Subjects {
    /// Takes a prefix without wildcards.
    ///
    /// # Errors
    /// [`PrefixError`] if it is not a valid subject prefix, or lies under `$`, which is the server's own.
    pub fn new(prefix: &str) -> Result<Self, PrefixError> {
        let valid = !prefix.starts_with('$')
            && prefix.split('.').all(|token| {
                !token.is_empty()
                    && token
                        .chars()
                        .all(|c| !c.is_whitespace() && !c.is_control() && c != '*' && c != '>')
            });
        if !valid {
            return Err(PrefixError {
                prefix: prefix.to_owned(),
            });
        }
        Ok(Self {
            prefix: prefix.to_owned(),
        })
    }

    /// The prefix itself.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The subject that an endpoint subscribes to.
    pub fn of(&self, endpoint: Endpoint) -> String {
        format!("{}.{}", self.prefix, endpoint.suffix())
    }

    /// Where a report on one task can be sent.
    pub fn report_of(&self, task_id: &str) -> String {
        format!("{}.report.{task_id}", self.prefix)
    }

    /// Where events of one kind about one task go; `*` for all tasks.
    pub fn event(&self, kind: super::EventKind, task_id: &str) -> String {
        format!("{}.event.{}.{task_id}", self.prefix, kind.word())
    }

    /// The name of a stream: from the prefix in upper case, with `_` for `.`.
    pub fn stream(&self, kind: StreamKind) -> String {
        let word = match kind {
            StreamKind::Events => "EVENTS",
            StreamKind::Reports => "REPORTS",
            StreamKind::Dead => "DEAD",
        };
        format!("{}_{word}", self.prefix.to_uppercase().replace('.', "_"))
    }

    /// All subjects of a stream.
    pub fn all_of(&self, kind: StreamKind) -> String {
        let words = match kind {
            StreamKind::Events => "event",
            StreamKind::Reports => "queue.report",
            StreamKind::Dead => "dead",
        };
        format!("{}.{words}.>", self.prefix)
    }

    /// Where a report on one task waits that is not waited for.
    pub fn queued_report_of(&self, task_id: &str) -> String {
        format!("{}.queue.report.{task_id}", self.prefix)
    }

    /// Where a report on one task goes that can never be applied.
    pub fn dead(&self, task_id: &str) -> String {
        format!("{}.dead.{task_id}", self.prefix)
    }

    /// Whether an answer may be published to this reply subject. Under our own prefix, under `$` or with a wildcard,
    /// somebody would have the service publish an event, a request or a system message for them (docs/protocol.md, "Reply subjects").
    pub fn may_answer_to(&self, reply: &str) -> bool {
        let under_prefix = reply
            .strip_prefix(&self.prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        // A subject that came in a header has not been read as one by the server.
        let one_word = !reply.contains(|c: char| c.is_whitespace() || c.is_control());
        let plain_tokens = reply
            .split('.')
            .all(|token| !matches!(token, "" | "*" | ">"));
        // One that fills a line of the protocol would cost the connection.
        reply.len() <= REPLY_BYTES_MAX
            && one_word
            && plain_tokens
            && !under_prefix
            && !reply.starts_with('$')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_one_or_more_plain_tokens() {
        for good in ["tasklatch", "team.a", "x-y_z", "ümlaut"] {
            assert!(Subjects::new(good).is_ok(), "{good}");
        }
        for bad in [
            "", ".", "a.", ".a", "a..b", "a.*", ">", "a b", "$SYS", "$", "a\n", "a.b>",
        ] {
            assert!(Subjects::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn streams_are_named_from_the_prefix() {
        let names = |prefix: &str, kind| {
            let subjects = Subjects::new(prefix).unwrap();
            (subjects.stream(kind), subjects.all_of(kind))
        };
        let expected = |name: &str, all: &str| (name.to_owned(), all.to_owned());
        assert_eq!(
            names("tasklatch", StreamKind::Events),
            expected("TASKLATCH_EVENTS", "tasklatch.event.>")
        );
        assert_eq!(
            names("tasklatch", StreamKind::Reports),
            expected("TASKLATCH_REPORTS", "tasklatch.queue.report.>")
        );
        assert_eq!(
            names("team.a", StreamKind::Dead),
            expected("TEAM_A_DEAD", "team.a.dead.>")
        );
    }

    #[test]
    fn an_answer_goes_to_no_subject_that_is_ours_the_servers_or_a_wildcard() {
        let subjects = Subjects::new("team.latch").unwrap();
        for good in ["_INBOX.abc.1", "inbox", "team.latches.x", "team", "a*b.c"] {
            assert!(subjects.may_answer_to(good), "{good}");
        }
        for bad in [
            "team.latch",
            "team.latch.report",
            "team.latch.event.task.x",
            "$SYS.x",
            "$",
            "_INBOX.*",
            "_INBOX.>",
            "*",
            "a..b",
            "a b",
            "a\tb",
            "a\nb",
            "",
        ] {
            assert!(!subjects.may_answer_to(bad), "{bad:?}");
        }
    }
}
