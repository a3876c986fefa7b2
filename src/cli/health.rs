//! `tasklatch health`: asks a service on this machine whether it is ready.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::error::CliError;
use super::{Ui, text};
use crate::config::{DEFAULT_HTTP, HttpAddress};

/// How long a service may take to say whether it is ready.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The most that is read of an answer.
const BODY_BYTES: u64 = 64 * 1024;

/// Options of `health`.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes:\n   0  ready\n   1  not ready, or not reached\n   2  the command is wrong"
)]
pub(super) struct HealthOptions {
    /// Where the service serves /ready, as for `serve`
    #[arg(long, env = "TASKLATCH_HTTP", default_value = DEFAULT_HTTP, value_name = "ADDRESS")]
    http: HttpAddress,
}

pub(super) fn run(options: &HealthOptions, ui: &Ui) -> Result<(), CliError> {
    let Some(address) = options.http.0 else {
        return Err(CliError::Usage(
            "--http is off, so there is nobody to ask".to_owned(),
        ));
    };
    let url = format!("http://{}/ready", reachable(address));
    let (status, body) = ask(&url).map_err(|error| {
        CliError::Fault(format!("the service at {url} cannot be asked: {error}"))
            .hinted("is it running, with this --http?")
    })?;
    match ui.json() {
        true => ui.print_line_of_bytes(body.trim_ascii())?,
        false => ui.print(shown(&body))?,
    }
    match status {
        200 => Ok(()),
        status => Err(CliError::Fault(format!(
            "the service at {url} is not ready (status {status})"
        ))),
    }
}

/// A service that listens on every address is asked on the loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn ask(url: &str) -> Result<(u16, Vec<u8>), ureq::Error> {
    // A proxy of the environment is no way to this machine.
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .proxy(None)
        .build();
    let mut answer = config.new_agent().get(url).call()?;
    let body = answer
        .body_mut()
        .with_config()
        .limit(BODY_BYTES)
        .read_to_vec()?;
    Ok((answer.status().as_u16(), body))
}

/// The answer for people: each key of a JSON object on its line, and anything else as it is.
fn shown(body: &[u8]) -> String {
    let word = |value: &Value| match value {
        Value::String(word) => text::one_line(word),
        other => text::one_line(&other.to_string()),
    };
    let line = |(key, value): (&String, &Value)| match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(word).collect();
            format!("{}: {}", text::one_line(key), items.join("; "))
        }
        value => format!("{}: {}", text::one_line(key), word(value)),
    };
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => {
            let told = fields
                .iter()
                .filter(|(_, value)| value.as_array().is_none_or(|items| !items.is_empty()));
            told.map(line).collect::<Vec<_>>().join("\n")
        }
        _ => text::lines(&String::from_utf8_lossy(body)).join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_on_every_address_is_asked_on_the_loopback() {
        let asked = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(asked("0.0.0.0:7420"), "127.0.0.1:7420");
        assert_eq!(asked("[::]:7420"), "[::1]:7420");
        assert_eq!(asked("10.0.0.1:7420"), "10.0.0.1:7420");
    }

    #[test]
    fn the_reasons_are_shown_for_people() {
        assert_eq!(
            shown(br#"{"ready":false,"reasons":["not connected\u001b","no disk"]}"#),
            "ready: false\nreasons: not connected\\u{1b}; no disk"
        );
        assert_eq!(shown(br#"{"ready":true,"reasons":[]}"#), "ready: true");
        assert_eq!(shown(b"ok\x1b[2J\n"), r"ok\u{1b}[2J");
    }
}
