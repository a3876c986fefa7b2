//! The designs that tasklatch is compared with, each as a process of its own.

mod echo;
mod kv;
mod per_report;
mod report;
pub mod store;

use std::path::PathBuf;

use async_nats::{Client, ConnectOptions, Subscriber};
use clap::{Args, ValueEnum};

use crate::failure::{During, Result};

/// How many messages a subscription holds that nobody has taken yet: as many as that of the service.
const SUBSCRIPTION_MESSAGES_MAX: usize = 65_536;

/// Where reports come in.
const REPORTS: &str = "tasklatch.report";

/// What a responder prints once requests are served.
pub const READY: &str = "ready";

/// What answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Design {
    /// The same bytes for every request, without storing anything
    Echo,
    /// The same, and two events for every request
    EchoEvents,
    /// A transaction for each report
    PerReport,
    /// A JetStream bucket for results
    KvCreate,
    /// JetStream buckets for results and tasks
    KvWhole,
}

/// The options of a responder.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Which
    #[arg(value_enum)]
    pub design: Design,
    /// The NATS server, as host:port
    #[arg(long)]
    pub server: String,
    /// The database, for a design that has one
    #[arg(long)]
    pub database: PathBuf,
    /// How many tasks there are to be, for a design that needs them
    #[arg(long)]
    pub tasks: u64,
}

/// Answers until it is killed.
///
/// # Errors
/// If the server or a store fails.
pub async fn respond(options: &Options) -> Result<()> {
    let client = connect(&options.server).await?;
    match options.design {
        Design::Echo => echo::respond(&client, false).await,
        Design::EchoEvents => echo::respond(&client, true).await,
        Design::PerReport => per_report::respond(&client, &options.database).await,
        Design::KvCreate => kv::respond_create(&client).await,
        Design::KvWhole => kv::respond_whole(&client, options.tasks).await,
    }
}

async fn connect(server: &str) -> Result<Client> {
    ConnectOptions::new()
        .name("tasklatch-bench")
        .subscription_capacity(SUBSCRIPTION_MESSAGES_MAX)
        .connect(format!("nats://{server}"))
        .await
        .during(format_args!("connect to the NATS server at {server}"))
}

/// Subscribes to reports, and says so once the server has taken it.
async fn reports(client: &Client) -> Result<Subscriber> {
    let reports = client
        .queue_subscribe(REPORTS, "tasklatch".to_owned())
        .await
        .during("subscribe to reports")?;
    // Nobody answers this; that the server says so shows that it has taken the subscription before it.
    let _ = client.request("tasklatch.bench.nobody", "".into()).await;
    println!("{READY}");
    Ok(reports)
}
