//! One report after the other through the library's writer, without a NATS server: what the store takes of a report that
//! is alone, and so how near to an echo the service could come at best.

use std::path::PathBuf;
use std::time::Instant;

use tasklatch::ledger::{self, Applied, Circumstances, Command, Writer};
use tasklatch::task::Timestamp;
use tasklatch::wire::{Endpoint, Outcome, Request, decode};

use crate::content::{REPORT_BYTES, Template};
use crate::failure::{During, Failure, Result};
use crate::figures::time;
use crate::run::machine::fdatasync_us;

/// How to measure it.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// How many reports
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    reports: u64,
    /// Where the database is kept meanwhile: a folder on the disk that is to be measured
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    scratch: PathBuf,
}

/// The server's usual limit, in bytes.
const MAX_PAYLOAD: usize = 1024 * 1024;

/// Creates tasks, reports on each alone, and prints how long that took.
///
/// # Errors
/// If the store fails.
pub async fn measure(options: &Options) -> Result<()> {
    let folder = tempfile::tempdir_in(&options.scratch).during("make a folder")?;
    let database = folder.path().join("tasklatch.db");
    let (ledger, mut writer) = ledger::open(&database, "the benchmark")
        .await
        .during("open the database")?;
    let (create, report) = (Template::create(), Template::report(REPORT_BYTES)?);
    for task in 0..options.reports {
        apply(&mut writer, Endpoint::Create, &create, task).await?;
    }
    let mut micros = Vec::new();
    for task in 0..options.reports {
        let began = Instant::now();
        let applied = apply(&mut writer, Endpoint::Report, &report, task).await?;
        micros.push(began.elapsed().as_secs_f64() * 1e6);
        match applied {
            Applied::Task {
                outcome: Some(Outcome::Accepted),
                ..
            } => {}
            other => {
                return Err(Failure::new(format!(
                    "a report was not accepted: {other:?}"
                )));
            }
        }
    }
    micros.sort_by(f64::total_cmp);
    let median = micros[micros.len() / 2];
    println!(
        "a report that is alone, without NATS: median {}; fdatasync of 4 KiB: {}",
        time(median),
        time(fdatasync_us(folder.path())?)
    );
    ledger.close().await;
    writer.close().await.during("close the database")
}

async fn apply(
    writer: &mut Writer,
    endpoint: Endpoint,
    template: &Template,
    task: u64,
) -> Result<Applied> {
    let mut payload = Vec::new();
    template.write(task, &mut payload);
    let request = decode(endpoint, None, &payload, String::new);
    let Ok(Request::Change(change)) = request else {
        return Err(Failure::new("a request of the benchmark is refused"));
    };
    let circumstances = Circumstances {
        now: Timestamp::now(),
        max_payload: MAX_PAYLOAD,
    };
    let mut applied = writer
        .apply(&[Command::Change(change)], circumstances)
        .await;
    applied
        .pop()
        .ok_or_else(|| Failure::new("nothing was applied"))?
        .during("apply a request")
}
