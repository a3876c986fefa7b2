//! What can be configured, with every default and limit: options of the command line, their environment variables, and a
//! file.
//! Secrets are read here and shown nowhere.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use async_nats::{ConnectOptions, ServerAddr};
use clap::Args;

use crate::wire::Subjects;

mod file;
mod serve;

pub use file::{FileOption, Setting, read_file, unknown_variables};
pub use serve::{
    DEFAULT_HTTP, DEFAULT_MAX_IN_HAND, DEFAULT_MAX_WAL_SIZE, DUPLICATE_WINDOW_MIN, EventsMode,
    EventsOptions, HttpAddress, LogFormat, LogOptions, MAX_IN_HAND_LIMIT, OtlpEndpoint,
    RetentionMode, ServeOptions,
};

/// Where a NATS server is looked for if nothing else is said.
pub const DEFAULT_NATS_URL: &str = "nats://127.0.0.1:4222";

/// The subject prefix if nothing else is said.
pub const DEFAULT_PREFIX: &str = "tasklatch";

/// The most bytes that are read from a file that holds a secret.
const SECRET_BYTES: u64 = 64 * 1024;

/// An option that cannot be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// A secret, or `@` and the file that holds it. Its `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// The secret itself: `@FILE` is read without its last line ending, `@@text` stands for `@text`.
    fn read(&self, option: &str) -> Result<String, ConfigError> {
        let Some(path) = self.0.strip_prefix('@') else {
            return Ok(self.0.clone());
        };
        if path.starts_with('@') {
            return Ok(path.to_owned());
        }
        let text = read_small_file(option, Path::new(path))?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
    }
}

/// How to reach the NATS server, for every verb.
#[derive(Args, Clone)]
#[command(next_help_heading = "NATS options")]
pub struct NatsOptions {
    /// NATS servers to connect to, several by comma
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_NATS_URL",
        hide_env_values = true,
        default_value = DEFAULT_NATS_URL,
        value_name = "URL[,URL]"
    )]
    pub nats_url: String,

    /// Credentials file (JWT and seed) to log in with
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_NATS_CREDS",
        value_name = "FILE",
        hide_short_help = true
    )]
    pub nats_creds: Option<PathBuf>,

    /// User to log in as; needs --nats-password
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_NATS_USER",
        value_name = "NAME",
        hide_short_help = true
    )]
    pub nats_user: Option<String>,

    /// Password of --nats-user, or @FILE to read it from a file
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_NATS_PASSWORD",
        hide_env_values = true,
        value_name = "SECRET|@FILE",
        hide_short_help = true
    )]
    pub nats_password: Option<Secret>,

    /// Token to log in with, or @FILE to read it from a file
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_NATS_TOKEN",
        hide_env_values = true,
        value_name = "SECRET|@FILE",
        hide_short_help = true
    )]
    pub nats_token: Option<Secret>,

    /// User NKey seed (SU…) to log in with, or @FILE to read it from a file
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_NATS_NKEY",
        hide_env_values = true,
        value_name = "SEED|@FILE",
        hide_short_help = true
    )]
    pub nats_nkey: Option<Secret>,

    /// Root certificates (PEM) to know the server by; makes TLS required
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_NATS_TLS_CA",
        value_name = "FILE",
        hide_short_help = true
    )]
    pub nats_tls_ca: Option<PathBuf>,

    /// Client certificate (PEM); needs --nats-tls-key and makes TLS required
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_NATS_TLS_CERT",
        value_name = "FILE",
        hide_short_help = true
    )]
    pub nats_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of --nats-tls-cert
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_NATS_TLS_KEY",
        value_name = "FILE",
        hide_short_help = true
    )]
    pub nats_tls_key: Option<PathBuf>,

    /// Subject prefix of the inboxes that answers come to [default: _INBOX]
    #[arg(
        long,
        global = true,
        env = "TASKLATCH_INBOX_PREFIX",
        value_name = "SUBJECT",
        hide_short_help = true
    )]
    pub inbox_prefix: Option<String>,
}

impl fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL may hold a password, so it is shown without.
        f.debug_struct("NatsOptions")
            .field("nats_url", &self.shown_urls())
            .field("nats_creds", &self.nats_creds)
            .field("nats_user", &self.nats_user)
            .field("nats_password", &self.nats_password)
            .field("nats_token", &self.nats_token)
            .field("nats_nkey", &self.nats_nkey)
            .field("nats_tls_ca", &self.nats_tls_ca)
            .field("nats_tls_cert", &self.nats_tls_cert)
            .field("nats_tls_key", &self.nats_tls_key)
            .field("inbox_prefix", &self.inbox_prefix)
            .finish()
    }
}

