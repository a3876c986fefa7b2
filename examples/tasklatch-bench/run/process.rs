//! Child processes, which never outlive the run.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::failure::{During, Failure, Result};

/// How many lines of a process are kept that nobody has read. One that says more, says it in vain.
const LINES_MAX: usize = 1024;

/// How many of its last lines are told when it fails.
const LINES_TOLD: usize = 12;

/// A running process. It is killed and reaped when this is dropped.
pub struct Process {
    name: String,
    child: Child,
    lines: mpsc::Receiver<(From, String)>,
    last: VecDeque<String>,
}

/// Where a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Process {
    /// Starts it. `name` is for people.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(name: impl Into<String>, command: &mut Command) -> Result<Self> {
        let name = name.into();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .during(format_args!(
                "start {name} ({})",
                command.get_program().display()
            ))?;
        let (sender, lines) = mpsc::channel(LINES_MAX);
        if let Some(out) = child.stdout.take() {
            pass_on(out, From::Out, sender.clone());
        }
        if let Some(err) = child.stderr.take() {
            pass_on(err, From::Err, sender);
        }
        Ok(Self {
            name,
            child,
            lines,
            last: VecDeque::new(),
        })
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the first line that `wanted` makes something of.
    ///
    /// # Errors
    /// If the process ends without it, or it does not come in time.
    pub async fn wait_for<T>(
        &mut self,
        what: &str,
        within: Duration,
        wanted: impl Fn(From, &str) -> Option<T>,
    ) -> Result<T> {
        let found = timeout(within, async {
            while let Some((from, line)) = self.lines.recv().await {
                if let Some(found) = wanted(from, &line) {
                    return Some(found);
                }
                self.last.push_back(line);
                if self.last.len() > LINES_TOLD {
                    self.last.pop_front();
                }
            }
            None
        });
        match found.await {
            Ok(Some(found)) => Ok(found),
            Ok(None) => {
                let status = self.child.wait().during("wait for a process")?;
                Err(self.failure(&format!("ended ({status}) without {what}")))
            }
            Err(_) => {
                let seconds = within.as_secs_f64();
                Err(self.failure(&format!("gave no {what} within {seconds:.0} s")))
            }
        }
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// If it does not in time, or not well.
    pub async fn ended(&mut self, within: Duration) -> Result<()> {
        let read_all = async {
            while let Some((_, line)) = self.lines.recv().await {
                self.last.push_back(line);
                if self.last.len() > LINES_TOLD {
                    self.last.pop_front();
                }
            }
        };
        // Both pipes are closed by its end; after that it can be waited for without a limit.
        if timeout(within, read_all).await.is_err() {
            let seconds = within.as_secs_f64();
            return Err(self.failure(&format!("did not end within {seconds:.0} s")));
        }
        match self.child.wait().during("wait for a process")? {
            status if status.success() => Ok(()),
            status => Err(self.failure(&format!("ended badly ({status})"))),
        }
    }

    /// Whether it has ended, and how.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn has_ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().during("look at a process")
    }

    /// Asks it to stop, and waits for that.
    ///
    /// # Errors
    /// If it does not in time, or not well.
    pub async fn stop(&mut self, within: Duration) -> Result<()> {
        // The standard library sends no signal but SIGKILL.
        Command::new("kill")
            .args(["-TERM", &self.pid().to_string()])
            .status()
            .during(format_args!("stop {}", self.name))?;
        self.ended(within).await
    }

    /// What went wrong, with the last that the process said.
    pub fn failure(&mut self, what: &str) -> Failure {
        while let Ok((_, line)) = self.lines.try_recv() {
            self.last.push_back(line);
        }
        let skip = self.last.len().saturating_sub(LINES_TOLD);
        let said: Vec<&str> = self.last.iter().skip(skip).map(String::as_str).collect();
        let said = match said.as_slice() {
            [] => "it said nothing".to_owned(),
            lines => format!("it said last:\n  {}", lines.join("\n  ")),
        };
        Failure::new(format!("{} {what}; {said}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill and it is reaped already or here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a pipe to its end, so that it never fills up.
fn pass_on(pipe: impl Read + Send + 'static, from: From, sender: mpsc::Sender<(From, String)>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe)
            .lines()
            .map_while(std::result::Result::ok)
        {
            let _ = sender.try_send((from, line));
        }
    });
}
