//! "Ready" is said once the server is proved to have all subscriptions, and not while that is in doubt.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::support::{
    BINARY, Broker, DEADLINE, Held, Proxy, Worker, eventually, free_port, http_get, serve_command,
    signal,
};

/// A service behind a proxy that starts, whether it is ready or not.
struct Starting {
    broker: Broker,
    proxy: Proxy,
    child: Child,
    http: String,
    _folder: tempfile::TempDir,
}

impl Starting {
    async fn begin(held: Held) -> Self {
        Self::begin_with(held, |_, _| {}).await
    }

    async fn begin_with(held: Held, more: impl FnOnce(&mut Command, &Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::start().await;
        let proxy = Proxy::start(&broker.url()).await;
        proxy.hold(held);
        let http = format!("127.0.0.1:{}", free_port());
        let database = folder.path().join("ledger.db");
        let mut command = serve_command(&[], &proxy.url(), &database, &["--http", &http]);
        more(&mut command, folder.path());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        tokio::spawn(async move { while let Ok(1..) = log.read_line(&mut String::new()).await {} });
        Self {
            broker,
            proxy,
            child,
            http,
            _folder: folder,
        }
    }

    /// What `/ready` says, once it says anything.
    async fn readiness(&self) -> (u16, Vec<String>) {
        eventually("HTTP is served", async || {
            tokio::net::TcpStream::connect(&self.http).await.ok()
        })
        .await;
        let (status, page) = http_get(&self.http, "/ready").await;
        let page: Value = serde_json::from_str(&page).unwrap();
        let reasons = serde_json::from_value(page["reasons"].clone()).unwrap();
        assert_eq!(status == 200, page["ready"] == true);
        (status, reasons)
    }

    async fn until_ready(&self) {
        eventually("it is ready", async || {
            (self.readiness().await.0 == 200).then_some(())
        })
        .await;
    }

    async fn health(&self) -> Option<i32> {
        let asked = Command::new(BINARY)
            .args(["health", "--http", &self.http])
            .output();
        asked.await.unwrap().status.code()
    }

    async fn metric(&self) -> bool {
        let (_, page) = http_get(&self.http, "/metrics").await;
        page.contains("tasklatch_ready 1\n")
    }

    /// Everything that tells of readiness says no, and this why, and nobody takes requests.
    async fn is_not_ready_for(&self, why: &str) {
        let (status, reasons) = self.readiness().await;
        assert_eq!(status, 503);
        assert!(
            reasons.iter().any(|reason| reason.contains(why)),
            "{reasons:?}"
        );
        assert_eq!(self.health().await, Some(1));
        assert!(!self.metric().await);
        let client = self.broker.client().await;
        let error = client
            .request("tasklatch.task.get", "{}".into())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), async_nats::RequestErrorKind::NoResponders);
    }

    /// Everything that tells of readiness says yes, and a request that is sent now is replied to.
    async fn is_ready(&self) {
        self.until_ready().await;
        let worker = Worker::connect(&self.broker).await;
        assert_eq!(worker.get("nobody").await.code(), "task_not_found");
        assert_eq!(self.health().await, Some(0));
        assert!(self.metric().await);
    }
}

#[tokio::test]
async fn a_request_that_is_sent_as_soon_as_ready_says_yes_is_replied_to_in_each_of_fifteen_starts()
{
    let broker = Broker::start().await;
    let client = broker.client().await;
    for start in 0..15 {
        let folder = tempfile::tempdir().unwrap();
        let http = format!("127.0.0.1:{}", free_port());
        let database = folder.path().join("ledger.db");
        let mut child = serve_command(&[], &broker.url(), &database, &["--http", &http])
            .spawn()
            .unwrap();
        eventually("it is ready", async || {
            tokio::net::TcpStream::connect(&http).await.ok()?;
            (http_get(&http, "/ready").await.0 == 200).then_some(())
        })
        .await;
        let get = json!({"task_id": "nobody"}).to_string();
        let reply = client.request("tasklatch.task.get", get.into()).await;
        assert!(reply.is_ok(), "start {start}: {reply:?}");
        signal(child.id().unwrap(), "TERM").await;
        let ended = timeout(DEADLINE, child.wait()).await;
        assert!(ended.expect("it stops in time").unwrap().success());
    }
}

#[tokio::test]
async fn a_service_whose_subscriptions_are_held_back_at_the_start_says_that_it_waits_for_them() {
    let mut starting = Starting::begin(Held::Subscriptions).await;
    starting.proxy.until_holding().await;
    starting
        .is_not_ready_for(
            "starting: waiting for the NATS server to confirm that it has the subscriptions",
        )
        .await;
    let mut stdout = BufReader::new(starting.child.stdout.take().unwrap());
    let mut line = String::new();
    let read = stdout.read_line(&mut line);
    tokio::pin!(read);
    assert!(
        futures_util::FutureExt::now_or_never(&mut read).is_none(),
        "it has not said that it is ready"
    );
    starting.proxy.hold(Held::Nothing);
    timeout(DEADLINE, read)
        .await
        .expect("the line in time")
        .unwrap();
    assert!(line.starts_with("ready: "), "{line}");
    starting.is_ready().await;
}

