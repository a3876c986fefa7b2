//! `tasklatch snapshot`: all tasks as a file, and back.

mod progress;

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::error::{CliError, EXIT_CODES_HELP, EXIT_FAULT};
use super::signals::Signals;
use super::text::counted;
use super::{DatabaseOption, Ui, on_all_cores};
use crate::ledger::OpenError;
use crate::snapshot::{self, Pending, Restored, SnapshotError, SnapshotFile, Summary};
use crate::task::Timestamp;
use progress::Bar;

/// What can be done with snapshots.
#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Save all tasks as of now into a file, also while a service runs
    Save(SaveOptions),
    /// Load a snapshot into a new or empty database, with no service running on it
    Restore(RestoreOptions),
    /// Check that a snapshot is whole, unchanged and can be restored
    Verify(VerifyOptions),
}

/// Options of `snapshot save`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub struct SaveOptions {
    /// File to write, replaced when the snapshot is complete; - is standard output
    #[arg(value_name = "FILE|-")]
    file: PathBuf,

    #[command(flatten)]
    database: DatabaseOption,
}

/// Options of `snapshot restore`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub struct RestoreOptions {
    /// Snapshot to load; - is standard input
    #[arg(value_name = "FILE|-")]
    file: PathBuf,

    #[command(flatten)]
    database: DatabaseOption,

    /// Publish the events that had not been published yet, when a service runs on the database
    #[arg(long)]
    publish_pending: bool,
}

/// Options of `snapshot verify`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_HELP)]
pub struct VerifyOptions {
    /// Snapshot to check; - is standard input
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
}

/// Runs one command.
///
/// # Errors
/// What failed, and what to do about it.
pub fn run(command: SnapshotCommand, ui: &Ui) -> Result<(), CliError> {
    match command {
        SnapshotCommand::Save(options) => save(&options, ui),
        SnapshotCommand::Restore(options) => restore(&options, ui),
        SnapshotCommand::Verify(options) => verify(&options, ui),
    }
}

/// A snapshot as `--json` tells of it.
#[derive(Serialize)]
struct Told<'s> {
    tasks: u64,
    unpublished_events: u64,
    sha256: &'s str,
    created_at: Timestamp,
    ledger_id: &'s str,
    /// Of a restore only.
    #[serde(flatten)]
    restored: Option<ToldRestored<'s>>,
}

#[derive(Serialize)]
struct ToldRestored<'s> {
    restored_ledger_id: &'s str,
    publish_pending: bool,
}

impl<'s> Told<'s> {
    fn of(summary: &'s Summary) -> Self {
        Self {
            tasks: summary.tasks,
            unpublished_events: summary.unpublished_events,
            sha256: &summary.sha256,
            created_at: summary.created_at,
            ledger_id: &summary.ledger_id,
            restored: None,
        }
    }

    fn print(&self, ui: &Ui) -> Result<(), CliError> {
        let text = serde_json::to_vec(self).map_err(|error| {
            CliError::Fault(format!("the summary does not encode as JSON: {error}"))
        })?;
        ui.print_line_of_bytes(&text)
    }
}

fn save(options: &SaveOptions, ui: &Ui) -> Result<(), CliError> {
    let (file, database) = (&options.file, &options.database.database);
    let to_stdout = is_dash(file);
    let summary = work(ui, async |bar: &mut Bar| {
        let (now, mut watch) = (Timestamp::now(), |progress| bar.show(progress));
        match to_stdout {
            true => snapshot::save_to(database, io::stdout(), now, &mut watch).await,
            false => snapshot::save(database, file, now, &mut watch).await,
        }
    })?;
    match (to_stdout, ui.json()) {
        // Standard output holds the snapshot.
        (true, _) => ui.note(format_args!("saved {}", counts(&summary))),
        (false, true) => Told::of(&summary).print(ui)?,
        (false, false) => {
            ui.print(format_args!(
                "saved {} to {}",
                counts(&summary),
                file.display()
            ))?;
        }
    }
    Ok(())
}

fn verify(options: &VerifyOptions, ui: &Ui) -> Result<(), CliError> {
    let mut file = open(&options.file, None)?;
    let summary = work(ui, async |bar: &mut Bar| {
        snapshot::verify(&mut file, &mut |progress| bar.show(progress)).await
    })?;
    if ui.json() {
        return Told::of(&summary).print(ui);
    }
    let Summary {
        created_at,
        ledger_id,
        ..
    } = &summary;
    ui.print(format_args!(
        "{} is good: {}, saved at {created_at} from ledger {ledger_id}",
        file.name(),
        counts(&summary)
    ))
}

