//! The real service, as a child process.

use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use super::{Broker, DEADLINE, eventually, free_port, http_get};

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_tasklatch");

/// A running `tasklatch serve`. It is killed when this is dropped.
pub struct Service {
    child: Child,
    /// What it printed when it was ready.
    pub ready_line: String,
    log: tokio::task::JoinHandle<String>,
}

impl Service {
    /// Starts a service and waits until it is ready.
    pub async fn start(broker: &Broker, database: &Path, options: &[&str]) -> Self {
        match Self::try_start(&broker.url(), database, options).await {
            Ok(service) => service,
            Err(output) => panic!(
                "the service did not start: {}",
                String::from_utf8_lossy(&output.stderr)
            ),
        }
    }

    /// Starts a service that serves requests, but is not ready for something that is in trouble from the start. It serves
    /// HTTP.
    pub async fn start_serving(broker: &Broker, database: &Path, options: &[&str]) -> Self {
        let http = format!("127.0.0.1:{}", free_port());
        let options: Vec<_> = options
            .iter()
            .map(|&option| match option {
                "127.0.0.1:0" => http.as_str(),
                other => other,
            })
            .collect();
        let mut child = serve_command(&[], &broker.url(), database, &options)
            .spawn()
            .unwrap();
        let log = read_all(child.stderr.take().unwrap());
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        tokio::spawn(
            async move { while let Ok(1..) = stdout.read_line(&mut String::new()).await {} },
        );
        eventually("requests are served", async || {
            tokio::net::TcpStream::connect(&http).await.ok()?;
            let (_, page) = http_get(&http, "/ready").await;
            let steps = ["its turn", "the NATS server", "JetStream", "other services"];
            let starts = |step| page.contains(&format!("starting: waiting for {step}"));
            (!steps.into_iter().any(starts)).then_some(())
        })
        .await;
        Self {
            child,
            ready_line: http,
            log,
        }
    }

    /// Starts a service that may refuse to start; then gives what it printed and how it ended.
    pub async fn try_start(url: &str, database: &Path, options: &[&str]) -> Result<Self, Output> {
        Self::try_start_by(&[], url, database, options).await
    }

    /// The same by way of another command, which runs the one that is put after its words.
    pub async fn try_start_by(
        wrapper: &[&str],
        url: &str,
        database: &Path,
        options: &[&str],
    ) -> Result<Self, Output> {
        let child = serve_command(wrapper, url, database, options)
            .spawn()
            .unwrap();
        Self::ready(child).await
    }

    /// Waits until a service that was started otherwise, with pipes for what it prints, is ready.
    pub async fn of(child: Child) -> Self {
        match Self::ready(child).await {
            Ok(service) => service,
            Err(output) => panic!(
                "the service did not start: {}",
                String::from_utf8_lossy(&output.stderr)
            ),
        }
    }

    async fn ready(mut child: Child) -> Result<Self, Output> {
        let log = read_all(child.stderr.take().unwrap());
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut ready_line = String::new();
        let read = timeout(DEADLINE, stdout.read_line(&mut ready_line)).await;
        let bytes = read
            .expect("the service is ready, or ends, in time")
            .unwrap();
        if bytes == 0 {
            let status = child.wait().await.unwrap();
            let stderr = log.await.unwrap().into_bytes();
            return Err(Output {
                status,
                stdout: Vec::new(),
                stderr,
            });
        }
        // Keep the pipe open, so that printing to it later does not fail.
        tokio::spawn(
            async move { while let Ok(1..) = stdout.read_line(&mut String::new()).await {} },
        );
        Ok(Self {
            child,
            ready_line,
            log,
        })
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Kills it as a power cut would.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Sends it a signal by name, as `kill -NAME` does.
    pub async fn signal(&self, name: &str) {
        signal(self.pid(), name).await;
    }

    /// Asks it to stop, and waits for that. Gives the exit status and all that it logged.
    pub async fn stop(self) -> (ExitStatus, String) {
        self.signal("TERM").await;
        self.ended().await
    }

    /// Waits until it ends by itself.
    pub async fn ended(mut self) -> (ExitStatus, String) {
        let status = timeout(DEADLINE, self.child.wait())
            .await
            .expect("it ends in time")
            .unwrap();
        (status, self.log.await.unwrap())
    }
}

fn read_all(mut stderr: ChildStderr) -> tokio::task::JoinHandle<String> {
    tokio::spawn(async move {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text).await;
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// `tasklatch serve`, by way of another command, if one is given, and with pipes for what it prints. Events are plain ones
/// unless the options say otherwise, as most servers of tests have no JetStream.
pub fn serve_command(wrapper: &[&str], url: &str, database: &Path, options: &[&str]) -> Command {
    let words: Vec<&str> = wrapper.iter().copied().chain([BINARY]).collect();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .args(["serve", "--nats-url", url, "--database"])
        .arg(database)
        .args(if options.contains(&"--http") {
            &[][..]
        } else {
            &["--http", "off"][..]
        })
        .args(if options.contains(&"--events") {
            &[][..]
        } else {
            &["--events", "core"][..]
        })
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Sends a process a signal by name.
pub async fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status()
        .await
        .unwrap();
    assert!(status.success(), "kill -{name} {pid}");
}
