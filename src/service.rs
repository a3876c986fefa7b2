//! The service: everything put together, started in order and stopped in order.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::config::NatsOptions;
use crate::consumer::applier::{Applier, send_all};
use crate::consumer::discovery::{Discovery, Other, Search, Statistics};
use crate::consumer::{self, Consumer, Replier, Then, Work};
use crate::health::Health;
use crate::http::Http;
use crate::ledger::{self, Command, Fault, Folder, Ledger, OpenError, Writer};
use crate::nats::{ConnectFault, Connection, RoundTripError, connect, round_trip};
use crate::relay::Relay;
use crate::wire::{Endpoint, Subjects};

/// How the service is to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the server is.
    pub nats: NatsOptions,
    /// The subjects it serves.
    pub subjects: Subjects,
    /// The ledger's file, made if missing.
    pub database: PathBuf,
    /// Where `/live` and `/ready` are served, if at all.
    pub http: Option<SocketAddr>,
    /// Serve even if another service with another ledger answers under the same prefix.
    pub allow_other_ledgers: bool,
    /// How many requests are taken on before others are answered `overloaded`.
    pub max_in_hand: usize,
}

/// How often tasks are expired for observers, whose deadline has come. Reports and reads do not wait for it.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// After how many sweeps the writer looks whether its file is still there: every five seconds.
const LOOK_TICKS: u32 = 10;

/// How often the write-ahead log is folded into the database while something is committed.
const FOLD_INTERVAL: Duration = Duration::from_millis(100);

/// How long the server may take for a round trip at start and stop.
const ROUND_TRIP_WITHIN: Duration = Duration::from_secs(5);

/// How long each step of stopping may take. What is committed and not published by then is published at the next start.
const STOP_STEP_WITHIN: Duration = Duration::from_secs(5);

/// How long JetStream may take to say which streams there are.
const JETSTREAM_WITHIN: Duration = Duration::from_secs(2);

/// The default `max_payload` of a NATS server, in bytes: with it all that keeps the limits of the protocol fits.
const MAX_PAYLOAD_USUAL: usize = 1024 * 1024;

/// Room in the queue for work of the service's own beside that of clients.
const OWN_WORK_MAX: usize = 64;

/// Why a service could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The ledger.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The server.
    #[error(transparent)]
    Connect(#[from] ConnectFault),
    /// The address of `/live` and `/ready`.
    #[error(
        "cannot serve HTTP at {address}: {source}; give another address with --http, or --http off"
    )]
    Http {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Another ledger is served here.
    #[error(
        "another tasklatch service (instance {}, ledger {}) answers requests on {prefix}.> already, and each would get half of \
         them; stop it, use another --prefix, or pass --allow-other-ledgers if that is what you want",
        other.instance_id, other.ledger_id
    )]
    OtherLedger {
        /// The prefix.
        prefix: String,
        /// Who.
        other: Other,
    },
    /// The client library has ended.
    #[error("the NATS client has ended: {0}; start the service again")]
    ClientEnded(async_nats::Error),
    /// The server did not confirm that requests come in.
    #[error("the NATS server does not answer: {0}")]
    NoRoundTrip(#[from] RoundTripError),
    /// The file or the disk is damaged.
    #[error(
        "the database is damaged or its disk fails, so nothing more is written to it: {0}; check the disk, and restore a snapshot if the file is broken"
    )]
    Damaged(Fault),
    /// The operating system gives no thread.
    #[error("cannot start a thread: {0}; check the limits on processes and threads")]
    NoThread(std::io::Error),
    /// There is no second connection to the file.
    #[error("{0}; start the service again")]
    Fold(Fault),
    /// The store failed while the service was stopping.
    #[error("the database could not be closed: {0}; what was accepted is safe")]
    Close(Fault),
    /// A part of the service broke off.
    #[error(
        "the {0} broke off, which is a fault of tasklatch; start the service again and report the log above"
    )]
    BrokeOff(&'static str),
}

