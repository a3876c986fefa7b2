//! `tasklatch task`: the requests of the protocol about tasks.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, Subcommand};

use super::error::{CliError, EXIT_CODES_HELP};
use super::input::Inputs;
use super::which::WhichTask;
use super::{Shared, Ui, parse_duration, show};
use crate::client::{
    Answered, Client, ClientError, CreateRequest, ListRequest, ReviewRequest, checked_task_id,
};
use crate::ids;
use crate::task::{Lifecycle, ReviewVerdict, Timestamp};
use crate::wire::limits;

/// The requests about tasks.
#[derive(Subcommand, Debug)]
pub(super) enum TaskCommand {
    /// Create a task
    Create(CreateOptions),
    /// Show a task
    #[command(after_help = EXIT_CODES_HELP)]
    Get(WhichOptions),
    /// List tasks, newest first
    List(ListOptions),
    /// Say that work on a task has begun
    #[command(after_help = EXIT_CODES_HELP)]
    Start(WhichOptions),
    /// Call a task off
    Cancel(CancelOptions),
    /// Review the result of a task
    Review(ReviewOptions),
}

/// Options that only name a task.
#[derive(Args, Debug)]
pub(super) struct WhichOptions {
    #[command(flatten)]
    which: WhichTask,
}

/// Options of `task create`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct CreateOptions {
    /// What is to be done
    #[arg(value_name = "TITLE", required_unless_present = "title")]
    title_text: Option<String>,

    /// What is to be done, in place of TITLE
    #[arg(long, value_name = "TITLE")]
    title: Option<String>,

    /// ID of the task; one is made if it is left out. The same ID with the same content creates it once
    #[arg(long, value_name = "ID")]
    task_id: Option<String>,

    /// Pane that the task is given to
    #[arg(long, value_name = "PANE")]
    pane: Option<String>,

    /// A JSON object to keep with the task; @FILE or - reads it
    #[arg(long, value_name = "JSON|@FILE|-")]
    metadata: Option<String>,

    /// When the task expires without a result: an RFC 3339 time, or a duration from now such as 30m
    #[arg(long, value_parser = parse_when, value_name = "TIME|DURATION")]
    deadline: Option<When>,
}

/// Options of `task list`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct ListOptions {
    /// Only these lifecycles, by comma or repeated
    #[arg(long, value_delimiter = ',', value_parser = lifecycle_parser())]
    lifecycle: Vec<Lifecycle>,

    /// Only tasks that were given to this pane
    #[arg(long, value_name = "PANE")]
    pane: Option<String>,

    /// Only tasks with these review verdicts, by comma or repeated; none means not reviewed
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(["approved", "rework", "blocked", "none"])
    )]
    disposition: Vec<String>,

    /// Only tasks updated since: an RFC 3339 time, or a duration ago such as 1h
    #[arg(long, value_parser = parse_when, value_name = "TIME|DURATION")]
    updated_since: Option<When>,

    /// At most so many tasks a page [default: 100]
    #[arg(
        long,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=limits::LIST_TASKS as u64),
        value_name = "TASKS"
    )]
    limit: Option<usize>,

    /// Go on where an earlier page ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,

    /// All pages
    #[arg(long)]
    all: bool,
}

/// Options of `task cancel`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct CancelOptions {
    #[command(flatten)]
    which: WhichTask,

    /// Why
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Options of `task review`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub(super) struct ReviewOptions {
    #[command(flatten)]
    which: WhichTask,

    /// What you decide
    #[arg(long, value_parser = verdict_parser())]
    verdict: ReviewVerdict,

    /// Why
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    /// Who you are
    #[arg(long, value_name = "NAME")]
    reviewer: Option<String>,
}

/// An instant, or a duration from now on or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    At(Timestamp),
    Away(Duration),
}

fn parse_when(text: &str) -> Result<When, String> {
    match Timestamp::parse(text) {
        Some(time) => Ok(When::At(time)),
        None => parse_duration(text).map(When::Away).map_err(|_| {
            "write an RFC 3339 time with an offset, such as 2026-11-30T07:41:22Z, or a duration such as 30m"
                .to_owned()
        }),
    }
}

impl When {
    fn after(self, now: Timestamp) -> Result<Timestamp, CliError> {
        self.instant(now, i64::checked_add)
    }

    fn before(self, now: Timestamp) -> Result<Timestamp, CliError> {
        self.instant(now, i64::checked_sub)
    }

    fn instant(
        self,
        now: Timestamp,
        step: fn(i64, i64) -> Option<i64>,
    ) -> Result<Timestamp, CliError> {
        let duration = match self {
            Self::At(time) => return Ok(time),
            Self::Away(duration) => duration,
        };
        i64::try_from(duration.as_micros())
            .ok()
            .and_then(|micros| step(now.micros(), micros))
            .and_then(Timestamp::from_micros)
            .ok_or_else(|| CliError::Usage("a duration leads past the years 0 to 9999".to_owned()))
    }
}

fn lifecycle_parser() -> impl TypedValueParser<Value = Lifecycle> {
    let words = Lifecycle::ALL.iter().map(|lifecycle| lifecycle.as_str());
    PossibleValuesParser::new(words)
        .try_map(|word| Lifecycle::from_word(&word).ok_or("not a lifecycle"))
}

fn verdict_parser() -> impl TypedValueParser<Value = ReviewVerdict> {
    let words = ReviewVerdict::ALL.iter().map(|verdict| verdict.as_str());
    PossibleValuesParser::new(words)
        .try_map(|word| ReviewVerdict::from_word(&word).ok_or("not a verdict"))
}

