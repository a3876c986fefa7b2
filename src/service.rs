//! The service: everything put together, started in order and stopped in order.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::config::{EventsMode, EventsOptions, NatsOptions, OtlpEndpoint};
use crate::consumer::applier::{Applier, send_all};
use crate::consumer::durable::{self, DurableReports};
use crate::consumer::{self, Consumer, Replier, Work};
use crate::health::Health;
use crate::http::Http;
use crate::ledger::{self, Command, Fault, Ledger, Writer};
use crate::metrics::ConnectionName;
use crate::nats::{Connection, Trouble, connect, round_trip};
use crate::relay::Relay;
use crate::telemetry::Telemetry;
use crate::wire::{Endpoint, Subjects};

mod error;
mod readings;
mod registration;
mod upkeep;

pub use error::ServiceError;
use readings::Sources;
use registration::{arrive, refuse_without_jetstream, way};
use upkeep::{fold, have_applied, prune, sweep};

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
    /// How long the write-ahead log may be for new work, in bytes.
    pub max_wal_size: u64,
    /// How events are published.
    pub events: EventsMode,
    /// What becomes of events.
    pub outbox: EventsOptions,
    /// Whether reports are taken from the report stream too.
    pub durable_reports: bool,
    /// Where the spans of recorded traces are sent, if anywhere.
    pub otlp_endpoint: Option<OtlpEndpoint>,
}

/// How long the server may take for a round trip at start and stop.
const ROUND_TRIP_WITHIN: Duration = Duration::from_secs(5);

/// After how long a service that serves requests says why it is not ready yet, and how often it is looked whether it is.
const READY_SOON: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long each step of stopping may take. What is committed and not published by then is published at the next start.
const STOP_STEP_WITHIN: Duration = Duration::from_secs(5);

/// Room in the queue for work of the service's own beside that of clients.
const OWN_WORK_MAX: usize = 64;

/// A service that runs.
pub struct Service {
    ledger: Ledger,
    http_addr: Option<SocketAddr>,
    connection: Connection,
    /// That of durable reports, if they are taken.
    reports: Option<Connection>,
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
    /// Whether discovery tells of the endpoints.
    served: Arc<AtomicBool>,
}

