//! A `nats-server` as a child process: found, started, watched and stopped.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command as StdCommand, ExitStatus, Stdio};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::cli::CliError;

/// How long a server may take until it accepts connections.
const READY_WITHIN: Duration = Duration::from_secs(15);

/// Between two looks whether it does.
const READY_POLL: Duration = Duration::from_millis(25);

/// How long a server may take to end after it was asked to.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// How many lines of its log an error shows.
const LOG_TAIL_LINES: usize = 3;

/// Where a server writes its pid, in the folder of `dev`.
const PID_FILE: &str = "nats-server.pid";

/// Where the project's tools are, below its folder.
const IN_PROJECT: &str = ".tools/bin/nats-server";

/// Finds the program: the one that is named, else in PATH, else among a project's tools: in the current folder, around
/// the program that runs, or in a folder above.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(path) = named {
        return match path.is_file() {
            true => Ok(path.to_owned()),
            false => Err(CliError::Fault(format!(
                "--nats-server: there is no file {}",
                path.display()
            ))),
        };
    }
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&in_path).map(|folder| folder.join("nats-server"));
    let above = |start: PathBuf| {
        let folders: Vec<PathBuf> = start.ancestors().map(Path::to_owned).collect();
        folders.into_iter().map(|folder| folder.join(IN_PROJECT))
    };
    let starts = [std::env::current_dir(), std::env::current_exe()];
    in_path
        .chain(starts.into_iter().flatten().flat_map(above))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            CliError::Fault("there is no nats-server in PATH, nor .tools/bin/nats-server here or above".to_owned())
                .hinted("`make setup` in the project gets one; or install it, or name it with --nats-server")
        })
}

/// Refuses to go on where the server of an earlier run still runs: two would share one folder of streams.
pub(super) fn refuse_left_behind(folder: &Path) -> Result<(), CliError> {
    match left_behind(&folder.join(PID_FILE)) {
        None => Ok(()),
        Some(pid) => Err(CliError::Fault(format!(
            "the nats-server of an earlier `tasklatch dev` in {} still runs; stop it with: kill {pid}",
            folder.display()
        ))),
    }
}

/// A running server.
pub(super) struct NatsServer {
    child: Child,
    program: PathBuf,
    pid_file: PathBuf,
    log: PathBuf,
    port: u16,
}

impl NatsServer {
    /// Starts a server with its streams, log and pid file in `folder`.
    pub(super) fn start(program: &Path, folder: &Path, port: u16) -> Result<Self, CliError> {
        let pid_file = folder.join(PID_FILE);
        let log = folder.join("nats-server.log");
        // Only the log of this run can say why this run failed.
        let _ = fs::remove_file(&log);
        let mut command = StdCommand::new(program);
        command
            .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js"])
            .arg("-sd")
            .arg(folder.join("nats"))
            .arg("-P")
            .arg(&pid_file)
            .arg("-l")
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in the terminal is for us alone, so that the service ends before its server.
            .process_group(0);
        let child = Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                CliError::Fault(format!("cannot start {}: {error}", program.display()))
            })?;
        Ok(Self {
            child,
            program: program.to_owned(),
            pid_file,
            log,
            port,
        })
    }

    /// Waits until the server accepts connections.
    pub(super) async fn wait_until_ready(&mut self) -> Result<(), CliError> {
        let address = (Ipv4Addr::LOCALHOST, self.port);
        let connected = async {
            while TcpStream::connect(address).await.is_err() {
                sleep(READY_POLL).await;
            }
        };
        let ended = tokio::select! {
            ready = timeout(READY_WITHIN, connected) => match ready {
                Ok(()) => return Ok(()),
                Err(_) => None,
            },
            ended = self.child.wait() => Some(ended),
        };
        Err(match ended {
            Some(ended) => self.ended_with(ended),
            None => CliError::Fault(format!(
                "the NATS server did not accept a connection within {}{}",
                humantime::format_duration(READY_WITHIN),
                self.log_tail()
            )),
        })
    }

    /// Waits until the server ends, which it is not meant to, and says so.
    pub(super) async fn ended(&mut self) -> CliError {
        let ended = self.child.wait().await;
        self.ended_with(ended)
    }

    fn ended_with(&self, ended: std::io::Result<ExitStatus>) -> CliError {
        let how = match ended {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        CliError::Fault(format!(
            "the NATS server ended by itself ({how}){}",
            self.log_tail()
        ))
    }

    fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(LOG_TAIL_LINES);
        let shown = self.log.display();
        match lines.get(from..) {
            Some([]) | None => format!("; its log, {shown}, is empty"),
            Some(tail) => format!("; its log, {shown}, ends with: {}", tail.join(" / ")),
        }
    }

    /// Ends the server in order, and by force if it takes too long.
    pub(super) async fn stop(&mut self) {
        if let (Some(pid), Ok(None)) = (self.child.id(), self.child.try_wait()) {
            // The server knows how to signal itself, so that no unsafe code and no other program is needed.
            let mut signal = Command::new(&self.program);
            signal.arg("--signal").arg(format!("term={pid}"));
            signal
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let asked = timeout(STOP_WITHIN, signal.status()).await;
            if matches!(asked, Ok(Ok(status)) if status.success()) {
                let _ = timeout(STOP_WITHIN, self.child.wait()).await;
            }
            // Does nothing to a child that has ended.
            let _ = self.child.kill().await;
        }
        let _ = fs::remove_file(&self.pid_file);
    }

    /// Ends the server at once.
    pub(super) fn kill(&mut self) {
        let _ = self.child.start_kill();
        let _ = fs::remove_file(&self.pid_file);
    }
}

/// The pid of a nats-server that an earlier run left behind. Where there is no /proc nothing is known, and the port
/// tells.
fn left_behind(pid_file: &Path) -> Option<u32> {
    let pid = fs::read_to_string(pid_file).ok()?.trim().parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    // A process that has ended and that nobody has waited for keeps its name, and has no command line any more.
    let runs = fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
    (runs && name.trim() == "nats-server").then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_program_that_is_not_there_is_refused() {
        let error = find(Some(Path::new("/nowhere/nats-server"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--nats-server: there is no file /nowhere/nats-server"
        );
        assert_eq!(error.exit_code(), 1);
    }

    #[test]
    fn a_pid_file_of_a_process_that_is_gone_or_another_program_holds_nothing_up() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("nats-server.pid");
        assert_eq!(left_behind(&pid_file), None);
        fs::write(&pid_file, "nonsense").unwrap();
        assert_eq!(left_behind(&pid_file), None);
        fs::write(&pid_file, std::process::id().to_string()).unwrap();
        assert_eq!(left_behind(&pid_file), None);
    }
}
