//! Secrets stay out of whatever is printed and logged, also where all is logged.

use std::process::{Output, Stdio};

use nkeys::KeyPair;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{BINARY, Broker, DEADLINE, Secured, Service};

const PASSWORD: &str = "pass-never-shown-1";
const TOKEN: &str = "token-never-shown-2";
const WRONG: &str = "wrong-never-shown-3";

/// Runs a command with a login in its environment, and gives all that it printed.
async fn said(url: &str, login: &[(&str, &str)], arguments: &[&str]) -> String {
    let mut command = Command::new(BINARY);
    command
        .args(arguments)
        .env("TASKLATCH_NATS_URL", url)
        .envs(login.iter().copied())
        .stdin(Stdio::null());
    let output: Output = timeout(DEADLINE, command.output())
        .await
        .expect("it ends in time")
        .unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

fn assert_silent(said: &str, secrets: &[&str], of: &str) {
    for secret in secrets {
        // The first characters of a seed say only what kind it is.
        let part = secret.get(4..).unwrap_or(secret);
        assert!(!said.contains(part), "{of} shows {secret}: {said}");
    }
}

/// Has the service and a client log in, with the right secret and a wrong one, at the highest level of logging.
async fn stays_silent(
    url: &str,
    right: &[(&str, &str)],
    wrong: &[(&str, &str)],
    more: &[(&str, &str)],
    secrets: &[&str],
) {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("ledger.db");
    let database = database.to_str().unwrap();
    for format in ["text", "json"] {
        let serve = [
            "serve",
            "--database",
            database,
            "--http",
            "off",
            "--events",
            "core",
            "--log",
            "trace",
            "--log-format",
            format,
        ];
        let mut command = Command::new(BINARY);
        command
            .args(serve)
            .env("TASKLATCH_NATS_URL", url)
            .envs(right.iter().chain(more).copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let service = Service::of(command.spawn().unwrap()).await;
        let line = std::fs::read(format!("/proc/{}/cmdline", service.pid())).unwrap();
        assert_silent(&String::from_utf8_lossy(&line), secrets, "the command line");
        assert_silent(&service.ready_line, secrets, "the line of a ready service");
        let verbs: [&[&str]; 4] = [
            &["task", "list"],
            &["task", "list", "--json"],
            &["report", "nobody", "--summary", "x"],
            &["serve", "--help"],
        ];
        for verb in verbs {
            let right: Vec<_> = right.iter().chain(more).copied().collect();
            let text = said(url, &right, verb).await;
            assert!(!text.is_empty(), "{verb:?}");
            assert_silent(&text, secrets, &verb.join(" "));
            let wrong: Vec<_> = wrong.iter().chain(more).copied().collect();
            assert_silent(&said(url, &wrong, verb).await, secrets, &verb.join(" "));
        }
        let (status, log) = service.stop().await;
        assert!(status.success() && log.contains("TRACE"), "{log}");
        assert_silent(&log, secrets, "the log of the service");
        let wrong: Vec<_> = wrong.iter().chain(more).copied().collect();
        let refused = said(url, &wrong, &serve).await;
        assert!(refused.contains("error"), "{refused}");
        assert_silent(&refused, secrets, "a service that is not let in");
    }
}

#[tokio::test]
async fn the_seed_of_a_key_is_neither_printed_nor_logged() {
    let server = Secured::start(&[]).await;
    let (seed, wrong) = (server.seed("service"), KeyPair::new_user().seed().unwrap());
    let ca = server.ca();
    let more = [
        ("TASKLATCH_NATS_TLS_CA", ca.to_str().unwrap()),
        ("TASKLATCH_INBOX_PREFIX", "_INBOX.service"),
        ("TASKLATCH_TIMEOUT", "500ms"),
    ];
    let right = [("TASKLATCH_NATS_NKEY", seed.as_str())];
    let bad = [("TASKLATCH_NATS_NKEY", wrong.as_str())];
    stays_silent(&server.url(), &right, &bad, &more, &[&seed, &wrong]).await;
    for broken in [
        format!("{seed}x"),
        format!(" {}", &seed[1..]),
        seed.to_lowercase(),
    ] {
        let login = [("TASKLATCH_NATS_NKEY", broken.as_str()), more[0]];
        let text = said(&server.url(), &login, &["task", "list"]).await;
        assert_silent(&text, &[broken.trim(), &seed], "a broken seed");
    }
    let creds = server.folder.path().join("some.creds");
    std::fs::write(&creds, format!("no JWT\n{seed}\n")).unwrap();
    let login = [("TASKLATCH_NATS_CREDS", creds.to_str().unwrap()), more[0]];
    let text = said(&server.url(), &login, &["task", "list"]).await;
    assert!(text.contains("no credentials file"), "{text}");
    assert_silent(&text, &[&seed], "a broken credentials file");
}

#[tokio::test]
async fn a_password_is_neither_printed_nor_logged_also_in_a_url() {
    let config = format!("authorization {{ user: somebody, password: \"{PASSWORD}\" }}");
    let broker = Broker::start_configured(&config).await;
    let right = [
        ("TASKLATCH_NATS_USER", "somebody"),
        ("TASKLATCH_NATS_PASSWORD", PASSWORD),
    ];
    let wrong = [
        ("TASKLATCH_NATS_USER", "somebody"),
        ("TASKLATCH_NATS_PASSWORD", WRONG),
    ];
    stays_silent(&broker.url(), &right, &wrong, &[], &[PASSWORD, WRONG]).await;
    let in_url = |password: &str| {
        broker
            .url()
            .replace("nats://", &format!("nats://somebody:{password}@"))
    };
    let (good, bad) = (in_url(PASSWORD), in_url(WRONG));
    let right = [("TASKLATCH_NATS_URL", good.as_str())];
    let wrong = [("TASKLATCH_NATS_URL", bad.as_str())];
    stays_silent(&broker.url(), &right, &wrong, &[], &[PASSWORD, WRONG]).await;
}

#[tokio::test]
async fn a_token_is_neither_printed_nor_logged() {
    let broker = Broker::start_configured(&format!("authorization {{ token: \"{TOKEN}\" }}")).await;
    let right = [("TASKLATCH_NATS_TOKEN", TOKEN)];
    let wrong = [("TASKLATCH_NATS_TOKEN", WRONG)];
    stays_silent(&broker.url(), &right, &wrong, &[], &[TOKEN, WRONG]).await;
    let in_url = |token: &str| broker.url().replace("nats://", &format!("nats://{token}@"));
    let (good, bad) = (in_url(TOKEN), in_url(WRONG));
    let right = [("TASKLATCH_NATS_URL", good.as_str())];
    let wrong = [("TASKLATCH_NATS_URL", bad.as_str())];
    stays_silent(&broker.url(), &right, &wrong, &[], &[TOKEN, WRONG]).await;
}