#[tokio::test]
async fn a_service_that_waits_for_its_server_says_so_and_serves_live() {
    let mut starting = Starting::begin(Held::Nothing).await;
    starting.is_ready().await;
    // Another one, whose server is not there.
    let database = starting._folder.path().join("other.db");
    let http = format!("127.0.0.1:{}", free_port());
    starting.broker.kill().await;
    let _child = serve_command(&[], &starting.broker.url(), &database, &["--http", &http])
        .spawn()
        .unwrap();
    eventually("HTTP is served", async || {
        tokio::net::TcpStream::connect(&http).await.ok()
    })
    .await;
    let (status, page) = http_get(&http, "/ready").await;
    let waits = format!(
        "starting: waiting for the NATS server at {}",
        starting.broker.url()
    );
    assert!(status == 503 && page.contains(&waits), "{page}");
    assert_eq!(http_get(&http, "/live").await.0, 200);
    assert_eq!(http_get(&http, "/metrics").await.0, 503);
}

#[tokio::test]
async fn after_a_reconnect_a_service_is_not_ready_until_its_subscriptions_are_proved_again() {
    let starting = Starting::begin(Held::Nothing).await;
    starting.is_ready().await;
    starting.proxy.hold(Held::Subscriptions);
    starting.proxy.cut();
    starting.proxy.until_holding().await;
    eventually("it is connected again", async || {
        let (_, reasons) = starting.readiness().await;
        reasons
            .iter()
            .any(|reason| reason.contains("confirm"))
            .then_some(())
    })
    .await;
    starting
        .is_not_ready_for("waiting for the NATS server to confirm that it has the subscriptions")
        .await;
    starting.proxy.hold(Held::Nothing);
    starting.is_ready().await;
}

#[tokio::test]
async fn a_service_that_has_lost_its_server_says_for_how_long_and_why() {
    let mut starting = Starting::begin(Held::Nothing).await;
    starting.is_ready().await;
    starting.broker.kill().await;
    eventually("it is lost", async || {
        let (status, reasons) = starting.readiness().await;
        let said = reasons.iter().any(|reason| {
            reason.starts_with("not connected to the NATS server for ")
                && reason.contains(" s (connection `tasklatch")
        });
        (status == 503 && said).then_some(())
    })
    .await;
    assert_eq!(starting.health().await, Some(1));
    starting.broker.restart().await;
    starting.is_ready().await;
}

#[tokio::test]
async fn with_a_client_that_was_replaced_a_service_is_not_ready_until_its_subscriptions_are_proved_again()
 {
    let starting = Starting::begin(Held::Nothing).await;
    starting.is_ready().await;
    starting.proxy.hold(Held::Subscriptions);
    // The client library panics over a header that it cannot read.
    crate::hostile::make_a_client_panic(&starting.broker).await;
    starting.proxy.until_holding().await;
    starting
        .is_not_ready_for("waiting for the NATS server to confirm that it has the subscriptions")
        .await;
    starting.proxy.hold(Held::Nothing);
    starting.is_ready().await;
}

#[tokio::test]
async fn systemd_is_told_ready_once_the_subscriptions_are_proved_and_stopping_at_the_stop() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let told = UnixDatagram::bind(&socket).unwrap();
    let mut starting = Starting::begin_with(Held::Subscriptions, |command, _| {
        command.env("NOTIFY_SOCKET", &socket);
    })
    .await;
    starting.proxy.until_holding().await;
    let mut bytes = [0; 256];
    assert!(told.try_recv(&mut bytes).is_err(), "nothing is said yet");
    starting.proxy.hold(Held::Nothing);
    for expected in ["READY=1", "STOPPING=1"] {
        let length = timeout(DEADLINE, told.recv(&mut bytes))
            .await
            .expect("it is told in time")
            .unwrap();
        let text = String::from_utf8_lossy(&bytes[..length]);
        assert_eq!(text.trim_end(), expected);
        if expected == "READY=1" {
            let worker = Worker::connect(&starting.broker).await;
            assert_eq!(worker.get("nobody").await.code(), "task_not_found");
            signal(starting.child.id().unwrap(), "TERM").await;
        }
    }
    let ended = timeout(Duration::from_secs(15), starting.child.wait()).await;
    assert!(ended.expect("it stops in time").unwrap().success());
}
