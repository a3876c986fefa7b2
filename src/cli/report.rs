//! `tasklatch report`: sends a report until it is answered.

use std::path::PathBuf;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use clap::Args;
use clap::builder::styling::AnsiColor;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::error::CliError;
use super::input::Inputs;
use super::which::WhichTask;
use super::{Shared, Ui, parse_duration, show};
use crate::client::{Answered, Client, ClientError, ReportRequest, Stored};
use crate::task::{Status, Timestamp};
use crate::wire::{Action, Outcome};

/// The first pause before the same report is sent again. Each one is twice as long as the one before, up to the longest,
/// and jitter makes it up to twice as long again.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause before the same report is sent again, without jitter.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Options of `report`.
#[derive(Args, Debug)]
#[command(after_help = super::error::EXIT_CODES_HELP)]
#[command(after_long_help = concat!(
    "Sending the same report again is always safe: the first one is accepted, each further one reads the\n",
    "accepted result back, and a different one is refused and changes nothing.\n\n",
    "Examples:\n",
    "  tasklatch report t-7f3a --summary 'Fixed; the clock was read twice' --artifact pr:118\n",
    "  tasklatch report t-7f3a --status failed --summary @notes.md --evidence @tests.json\n",
    "  make-report | tasklatch report t-7f3a --from -\n",
    "  tasklatch report t-7f3a --summary 'Fixed' --durable   # and do not wait for the service\n\n",
    "Exit codes:\n",
    "   0  accepted, or already accepted with the same content\n",
    "   1  a fault of ours or of the machine\n",
    "   2  the command or the report is wrong\n",
    "   3  no such task\n",
    "   4  refused for good: another report was accepted, or the task ended without one\n",
    "  75  nobody answered, or not now: send the same again, which is safe"
))]
pub(super) struct ReportOptions {
    #[command(flatten)]
    which: WhichTask,

    /// How the task ended
    #[arg(
        long,
        default_value = "completed",
        value_parser = status_parser(),
        conflicts_with = "from"
    )]
    status: Status,

    /// What to say of it; @FILE or - reads it from a file or standard input, as it is
    #[arg(
        long,
        value_name = "TEXT|@FILE|-",
        required_unless_present = "from",
        conflicts_with = "from"
    )]
    summary: Option<String>,

    /// Something that was made, such as branch:fix/login; repeat it, the order is kept
    #[arg(
        long = "artifact",
        value_name = "TEXT|@FILE|-",
        conflicts_with = "from"
    )]
    artifacts: Vec<String>,

    /// A JSON object, sent with its numbers as they are written
    #[arg(long, value_name = "JSON|@FILE|-", conflicts_with = "from")]
    evidence: Option<String>,

    /// Send this file, or standard input for -, as the whole report, as it is
    #[arg(long, value_name = "FILE|-")]
    from: Option<PathBuf>,

    /// For how long to send the same report again if it is not answered; 0s sends it once
    #[arg(
        long,
        default_value = "30s",
        value_parser = parse_duration,
        value_name = "DURATION"
    )]
    retry_for: Duration,

    /// Store the report in the report stream and do not wait for what becomes of it; needs the ID of the task
    #[arg(long)]
    durable: bool,
}

fn status_parser() -> impl TypedValueParser<Value = Status> {
    let words = Status::ALL.iter().map(|status| status.as_str());
    PossibleValuesParser::new(words).try_map(|word| Status::from_word(&word).ok_or("not a status"))
}

pub(super) async fn run(options: ReportOptions, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    let task_id = options.which.task_id()?;
    let payload = payload(&options)?;
    let sender = Sender {
        shared: &shared,
        ui,
        client: Mutex::new(None),
    };
    if options.durable {
        let Some(task_id) = task_id else {
            return Err(CliError::Usage(
                "--durable needs the ID of the task: the report is stored under it, and a pane can mean another task by the time it is read".to_owned(),
            ));
        };
        let store = || sender.store_once(task_id, payload.clone());
        return show_stored(ui, task_id, &sender.insist(options.retry_for, store).await?);
    }
    let send = || sender.send_once(task_id, payload.clone());
    let answered = sender.insist(options.retry_for, send).await?;
    note_outcome(ui, &answered);
    if ui.json() {
        return ui.print_line_of_bytes(&answered.body);
    }
    ui.print(show::task(&answered.task, Timestamp::now()))
}

