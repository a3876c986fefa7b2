//! The command line as a person and a script meet it: exit codes, messages, output.

use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::support::{BINARY, Broker, DEADLINE, Service, Stage, signal};

/// What a command did.
#[derive(Debug)]
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("it ended by itself"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

fn command(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .env("TASKLATCH_NATS_URL", url)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn run(url: &str, arguments: &[&str]) -> Ran {
    let output = timeout(DEADLINE, command(url, arguments).output());
    output.await.expect("it ends in time").unwrap().into()
}

async fn run_with_input(url: &str, arguments: &[&str], input: &str) -> Ran {
    let mut child = command(url, arguments)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    timeout(DEADLINE, child.wait_with_output())
        .await
        .expect("it ends in time")
        .unwrap()
        .into()
}

/// Waits for a line on a pipe that contains `words`, and returns all that came up to it.
async fn line_with(pipe: &mut (impl AsyncBufReadExt + Unpin), words: &str) -> String {
    let mut seen = String::new();
    let find = async {
        loop {
            let before = seen.len();
            let bytes = pipe.read_line(&mut seen).await.unwrap();
            assert!(bytes > 0, "it ended before it said {words:?}: {seen}");
            if seen[before..].contains(words) {
                return;
            }
        }
    };
    timeout(DEADLINE, find)
        .await
        .unwrap_or_else(|_| panic!("no {words:?} in time"));
    seen
}

async fn ended(mut child: Child) -> i32 {
    let status = timeout(DEADLINE, child.wait())
        .await
        .expect("it ends in time")
        .unwrap();
    status.code().expect("it ended by itself")
}

#[tokio::test]
async fn a_report_and_its_retry_end_with_0_and_print_the_answer_as_it_came() {
    let stage = Stage::set().await;
    let url = stage.broker.url();
    stage.worker.create("t-1").await;
    let report = [
        "report",
        "t-1",
        "--json",
        "--summary",
        "done",
        "--artifact",
        "b",
        "--artifact",
        "a",
        "--evidence",
        r#"{"n": 1.50, "big": 1e400}"#,
    ];
    let first = run(&url, &report).await;
    assert_eq!(first.code, 0, "{first:?}");
    assert!(first.stderr.starts_with("accepted"), "{first:?}");
    assert!(
        first
            .stdout
            .contains(r#""evidence":{"n":1.50,"big":1e400}"#),
        "{first:?}"
    );
    assert!(
        first.stdout.contains(r#""artifacts":["b","a"]"#),
        "{first:?}"
    );
    assert_eq!(
        first.stdout.as_bytes(),
        [&stage.worker.get("t-1").await.body[..], b"\n"].concat()
    );
    let retry = run(&url, &report).await;
    assert_eq!((retry.code, &retry.stdout), (0, &first.stdout), "{retry:?}");
    assert!(retry.stderr.starts_with("replayed"), "{retry:?}");
}

#[tokio::test]
async fn each_kind_of_refusal_has_its_exit_code_and_prints_its_error_as_json() {
    let stage = Stage::set().await;
    let url = stage.broker.url();
    stage.worker.create("t-1").await;
    assert_eq!(
        run(&url, &["report", "t-1", "--summary", "done"])
            .await
            .code,
        0
    );
    let conflict = run(&url, &["report", "t-1", "--summary", "other", "--json"]).await;
    assert_eq!(conflict.code, 4, "{conflict:?}");
    assert_eq!(
        conflict.json()["error"]["differs"],
        serde_json::json!(["summary"])
    );
    assert!(
        conflict.stderr.starts_with("error: result_conflict: "),
        "{conflict:?}"
    );
    let unknown = run(&url, &["task", "get", "no-such-task", "--json"]).await;
    assert_eq!(
        (unknown.code, &unknown.json()["error"]["code"]),
        (3, &"task_not_found".into())
    );
    let invalid = run(&url, &["report", "t-1", "--summary", " ", "--json"]).await;
    assert_eq!(
        (invalid.code, &invalid.json()["error"]["field"]),
        (2, &"/summary".into())
    );
    let plain = run(&url, &["report", "t-1", "--summary", "other"]).await;
    assert_eq!((plain.code, plain.stdout.as_str()), (4, ""), "{plain:?}");
}

#[tokio::test]
async fn a_command_line_that_cannot_be_meant_ends_with_2_before_anything_is_sent() {
    // Nobody listens there, so that an attempt to send anything would end with 75.
    let url = "nats://127.0.0.1:1";
    for arguments in [
        &["report", "t-1"][..],
        &["report", "a.b", "--summary", "x"],
        &["report", "t-1", "--summary", "x", "--evidence", "{"],
        &["report", "t-1", "--summary", "@no-such-file"],
        &["report", "t-1", "--summary", "-", "--evidence", "-"],
        &["report", "--summary", "x"],
        &["task", "get"],
        &["task", "review", "t-1", "--verdict", "fine"],
        &["task", "create", "x", "--deadline", "soon"],
        &["watch", "--prefix", "a.*"],
        &["frobnicate"],
    ] {
        let ran = run(url, arguments).await;
        assert_eq!(ran.code, 2, "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("error"), "{arguments:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
}

#[tokio::test]
async fn nobody_there_ends_with_75_and_says_that_sending_again_is_safe() {
    let no_server = run(
        "nats://127.0.0.1:1",
        &["report", "t-1", "--summary", "x", "--retry-for", "0s"],
    )
    .await;
    assert_eq!(no_server.code, 75, "{no_server:?}");
    let broker = Broker::start().await;
    let no_service = run(
        &broker.url(),
        &["report", "t-1", "--summary", "x", "--retry-for", "0s"],
    )
    .await;
    assert_eq!(no_service.code, 75, "{no_service:?}");
    assert!(no_service.stderr.contains("safe"), "{no_service:?}");
    assert_eq!(run(&broker.url(), &["task", "get", "t-1"]).await.code, 75);
}

#[tokio::test]
async fn a_report_is_sent_again_until_the_service_is_back() {
    let mut stage = Stage::set().await;
    let url = stage.broker.url();
    stage.worker.create("t-1").await;
    stage.service.kill().await;
    let mut child = command(&url, &["report", "t-1", "--summary", "done"])
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    line_with(&mut stderr, "sending the same report again").await;
    let _service = Service::start(&stage.broker, &stage.database(), &[]).await;
    line_with(&mut stderr, "accepted").await;
    assert_eq!(ended(child).await, 0);
}

#[tokio::test]
async fn a_report_whose_answer_does_not_come_is_sent_again_and_replayed() {
    let stage = Stage::set().await;
    stage.worker.create("t-1").await;
    stage.service.signal("STOP").await;
    let arguments = ["report", "t-1", "--summary", "done", "--timeout", "300ms"];
    let mut child = command(&stage.broker.url(), &arguments).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    line_with(&mut stderr, "sending the same report again").await;
    stage.service.signal("CONT").await;
    // Both reports are answered: the first is accepted, and one that is read later is a replay of it.
    line_with(&mut stderr, "t-1").await;
    assert_eq!(ended(child).await, 0);
    assert_eq!(stage.worker.get("t-1").await.task()["revision"], 2);
}

#[tokio::test]
async fn an_acknowledgment_of_a_stream_is_not_taken_for_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start_with_jetstream().await;
    let jetstream = async_nats::jetstream::new(broker.client().await);
    let config = async_nats::jetstream::stream::Config {
        name: "EVERYTHING".to_owned(),
        subjects: vec!["tasklatch.>".to_owned()],
        ..Default::default()
    };
    jetstream.create_stream(config).await.unwrap();
    let _service = Service::start(&broker, &folder.path().join("ledger.db"), &[]).await;
    let created = run(
        &broker.url(),
        &["task", "create", "a task", "--task-id", "t-1", "--json"],
    )
    .await;
    assert_eq!(
        (created.code, &created.json()["task_id"]),
        (0, &"t-1".into()),
        "{created:?}"
    );
    let reported = run(
        &broker.url(),
        &["report", "t-1", "--summary", "done", "--json"],
    )
    .await;
    assert_eq!(
        (reported.code, &reported.json()["lifecycle"]),
        (0, &"completed".into()),
        "{reported:?}"
    );
}

#[tokio::test]
async fn content_comes_from_files_and_standard_input_as_it_is() {
    let stage = Stage::set().await;
    let url = stage.broker.url();
    let file = stage.folder.path().join("evidence.json");
    std::fs::write(&file, "{\"n\": 9007199254740993}\n").unwrap();
    stage.worker.create("t-1").await;
    let evidence = format!("@{}", file.display());
    let arguments = [
        "report",
        "t-1",
        "--summary",
        "-",
        "--evidence",
        &evidence,
        "--json",
    ];
    let ran = run_with_input(&url, &arguments, "two\nlines").await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains(r#""summary":"two\nlines""#), "{ran:?}");
    assert!(ran.stdout.contains(r#"{"n":9007199254740993}"#), "{ran:?}");
    stage.worker.create("t-2").await;
    let whole = r#"{"task_id":"t-2","status":"failed","summary":"s"}"#;
    let ran = run_with_input(&url, &["report", "--from", "-", "--json"], whole).await;
    assert_eq!(
        (ran.code, &ran.json()["lifecycle"]),
        (0, &"failed".into()),
        "{ran:?}"
    );
}

#[tokio::test]
async fn a_watch_prints_one_cloud_event_a_line_result_before_task() {
    let stage = Stage::set().await;
    let mut child = command(&stage.broker.url(), &["watch", "--json", "--count", "3"])
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    line_with(&mut stderr, "watching").await;
    stage.worker.create("t-1").await;
    assert_eq!(
        run(&stage.broker.url(), &["report", "t-1", "--summary", "done"])
            .await
            .code,
        0
    );
    let mut stdout = String::new();
    let mut pipe = child.stdout.take().unwrap();
    timeout(DEADLINE, pipe.read_to_string(&mut stdout))
        .await
        .expect("it ends in time")
        .unwrap();
    assert_eq!(ended(child).await, 0);
    let events: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let ids: Vec<&str> = events
        .iter()
        .map(|event| event["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["t-1.1.task", "t-1.2.result", "t-1.2.task"]);
    assert_eq!(events[1]["data"]["result"]["summary"], "done");
    assert_eq!(events[2]["specversion"], "1.0");
}

#[tokio::test]
async fn what_strangers_wrote_cannot_steer_a_terminal() {
    let stage = Stage::set().await;
    let url = stage.broker.url();
    let hostile = serde_json::json!({"task_id": "t-1", "title": "a\u{1b}]0;owned\u{7}\u{1b}[31m\r\nb\u{9b}c"});
    stage.worker.create_with(hostile).await;
    for arguments in [&["task", "get", "t-1"][..], &["task", "list"]] {
        let ran = run(&url, arguments).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        let raw = ran.stdout.chars().any(|c| c.is_control() && c != '\n');
        assert!(!raw, "{arguments:?}: {ran:?}");
    }
}

#[tokio::test]
async fn lists_are_tables_for_people_and_answers_for_machines() {
    let stage = Stage::set().await;
    let url = stage.broker.url();
    for task_id in ["t-1", "t-2", "t-3"] {
        stage.worker.create(task_id).await;
    }
    let table = run(&url, &["task", "list"]).await;
    let position = |task_id| {
        table
            .stdout
            .find(task_id)
            .unwrap_or_else(|| panic!("{table:?}"))
    };
    assert!(
        position("t-3") < position("t-2") && position("t-2") < position("t-1"),
        "newest first"
    );
    assert!(!table.stdout.contains('\u{1b}'), "no colour in a pipe");
    let json = run(&url, &["task", "list", "--json", "--limit", "2"]).await;
    assert_eq!(json.json()["tasks"].as_array().unwrap().len(), 2);
    let all = run(&url, &["task", "list", "--json", "--limit", "2", "--all"]).await;
    assert_eq!(all.stdout.lines().count(), 2, "an answer a line: {all:?}");
}

#[tokio::test]
async fn health_tells_a_ready_service_from_one_that_is_not_there() {
    let stage = Stage::set_with(&["--http", "127.0.0.1:0"]).await;
    let line = &stage.service.ready_line;
    let address = line
        .split("http on ")
        .nth(1)
        .unwrap_or_else(|| panic!("{line}"))
        .trim();
    let ready = run("nats://127.0.0.1:1", &["health", "--http", address]).await;
    assert_eq!(ready.code, 0, "{ready:?}");
    let address = address.to_owned();
    let (status, log) = stage.service.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    let gone = run("nats://127.0.0.1:1", &["health", "--http", &address]).await;
    assert_eq!(gone.code, 1, "{gone:?}");
}

#[tokio::test]
async fn secrets_show_neither_in_help_nor_in_messages() {
    let mut command = command("nats://someone:hunter2@127.0.0.1:1", &["report", "--help"]);
    let help: Ran = command
        .env("TASKLATCH_NATS_PASSWORD", "hunter2")
        .output()
        .await
        .unwrap()
        .into();
    assert!(!help.stdout.contains("hunter2"), "{help:?}");
    let failed = run("nats://someone:hunter2@127.0.0.1:1", &["task", "list"]).await;
    assert_eq!(failed.code, 75);
    assert!(!failed.stderr.contains("hunter2"), "{failed:?}");
}

#[tokio::test]
async fn dev_starts_a_broker_and_the_service_and_stops_both() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("dev");
    let mut child = command("nats://unused", &["dev", "--port", "0", "--http", "off"])
        .arg("--dir")
        .arg(&directory)
        .env("TASKLATCH_NATS_SERVER", crate::support::broker_binary())
        .spawn()
        .unwrap();
    let pid = child.id().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let said = line_with(&mut stdout, "nats://").await;
    let url = said
        .split_whitespace()
        .find(|word| word.starts_with("nats://"))
        .unwrap();
    let url = url.trim_end_matches(',').to_owned();
    assert_eq!(
        run(&url, &["task", "create", "a task", "--task-id", "t-1"])
            .await
            .code,
        0
    );
    assert_eq!(
        run(&url, &["report", "t-1", "--summary", "done"])
            .await
            .code,
        0
    );
    signal(pid, "INT").await;
    assert_eq!(ended(child).await, 0);
    assert_eq!(
        run(&url, &["task", "get", "t-1"]).await.code,
        75,
        "the broker has ended too"
    );
    assert!(
        !directory.join("tasklatch.db-wal").exists(),
        "the database is closed in order"
    );
}

/// The commands of the README's first five minutes, in their order, with the exit codes that its text promises.
#[tokio::test]
async fn the_commands_of_the_readme_do_what_it_says() {
    let stage = Stage::set().await;
    let readme = include_str!("../../README.md");
    let section = readme
        .split("## The first report in five minutes")
        .nth(1)
        .unwrap();
    let section = section.split("\n## ").next().unwrap();
    let commands: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("tasklatch ") && *line != "tasklatch dev")
        .collect();
    assert_eq!(commands.len(), 4, "{commands:?}");
    let expected = [
        (0, ""),
        (0, "accepted"),
        (0, "replayed"),
        (4, "status, summary"),
    ];
    for (line, (code, words)) in commands.into_iter().zip(expected) {
        let line = line.replacen("tasklatch ", &format!("{BINARY} "), 1);
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &line])
            .env("TASKLATCH_NATS_URL", stage.broker.url())
            .stdin(Stdio::null());
        let ran: Ran = shell.output().await.unwrap().into();
        assert_eq!(ran.code, code, "{line}: {ran:?}");
        assert!(ran.stderr.contains(words), "{line}: {ran:?}");
    }
}

#[tokio::test]
async fn a_login_in_the_url_is_used_by_commands_and_the_service_and_shown_by_neither() {
    let config = "authorization { user: someone, password: hunter2 }\n";
    let broker = Broker::start_configured(config).await;
    let url = broker.url().replace("nats://", "nats://someone:hunter2@");
    let folder = tempfile::tempdir().unwrap();
    let started = Service::try_start(&url, &folder.path().join("ledger.db"), &[]).await;
    let service = started.unwrap_or_else(|output| panic!("{output:?}"));
    assert!(
        !service.ready_line.contains("hunter2"),
        "{}",
        service.ready_line
    );
    assert_eq!(
        run(&url, &["task", "create", "a task", "--task-id", "t-1"])
            .await
            .code,
        0
    );
    let (_, log) = service.stop().await;
    assert!(!log.contains("hunter2"), "{log}");
    let wrong = broker.url().replace("nats://", "nats://someone:hunter3@");
    let refused = Service::try_start(&wrong, &folder.path().join("ledger.db"), &[]).await;
    let message = String::from_utf8(refused.err().expect("it is refused").stderr).unwrap();
    assert!(
        message.contains("refuses") && !message.contains("hunter3"),
        "{message}"
    );
}
