use super::*;

fn secret(text: &str) -> Option<Secret> {
    Some(Secret(text.to_owned()))
}

#[test]
fn a_secret_is_never_shown_by_debug_nor_is_a_password_in_a_url() {
    let options = NatsOptions {
        nats_user: Some("ann".to_owned()),
        nats_password: secret("hunter2"),
        nats_token: secret("hunter2"),
        nats_nkey: secret("hunter2"),
        ..NatsOptions::at("nats://ann:hunter2@10.0.0.1:4222,nats://[::1]:5222")
    };
    let shown = format!("{options:?} {options:#?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_eq!(
        options.shown_urls(),
        "nats://10.0.0.1:4222,nats://[::1]:5222"
    );
}

#[test]
fn a_url_that_cannot_be_used_is_named_by_its_place_without_its_text() {
    for bad in [
        "",
        "nats://",
        "http://x",
        "ws://x",
        "nats://a:hunter2@x:99999",
        "a,,b",
    ] {
        let error = NatsOptions::at(bad).addresses().unwrap_err().to_string();
        assert!(error.starts_with("--nats-url: server "), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    assert_eq!(
        NatsOptions::at("a, tls://b:1").addresses().unwrap().len(),
        2
    );
}

#[test]
fn a_secret_from_a_file_loses_its_last_line_ending_and_a_doubled_at_sign_is_literal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, "pass word \r\n").unwrap();
    let from_file = Secret(format!("@{}", path.display()));
    assert_eq!(from_file.read("--nats-password").unwrap(), "pass word ");
    assert_eq!(
        Secret("@@x".to_owned()).read("--nats-password").unwrap(),
        "@x"
    );
    let missing = Secret("@/nowhere/secret".to_owned());
    let error = missing.read("--nats-password").unwrap_err().to_string();
    assert!(
        error.starts_with("--nats-password: cannot read /nowhere/secret: "),
        "{error}"
    );
}

#[test]
fn contradicting_or_incomplete_ways_to_log_in_are_refused() {
    let base = || NatsOptions::at(DEFAULT_NATS_URL);
    let user = Some("ann".to_owned());
    let cert = Some(PathBuf::from("cert.pem"));
    for (options, part) in [
        (
            NatsOptions {
                nats_user: user.clone(),
                ..base()
            },
            "--nats-user needs",
        ),
        (
            NatsOptions {
                nats_password: secret("x"),
                ..base()
            },
            "--nats-password needs",
        ),
        (
            NatsOptions {
                nats_user: user,
                nats_token: secret("x"),
                ..base()
            },
            "--nats-user and --nats-token are 2 ways",
        ),
        (
            NatsOptions {
                nats_token: secret(""),
                ..base()
            },
            "--nats-token is empty",
        ),
        (
            NatsOptions {
                nats_nkey: secret("UABC"),
                ..base()
            },
            "--nats-nkey is no seed",
        ),
        (
            NatsOptions {
                nats_tls_cert: cert,
                ..base()
            },
            "only go together",
        ),
        (
            NatsOptions {
                inbox_prefix: Some("a.*".to_owned()),
                ..base()
            },
            "--inbox-prefix",
        ),
    ] {
        let error = options.connect_options().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn an_http_address_is_a_socket_address_a_local_port_or_off() {
    let parsed = |text: &str| {
        text.parse::<HttpAddress>()
            .map(|address| address.to_string())
    };
    assert_eq!(parsed("off").unwrap(), "off");
    assert_eq!(parsed("0.0.0.0:80").unwrap(), "0.0.0.0:80");
    assert_eq!(parsed("[::1]:80").unwrap(), "[::1]:80");
    assert_eq!(parsed("localhost:80").unwrap(), "127.0.0.1:80");
    assert_eq!(parsed("7420").unwrap(), "127.0.0.1:7420");
    assert!(parsed("host:80").is_err());
    assert!(parsed("99999").is_err());
}