impl NatsOptions {
    /// Reaches a server, or several by comma, without logging in.
    pub fn at(nats_url: impl Into<String>) -> Self {
        Self {
            nats_url: nats_url.into(),
            nats_creds: None,
            nats_user: None,
            nats_password: None,
            nats_token: None,
            nats_nkey: None,
            nats_tls_ca: None,
            nats_tls_cert: None,
            nats_tls_key: None,
            inbox_prefix: None,
        }
    }

    /// The same servers, as the client of this seed and inbox, which knows the server by this CA.
    pub fn of_client(&self, seed: &Path, ca: &Path, inbox_prefix: String) -> Self {
        Self {
            nats_nkey: Some(Secret(format!("@{}", seed.display()))),
            nats_tls_ca: Some(ca.to_owned()),
            inbox_prefix: Some(inbox_prefix),
            ..Self::at(&self.nats_url)
        }
    }

    /// How to log in and how to speak, read from the options and the files that they name.
    ///
    /// # Errors
    /// [`ConfigError`] if options contradict each other, or a file cannot be read.
    pub fn connect_options(&self) -> Result<ConnectOptions, ConfigError> {
        self.with_inbox(self.with_tls(self.with_login()?)?)
    }

    /// Everything that is wrong with the options and the files that they name, of servers, login, TLS and inbox one each.
    pub fn faults(&self) -> Vec<ConfigError> {
        let servers = self.servers().err();
        // Without another login, that of the servers is looked for.
        let login = self
            .with_login()
            .err()
            .filter(|login| Some(login) != servers.as_ref());
        let tls = self.with_tls(ConnectOptions::new()).err();
        let inbox = self.with_inbox(ConnectOptions::new()).err();
        [servers, login, tls, inbox].into_iter().flatten().collect()
    }

    fn with_inbox(&self, options: ConnectOptions) -> Result<ConnectOptions, ConfigError> {
        let Some(prefix) = &self.inbox_prefix else {
            return Ok(options);
        };
        if Subjects::new(prefix).is_err() {
            return Err(ConfigError(format!(
                "--inbox-prefix {prefix:?} is no subject: use tokens joined by single dots, without \
                 wildcards, such as _INBOX_worker"
            )));
        }
        Ok(options.custom_inbox_prefix(prefix))
    }

    /// A user and password, or a token, in the first URL: as other NATS clients take them.
    fn with_login_of_url(&self, options: ConnectOptions) -> Result<ConnectOptions, ConfigError> {
        let addresses = self.servers()?;
        let login = addresses
            .first()
            .map(|address| (address.username(), address.password()));
        Ok(match login {
            Some((Some(user), Some(password))) => {
                options.user_and_password(user.to_owned(), password.to_owned())
            }
            Some((Some(token), None)) => options.token(token.to_owned()),
            _ => options,
        })
    }

    fn with_login(&self) -> Result<ConnectOptions, ConfigError> {
        let given = [
            ("--nats-creds", self.nats_creds.is_some()),
            ("--nats-user", self.nats_user.is_some()),
            ("--nats-token", self.nats_token.is_some()),
            ("--nats-nkey", self.nats_nkey.is_some()),
        ];
        let given: Vec<&str> = given.iter().filter(|way| way.1).map(|way| way.0).collect();
        if given.len() > 1 {
            return Err(ConfigError(format!(
                "{} are {} ways to log in; give one (the environment variables TASKLATCH_NATS_… count too)",
                given.join(" and "),
                given.len()
            )));
        }
        let options = ConnectOptions::new();
        if given.is_empty() && self.nats_password.is_none() {
            return self.with_login_of_url(options);
        }
        if let Some(path) = &self.nats_creds {
            let text = read_small_file("--nats-creds", path)?;
            return options.credentials(&text).map_err(|_| {
                ConfigError(format!(
                    "--nats-creds: {} is no credentials file; it must hold the JWT and the seed that `nsc` writes",
                    path.display()
                ))
            });
        }
        if let Some(token) = &self.nats_token {
            return Ok(options.token(not_empty("--nats-token", token)?));
        }
        if let Some(seed) = &self.nats_nkey {
            let seed = not_empty("--nats-nkey", seed)?.trim().to_owned();
            // Of another kind of key there are seeds too.
            if !seed.starts_with("SU") || nkeys::KeyPair::from_seed(&seed).is_err() {
                return Err(ConfigError(
                    "--nats-nkey is no seed of a user NKey, which begins with SU; to read it from a file, write @FILE"
                        .to_owned(),
                ));
            }
            return Ok(options.nkey(seed));
        }
        match (&self.nats_user, &self.nats_password) {
            (Some(user), Some(password)) => {
                Ok(options.user_and_password(user.clone(), password.read("--nats-password")?))
            }
            (Some(_), None) => Err(ConfigError(
                "--nats-user needs --nats-password, or TASKLATCH_NATS_PASSWORD".to_owned(),
            )),
            (None, Some(_)) => Err(ConfigError(
                "--nats-password needs --nats-user, or TASKLATCH_NATS_USER".to_owned(),
            )),
            (None, None) => Ok(options),
        }
    }