impl ServiceError {
    /// The exit code of a program that ends for this.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Open(_)
            | Self::Http { .. }
            | Self::OtherLedger { .. }
            | Self::ClientEnded(_)
            | Self::Damaged(_)
            | Self::Close(_)
            | Self::Fold(_)
            | Self::NoThread(_)
            | Self::BrokeOff(_)
            | Self::Connect(ConnectFault::Refused { .. }) => 1,
            Self::Connect(ConnectFault::Config(_)) => 2,
            Self::NoRoundTrip(_) => 75,
        }
    }
}

/// A service that runs.
pub struct Service {
    ledger: Ledger,
    http_addr: Option<SocketAddr>,
    connection: Connection,
    health: Arc<Health>,
    work: mpsc::Sender<Work>,
    consumer: Consumer,
    /// Takes no more requests.
    drain: CancellationToken,
    /// Publishes what is left, and ends.
    finish: CancellationToken,
    /// Ends at once.
    abandon: CancellationToken,
    endpoints: JoinSet<Endpoint>,
    applier: JoinHandle<Result<Writer, Fault>>,
    answers: JoinHandle<()>,
    relay: JoinHandle<Result<(), async_nats::Error>>,
    _relay_thread: RelayThread,
    folding: JoinHandle<Result<(), Fault>>,
    /// Those that hold nothing: discovery, the sweep, HTTP.
    attendants: JoinSet<()>,
}

/// Starts a service: when this returns, requests are served.
///
/// # Errors
/// [`ServiceError`]. What was taken on by then may have been applied without an answer, and is answered when it is sent
/// again.
pub async fn start(config: Config) -> Result<Service, ServiceError> {
    let (ledger, writer) = ledger::open(&config.database, "the tasklatch service").await?;
    let folder = writer.folder().await.map_err(ServiceError::Fold)?;
    let http = match config.http {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let connection = connect(&config.nats, "tasklatch").await?;
    let relay_thread = RelayThread::start()?;
    let events = relay_thread.connect(&config.nats).await?;
    let mut attendants = JoinSet::new();
    let standing = arrive(&config, &connection, &ledger, &mut attendants).await?;
    let client = connection.client.clone();

    let health = Arc::new(Health::new(client.clone()));
    let replier = Replier::new(client.clone(), config.subjects.clone(), standing.statistics);
    let (work, work_in) = mpsc::channel(config.max_in_hand + OWN_WORK_MAX);
    let (applied, applied_out) = mpsc::unbounded_channel();
    let (committed, committed_seen) = watch::channel(writer.last_seq());
    let [drain, finish, abandon] = std::array::from_fn(|_| CancellationToken::new());
    let consumer = Consumer::new(
        ledger.clone(),
        replier.clone(),
        work.clone(),
        config.max_in_hand,
        health.clone(),
        abandon.clone(),
    );
    let applier = Applier {
        writer,
        work: work_in,
        applied,
        committed,
        replier: replier.clone(),
        health: health.clone(),
    };
    let folding = fold(folder, work.clone(), committed_seen.clone(), finish.clone());
    let relay = Relay {
        ledger: ledger.clone(),
        connection: events,
        subjects: config.subjects.clone(),
        committed: committed_seen,
        work: work.clone(),
        health: health.clone(),
    };
    attendants.spawn(sweep(
        ledger.clone(),
        work.clone(),
        health.clone(),
        drain.clone(),
    ));
    let http_addr = match http {
        Some((http, address)) => {
            attendants.spawn(serve_http(http, health.clone()));
            Some(address)
        }
        None => None,
    };
    let mut service = Service {
        ledger,
        http_addr,
        connection,
        health,
        work,
        consumer,
        drain,
        endpoints: JoinSet::new(),
        applier: tokio::spawn(applier.run()),
        answers: tokio::spawn(send_all(applied_out, replier)),
        relay: relay_thread.spawn(relay.run(finish.clone(), abandon.clone())),
        _relay_thread: relay_thread,
        folding: tokio::spawn(folding),
        finish,
        abandon,
        attendants,
    };
    service.serve(&config.subjects).await?;
    standing.served.store(true, Ordering::Release);
    Ok(service)
}

/// The thread of the relay and its connection. To publish takes as much as to apply; on threads that are shared, the
/// scheduler moves that work about between the steps of a report.
struct RelayThread(Option<Runtime>);

impl RelayThread {
    fn start() -> Result<Self, ServiceError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("relay")
            .enable_all()
            .build()
            .map_err(ServiceError::NoThread)?;
        Ok(Self(Some(runtime)))
    }

    async fn connect(&self, nats: &NatsOptions) -> Result<Connection, ServiceError> {
        let nats = nats.clone();
        let connecting = async move { connect(&nats, "tasklatch events").await };
        let connected = self.spawn(connecting).await;
        Ok(connected.map_err(|_| ServiceError::BrokeOff("connection for events"))??)
    }

    fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        match &self.0 {
            Some(runtime) => runtime.spawn(work),
            // Only while it is dropped.
            None => tokio::spawn(work),
        }
    }
}