pub(super) async fn run(command: TaskCommand, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    let answered = match command {
        TaskCommand::List(options) => return list(options, &shared, ui).await,
        TaskCommand::Create(options) => create(options, &shared).await?,
        TaskCommand::Get(WhichOptions { which }) => {
            let selector = which.selector()?;
            connect(&shared, "get").await?.get(&selector).await?
        }
        TaskCommand::Start(WhichOptions { which }) => {
            let selector = which.selector()?;
            connect(&shared, "start").await?.start(&selector).await?
        }
        TaskCommand::Cancel(CancelOptions { which, reason }) => {
            let selector = which.selector()?;
            connect(&shared, "cancel")
                .await?
                .cancel(&selector, reason.as_deref())
                .await?
        }
        TaskCommand::Review(ReviewOptions {
            which,
            verdict,
            note,
            reviewer,
        }) => {
            let which = (&which.selector()?).into();
            let request = ReviewRequest {
                which,
                verdict,
                note,
                reviewer,
            };
            connect(&shared, "review").await?.review(&request).await?
        }
    };
    print_task(&answered, ui)
}

async fn connect(shared: &Shared, verb: &str) -> Result<Client, CliError> {
    shared.connect(&format!("task {verb}"), |_| ()).await
}

fn print_task(answered: &Answered, ui: &Ui) -> Result<(), CliError> {
    if ui.json() {
        return ui.print_line_of_bytes(&answered.body);
    }
    ui.print(show::task(&answered.task, Timestamp::now()))
}

async fn create(options: CreateOptions, shared: &Shared) -> Result<Answered, CliError> {
    let title = match (options.title_text, options.title) {
        (Some(title), None) | (None, Some(title)) => title,
        (Some(title), Some(other)) if title == other => title,
        (Some(_), Some(_)) => {
            return Err(CliError::Usage(
                "the title is given twice; give TITLE or --title".to_owned(),
            ));
        }
        (None, None) => return Err(CliError::Usage("the title is missing".to_owned())),
    };
    // The ID is made here, so that a lost answer can be asked for again.
    let task_id = options.task_id.unwrap_or_else(ids::new_task_id);
    checked_task_id(&task_id)?;
    let metadata = options
        .metadata
        .map(|text| Inputs::default().json("--metadata", &text));
    let deadline = options.deadline.map(|when| when.after(Timestamp::now()));
    let request = CreateRequest {
        task_id: Some(task_id.clone()),
        pane_id: options.pane.filter(|pane| !pane.is_empty()),
        title,
        metadata: metadata.transpose()?,
        deadline: deadline.transpose()?,
    };
    let created = connect(shared, "create").await?.create(&request).await;
    created.map_err(|error| match error {
        error @ (ClientError::TimedOut { .. } | ClientError::NotAnAnswer { .. } | ClientError::Nats(_)) => {
            let deadline = request.deadline.map(|deadline| format!(" --deadline {deadline}"));
            CliError::from(error).hinted(format!(
                "the task may have been created: run the same with --task-id {task_id}{}, which is safe",
                deadline.unwrap_or_default()
            ))
        }
        error => error.into(),
    })
}

async fn list(options: ListOptions, shared: &Shared, ui: &Ui) -> Result<(), CliError> {
    let given = |words: Vec<String>| Some(words).filter(|words| !words.is_empty());
    let since = options
        .updated_since
        .map(|when| when.before(Timestamp::now()));
    let mut request = ListRequest {
        lifecycle: Some(options.lifecycle).filter(|words| !words.is_empty()),
        pane_id: options.pane.filter(|pane| !pane.is_empty()),
        disposition: given(options.disposition),
        updated_since: since.transpose()?,
        // Fewer and larger pages, where all are wanted.
        limit: options.limit.or(options.all.then_some(limits::LIST_TASKS)),
        cursor: options.cursor,
    };
    let client = connect(shared, "list").await?;
    let mut pages = show::Pages::default();
    let mut first = true;
    loop {
        let page = client.list(&request).await?;
        if ui.json() {
            ui.print_line_of_bytes(&page.body)?;
        } else if !page.tasks.is_empty() {
            ui.print(pages.next(&page.tasks, Timestamp::now()))?;
        } else if first {
            ui.note("no such tasks");
        }
        match page.cursor {
            None => return Ok(()),
            Some(cursor) if !options.all => {
                ui.note(format_args!(
                    "there is more: --cursor {cursor} goes on, --all shows all"
                ));
                return Ok(());
            }
            Some(cursor) => request.cursor = Some(cursor),
        }
        first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_an_instant_or_a_duration_from_now() {
        let now = Timestamp::parse("2026-11-30T07:00:00Z").unwrap();
        let after = |text: &str| parse_when(text).unwrap().after(now).unwrap().to_string();
        assert_eq!(after("30m"), "2026-11-30T07:30:00.000000Z");
        assert_eq!(
            after("2026-12-01T09:00:00+02:00"),
            "2026-12-01T07:00:00.000000Z"
        );
        let before = parse_when("1h 30m").unwrap().before(now).unwrap();
        assert_eq!(before.to_string(), "2026-11-30T05:30:00.000000Z");
        assert!(parse_when("2026-12-01").unwrap_err().contains("RFC 3339"));
        assert!(parse_when("99999years").unwrap().after(now).is_err());
    }
}
