//! What Linux says in `/proc` of processes and of the machine.

use serde::{Deserialize, Serialize};

use crate::failure::{During, Failure, Result};

/// `/proc` counts time in hundredths of a second, whatever the kernel was built with.
const TICKS_PER_SECOND: f64 = 100.0;

/// The processor time that a process has used, in seconds.
///
/// # Errors
/// If there is no such process.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let text = read(&format!("/proc/{pid}/stat"))?;
    cpu_seconds_in(&text).ok_or_else(|| {
        Failure::new(format!(
            "cannot make out the processor time of process {pid}"
        ))
    })
}

fn cpu_seconds_in(stat: &str) -> Option<f64> {
    // The name of the program, in brackets, may hold anything; user and system time are the 12th and 13th field after it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

/// How much memory a process holds, in KiB.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Now.
    pub resident_kib: u64,
    /// At most, since it started.
    pub peak_kib: u64,
}

impl Memory {
    /// Of a process.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn of(pid: u32) -> Result<Self> {
        let text = read(&format!("/proc/{pid}/status"))?;
        let kib = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        };
        kib("VmRSS:")
            .zip(kib("VmHWM:"))
            .map(|(resident_kib, peak_kib)| Self {
                resident_kib,
                peak_kib,
            })
            .ok_or_else(|| Failure::new(format!("cannot make out the memory of process {pid}")))
    }
}

/// How many bytes a process has had written to disks: those to sockets and pipes do not count.
///
/// # Errors
/// If it cannot be read.
pub fn written_bytes(pid: u32) -> Result<u64> {
    let text = read(&format!("/proc/{pid}/io"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok())
        .ok_or_else(|| Failure::new(format!("cannot make out what process {pid} has written")))
}

/// What all processors have done since the machine started, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct MachineTimes {
    /// In processes and in the kernel for them.
    pub working: f64,
    /// All but idle: also interrupts.
    pub busy: f64,
    /// Taken by other virtual machines.
    pub stolen: f64,
    /// All of it.
    pub all: f64,
}

impl MachineTimes {
    /// Until now.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn now() -> Result<Self> {
        let text = read("/proc/stat")?;
        Self::in_text(&text).ok_or_else(|| Failure::new("cannot make out the times in /proc/stat"))
    }

    fn in_text(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let fields: Vec<f64> = line
            .split_ascii_whitespace()
            .map(|field| field.parse().map(|ticks: f64| ticks / TICKS_PER_SECOND))
            .collect::<std::result::Result<_, _>>()
            .ok()?;
        // Guest time is in user time already, so the fields after steal are left out.
        let &[
            user,
            nice,
            system,
            idle,
            waiting,
            interrupts,
            soft_interrupts,
            stolen,
            ..,
        ] = fields.as_slice()
        else {
            return None;
        };
        let working = user + nice + system;
        let busy = working + interrupts + soft_interrupts;
        Some(Self {
            working,
            busy,
            stolen,
            all: busy + stolen + idle + waiting,
        })
    }

    /// What was done since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            working: self.working - earlier.working,
            busy: self.busy - earlier.busy,
            stolen: self.stolen - earlier.stolen,
            all: self.all - earlier.all,
        }
    }

    /// The share of all time that was not spent idle.
    pub fn busy_share(self) -> f64 {
        share(self.busy + self.stolen, self.all)
    }
}

/// A part of a whole, which may be nothing.
pub fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// What this machine is, for those who read the figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The model of its processor.
    pub processor: String,
    /// How many of its cores can be used.
    pub cores: usize,
    /// The version of its kernel.
    pub kernel: String,
    /// Its memory in MiB.
    pub memory_mib: u64,
}

impl Machine {
    /// This one.
    ///
    /// # Errors
    /// If `/proc` cannot be read: this benchmark needs Linux.
    pub fn this() -> Result<Self> {
        let value_of = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let processors = read("/proc/cpuinfo")?;
        let memory = value_of(&read("/proc/meminfo")?, "MemTotal")
            .and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Ok(Self {
            processor: value_of(&processors, "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            memory_mib: memory.unwrap_or(0) / 1024,
        })
    }
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).during(format_args!(
        "read {path}, which the benchmark needs (it runs on Linux)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_process_are_found_behind_any_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 900 0 0 0 250 50 0 0 20 0 4 0 99 1 2";
        assert_eq!(cpu_seconds_in(stat), Some(3.0));
    }

    #[test]
    fn times_of_the_machine_add_up() {
        let times = MachineTimes::in_text("cpu  100 0 200 600 50 10 20 20 5 0\ncpu0 1\n").unwrap();
        for (is, should) in [
            (times.working, 3.0),
            (times.busy, 3.3),
            (times.stolen, 0.2),
            (times.all, 10.0),
            (times.busy_share(), 0.35),
        ] {
            assert!((is - should).abs() < 1e-9, "{is} {should}");
        }
    }

    #[test]
    fn this_process_is_found() {
        let pid = std::process::id();
        assert!(Memory::of(pid).unwrap().peak_kib > 0);
        assert!(cpu_seconds(pid).is_ok() && written_bytes(pid).is_ok());
    }
}
