//! nats-server, the service and its disk, and how the service must come back.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::Options;
use crate::answers::{ASKED_MANY, answer_of, ask_many, count_answers};
use crate::model::{Dice, Failure, Shared, count, holds};
use crate::port::free_port;
use crate::proxy::{Mode, Proxy};

/// Whether the service makes the event stream and publishes into it. Until it does, the suite makes the stream, plain
/// messages land in it, and what only acknowledgments can promise is counted, not judged.
pub const SERVICE_STORES_EVENTS: bool = true;

/// The stream of events.
pub const EVENTS_STREAM: &str = "TASKLATCH_EVENTS";

/// How long the service may take to answer again once trouble is over.
const RECOVER_WITHIN: Duration = Duration::from_secs(30);

/// How long the service may take to end when it must.
pub const END_WITHIN: Duration = Duration::from_secs(30);

/// How long one question may take when it is asked whether the service answers.
const PROBE_WITHIN: Duration = Duration::from_millis(500);

/// How often something is looked at that gives no signal.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The payload that nats-server takes: as it comes, and when it is lowered.
pub const MAX_PAYLOAD: usize = 1024 * 1024;
pub const MAX_PAYLOAD_LOW: usize = 64 * 1024;

/// The size of the disk while there is room.
const DISK_ROOM: &str = "2g";

/// A time that is waited for its own sake: how long a trouble lasts, or a pause of a worker.
pub async fn last(time: Duration) {
    sleep(time).await;
}

/// Looks until there is something to see, or until `within` is over.
pub async fn look<T>(within: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + within;
    loop {
        let seen = look().await;
        if seen.is_some() || Instant::now() > end {
            return seen;
        }
        last(LOOK_EVERY).await;
    }
}

/// nats-server with JetStream, on files of its own.
struct Broker {
    child: Child,
    port: u16,
    folder: PathBuf,
}

impl Broker {
    async fn start(folder: &Path) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let child = Command::new("true").kill_on_drop(true).spawn().unwrap();
        let mut broker = Self {
            child,
            port: free_port(),
            folder: folder.to_owned(),
        };
        broker.spawn(MAX_PAYLOAD).await;
        broker
    }

    async fn spawn(&mut self, max_payload: usize) {
        let named = std::env::var_os("TASKLATCH_TEST_NATS_SERVER").map(PathBuf::from);
        let binary = named.unwrap_or_else(|| {
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".tools/bin/nats-server")
        });
        assert!(
            binary.exists(),
            "no nats-server at {}: run `make setup` first",
            binary.display()
        );
        let port = self.port;
        let config = self.folder.join("nats.conf");
        let store = self.folder.display();
        let text = format!(
            "listen: \"127.0.0.1:{port}\"\nmax_payload: {max_payload}\njetstream {{ store_dir: \"{store}\" }}\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut child = Command::new(binary)
            .arg("-c")
            .arg(&config)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = async {
            let mut seen = String::new();
            while let Some(line) = log.next_line().await.unwrap() {
                seen.push_str(&line);
                seen.push('\n');
                if line.contains("Server is ready") {
                    return;
                }
            }
            panic!("nats-server ended before it was ready:\n{seen}");
        };
        timeout(RECOVER_WITHIN, ready)
            .await
            .expect("nats-server is ready in time");
        // The pipe must not fill up.
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        self.child = child;
    }
}

/// `tasklatch serve`.
struct Service {
    child: Child,
    log: JoinHandle<String>,
}

/// All that a test stands on.
pub struct Stage {
    pub shared: Arc<Shared>,
    folder: Option<tempfile::TempDir>,
    broker: Broker,
    service: Service,
    /// Between the service and nats-server.
    pub proxy: Proxy,
    /// Between some workers and nats-server.
    pub workers_proxy: Proxy,
    /// A client of the suite's own, past the proxies.
    pub client: async_nats::Client,
    options: Options,
    /// What the service logged, life by life.
    log: Arc<Mutex<String>>,
}

