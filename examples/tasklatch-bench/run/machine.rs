//! Whether the machine is quiet, and how fast its disk makes things durable.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::failure::{During, Failure, Result};
use crate::figures::Spread;
use crate::proc::{MachineTimes, cpu_seconds};

/// How long the machine is looked at, and a process.
pub const LOOK: Duration = Duration::from_millis(300);

/// A machine is quiet that is busy for no more than this share of the time.
const QUIET_SHARE: f64 = 0.1;

/// How long to wait for that, before it is measured all the same.
const QUIET_WITHIN: Duration = Duration::from_secs(6);

/// A process is at rest that uses no more than this many cores.
const AT_REST_CORES: f64 = 0.04;

/// How long a process may go on with what it was given before.
const AT_REST_WITHIN: Duration = Duration::from_secs(120);

/// Waits until other processes leave the machine alone; `false` if they do not.
///
/// # Errors
/// If `/proc` cannot be read.
pub async fn wait_until_quiet() -> Result<bool> {
    let started = Instant::now();
    loop {
        let before = MachineTimes::now()?;
        sleep(LOOK).await;
        if MachineTimes::now()?.since(before).busy_share() <= QUIET_SHARE {
            return Ok(true);
        }
        if started.elapsed() > QUIET_WITHIN {
            return Ok(false);
        }
    }
}

/// Waits until a process does nothing for as long as it is looked at.
///
/// # Errors
/// If it goes on and on.
pub async fn wait_until_at_rest(pid: u32, look: Duration) -> Result<()> {
    let started = Instant::now();
    loop {
        let before = cpu_seconds(pid)?;
        let looked = Instant::now();
        sleep(look).await;
        if (cpu_seconds(pid)? - before) / looked.elapsed().as_secs_f64() <= AT_REST_CORES {
            return Ok(());
        }
        if started.elapsed() > AT_REST_WITHIN {
            return Err(Failure::new(format!(
                "the responder (process {pid}) does not come to rest before it is measured"
            )));
        }
    }
}

/// What a log writes at least at a time.
const BLOCK_BYTES: usize = 4096;

/// How often that is made durable, and for how long at most.
const SYNCS: u64 = 200;
const SYNCS_WITHIN: Duration = Duration::from_millis(300);

/// How long it takes to write 4 KiB over what is there and have it made durable, in microseconds: the median.
///
/// # Errors
/// If the folder cannot be written to.
pub fn fdatasync_us(folder: &Path) -> Result<f64> {
    let path = folder.join("fdatasync");
    let write = || -> std::io::Result<Vec<f64>> {
        let file = File::create(&path)?;
        file.write_all_at(&vec![1; SYNCS as usize * BLOCK_BYTES], 0)?;
        file.sync_all()?;
        let started = Instant::now();
        let mut times = Vec::new();
        for at in 0..SYNCS {
            let begun = Instant::now();
            file.write_all_at(&[2; BLOCK_BYTES], at * BLOCK_BYTES as u64)?;
            file.sync_data()?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            if started.elapsed() > SYNCS_WITHIN {
                break;
            }
        }
        std::fs::remove_file(&path)?;
        Ok(times)
    };
    let times = write().during(format_args!("write to {}", path.display()))?;
    // The loop above runs at least once.
    Ok(Spread::of(times).map_or(0.0, |spread| spread.median))
}
