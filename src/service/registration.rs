//! What a service does before it serves: it looks whether the server has what it needs, makes itself known, and looks who and
//! what is there already.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_nats::Client;
use tokio::task::JoinSet;

use super::{Config, ROUND_TRIP_WITHIN, ServiceError};
use crate::config::EventsMode;
use crate::consumer::discovery::{Discovery, Search, Statistics};
use crate::ledger::Ledger;
use crate::nats::{Connection, round_trip};
use crate::relay::Way;
use crate::streams::{Wanted, has_jetstream};
use crate::wire::{Endpoint, Subjects};

/// How long JetStream may take to say which streams there are.
const JETSTREAM_WITHIN: Duration = Duration::from_secs(2);

/// How often a server is asked for JetStream that says that it has none, and the pause between: in a cluster that has only
/// just formed, nobody may answer yet.
const JETSTREAM_TRIES: u32 = 4;
const JETSTREAM_RETRY: Duration = Duration::from_millis(500);

/// The default `max_payload` of a NATS server, in bytes: with it all that keeps the limits of the protocol fits.
const MAX_PAYLOAD_USUAL: usize = 1024 * 1024;

/// What discovery tells of the service.
pub(super) struct Standing {
    pub(super) statistics: Arc<Statistics>,
    /// Whether the endpoints are served yet.
    pub(super) served: Arc<AtomicBool>,
}

/// Makes the service known, and looks at who and what is there already.
pub(super) async fn arrive(
    config: &Config,
    connection: &Connection,
    ledger: &Ledger,
    attendants: &mut JoinSet<()>,
) -> Result<Standing, ServiceError> {
    let statistics = Arc::new(Statistics::default());
    let served = Arc::new(AtomicBool::new(false));
    let subjects = config.subjects.clone();
    let discovery = Discovery::begin(connection.clone(), subjects, ledger.ledger_id())
        .await
        .map_err(|error| ServiceError::ClientEnded(error.into()))?;
    let search = discovery.search();
    attendants.spawn(discovery.run(statistics.clone(), served.clone()));
    refuse_other_ledgers(config, connection, &search).await?;
    warn_of_streams(connection, &config.subjects).await;
    let max_payload = connection.max_payload();
    if max_payload < MAX_PAYLOAD_USUAL {
        tracing::warn!(
            server.max_payload = max_payload,
            "the NATS server carries smaller messages than usual: tasks and reports near the limits of the protocol are refused"
        );
    }
    Ok(Standing { statistics, served })
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

/// How events are published.
pub(super) fn way(config: &Config) -> Way {
    let stream = Box::new(Wanted::events(&config.subjects, &config.outbox));
    match config.events {
        EventsMode::Core => Way::Core(stream),
        EventsMode::Jetstream => Way::Stream(stream),
    }
}

/// A server without JetStream stores no event, however long it is waited for.
pub(super) async fn refuse_without_jetstream(
    config: &Config,
    way: &Way,
    connection: &Connection,
) -> Result<(), ServiceError> {
    let Way::Stream(wanted) = way else {
        return Ok(());
    };
    let mut jetstream = async_nats::jetstream::new(Client::clone(&connection.client()));
    jetstream.set_timeout(JETSTREAM_WITHIN);
    for _ in 0..JETSTREAM_TRIES {
        if has_jetstream(&jetstream, wanted).await {
            return Ok(());
        }
        tokio::time::sleep(JETSTREAM_RETRY).await;
    }
    Err(ServiceError::NoJetstream {
        url: config.nats.shown_urls(),
    })
}

/// A stream that covers a request subject answers every request first, with an acknowledgment that a client may take for
/// ours.
async fn warn_of_streams(connection: &Connection, subjects: &Subjects) {
    let mut jetstream = async_nats::jetstream::new(Client::clone(&connection.client()));
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