    fn with_tls(&self, mut options: ConnectOptions) -> Result<ConnectOptions, ConfigError> {
        if let Some(ca) = &self.nats_tls_ca {
            read_small_file("--nats-tls-ca", ca)?;
            options = options.add_root_certificates(ca.clone()).require_tls(true);
        }
        match (&self.nats_tls_cert, &self.nats_tls_key) {
            (Some(cert), Some(key)) => {
                read_small_file("--nats-tls-cert", cert)?;
                read_small_file("--nats-tls-key", key)?;
                Ok(options
                    .add_client_certificate(cert.clone(), key.clone())
                    .require_tls(true))
            }
            (None, None) => Ok(options),
            _ => Err(ConfigError(
                "--nats-tls-cert and --nats-tls-key only go together; give both or neither"
                    .to_owned(),
            )),
        }
    }

    /// The servers of `--nats-url`, without user names and passwords: async-nats logs the address that it tries.
    ///
    /// # Errors
    /// [`ConfigError`] if one of them is not a NATS URL. It names the place in the list and not the text, which may
    /// hold a password.
    pub fn addresses(&self) -> Result<Vec<ServerAddr>, ConfigError> {
        let plain = Self::at(shown(&self.servers()?));
        plain.servers()
    }

    fn servers(&self) -> Result<Vec<ServerAddr>, ConfigError> {
        let one = |(at, text): (usize, &str)| {
            let wrong = |why: String| {
                ConfigError(format!(
                    "--nats-url: server {} of the list is not usable: {why}; write nats://host:port, or tls://host:port",
                    at + 1
                ))
            };
            let address: ServerAddr = text
                .trim()
                .parse()
                .map_err(|error: std::io::Error| wrong(error.to_string()))?;
            match address.scheme() {
                "nats" | "tls" if address.host().is_empty() => {
                    Err(wrong("it names no host".to_owned()))
                }
                "nats" | "tls" => Ok(address),
                other => Err(wrong(format!("{other}:// is not supported"))),
            }
        };
        self.nats_url.split(',').enumerate().map(one).collect()
    }

    /// The servers for people: without user names and passwords.
    pub fn shown_urls(&self) -> String {
        let Ok(addresses) = self.servers() else {
            return "the servers of --nats-url".to_owned();
        };
        shown(&addresses)
    }
}

fn shown(addresses: &[ServerAddr]) -> String {
    let shown = addresses.iter().map(|address| {
        let host = address.host();
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        format!("{}://{host}:{}", address.scheme(), address.port())
    });
    shown.collect::<Vec<_>>().join(",")
}

fn not_empty(option: &str, secret: &Secret) -> Result<String, ConfigError> {
    match secret.read(option)? {
        text if text.is_empty() => Err(ConfigError(format!(
            "{option} is empty; leave it out, or unset its variable"
        ))),
        text => Ok(text),
    }
}

/// Reads a file that an option names. It is bounded, so that a wrong path cannot fill the memory.
fn read_small_file(option: &str, path: &Path) -> Result<String, ConfigError> {
    use std::io::Read;
    let failed = |why: &dyn fmt::Display| {
        ConfigError(format!("{option}: cannot read {}: {why}", path.display()))
    };
    let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
    let mut text = String::new();
    file.take(SECRET_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| failed(&error))?;
    if text.len() as u64 > SECRET_BYTES {
        return Err(failed(&format!(
            "it is larger than {SECRET_BYTES} bytes, so it is not what is meant"
        )));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