/// The bytes to send, each time the same.
fn payload(options: &ReportOptions) -> Result<Bytes, CliError> {
    let mut inputs = Inputs::default();
    if let Some(path) = &options.from {
        if options.which.has_own_pane() {
            return Err(CliError::Usage(
                "--from sends a whole report, which names its pane itself; leave out --pane"
                    .to_owned(),
            ));
        }
        return inputs.file_or_stdin("--from", path).map(Bytes::from);
    }
    // clap has seen to it that there is a summary.
    let summary = options.summary.as_deref().unwrap_or_default();
    let report = ReportRequest {
        which: (&options.which.selector()?).into(),
        status: options.status,
        summary: inputs.text("--summary", summary)?,
        artifacts: options
            .artifacts
            .iter()
            .map(|artifact| inputs.text("--artifact", artifact))
            .collect::<Result<_, _>>()?,
        evidence: options
            .evidence
            .as_deref()
            .map(|evidence| inputs.json("--evidence", evidence))
            .transpose()?,
    };
    Ok(report.encode()?)
}

/// Sends one report until it is answered, over one connection as long as that lasts.
struct Sender<'a> {
    shared: &'a Shared,
    ui: &'a Ui,
    client: Mutex<Option<Client>>,
}

impl Sender<'_> {
    /// Does it until it is done or cannot be.
    async fn insist<T, F: Future<Output = Result<T, CliError>>>(
        &self,
        retry_for: Duration,
        once: impl FnMut() -> F,
    ) -> Result<T, CliError> {
        let started = Instant::now();
        let pauses = ExponentialBuilder::default()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .with_jitter()
            .without_max_times();
        let answered = once
            .retry(pauses)
            .when(|error| may_pass(error) && started.elapsed() < retry_for)
            .notify(|error: &CliError, pause| self.note_retry(error, pause))
            .await;
        answered.map_err(|error| match error {
            error if may_pass(&error) => unanswered(error),
            error => error,
        })
    }

    async fn send_once(&self, task_id: Option<&str>, payload: Bytes) -> Result<Answered, CliError> {
        let client = self.client().await?;
        Ok(client.report_as_is(task_id, payload).await?)
    }

    async fn store_once(&self, task_id: &str, payload: Bytes) -> Result<Stored, CliError> {
        let client = self.client().await?;
        Ok(client.store_report(task_id, payload).await?)
    }

    async fn client(&self) -> Result<Client, CliError> {
        let mut connected = self.client.lock().await;
        match &*connected {
            Some(client) => Ok(client.clone()),
            None => Ok(connected
                .insert(self.shared.connect("report", |_| ()).await?)
                .clone()),
        }
    }

    fn note_retry(&self, error: &CliError, pause: Duration) {
        let pause = humantime::format_duration(Duration::from_millis(pause.as_millis() as u64));
        let what = error.message();
        self.ui.note(format_args!(
            "{what}; sending the same report again in {pause}, which is safe"
        ));
    }
}

/// Whether the same report may get another answer later.
fn may_pass(error: &CliError) -> bool {
    match error {
        CliError::Client(ClientError::Refused { refusal, .. }) => refusal.action == Action::Retry,
        error => error.exit_code() == super::EXIT_RETRY,
    }
}

/// The last failure, with what to do next. An earlier try may have arrived, so nothing is known of the report.
fn unanswered(error: CliError) -> CliError {
    const SAFE: &str =
        "the report may or may not have been accepted: send the same again later, which is safe";
    let hint = match &error {
        CliError::Connect { .. }
        | CliError::Client(ClientError::NoResponders { .. } | ClientError::NoStream { .. }) => {
            error.hint()
        }
        _ => None,
    };
    match hint {
        Some(hint) => error.hinted(format!("{hint}; {SAFE}")),
        None => error.hinted(SAFE),
    }
}