/// Starts a service: when this returns, the server is proved to have its subscriptions, and a request that is sent is replied
/// to. [`Service::until_ready`] waits for the rest.
///
/// # Errors
/// [`ServiceError`]. What was taken on by then may have been applied without an answer, and is answered when it is sent
/// again.
pub async fn start(config: Config) -> Result<Service, ServiceError> {
    let (ledger, mut writer) = ledger::open(&config.database, "the tasklatch service").await?;
    writer.limit_unpublished(config.outbox.max_unpublished);
    writer.limit_log(config.max_wal_size);
    let folder = writer.folder().await.map_err(ServiceError::Fold)?;
    let http = match config.http {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let telemetry = config.otlp_endpoint.as_ref().map(Telemetry::start);
    let health = Arc::new(Health::new(telemetry.transpose()?));
    let sources = Arc::new(OnceLock::new());
    let mut attendants = JoinSet::new();
    let http_addr = http.map(|(http, address)| {
        attendants.spawn(serve_http(http, health.clone(), sources.clone()));
        address
    });
    health.starting(format!("the NATS server at {}", config.nats.shown_urls()));
    let connection = connect(&config.nats, "tasklatch").await?;
    let relay_thread = RelayThread::start()?;
    let events = relay_thread.connect(&config.nats).await?;
    let way = way(&config);
    health.starting("JetStream to say whether it is there".to_owned());
    refuse_without_jetstream(&config, &way, &events).await?;
    health.starting("other services of the same prefix to show themselves".to_owned());
    let standing = arrive(&config, &connection, &ledger, &mut attendants).await?;

    let replier = Replier::new(
        connection.clone(),
        config.subjects.clone(),
        standing.statistics,
        health.clone(),
    );
    let (work, work_in) = mpsc::channel(config.max_in_hand + durable::IN_HAND_MAX + OWN_WORK_MAX);
    let (applied, applied_out) = mpsc::unbounded_channel();
    let (committed, committed_seen) = watch::channel(writer.last_seq());
    let [drain, finish, abandon] = std::array::from_fn(|_| CancellationToken::new());
    let consumer = Consumer::new(
        ledger.clone(),
        replier.clone(),
        work.clone(),
        config.max_in_hand,
        health.clone(),
    );
    // A connection of its own, so that a flood of waiting reports does not hold up requests.
    let reports = match config.durable_reports {
        true => Some(connect(&config.nats, "tasklatch reports").await?),
        false => None,
    };
    let made = Sources {
        ledger: ledger.clone(),
        consumer: consumer.clone(),
        health: health.clone(),
        connections: [
            (ConnectionName::Requests, Some(connection.clone())),
            (ConnectionName::Events, Some(events.clone())),
            (ConnectionName::Reports, reports.clone()),
        ]
        .into_iter()
        .filter_map(|(name, connection)| Some((name, connection?.happenings)))
        .collect(),
        database: config.database.clone(),
        unpublished_max: config.outbox.max_unpublished,
    };
    // It is only made here.
    let _ = sources.set(made);
    let connections = [
        Some(connection.clone()),
        Some(events.clone()),
        reports.clone(),
    ];
    let durable_reports = reports
        .clone()
        .map(|connection| DurableReports::new(consumer.clone(), connection, &config.subjects));
    let applier = Applier {
        writer,
        work: work_in,
        applied,
        committed,
        replier: replier.clone(),
        health: health.clone(),
        trouble: Trouble::default(),
    };
    let folding = fold(folder, work.clone(), committed_seen.clone(), finish.clone());
    let cursor = ledger.published_seq().await.map_err(ServiceError::Store)?;
    let parked = ledger
        .parked_after(cursor)
        .await
        .map_err(ServiceError::Store)?;
    let relay = Relay {
        ledger: ledger.clone(),
        connection: events,
        subjects: config.subjects.clone(),
        committed: committed_seen,
        work: work.clone(),
        health: health.clone(),
        parked: parked.into_iter().collect(),
    };
    attendants.spawn(prune(
        ledger.clone(),
        work.clone(),
        config.outbox.keep_events,
        health.clone(),
        drain.clone(),
    ));
    attendants.spawn(sweep(
        ledger.clone(),
        work.clone(),
        health.clone(),
        drain.clone(),
    ));
    let mut service = Service {
        ledger,
        http_addr,
        connection,
        reports,
        health,
        work,
        consumer,
        drain,
        endpoints: JoinSet::new(),
        applier: tokio::spawn(applier.run()),
        answers: tokio::spawn(send_all(applied_out, replier)),
        relay: relay_thread.spawn(relay.run(way, finish.clone(), abandon.clone())),
        _relay_thread: relay_thread,
        folding: tokio::spawn(folding),
        finish,
        abandon,
        attendants,
        served: standing.served,
    };
    service
        .health
        .starting("the NATS server to confirm that it has the subscriptions".to_owned());
    service.serve(&config.subjects).await?;
    if let Some(durable_reports) = durable_reports {
        let taken = durable_reports.run(service.drain.clone());
        service.endpoints.spawn(async move {
            taken.await;
            Endpoint::ReportOfTask
        });
    }
    service.served.store(true, Ordering::Release);
    service
        .health
        .serving(connections.into_iter().flatten().collect());
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

async fn bind(address: SocketAddr) -> Result<(Http, SocketAddr), ServiceError> {
    let failed = |source| ServiceError::Http { address, source };
    let http = Http::bind(address).await.map_err(failed)?;
    let address = http.address().map_err(failed)?;
    Ok((http, address))
}

async fn serve_http(http: Http, health: Arc<Health>, sources: Arc<OnceLock<Sources>>) {
    let page = move || {
        let sources = sources.clone();
        async move { Some(sources.get()?.page().await) }
    };
    if let Err(error) = http.serve(health, page).await {
        tracing::error!(error = %error, "HTTP is no longer served");
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
        let subscriptions = consumer::subscribe(&self.connection, subjects)
            .await
            .map_err(|error| ServiceError::ClientEnded(error.into()))?;
        for (endpoint, messages) in subscriptions {
            let (consumer, connection) = (self.consumer.clone(), self.connection.clone());
            let taken = consumer.take(endpoint, connection, messages, self.drain.clone());
            self.endpoints.spawn(async move {
                taken.await;
                endpoint
            });
        }
        self.connection
            .prove_subscriptions(ROUND_TRIP_WITHIN)
            .await?;
        self.attendants.spawn(self.connection.clone().keep_proved());
        Ok(())
    }

    /// Waits until all of the service is ready. It serves requests before.
    pub fn until_ready(&self) -> impl Future<Output = ()> + use<> {
        let health = self.health.clone();
        async move {
            let mut reasons = Vec::new();
            let began = Instant::now();
            loop {
                let readiness = health.readiness();
                if readiness.ready {
                    return;
                }
                if began.elapsed() >= READY_SOON && readiness.reasons != reasons {
                    reasons = readiness.reasons;
                    tracing::warn!(
                        ?reasons,
                        "requests are served, but the service is not ready yet"
                    );
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
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
            Some(_) = self.attendants.join_next() => Err(ServiceError::BrokeOff("background task; its error is in the log")),
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
        self.served.store(false, Ordering::Release);
        self.drain.cancel();
        // A server that is gone confirms nothing, and has nothing more for us.
        let connected = self.connection.is_connected();
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
                "not all that is in flight could be applied in time; what is read is replied to with `unavailable`, and what waits \
                 for the writer once the writer can go on"
            );
            self.consumer.abandon_reads().await;
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
        if connected
            && let Some(reports) = &self.reports
            && let Err(error) = round_trip(reports, STOP_STEP_WITHIN).await
        {
            tracing::warn!(error = %error, "the server did not confirm the last acknowledgments; durable reports may be delivered again, which is harmless");
        }
        let health = self.health;
        let sent = move || {
            if let Some(telemetry) = health.telemetry() {
                telemetry.stop(STOP_STEP_WITHIN);
            }
        };
        // It waits for the collector.
        let _ = tokio::task::spawn_blocking(sent).await;
        closed
    }
}

async fn close(applier: JoinHandle<Result<Writer, Fault>>) -> Result<(), ServiceError> {
    match applier.await {
        Ok(Ok(writer)) => writer.close().await.map_err(ServiceError::Close),
        Ok(Err(fault)) => Err(ServiceError::Damaged(fault)),
        Err(_) => Err(ServiceError::BrokeOff("writer")),
    }
}
