//! `tasklatch dev`: a NATS server and the service together, for trying things out on one machine.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use clap::Args;

use super::error::{CliError, EXIT_FAULT};
use super::signals::Signals;
use super::{Shared, Ui, logging, serve};
use crate::config::{
    DEFAULT_HTTP, DEFAULT_MAX_IN_HAND, DEFAULT_MAX_WAL_SIZE, DEFAULT_NATS_URL, EventsMode,
    EventsOptions, HttpAddress, LogOptions, NatsOptions,
};
use crate::service::Config;
use crate::wire::Subjects;

mod nats_server;

use nats_server::NatsServer;

/// Options of `dev`.
#[derive(Args, Debug)]
#[command(after_help = "The server is dev's own, on 127.0.0.1: the --nats-… options are not used.")]
pub(super) struct DevOptions {
    /// Folder of the database, the streams and the server's log; made if it is not there
    #[arg(
        long,
        env = "TASKLATCH_DIR",
        default_value = ".tasklatch",
        value_name = "FOLDER"
    )]
    dir: PathBuf,

    /// The nats-server program [default: the one in PATH, else .tools/bin/nats-server here or above]
    #[arg(long, env = "TASKLATCH_NATS_SERVER", value_name = "FILE")]
    nats_server: Option<PathBuf>,

    /// Port of the NATS server; 0 picks a free one
    #[arg(
        long,
        env = "TASKLATCH_PORT",
        default_value_t = 4222,
        value_name = "PORT"
    )]
    port: u16,

    /// Where to serve /live and /ready, or off
    #[arg(long, env = "TASKLATCH_HTTP", default_value = DEFAULT_HTTP, value_name = "ADDRESS|off")]
    http: HttpAddress,

    /// What is logged.
    #[command(flatten)]
    log: LogOptions,
}

pub(super) async fn run(options: DevOptions, shared: Shared, ui: &Ui) -> Result<(), CliError> {
    logging::start(&options.log, "warn", ui)?;
    logging::log_panics();
    let signals = Signals::listen()?;
    let program = nats_server::find(options.nats_server.as_deref())?;
    let folder = Folder::claim(&options.dir)?;
    nats_server::refuse_left_behind(&folder.path)?;
    let port = free_port(options.port)?;
    let mut server = NatsServer::start(&program, &folder.path, port)?;
    let dev = Dev {
        options: &options,
        subjects: shared.service.prefix,
        folder: &folder,
        port,
        ui,
    };
    let ended = tokio::select! {
        ended = dev.serve_beside(&mut server, &signals) => ended,
        () = signals.second().cancelled() => {
            server.kill();
            // What still runs in here must not hold up somebody who asked twice.
            std::process::exit(EXIT_FAULT.into());
        }
    };
    server.stop().await;
    if ended.is_ok() {
        ui.note("stopped: the service first, then the NATS server");
    }
    ended
}

/// One run of `dev`.
struct Dev<'a> {
    options: &'a DevOptions,
    subjects: Subjects,
    folder: &'a Folder,
    port: u16,
    ui: &'a Ui,
}

impl Dev<'_> {
    /// Runs the service until a signal comes or the NATS server ends.
    async fn serve_beside(
        &self,
        server: &mut NatsServer,
        signals: &Signals,
    ) -> Result<(), CliError> {
        let ready = tokio::select! {
            ready = server.wait_until_ready() => ready.map(Some),
            () = signals.first().cancelled() => Ok(None),
        };
        if ready?.is_none() {
            return Ok(());
        }
        let url = self.url();
        let database = self.folder.path.join("tasklatch.db");
        let config = Config {
            nats: NatsOptions::at(url.clone()),
            subjects: self.subjects.clone(),
            database: database.clone(),
            http: self.options.http.0,
            allow_other_ledgers: false,
            max_in_hand: DEFAULT_MAX_IN_HAND,
            max_wal_size: DEFAULT_MAX_WAL_SIZE,
            events: EventsMode::default(),
            outbox: EventsOptions::default(),
            durable_reports: true,
            otlp_endpoint: None,
        };
        let Some(service) = serve::start(config, signals, self.ui).await? else {
            return Ok(());
        };
        let address = serve::Address {
            database: &database,
            prefix: self.subjects.prefix(),
            nats_urls: &url,
        };
        let stop = signals.first().child_token();
        let tell = || self.tell_what_to_try();
        let running = serve::run_until(service, &stop, &address, self.ui, tell);
        tokio::pin!(running);
        tokio::select! {
            ended = &mut running => ended,
            ended = server.ended(), if !stop.is_cancelled() => {
                stop.cancel();
                // Without its server the service can say nothing more; its own limits bound this wait.
                let _ = running.await;
                Err(ended)
            }
        }
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Three commands to paste into another terminal.
    fn tell_what_to_try(&self) {
        let url = self.url();
        let mut options = String::new();
        if url != DEFAULT_NATS_URL {
            options.push_str(&format!(" --nats-url {url}"));
        }
        if self.subjects.prefix() != crate::config::DEFAULT_PREFIX {
            options.push_str(&format!(" --prefix {}", self.subjects.prefix()));
        }
        for line in [
            format!(
                "NATS server on {url}, its log and all data in {}",
                self.folder.path.display()
            ),
            "try in another terminal:".to_owned(),
            format!("  tasklatch{options} task create 'My first task' --task-id t-1"),
            format!("  tasklatch{options} report t-1 --summary 'Done'"),
            format!("  tasklatch{options} watch"),
            "Ctrl-C stops both".to_owned(),
        ] {
            self.ui.note(line);
        }
    }
}

/// The folder of one `dev`, which no other may use while it runs.
struct Folder {
    path: PathBuf,
    /// Locked; the system unlocks it when this process ends, however it ends.
    _lock: File,
}

impl Folder {
    fn claim(path: &Path) -> Result<Self, CliError> {
        let shown = path.display();
        let fault = |error: std::io::Error| {
            CliError::Fault(format!(
                "cannot use the folder {shown}: {error}; choose another with --dir"
            ))
        };
        std::fs::create_dir_all(path).map_err(fault)?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut lock = options.open(path.join("dev.pid")).map_err(fault)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = lock.read_to_string(&mut pid);
                return Err(CliError::Fault(format!(
                    "another `tasklatch dev` (pid {}) runs in {shown}; stop it, or choose another folder with --dir",
                    pid.trim()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(fault(error)),
        }
        let write = lock.set_len(0).and_then(|()| lock.rewind());
        write
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .map_err(fault)?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }
}

/// The port itself if it is free, or a free one for 0.
fn free_port(port: u16) -> Result<u16, CliError> {
    let taken =
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).and_then(|listener| listener.local_addr());
    taken.map(|address| address.port()).map_err(|error| {
        CliError::Fault(format!(
            "the NATS server cannot have 127.0.0.1:{port}: {error}; choose another port with --port, or 0 for a free one"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_dev_in_the_same_folder_is_refused_with_the_pid_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let first = Folder::claim(folder.path()).unwrap();
        let error = Folder::claim(folder.path()).err().unwrap();
        let expected = format!("another `tasklatch dev` (pid {})", std::process::id());
        assert!(error.to_string().starts_with(&expected), "{error}");
        drop(first);
        assert!(Folder::claim(folder.path()).is_ok());
    }

    #[test]
    fn a_port_in_use_is_refused_and_zero_finds_a_free_one() {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = held.local_addr().unwrap().port();
        let error = free_port(port).unwrap_err().to_string();
        assert!(error.contains("choose another port with --port"), "{error}");
        assert_ne!(free_port(0).unwrap(), 0);
    }
}