fn show_stored(ui: &Ui, task_id: &str, stored: &Stored) -> Result<(), CliError> {
    let Stored { stream, seq } = stored;
    ui.note_of(
        "stored",
        AnsiColor::Green,
        format_args!(
            "in {stream} as number {seq}; `tasklatch task get {task_id}` shows when it is applied"
        ),
    );
    match ui.json() {
        true => ui.print_line_of_bytes(&stored.encode()?),
        false => Ok(()),
    }
}

fn note_outcome(ui: &Ui, answered: &Answered) {
    let task = &answered.task;
    let text = format!(
        "task {} is {} (revision {})",
        task.task_id, task.lifecycle, task.revision
    );
    match (answered.outcome, &task.result) {
        (Some(Outcome::Replayed), Some(result)) => ui.note_of(
            "replayed",
            AnsiColor::Green,
            format_args!(
                "task {} already had this result, reported {}; nothing changed",
                task.task_id, result.reported_at
            ),
        ),
        (Some(outcome), _) => ui.note_of(outcome.as_str(), AnsiColor::Green, text),
        (None, _) => ui.note_of("answered", AnsiColor::Yellow, text),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::wire::{Code, Refusal};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ReportOptions,
    }

    fn sent(args: &[&str]) -> Result<String, String> {
        let line = Line::try_parse_from(std::iter::once(&"report").chain(args)).unwrap();
        let sent = payload(&line.options);
        sent.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
            .map_err(|error| error.message())
    }

    #[test]
    fn a_report_is_sent_with_its_artifacts_in_order_and_its_evidence_as_written() {
        let args = [
            "t-1",
            "--pane",
            "w1:p2",
            "--status",
            "failed",
            "--summary",
            "No \"luck\"\n",
        ];
        let more = [
            "--artifact",
            "b",
            "--artifact",
            "a",
            "--evidence",
            r#"{"n": 1.0e0}"#,
        ];
        let expected = concat!(
            r#"{"task_id":"t-1","pane_id":"w1:p2","status":"failed","summary":"No \"luck\"\n","#,
            r#""artifacts":["b","a"],"evidence":{"n": 1.0e0}}"#
        );
        assert_eq!(sent(&[args.as_slice(), &more].concat()).unwrap(), expected);
    }

    #[test]
    fn a_whole_report_is_sent_as_it_is_right_or_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        std::fs::write(&path, "{ not json\n").unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(sent(&["t-1", "--from", path]).unwrap(), "{ not json\n");
        let error = sent(&["--pane", "p", "--from", path]).unwrap_err();
        assert!(error.contains("leave out --pane"), "{error}");
    }

    #[test]
    fn a_report_that_names_no_task_is_not_sent() {
        assert!(
            sent(&["--summary", "x"])
                .unwrap_err()
                .contains("no task is named")
        );
    }

    #[test]
    fn only_what_may_pass_is_sent_again() {
        let refused = |code| {
            let refusal = Box::new(Refusal::new(code, "x"));
            CliError::from(ClientError::Refused {
                refusal,
                body: Bytes::new(),
            })
        };
        for code in [Code::Overloaded, Code::Unavailable, Code::Internal] {
            assert!(may_pass(&refused(code)), "{code}");
        }
        for code in [
            Code::InvalidReport,
            Code::TaskNotFound,
            Code::ResultConflict,
            Code::TaskTerminal,
        ] {
            assert!(!may_pass(&refused(code)), "{code}");
        }
        let subject = "s".to_owned();
        assert!(may_pass(&ClientError::NoResponders { subject }.into()));
        assert!(!may_pass(
            &ClientError::TooLarge {
                limit: 1,
                actual: 2
            }
            .into()
        ));
        assert!(!may_pass(&CliError::Usage("x".to_owned())));
    }
}
