//! Users come and go, and the certificate is renewed, by a reload of the server's configuration.

use std::process::{Output, Stdio};

use async_nats::ConnectOptions;
use serde_json::json;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{BINARY, DEADLINE, Secured, full_report};

/// Makes secrets again.
async fn make(server: &Secured, more: &[&str]) {
    let mut command = Command::new(BINARY);
    command
        .args(["secrets", "make"])
        .arg(server.folder.path().join("secrets"))
        .args(more);
    let made = command.output().await.unwrap();
    assert!(made.status.success(), "{made:?}");
}

/// Runs deploy/reload-users, with the binary under test in the PATH.
async fn reload(server: &Secured) -> Output {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let binaries = std::path::Path::new(BINARY).parent().unwrap();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(root.join("deploy/reload-users"));
    command
        .args([&server.pid().to_string(), "--nats-url", &server.url()])
        .env("PATH", path)
        .env("TASKLATCH_SECRETS", server.folder.path().join("secrets"))
        .stdin(Stdio::null());
    timeout(DEADLINE, command.output())
        .await
        .expect("it ends in time")
        .unwrap()
}

async fn reloaded(server: &Secured) {
    let output = reload(server).await;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("the server has read it, and lets each client in"),
        "{output:?}"
    );
}

/// Whether a seed is let in.
async fn is_let_in(server: &Secured, seed: &str) -> bool {
    let options = ConnectOptions::with_nkey(seed.to_owned())
        .add_root_certificates(server.ca())
        .require_tls(true);
    options.connect(server.url()).await.is_ok()
}

#[tokio::test]
async fn new_workers_and_coordinators_work_after_a_reload_and_the_connections_of_others_live_on() {
    let server = Secured::start(&[]).await;
    let service = server
        .serve(&["--events", "jetstream", "--durable-reports"])
        .await;
    let before = server.log_in("coordinator").await;
    for task_id in ["t", "narrow", "durable"] {
        let create = json!({"task_id": task_id, "title": "a task"}).to_string();
        before
            .client
            .request("tasklatch.task.create", create.into())
            .await
            .unwrap();
    }
    make(
        &server,
        &[
            "--worker",
            "build-1",
            "--worker",
            "build-2=narrow",
            "--coordinator",
            "lead",
        ],
    )
    .await;
    reloaded(&server).await;

    let report = server
        .run_as("build-1", &["report", "t", "--summary", "Done"])
        .await;
    assert!(report.status.success(), "{report:?}");
    let report = server
        .run_as("build-2", &["report", "narrow", "--summary", "Done"])
        .await;
    assert!(report.status.success(), "{report:?}");
    let report = server
        .run_as(
            "build-1",
            &["report", "durable", "--summary", "Done", "--durable"],
        )
        .await;
    assert!(report.status.success(), "{report:?}");
    let created = server
        .run_as(
            "lead",
            &["task", "create", "Another", "--task-id", "another"],
        )
        .await;
    assert!(created.status.success(), "{created:?}");
    // On the connection from before.
    let connects = before
        .client
        .statistics()
        .connects
        .load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(connects, 1, "it was not cut");
    crate::support::eventually("the durable report is applied", async || {
        let get = json!({"task_id": "durable"}).to_string();
        let reply = before
            .client
            .request("tasklatch.task.get", get.into())
            .await
            .ok()?;
        String::from_utf8_lossy(&reply.payload)
            .contains("\"completed\"")
            .then_some(())
    })
    .await;
    let (status, log) = service.stop().await;
    assert!(
        status.success() && !log.contains("lost the NATS server"),
        "{log}"
    );
}

#[tokio::test]
async fn a_client_that_was_removed_is_out_after_a_reload_and_its_connection_is_cut() {
    let server = Secured::start(&["gone"]).await;
    let _service = server.serve(&["--events", "core"]).await;
    make(&server, &["--coordinator", "former"]).await;
    reloaded(&server).await;
    for (name, files) in [
        ("gone", &["gone.nk"][..]),
        ("former", &["former.nk", "former.role"]),
    ] {
        let seed = server.seed(name);
        assert!(is_let_in(&server, &seed).await);
        let open = server.log_in(name).await;
        for file in files {
            std::fs::remove_file(server.folder.path().join("secrets/clients").join(file)).unwrap();
        }
        make(&server, &[]).await;
        reloaded(&server).await;
        assert!(!is_let_in(&server, &seed).await, "{name}");
        crate::support::eventually("its connection is cut", async || {
            (open.client.connection_state() != async_nats::connection::State::Connected)
                .then_some(())
        })
        .await;
    }
    let report = full_report("t", "completed").to_string();
    let worker = server.log_in("worker").await;
    let reply = worker
        .client
        .request("tasklatch.report", report.into())
        .await
        .unwrap();
    assert!(String::from_utf8_lossy(&reply.payload).contains("task_not_found"));
}

#[tokio::test]
async fn a_certificate_that_was_renewed_is_shown_after_a_reload_and_connections_live_on() {
    let server = Secured::start(&[]).await;
    let _service = server.serve(&["--events", "core"]).await;
    let before = server.log_in("coordinator").await;
    // It names another host from now on.
    make(&server, &["--host", "nats.example.org"]).await;
    let certificate =
        std::fs::read_to_string(server.folder.path().join("secrets/nats/server.pem")).unwrap();
    let lines = |text: &str| text.split_whitespace().collect::<String>();
    assert_ne!(
        lines(&server.shown_certificate().await),
        lines(&certificate)
    );
    reloaded(&server).await;
    assert_eq!(
        lines(&server.shown_certificate().await),
        lines(&certificate)
    );
    let get = json!({"task_id": "nobody"}).to_string();
    before
        .client
        .request("tasklatch.task.get", get.into())
        .await
        .unwrap();
    let connects = before
        .client
        .statistics()
        .connects
        .load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(connects, 1, "it was not cut");
}

#[tokio::test]
async fn a_reload_that_did_not_take_effect_is_told_with_what_to_do() {
    let server = Secured::start(&[]).await;
    let _service = server.serve(&["--events", "core"]).await;
    make(&server, &["--worker", "build-1"]).await;
    let mut check = Command::new(BINARY);
    check
        .args(["secrets", "check"])
        .arg(server.folder.path().join("secrets"))
        .args(["--nats-url", &server.url(), "--within", "1s"]);
    let output = check.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("has not read what was made last")
            && said.contains("nats-server --signal reload=PID"),
        "{said}"
    );
    let seed = server.seed("reload-check");
    assert!(!said.contains(&seed));
    // A configuration that the server refuses: it goes on as it was.
    let accounts = server.folder.path().join("secrets/nats/accounts.conf");
    std::fs::write(&accounts, "nonsense {").unwrap();
    let output = reload(&server).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    make(&server, &[]).await;
    reloaded(&server).await;
}