impl Drop for RelayThread {
    fn drop(&mut self) {
        // A runtime must not wait for its thread where others run.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// What discovery tells of the service.
struct Standing {
    statistics: Arc<Statistics>,
    /// Whether the endpoints are served yet.
    served: Arc<AtomicBool>,
}

/// Makes the service known, and looks at who and what is there already.
async fn arrive(
    config: &Config,
    connection: &Connection,
    ledger: &Ledger,
    attendants: &mut JoinSet<()>,
) -> Result<Standing, ServiceError> {
    let client = &connection.client;
    let statistics = Arc::new(Statistics::default());
    let served = Arc::new(AtomicBool::new(false));
    let subjects = config.subjects.clone();
    let discovery = Discovery::begin(client.clone(), subjects, ledger.ledger_id())
        .await
        .map_err(|error| ServiceError::ClientEnded(error.into()))?;
    let search = discovery.search();
    attendants.spawn(discovery.run(statistics.clone(), served.clone()));
    refuse_other_ledgers(config, connection, &search).await?;
    warn_of_streams(connection, &config.subjects).await;
    if client.max_payload() < MAX_PAYLOAD_USUAL {
        tracing::warn!(
            server.max_payload = client.max_payload(),
            "the NATS server carries smaller messages than usual: tasks and reports near the limits of the protocol are refused"
        );
    }
    Ok(Standing { statistics, served })
}

async fn bind(address: SocketAddr) -> Result<(Http, SocketAddr), ServiceError> {
    let failed = |source| ServiceError::Http { address, source };
    let http = Http::bind(address).await.map_err(failed)?;
    let address = http.address().map_err(failed)?;
    Ok((http, address))
}

async fn serve_http(http: Http, health: Arc<Health>) {
    if let Err(error) = http.serve(health).await {
        tracing::error!(error = %error, "HTTP is no longer served");
    }
}

async fn refuse_other_ledgers(
    config: &Config,
    connection: &Connection,
    search: &Search,
) -> Result<(), ServiceError> {
    // The server knows our own subscriptions before we ask, so that of two services that start together each sees the
    // other.
    round_trip(connection, ROUND_TRIP_WITHIN).await?;
    match search
        .find_other()
        .await
        .map_err(ServiceError::ClientEnded)?
    {
        Some(other) if !config.allow_other_ledgers => {
            let prefix = config.subjects.prefix().to_owned();
            Err(ServiceError::OtherLedger { prefix, other })
        }
        Some(other) => {
            tracing::warn!(other.ledger_id = %other.ledger_id, other.instance_id = %other.instance_id, "another service answers under the same prefix, as allowed");
            Ok(())
        }
        None => Ok(()),
    }
}

/// A stream that covers a request subject answers every request first, with an acknowledgment that a client may take for
/// ours.
async fn warn_of_streams(connection: &Connection, subjects: &Subjects) {
    let mut jetstream = async_nats::jetstream::new(connection.client.clone());
    jetstream.set_timeout(JETSTREAM_WITHIN);
    for endpoint in Endpoint::ALL {
        let subject = subjects.of(endpoint);
        match jetstream.stream_by_subject(&subject).await {
            Ok(stream) => tracing::warn!(
                stream.name = %stream,
                request.subject = %subject,
                "a stream covers a request subject and acknowledges each request before it is answered; take the subject out of the stream"
            ),
            // Without JetStream, or without the right to ask, there is nothing to find out.
            Err(error)
                if error.kind()
                    != async_nats::jetstream::context::GetStreamByNameErrorKind::NotFound =>
            {
                tracing::debug!(error = %error, "cannot ask for streams that cover request subjects");
                return;
            }
            Err(_) => {}
        }
    }
}

/// Expires tasks for observers, so that they hear of it though nobody asks. While the store is in trouble it also looks
/// whether that has passed.
async fn sweep(
    ledger: Ledger,
    work: mpsc::Sender<Work>,
    health: Arc<Health>,
    stop: CancellationToken,
) {
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ticks = 0;
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = stop.cancelled() => return,
        }
        ticks = (ticks + 1) % LOOK_TICKS;
        if health.is_store_in_trouble() {
            have_applied(&work, Command::Probe).await;
        } else if ticks == 0 {
            // Retries are answered from memory; with nothing else to do, the writer must still notice if its file is gone.
            have_applied(&work, Command::Look).await;
        }
        if let Err(fault) = consumer::expire_due(&ledger, &work).await {
            tracing::warn!(error = %fault, "tasks whose deadline has come could not be expired; trying again");
        }
    }
}

