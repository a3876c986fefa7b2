//! How a command can fail, and the one place that turns that into exit codes and hints.

use async_nats::{ConnectError, ConnectErrorKind};

use crate::client::ClientError;
use crate::config::ConfigError;
use crate::service::ServiceError;
use crate::task::Lifecycle;
use crate::wire::{Action, Code, Refusal};

/// Done; accepted and replayed alike.
pub const EXIT_DONE: u8 = 0;
/// A fault of ours or of the machine.
pub const EXIT_FAULT: u8 = 1;
/// The command or its input is wrong.
pub const EXIT_FIX: u8 = 2;
/// No such task.
pub const EXIT_NO_TASK: u8 = 3;
/// Refused for good.
pub const EXIT_STOP: u8 = 4;
/// Nobody answered, or not now: send it again.
pub const EXIT_RETRY: u8 = 75;

/// The exit codes, as `--help` tells them.
pub(super) const EXIT_CODES_HELP: &str = "\
Exit codes:
   0  done: accepted or replayed alike
   1  a fault of ours or of the machine
   2  the command or its input is wrong
   3  no such task
   4  refused for good
  75  nobody answered, or not now: send the same again, which is safe";

/// Why a command did not do what it should. The message says what happened and to what.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command line or an input file is wrong.
    #[error("{0}")]
    Usage(String),
    /// A fault of ours or of the machine.
    #[error("{0}")]
    Fault(String),
    /// Something that may pass.
    #[error("{0}")]
    NotNow(String),
    /// No NATS server could be reached, or it does not let us in.
    #[error("cannot connect to NATS at {urls}: {}", connect_cause(.error))]
    Connect {
        /// The servers, without user names and passwords.
        urls: String,
        /// Why. Its own text says some of it twice.
        error: ConnectError,
    },
    /// A request was refused or not answered.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The service could not start, or ended.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// Another failure, with a hint that fits it better than its own.
    #[error("{error}")]
    Hinted {
        /// What failed.
        #[source]
        error: Box<CliError>,
        /// What to do next.
        hint: String,
    },
    /// Whoever read standard output has stopped reading, as `head` does. Nothing is said of it.
    #[error("standard output is closed")]
    OutputClosed,
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl CliError {
    /// The same failure with another hint.
    pub fn hinted(self, hint: impl Into<String>) -> Self {
        Self::Hinted {
            error: Box::new(self),
            hint: hint.into(),
        }
    }

    /// The exit code. The only place that knows them.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => EXIT_FIX,
            Self::Fault(_) => EXIT_FAULT,
            Self::NotNow(_) => EXIT_RETRY,
            Self::Connect { error, .. } => match error.kind() {
                // Trying again does not make a wrong password right.
                ConnectErrorKind::Authentication
                | ConnectErrorKind::AuthorizationViolation
                | ConnectErrorKind::ServerParse => EXIT_FIX,
                ConnectErrorKind::Dns
                | ConnectErrorKind::TimedOut
                | ConnectErrorKind::Tls
                | ConnectErrorKind::Io
                | ConnectErrorKind::MaxReconnects => EXIT_RETRY,
            },
            Self::Client(error) => match error {
                ClientError::Refused { refusal, .. } => refusal_exit_code(refusal),
                ClientError::NotATaskId(_)
                | ClientError::TooLarge { .. }
                | ClientError::Denied { .. } => EXIT_FIX,
                ClientError::NoResponders { .. }
                | ClientError::TimedOut { .. }
                | ClientError::NotAnAnswer { .. }
                | ClientError::NoStream { .. }
                | ClientError::StreamFailed { .. }
                | ClientError::Nats(_) => EXIT_RETRY,
                ClientError::Unintelligible { .. } => EXIT_FAULT,
            },
            Self::Service(error) => error.exit_code(),
            Self::Hinted { error, .. } => error.exit_code(),
            Self::OutputClosed => EXIT_DONE,
        }
    }

    /// What happened, down to the cause, on one line.
    pub fn message(&self) -> String {
        let mut message = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let text = error.to_string();
            // Many errors repeat their source in their own text.
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        message
    }

    /// What to do next, where the message does not say it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Hinted { hint, .. } => Some(hint.clone()),
            Self::Connect { error, .. } => Some(connect_hint(error.kind()).to_owned()),
            Self::Client(ClientError::Refused { refusal, .. }) => refusal_hint(refusal),
            Self::Client(ClientError::NoResponders { .. }) => Some(
                "start a service with `tasklatch serve`, or name the right --nats-url and --prefix"
                    .to_owned(),
            ),
            Self::Client(ClientError::NoStream { made_by, .. }) => Some(format!(
                "have the service make it with `tasklatch serve {made_by}`, at a NATS server with JetStream"
            )),
            Self::Client(
                ClientError::TimedOut { .. }
                | ClientError::NotAnAnswer { .. }
                | ClientError::Nats(_),
            ) => Some("send the same again, which is safe".to_owned()),
            Self::Client(ClientError::Denied { .. }) => {
                Some("ask for the permission, or log in as somebody who has it".to_owned())
            }
            _ => None,
        }
    }

    /// The answer that refused the request, as it came.
    pub(super) fn refusal_body(&self) -> Option<&[u8]> {
        match self {
            Self::Client(ClientError::Refused { body, .. }) => Some(body),
            Self::Hinted { error, .. } => error.refusal_body(),
            _ => None,
        }
    }
}

fn refusal_exit_code(refusal: &Refusal) -> u8 {
    match (refusal.code, refusal.action) {
        (Code::TaskNotFound, _) => EXIT_NO_TASK,
        (_, Action::Fix) => EXIT_FIX,
        (_, Action::Stop) => EXIT_STOP,
        (_, Action::Retry) => EXIT_RETRY,
    }
}

