//! A nats-server run with deploy/nats.conf and secrets made by the command line, with TLS.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use async_nats::{ConnectOptions, Event};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::broker::{binary, run};
use super::{BINARY, DEADLINE, Service};

/// A running secured server. It is killed when this is dropped.
pub struct Secured {
    child: Child,
    port: u16,
    pub folder: tempfile::TempDir,
}

/// Somebody who is logged in.
pub struct User {
    pub client: async_nats::Client,
    /// What the server refused, in lower case.
    pub errors: mpsc::UnboundedReceiver<String>,
}

impl Secured {
    /// Makes secrets, with further workers as `secrets make` takes them, and starts a server.
    pub async fn start(workers: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut make = Command::new(BINARY);
        make.args(["secrets", "make"])
            .arg(folder.path().join("secrets"));
        for worker in workers {
            make.args(["--worker", worker]);
        }
        let made = make.output().await.unwrap();
        assert!(made.status.success(), "{made:?}");
        std::fs::write(folder.path().join("nats.conf"), config()).unwrap();
        let mut server = Command::new(binary());
        server
            .args(["--config", "nats.conf", "--store_dir", "store"])
            .current_dir(folder.path());
        let (child, port) = run(&mut server).await;
        Self {
            child,
            port,
            folder,
        }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("tls://localhost:{}", self.port)
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// The certificate that it shows, as PEM.
    pub async fn shown_certificate(&self) -> String {
        // nats-server speaks first, and TLS begins after its greeting.
        let script = "import socket, ssl, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10)
s.recv(4096)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
print(ssl.DER_cert_to_PEM_cert(context.wrap_socket(s).getpeercert(True)), end='')";
        let output = Command::new("python3")
            .args(["-c", script, &self.port.to_string()])
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same for a raw connection.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn seed_file(&self, name: &str) -> PathBuf {
        let folder = if name == "service" {
            "service"
        } else {
            "clients"
        };
        self.folder
            .path()
            .join(format!("secrets/{folder}/{name}.nk"))
    }

    /// The seed of a user.
    pub fn seed(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.seed_file(name)).unwrap();
        text.trim().to_owned()
    }

    /// Where the certificate of its CA is.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("secrets/clients/ca.pem")
    }

    /// Where the service keeps its database.
    pub fn database(&self) -> PathBuf {
        self.folder.path().join("ledger.db")
    }

    /// The options with which a user logs in.
    pub fn login(&self, name: &str) -> Vec<String> {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        vec![
            "--nats-nkey".to_owned(),
            format!("@{}", path(&self.seed_file(name))),
            "--nats-tls-ca".to_owned(),
            path(&self.ca()),
            "--inbox-prefix".to_owned(),
            format!("_INBOX.{name}"),
        ]
    }

    /// Starts the service, logged in as `service`.
    pub async fn serve(&self, options: &[&str]) -> Service {
        let login = self.login("service");
        let options: Vec<&str> = login
            .iter()
            .map(String::as_str)
            .chain(options.iter().copied())
            .collect();
        match Service::try_start(&self.url(), &self.database(), &options).await {
            Ok(service) => service,
            Err(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        }
    }

    /// Runs a command as a user.
    pub async fn run_as(&self, name: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(BINARY);
        command
            .args(arguments)
            .args(["--nats-url", &self.url()])
            .args(self.login(name))
            .stdin(Stdio::null());
        timeout(DEADLINE, command.output())
            .await
            .expect("it ends in time")
            .unwrap()
    }

    /// Logs in as a user, with its private inbox.
    pub async fn log_in(&self, name: &str) -> User {
        let (tell, errors) = mpsc::unbounded_channel();
        let client = ConnectOptions::with_nkey(self.seed(name))
            .add_root_certificates(self.ca())
            .require_tls(true)
            .custom_inbox_prefix(format!("_INBOX.{name}"))
            .event_callback(move |event| {
                if let Event::ServerError(error) = event {
                    // Nobody may listen any more.
                    let _ = tell.send(error.to_string().to_lowercase());
                }
                std::future::ready(())
            })
            .connect(self.url())
            .await
            .unwrap();
        User { client, errors }
    }
}

impl User {
    /// What the server refuses of what was sent before. It answers what a connection sends in order, so that what is
    /// certainly refused comes last.
    pub async fn refusals(&mut self) -> Vec<String> {
        const CERTAINLY_REFUSED: &str = "$sys.the.end";
        self.client
            .publish(CERTAINLY_REFUSED, "".into())
            .await
            .unwrap();
        let mut refusals = Vec::new();
        loop {
            let error = timeout(DEADLINE, self.errors.recv()).await;
            let error = error.expect("a refusal in time").expect("a client");
            if error.contains(CERTAINLY_REFUSED) {
                return refusals;
            }
            refusals.push(error);
        }
    }
}

/// deploy/nats.conf with free ports, and nothing else changed.
fn config() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/nats.conf");
    let mut text = std::fs::read_to_string(path).unwrap();
    for line in ["listen: \"0.0.0.0:4222\"", "http: \"127.0.0.1:8222\""] {
        assert_eq!(text.matches(line).count(), 1, "{line}");
        let (option, _) = line.split_once(':').unwrap();
        text = text.replace(line, &format!("{option}: \"127.0.0.1:-1\""));
    }
    text
}