/// Folds the write-ahead log beside the writer until `finish` is called for, and closes its connection.
async fn fold(
    mut folder: Folder,
    work: mpsc::Sender<Work>,
    mut committed: watch::Receiver<i64>,
    finish: CancellationToken,
) -> Result<(), Fault> {
    let mut is_failing = false;
    loop {
        let again = async {
            let more = committed.changed().await;
            tokio::time::sleep(FOLD_INTERVAL).await;
            more.is_ok()
        };
        // Without a writer the file may be somebody else's by now.
        if finish.run_until_cancelled(again).await != Some(true) || committed.has_changed().is_err()
        {
            return folder.close().await;
        }
        match folder.fold().await {
            Ok(is_long) => {
                is_failing = false;
                if is_long {
                    let command = Command::Fold;
                    let then = Then::Nothing;
                    let _ = work.send(Work { command, then }).await;
                }
            }
            // The log is whole and grows on; the writer finds out what is wrong with the disk.
            Err(fault) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(error = %fault, "the write-ahead log cannot be folded; it grows until it can");
                }
            }
        }
    }
}

impl Service {
    /// The identity of the ledger.
    pub fn ledger_id(&self) -> &str {
        self.ledger.ledger_id()
    }

    /// Where `/live` and `/ready` are served.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http_addr
    }

    /// Subscribes to all endpoints and sees that the server knows of it.
    async fn serve(&mut self, subjects: &Subjects) -> Result<(), ServiceError> {
        let subscriptions = consumer::subscribe(&self.connection.client, subjects)
            .await
            .map_err(|error| ServiceError::ClientEnded(error.into()))?;
        for (endpoint, messages) in subscriptions {
            let taken = self
                .consumer
                .clone()
                .take(endpoint, messages, self.drain.clone());
            self.endpoints.spawn(async move {
                taken.await;
                endpoint
            });
        }
        Ok(round_trip(&self.connection, ROUND_TRIP_WITHIN).await?)
    }

    /// Serves until `shutdown` is cancelled or a part of the service breaks off, and stops in order: no new requests, what
    /// is in hand is applied and answered, what is committed is published, the database is closed. Nothing that was
    /// accepted is lost, however this ends.
    ///
    /// # Errors
    /// [`ServiceError`] if it did not end because it was asked to, or not cleanly.
    pub async fn run_until(mut self, shutdown: CancellationToken) -> Result<(), ServiceError> {
        let mut applied = None;
        let ended = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            _ = self.endpoints.join_next() => Err(ServiceError::BrokeOff("subscription of an endpoint")),
            result = &mut self.applier => {
                applied = Some(());
                Err(match result {
                    Ok(Err(fault)) => ServiceError::Damaged(fault),
                    _ => ServiceError::BrokeOff("writer"),
                })
            }
            result = &mut self.relay => Err(match result {
                Ok(Err(error)) => ServiceError::ClientEnded(error),
                _ => ServiceError::BrokeOff("relay"),
            }),
            _ = &mut self.folding => Err(ServiceError::BrokeOff("folding of the write-ahead log")),
        };
        let stopped = self.stop(applied.is_some()).await;
        match (ended, stopped) {
            // Other parts break off once the writer has; the damage is the reason.
            (_, Err(damaged @ ServiceError::Damaged(_))) => Err(damaged),
            (ended, stopped) => ended.and(stopped),
        }
    }

    async fn stop(mut self, applier_ended: bool) -> Result<(), ServiceError> {
        tracing::info!("stopping: finishing what is in hand");
        self.health.stopping();
        self.drain.cancel();
        // A server that is gone confirms nothing, and has nothing more for us.
        let connected = self.connection.client.connection_state() == State::Connected;
        let within = if connected {
            STOP_STEP_WITHIN
        } else {
            Duration::ZERO
        };
        let endpoints = async { while self.endpoints.join_next().await.is_some() {} };
        if timeout(within, endpoints).await.is_err() {
            tracing::warn!("the server did not confirm the end of the subscriptions");
            self.endpoints.abort_all();
        }
        let in_hand = async {
            self.consumer.finish_reads().await;
            if !applier_ended {
                have_applied(&self.work, Command::Sweep).await;
            }
        };
        if timeout(STOP_STEP_WITHIN, in_hand).await.is_err() {
            tracing::warn!(
                "not all that is in hand could be applied in time; its senders get no answer and try again"
            );
            self.abandon.cancel();
        }
        self.finish.cancel();
        if !self.relay.is_finished() && timeout(within, &mut self.relay).await.is_err() {
            tracing::warn!(
                "not all events could be published; the rest is published at the next start"
            );
            self.abandon.cancel();
            let _ = (&mut self.relay).await;
        }
        self.attendants.abort_all();
        while self.attendants.join_next().await.is_some() {}
        // The last connection to close folds the write-ahead log away, and a reader cannot; so the writer comes last.
        self.ledger.close().await;
        if !self.folding.is_finished()
            && let Ok(Err(fault)) = self.folding.await
        {
            tracing::warn!(error = %fault, "the connection that folds the write-ahead log could not be closed");
        }
        drop((self.work, self.consumer));
        let closed = match applier_ended {
            true => Ok(()),
            false => close(self.applier).await,
        };
        if timeout(STOP_STEP_WITHIN, self.answers).await.is_err() {
            tracing::warn!("not all answers could be sent in time; their receivers try again");
        }
        if connected && let Err(error) = round_trip(&self.connection, STOP_STEP_WITHIN).await {
            tracing::warn!(error = %error, "the server did not confirm the last answers");
        }
        closed
    }
}

/// Has a command applied and waits for that. Work is applied in order, so all that was queued before is applied then too.
async fn have_applied(work: &mpsc::Sender<Work>, command: Command) {
    let (tell, told) = oneshot::channel();
    let then = Then::Tell(tell);
    if work.send(Work { command, then }).await.is_ok() {
        let _ = told.await;
    }
}

async fn close(applier: JoinHandle<Result<Writer, Fault>>) -> Result<(), ServiceError> {
    match applier.await {
        Ok(Ok(writer)) => writer.close().await.map_err(ServiceError::Close),
        Ok(Err(fault)) => Err(ServiceError::Damaged(fault)),
        Err(_) => Err(ServiceError::BrokeOff("writer")),
    }
}