fn refusal_hint(refusal: &Refusal) -> Option<String> {
    let show = |what: &str| {
        let task_id = refusal.task_id.as_deref()?;
        Some(format!("`tasklatch task get {task_id}` shows {what}"))
    };
    match refusal.code {
        Code::InvalidReport | Code::InvalidRequest => {
            let field = refusal.field.as_deref()?;
            Some(format!("correct what was sent, at {field}"))
        }
        Code::TaskNotFound => Some("`tasklatch task list` shows the tasks".to_owned()),
        Code::SelectorMismatch => Some("name the task by its ID alone, without --pane".to_owned()),
        Code::AmbiguousPane => Some(
            "name the task by its ID; `tasklatch task list --pane PANE` shows the tasks of a pane"
                .to_owned(),
        ),
        Code::TaskConflict => show("the task that has this ID"),
        Code::ResultConflict => show("the result that stands"),
        Code::TaskTerminal => show("how the task ended"),
        Code::NoResult if refusal.lifecycle.is_some_and(Lifecycle::is_terminal) => {
            show("how the task ended")
        }
        Code::NoResult => Some("review it when its report is in".to_owned()),
        // Their messages say what to do.
        Code::Overloaded | Code::Unavailable | Code::Internal => None,
    }
}

fn connect_cause(error: &ConnectError) -> String {
    let kind = error.kind().to_string();
    match std::error::Error::source(error).map(ToString::to_string) {
        Some(cause) if !cause.contains(&kind) => format!("{kind}: {cause}"),
        _ => kind,
    }
}

fn connect_hint(kind: ConnectErrorKind) -> &'static str {
    match kind {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            "log in with --nats-creds, --nats-user, --nats-token or --nats-nkey; `tasklatch --help` tells of them"
        }
        ConnectErrorKind::Tls => "--nats-tls-ca names the certificates to know the server by",
        _ => {
            "`tasklatch dev` starts a server and a service on this machine; --nats-url names another server"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: Code) -> CliError {
        let refusal = Box::new(Refusal::new(code, "x").about("t-1"));
        CliError::Client(ClientError::Refused {
            refusal,
            body: bytes::Bytes::from_static(b"{}"),
        })
    }

    #[test]
    fn each_refusal_has_the_exit_code_of_its_action_and_a_missing_task_its_own() {
        for (code, expected) in [
            (Code::InvalidReport, 2),
            (Code::InvalidRequest, 2),
            (Code::TaskNotFound, 3),
            (Code::SelectorMismatch, 2),
            (Code::AmbiguousPane, 2),
            (Code::TaskConflict, 4),
            (Code::ResultConflict, 4),
            (Code::TaskTerminal, 4),
            (Code::NoResult, 4),
            (Code::Overloaded, 75),
            (Code::Unavailable, 75),
            (Code::Internal, 75),
        ] {
            assert_eq!(refused(code).exit_code(), expected, "{code}");
            assert_eq!(refused(code).hinted("x").exit_code(), expected, "{code}");
        }
    }

    #[test]
    fn where_nobody_answered_the_exit_code_says_to_send_it_again() {
        let after = std::time::Duration::from_secs(5);
        let subject = || "s".to_owned();
        for error in [
            ClientError::NoResponders { subject: subject() },
            ClientError::TimedOut {
                subject: subject(),
                after,
            },
            ClientError::NotAnAnswer {
                subject: subject(),
                after,
                what: "x",
            },
            ClientError::Nats("gone".into()),
        ] {
            assert_eq!(CliError::from(error).exit_code(), 75);
        }
        for (kind, expected) in [
            (ConnectErrorKind::Io, 75),
            (ConnectErrorKind::TimedOut, 75),
            (ConnectErrorKind::Dns, 75),
            (ConnectErrorKind::AuthorizationViolation, 2),
        ] {
            let error = CliError::Connect {
                urls: "u".to_owned(),
                error: ConnectError::new(kind),
            };
            assert_eq!(error.exit_code(), expected, "{kind}");
        }
    }

    #[test]
    fn a_wrong_command_is_two_a_fault_is_one_and_a_closed_output_is_no_failure() {
        assert_eq!(CliError::Usage(String::new()).exit_code(), 2);
        assert_eq!(
            CliError::from(ClientError::NotATaskId("a.b".to_owned())).exit_code(),
            2
        );
        assert_eq!(CliError::Fault(String::new()).exit_code(), 1);
        assert_eq!(CliError::OutputClosed.exit_code(), 0);
    }

    #[test]
    fn a_message_goes_down_to_the_cause_and_says_nothing_twice() {
        let cause = std::io::Error::other("refused");
        let error = ConnectError::with_source(ConnectErrorKind::Io, cause);
        let error = CliError::Connect {
            urls: "nats://x:1".to_owned(),
            error,
        };
        assert_eq!(
            error.message(),
            "cannot connect to NATS at nats://x:1: IO error: refused"
        );
        assert_eq!(
            error.hinted("h").message(),
            "cannot connect to NATS at nats://x:1: IO error: refused"
        );
    }

    #[test]
    fn the_help_tells_every_exit_code() {
        for code in [
            EXIT_DONE,
            EXIT_FAULT,
            EXIT_FIX,
            EXIT_NO_TASK,
            EXIT_STOP,
            EXIT_RETRY,
        ] {
            assert!(EXIT_CODES_HELP.contains(&format!(" {code}  ")), "{code}");
        }
    }
}