impl Stage {
    /// Starts everything.
    pub async fn set(options: &Options, shared: Arc<Shared>) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("torture-")
            .tempdir()
            .unwrap();
        let disk = folder.path().join("disk");
        std::fs::create_dir(&disk).unwrap();
        let size = format!("size={DISK_ROOM}");
        run(
            "mount",
            &["-t", "tmpfs", "-o", &size, "tmpfs", disk.to_str().unwrap()],
        )
        .await;
        build_clock(folder.path()).await;
        let broker = Broker::start(&folder.path().join("nats")).await;
        let proxy = Proxy::start(broker.port).await;
        let workers_proxy = Proxy::start(broker.port).await;
        let client = connect(&format!("nats://127.0.0.1:{}", broker.port)).await;
        let log = Arc::<Mutex<String>>::default();
        if options.events == "jetstream" && !SERVICE_STORES_EVENTS {
            let config = jetstream::stream::Config {
                name: EVENTS_STREAM.to_owned(),
                subjects: vec!["tasklatch.event.>".to_owned()],
                duplicate_window: Duration::from_secs(3600),
                ..Default::default()
            };
            jetstream::new(client.clone())
                .create_stream(config)
                .await
                .unwrap();
        }
        let service = spawn(options, folder.path(), &proxy, &log, &[]);
        count(&shared.counts.restarts);
        Self {
            shared,
            folder: Some(folder),
            broker,
            service,
            proxy,
            workers_proxy,
            client,
            options: options.clone(),
            log,
        }
    }

    fn path(&self) -> &Path {
        self.folder.as_ref().unwrap().path()
    }

    /// Where the database is.
    pub fn database(&self) -> PathBuf {
        self.path().join("disk/ledger.db")
    }

    /// Where it says by how many seconds the clock of a service with [`Self::wrong_clock`] is wrong.
    pub fn clock_file(&self) -> PathBuf {
        self.path().join("clock")
    }

    /// The environment of a service whose clock can be turned.
    pub fn wrong_clock(&self) -> [(&'static str, String); 2] {
        let text = |path: PathBuf| path.display().to_string();
        [
            ("LD_PRELOAD", text(self.path().join("clock.so"))),
            ("TORTURE_CLOCK", text(self.clock_file())),
        ]
    }

    /// Whether events go into a stream.
    pub fn is_jetstream(&self) -> bool {
        self.options.events == "jetstream"
    }

    /// `core` or `jetstream`.
    pub fn events_mode(&self) -> &str {
        &self.options.events
    }

    /// Whether reports go through a stream.
    pub fn is_durable(&self) -> bool {
        self.options.durable
    }

    /// Where nats-server listens.
    pub fn server_url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.broker.port)
    }

    /// Lets the workers work for a moment, so that trouble comes in the midst of it.
    pub async fn moment(&self, dice: &mut Dice) {
        last(Duration::from_millis(dice.between(100, 700))).await;
    }

    /// Kills the service as a power cut would.
    pub async fn kill_service(&mut self) {
        count(&self.shared.counts.kills);
        self.service.child.kill().await.unwrap();
    }

    /// Starts the service. It need not be ready when this returns.
    pub fn start_service(&mut self, environment: &[(&str, String)]) {
        count(&self.shared.counts.restarts);
        self.service = spawn(
            &self.options,
            self.path(),
            &self.proxy,
            &self.log,
            environment,
        );
    }

    /// Asks the service to stop, which it must do, and well: what it has in hand, it answers.
    pub async fn stop_service(&mut self) -> Result<(), Failure> {
        count(&self.shared.counts.stops);
        let asked = ask_many(&self.client).await;
        self.signal_service("TERM").await;
        let status = self.service_ended().await?;
        holds(status.success(), || {
            Failure::new(
                "the service stops well",
                "-",
                "exit status 0",
                format!("{status}\n{}", self.log_end()),
            )
        })?;
        let answered = count_answers(asked).await;
        holds(answered == ASKED_MANY, || {
            Failure::new(
                "what is in hand at a stop is answered",
                "-",
                ASKED_MANY,
                format!("{answered}\n{}", self.log_end()),
            )
        })
    }

    /// Waits until the service ends by itself.
    pub async fn service_ended(&mut self) -> Result<ExitStatus, Failure> {
        match timeout(END_WITHIN, self.service.child.wait()).await {
            Ok(status) => Ok(status.unwrap()),
            Err(_) => {
                let seen = format!("it still runs; its log ends with\n{}", self.log_end());
                Err(Failure::new(
                    "the service ends",
                    "-",
                    format!("within {END_WITHIN:?}"),
                    seen,
                ))
            }
        }
    }

    /// Waits until the service has ended or answers; says whether it has ended.
    pub async fn service_ended_within(&mut self, within: Duration) -> Option<ExitStatus> {
        timeout(within, self.service.child.wait())
            .await
            .ok()
            .map(Result::unwrap)
    }

    pub fn service_pid(&self) -> u32 {
        self.service.child.id().unwrap_or_default()
    }

    pub async fn signal_service(&self, name: &str) {
        signal(self.service_pid(), name).await;
    }

    pub async fn signal_server(&self, name: &str) {
        signal(self.broker.child.id().unwrap(), name).await;
    }

    pub async fn kill_server(&mut self) {
        count(&self.shared.counts.kills);
        self.shared.server_died.store(true, Ordering::SeqCst);
        self.shared.connection_lost.store(true, Ordering::SeqCst);
        self.broker.child.kill().await.unwrap();
    }

    /// Starts nats-server on the same port and files.
    pub async fn start_server(&mut self, max_payload: usize) {
        self.broker.spawn(max_payload).await;
    }

    /// Makes the disk so small that only these pages are left.
    pub async fn fill_disk(&self, pages_left: u64) {
        let disk = self.path().join("disk");
        let smaller = async || {
            let output = Command::new("stat")
                .args(["-f", "-c", "%S %b %f"])
                .arg(&disk)
                .output()
                .await
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let numbers: Vec<u64> = text
                .split_whitespace()
                .map(|word| word.parse().unwrap())
                .collect();
            let size = (numbers[1] - numbers[2] + pages_left) * numbers[0];
            // More may have been written meanwhile.
            self.resize_disk(&size.to_string()).await.then_some(())
        };
        look(END_WITHIN, smaller)
            .await
            .expect("the disk can be made smaller");
    }

    /// Gives the disk its room again.
    pub async fn empty_disk(&self) {
        assert!(
            self.resize_disk(DISK_ROOM).await,
            "the disk can be made larger"
        );
    }

    async fn resize_disk(&self, size: &str) -> bool {
        let option = format!("remount,size={size}");
        let resized = Command::new("mount")
            .args(["-o", &option])
            .arg(self.path().join("disk"))
            .output()
            .await;
        resized.unwrap().status.success()
    }

    /// Waits until the service answers, as it must by itself. If it has ended, it is started again; it must have had a
    /// reason to end, and have told it.
    pub async fn recover(&mut self, may_end: bool) -> Result<(), Failure> {
        let end = Instant::now() + RECOVER_WITHIN;
        loop {
            if let Some(status) = self.service.child.try_wait().unwrap() {
                self.judge_end(status).await?;
                holds(may_end, || {
                    let seen = format!("it ended with {status}\n{}", self.log_end());
                    Failure::new("the service recovers by itself", "-", "it goes on", seen)
                })?;
                self.start_service(&[]);
            }
            let probe = self
                .client
                .request("tasklatch.task.get", r#"{"task_id":"nobody"}"#.into());
            if let Ok(Ok(message)) = timeout(PROBE_WITHIN, probe).await
                && answer_of(&message).is_some_and(|answer| answer.code == "task_not_found")
            {
                return Ok(());
            }
            holds(Instant::now() < end, || {
                let expected =
                    format!("answers within {RECOVER_WITHIN:?} after the trouble is over");
                let seen = format!("none; its log ends with\n{}", self.log_end());
                Failure::new("the service recovers by itself", "-", expected, seen)
            })?;
            last(LOOK_EVERY).await;
        }
    }

    /// A service that ended for a fault says so, and what to do.
    pub async fn judge_end(&mut self, status: ExitStatus) -> Result<(), Failure> {
        let log = std::mem::replace(&mut self.service.log, tokio::spawn(async { String::new() }));
        let log = timeout(END_WITHIN, log).await.unwrap().unwrap();
        let says_why = log.lines().any(|line| line.starts_with("error:"));
        let was_told = status.success() || (status.signal().is_none() && says_why);
        holds(was_told, || {
            let expected = "exit status 0, or one of a fault and a line with error:";
            let seen = format!("{status}\n{}", self.log_end());
            Failure::new(
                "a service that ends for a fault says why",
                "-",
                expected,
                seen,
            )
        })
    }

    /// The last lines that the service logged.
    pub fn log_end(&self) -> String {
        let log = self.log.lock().unwrap();
        let lines: Vec<_> = log.lines().rev().take(12).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Whether a part of the service has ever panicked.
    pub fn has_panicked(&self) -> bool {
        self.log.lock().unwrap().contains("panicked at")
    }

    /// Keeps the folder for whoever looks for what went wrong, with the database as it is.
    pub async fn keep(&mut self) -> PathBuf {
        let _ = self.service.child.kill().await;
        let folder = self.folder.take().unwrap().keep();
        let kept = folder.join("ledger");
        // The disk is gone with this process.
        run(
            "cp",
            &[
                "-r",
                folder.join("disk").to_str().unwrap(),
                kept.to_str().unwrap(),
            ],
        )
        .await;
        std::fs::write(folder.join("service.log"), &*self.log.lock().unwrap()).unwrap();
        folder
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What is mounted cannot be removed.
        if let Some(folder) = &self.folder {
            let _ = std::process::Command::new("umount")
                .arg("-l")
                .arg(folder.path().join("disk"))
                .status();
        }
    }
}

fn spawn(
    options: &Options,
    folder: &Path,
    proxy: &Proxy,
    log: &Arc<Mutex<String>>,
    environment: &[(&str, String)],
) -> Service {
    // A disk that fails is made by a limit on the size of files; its signal would end the service before it can say why.
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
        .arg("env");
    for (name, value) in environment {
        command.arg(format!("{name}={value}"));
    }
    command
        .arg(env!("CARGO_BIN_EXE_tasklatch"))
        .args([
            "serve",
            "--http",
            "off",
            "--nats-url",
            &proxy.url(),
            "--events",
            &options.events,
            "--database",
        ])
        .arg(folder.join("disk/ledger.db"))
        .env("RUST_BACKTRACE", "1");
    if options.events == "jetstream" {
        // Shorter than most troubles: what is stored once must not hang on it.
        command.args(["--events-duplicate-window", "1s"]);
    }
    if options.durable {
        command.arg("--durable-reports");
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let all = log.clone();
    let log = tokio::spawn(async move {
        let mut text = Vec::new();
        let mut more = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = stderr.read(&mut more).await {
            text.extend_from_slice(&more[..length]);
            all.lock()
                .unwrap()
                .push_str(&String::from_utf8_lossy(&more[..length]));
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    Service { child, log }
}

/// Builds what turns the clock. A C compiler is there, as SQLite was built with it.
async fn build_clock(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torture/clock.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let library = folder.join("clock.so");
    let words = [
        "-O1",
        "-shared",
        "-fPIC",
        "-o",
        library.to_str().unwrap(),
        source.to_str().unwrap(),
    ];
    run(&compiler, &words).await;
}

/// Connects a client that waits for a server which is not there.
pub async fn connect(url: &str) -> async_nats::Client {
    async_nats::ConnectOptions::new()
        .retry_on_initial_connect()
        .subscription_capacity(1 << 20)
        .reconnect_delay_callback(|_| Duration::from_millis(50))
        .connect(url)
        .await
        .unwrap()
}

/// Sends a process a signal by name.
async fn signal(pid: u32, name: &str) {
    run("kill", &[&format!("-{name}"), &pid.to_string()]).await;
}

/// Runs a command that must succeed.
pub async fn run(command: &str, words: &[&str]) {
    let output = Command::new(command).args(words).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command} {words:?}: {said}");
}

/// Lets everything pass again.
pub fn pass(proxies: [&Proxy; 2]) {
    for proxy in proxies {
        proxy.set(Mode::Pass);
    }
}