fn restore(options: &RestoreOptions, ui: &Ui) -> Result<(), CliError> {
    let database = &options.database.database;
    let pending = if options.publish_pending {
        Pending::Publish
    } else {
        Pending::Drop
    };
    let mut file = open(&options.file, database.parent())?;
    let restored = work(ui, async |bar: &mut Bar| {
        snapshot::restore(&mut file, database, pending, &mut |progress| {
            bar.show(progress)
        })
        .await
    })?;
    let Restored {
        snapshot,
        ledger_id,
    } = &restored;
    if ui.json() {
        let publish_pending = options.publish_pending;
        let told = ToldRestored {
            restored_ledger_id: ledger_id,
            publish_pending,
        };
        return Told {
            restored: Some(told),
            ..Told::of(snapshot)
        }
        .print(ui);
    }
    ui.print(format_args!(
        "restored {} from {} into {}, now ledger {ledger_id}",
        counted(snapshot.tasks, "task"),
        file.name(),
        database.display()
    ))?;
    ui.print(what_of_events(snapshot.unpublished_events, pending))
}

fn what_of_events(count: u64, pending: Pending) -> String {
    let events = counted(count, "event");
    match (count, pending) {
        (0, _) => "no events were waiting to be published".to_owned(),
        (_, Pending::Publish) => {
            format!(
                "{events} had not been published, and will be when a service runs on the database"
            )
        }
        (_, Pending::Drop) => {
            format!(
                "{events} had not been published, and will not be; --publish-pending would have kept them"
            )
        }
    }
}

fn counts(summary: &Summary) -> String {
    let events = counted(summary.unpublished_events, "unpublished event");
    format!("{} and {events}", counted(summary.tasks, "task"))
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens the file of an option. Standard input is read to its end first.
fn open(path: &Path, room: Option<&Path>) -> Result<SnapshotFile, CliError> {
    let opened = match is_dash(path) {
        true => SnapshotFile::keep(io::stdin().lock(), "standard input", room),
        false => SnapshotFile::open(path),
    };
    opened.map_err(in_words)
}

/// Does the work with a progress bar. A first signal ends it in order, without leaving anything behind.
fn work<T>(
    ui: &Ui,
    work: impl AsyncFnOnce(&mut Bar) -> Result<T, SnapshotError>,
) -> Result<T, CliError> {
    let mut done = None;
    on_all_cores(async {
        let signals = Signals::listen()?;
        signals.exit_on_second(EXIT_FAULT);
        let mut bar = Bar::new(ui, signals);
        let result = work(&mut bar).await;
        bar.clear();
        done = Some(result.map_err(in_words)?);
        Ok(())
    })?;
    done.ok_or_else(|| CliError::Fault("the work ended without a result".to_owned()))
}

/// A failure with its exit code and what to do next.
fn in_words(error: SnapshotError) -> CliError {
    let text = error.to_string();
    match &error {
        SnapshotError::BadFile(damage) => {
            CliError::Usage(text).hinted(format!("{}; nothing was changed", damage.kind.remedy()))
        }
        SnapshotError::NotEmpty(_) => CliError::Usage(text).hinted(
            "name a file that is not there yet with --database, and run the service on that; nothing was changed",
        ),
        SnapshotError::WrongFile { .. } | SnapshotError::Open(OpenError::Missing { .. }) => {
            CliError::Usage(text)
        }
        SnapshotError::ChangedMeanwhile(_) => CliError::Fault(text)
            .hinted("restore it again when nobody writes to it; nothing was restored"),
        SnapshotError::Ledger(_) | SnapshotError::Io { .. } => CliError::Fault(text)
            .hinted("see to the disk and its free space, and try again; TMPDIR names the folder for temporary files; \
             nothing half done is left"),
        SnapshotError::Output(source) if source.kind() == io::ErrorKind::BrokenPipe => CliError::Fault(
            "standard output was closed before all of the snapshot was written; what was read of it is no snapshot".to_owned(),
        ),
        SnapshotError::Interrupted => {
            CliError::Fault("interrupted; nothing was changed".to_owned())
        }
        SnapshotError::Open(_) | SnapshotError::Output(_) => CliError::Fault(text),
    }
}
