//! The commands of docs/operations.md for a machine of its own, one after the other, on other folders and ports.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::support::{BINARY, broker_binary, eventually, signal};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/operations.md")).unwrap()
}

/// The blocks of commands, each with how it is run.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let blocks = text.split("```console\n").collect::<Vec<_>>();
    let marked = blocks.windows(2).map(|pair| {
        let before = pair[0].trim_end();
        let mark = before
            .strip_suffix(" -->")
            .and_then(|before| before.rsplit_once("<!-- run: "));
        let (_, how) = mark.expect("each block says how it is run");
        (how, pair[1].split("```").next().unwrap())
    });
    marked.collect()
}

/// A machine: folders in place of those of the system, and ports that nobody has.
struct Machine {
    folder: tempfile::TempDir,
    replaced: Vec<(String, String)>,
    background: Vec<Child>,
}

impl Machine {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let mut replaced = vec![
            ("/etc/tasklatch".to_owned(), at("etc")),
            ("/var/lib/tasklatch".to_owned(), at("ledger")),
            ("/var/lib/nats".to_owned(), at("streams")),
        ];
        // All are held until all are known, so that they differ.
        let mut held = Vec::new();
        for port in ["4222", "8222", "7420"] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let free = listener.local_addr().unwrap().port();
            replaced.push((format!(":{port}"), format!(":{free}")));
            held.push(listener);
        }
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(BINARY, bin.join("tasklatch")).unwrap();
        std::os::unix::fs::symlink(broker_binary(), bin.join("nats-server")).unwrap();
        Self {
            folder,
            replaced,
            background: Vec::new(),
        }
    }

    fn here(&self, text: &str) -> String {
        let replaced = self.replaced.iter();
        replaced.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// What was installed is for this machine too; what is not replaced is the default.
    fn adapt(&self) {
        for name in ["nats.conf", "tasklatch.toml"] {
            let file: PathBuf = self.folder.path().join("etc").join(name);
            if let Ok(text) = std::fs::read_to_string(&file) {
                std::fs::write(&file, self.here(&text)).unwrap();
            }
        }
    }

    fn shell(&self, script: &str) -> Command {
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", self.folder.path().join("bin").display());
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", script])
            .env("PATH", path)
            .env("TASKLATCH_HTTP", self.here("127.0.0.1:7420"))
            .current_dir(root())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, script: &str) -> String {
        let output = self.shell(&self.here(script)).output().await.unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\n{told}");
        String::from_utf8(output.stdout).unwrap()
    }

    async fn begin(&mut self, script: &str) {
        // The shell becomes the program, so that a signal reaches it.
        let line = self.here(script.trim());
        let (before, program) = match line.rsplit_once("&& ") {
            Some((before, program)) => (format!("{before}&& "), program.to_owned()),
            None => (String::new(), line),
        };
        let script = format!("{before}exec {program}");
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        let mut command = self.shell(&script);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.background.push(child);
        let ready = match program.contains("nats-server") {
            true => self.here("curl --silent --fail http://127.0.0.1:8222/healthz"),
            false => "tasklatch health".to_owned(),
        };
        eventually("what was started in the background is ready", async || {
            let asked = self.shell(&ready).output().await.unwrap();
            asked.status.success().then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn every_command_of_the_page_works_in_its_order_on_a_machine_of_its_own() {
    let page = page();
    let mut machine = Machine::new().await;
    let mut told = String::new();
    for (how, script) in blocks(&page) {
        match how {
            "machine" => told += &machine.run(script).await,
            "background" => machine.begin(script).await,
            "compose" | "ci" | "systemd" => {}
            how => panic!("nobody runs blocks of {how}"),
        }
        machine.adapt();
    }
    for part in [
        "accepted",
        "replayed",
        "{\"ready\":true",
        "tasklatch_reports_total{outcome=\"accepted\"} 1",
        "tasklatch_reports_total{outcome=\"replayed\"} 1",
        "all rules hold: 1 task",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    for mut child in machine.background.into_iter().rev() {
        signal(child.id().unwrap(), "TERM").await;
        assert!(child.wait().await.unwrap().success());
    }
}

#[test]
fn the_installation_is_run_by_ci_and_the_composition_by_its_test() {
    let page = page();
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let of = |wanted: &str| -> String {
        let blocks = blocks(&page).into_iter();
        let of = blocks.filter(|(how, _)| *how == wanted);
        of.map(|(_, script)| script).collect()
    };
    let install = of("ci").trim().replace("/usr/local", "target/install");
    assert!(read(".ci/run").contains(&install), "{install}");
    assert!(of("compose").contains("docker compose up"));
    assert!(read("scripts/compose-test").contains("docs/operations.md"));
}

#[test]
fn every_alert_has_its_section() {
    let page = page();
    let rules = std::fs::read_to_string(root().join("deploy/alerts.yaml")).unwrap();
    let anchors: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("runbook: docs/operations.md#"))
        .collect();
    assert!(anchors.len() >= 12, "{anchors:?}");
    for anchor in anchors {
        assert!(page.contains(&format!("\n### {anchor}\n")), "{anchor}");
    }
}
