//! Who gets in at all.

use async_nats::{ConnectErrorKind, ConnectOptions};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{DEADLINE, Secured};

#[tokio::test]
async fn a_connection_without_tls_is_cut_off_before_it_can_say_anything() {
    let server = Secured::start(&[]).await;
    let (reader, mut writer) = TcpStream::connect(server.address())
        .await
        .unwrap()
        .into_split();
    let mut lines = BufReader::new(reader).lines();
    let greeting = timeout(DEADLINE, lines.next_line())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(greeting.contains("\"tls_required\":true"), "{greeting}");
    let _ = writer
        .write_all(b"CONNECT {\"verbose\":true}\r\nPING\r\n")
        .await;
    let end = async {
        // It is cut off, with or without a word, and is not let in.
        while let Ok(Some(line)) = lines.next_line().await {
            assert!(!line.contains("PONG") && !line.contains("+OK"), "{line}");
        }
    };
    timeout(DEADLINE, end).await.expect("an end in time");
}

#[tokio::test]
async fn nobody_gets_in_without_a_key_or_with_a_wrong_one() {
    let server = Secured::start(&[]).await;
    let wrong = Secured::start(&[]).await.seed("worker");
    let password = ConnectOptions::with_user_and_password("worker".into(), "worker".into());
    for options in [
        ConnectOptions::new(),
        ConnectOptions::with_nkey(wrong),
        password,
    ] {
        let options = options.add_root_certificates(server.ca()).require_tls(true);
        let error = options.connect(server.url()).await.unwrap_err();
        let kind = error.kind();
        assert!(
            matches!(
                kind,
                ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication
            ),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_server_with_a_certificate_of_another_ca_is_not_trusted() {
    let server = Secured::start(&[]).await;
    let other = Secured::start(&[]).await;
    let options =
        ConnectOptions::with_nkey(server.seed("worker")).add_root_certificates(other.ca());
    let error = options.connect(server.url()).await.unwrap_err();
    assert!(
        matches!(error.kind(), ConnectErrorKind::Tls | ConnectErrorKind::Io),
        "{error}"
    );
}
