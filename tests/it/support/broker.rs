//! A real nats-server, as a child process on a free port of the loopback interface.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::port::free_port;
use super::{DEADLINE, eventually};

/// A running nats-server. It is killed when this is dropped.
pub struct Broker {
    child: Child,
    port: u16,
    options: Vec<String>,
    store: tempfile::TempDir,
}

/// The server's binary: `make test` fetches it and says where it is.
pub fn binary() -> PathBuf {
    let named = std::env::var_os("TASKLATCH_TEST_NATS_SERVER").map(PathBuf::from);
    let path = named.unwrap_or_else(|| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".tools/bin/nats-server")
    });
    assert!(
        path.exists(),
        "no nats-server at {}: run `make setup` first",
        path.display()
    );
    path
}

/// Runs a server, which is killed when the child is dropped, and gives its port once it is ready.
pub(super) async fn run(command: &mut Command) -> (Child, u16) {
    let mut child = command
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let ready = async {
        let (mut port, mut seen) = (0, String::new());
        while let Some(line) = log.next_line().await.unwrap() {
            if let Some((_, address)) = line.split_once("Listening for client connections on ") {
                port = address.rsplit(':').next().unwrap().trim().parse().unwrap();
            }
            if line.contains("Server is ready") {
                return port;
            }
            seen += &line;
            seen.push('\n');
        }
        panic!("nats-server ended before it was ready:\n{seen}");
    };
    let port = timeout(DEADLINE, ready)
        .await
        .expect("nats-server is ready in time");
    // The pipe must not fill up.
    tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
    (child, port)
}

impl Broker {
    /// Starts a server without JetStream.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with JetStream, its files in a folder of its own.
    pub async fn start_with_jetstream() -> Self {
        Self::start_with(&["-js"]).await
    }

    /// Starts a server with this text as its configuration file.
    pub async fn start_configured(config: &str) -> Self {
        let mut broker = Self::prepare(&[]);
        let file = broker.store.path().join("nats.conf");
        std::fs::write(&file, config).unwrap();
        broker.options = vec!["-c".to_owned(), file.display().to_string()];
        broker.spawn().await;
        broker
    }

    /// Starts a server with more options.
    pub async fn start_with(options: &[&str]) -> Self {
        let mut broker = Self::prepare(options);
        broker.spawn().await;
        broker
    }

    fn prepare(options: &[&str]) -> Self {
        let store = tempfile::tempdir().unwrap();
        // A placeholder until `spawn` has the real one.
        let child = Command::new("true").kill_on_drop(true).spawn().unwrap();
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Self {
            child,
            port: free_port(),
            options,
            store,
        }
    }

    async fn spawn(&mut self) {
        let mut command = Command::new(binary());
        command
            .args(["-a", "127.0.0.1", "-p", &self.port.to_string(), "-sd"])
            .arg(self.store.path())
            .args(&self.options);
        (self.child, _) = run(&mut command).await;
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// A client of the test's own.
    pub async fn client(&self) -> async_nats::Client {
        async_nats::ConnectOptions::new()
            .subscription_capacity(1 << 20)
            .connect(self.url())
            .await
            .unwrap()
    }

    /// Waits until the server has read all that its clients have sent, and has gone to sleep over it: with a client that
    /// stands still, nothing of it is on its way any more, neither in a socket nor in the server.
    pub async fn until_all_is_dealt_with(&self) {
        let port = format!(":{:04X}", self.port);
        let threads = format!("/proc/{}/task", self.pid());
        eventually("the server has dealt with what was sent", async || {
            let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let on_the_way = sockets.lines().skip(1).any(|socket| {
                let fields: Vec<_> = socket.split_whitespace().collect();
                let (to, from_server) = (fields[2], fields[1].ends_with(&port));
                let (unsent, unread) = fields[4].split_once(':').unwrap();
                let empty = |queue: &str| queue.bytes().all(|digit| digit == b'0');
                // 01 is an established connection.
                fields[3] == "01"
                    && ((to.ends_with(&port) && !empty(unsent)) || (from_server && !empty(unread)))
            });
            // Only then its threads: what was read before may still be in the hands of one of them.
            (!on_the_way && all_sleep(&threads)).then_some(())
        })
        .await;
    }

    /// Kills the server as a power cut would.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Starts it again, on the same port and the same files.
    pub async fn restart(&mut self) {
        self.spawn().await;
    }

    /// Starts it again with another configuration file.
    pub async fn restart_configured(&mut self, config: &str) {
        let file = self.store.path().join("nats.conf");
        std::fs::write(&file, config).unwrap();
        self.options = vec!["-c".to_owned(), file.display().to_string()];
        self.restart().await;
    }

    /// Where its files are.
    pub fn store(&self) -> &Path {
        self.store.path()
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }
}

/// Whether no thread of a process has anything to do, by its folder of threads under `/proc`.
fn all_sleep(threads: &str) -> bool {
    std::fs::read_dir(threads).unwrap().all(|thread| {
        // One that has ended meanwhile does nothing either.
        let text = std::fs::read_to_string(thread.unwrap().path().join("stat"));
        // The state comes after the name, which is in parentheses.
        text.map_or(true, |text| {
            text.rsplit_once(") ").unwrap().1.starts_with('S')
        })
    })
}

/// Makes a folder the copy of another.
pub fn copy_folder(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}
