//! What is logged of a connection that is lost: one line when it is lost, with the cause, and one when it is back, with how
//! long it was away and how many tries failed. The lines of the client library say the same for each try, and are left out
//! of the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::LogPace;

/// How long the cause of a loss is waited for: the client tells of it with the first try that fails.
const CAUSE_WITHIN: Duration = Duration::from_secs(1);

/// An error of the server that came no longer before a loss is the cause of it.
const SAID_WITHIN: Duration = Duration::from_secs(1);

/// The outages of one connection.
#[derive(Debug)]
pub(super) struct OutageLog {
    connection: &'static str,
    state: Mutex<State>,
    /// Whoever has the connection lost again and again must not fill the log.
    pace: LogPace,
}

#[derive(Debug, Default)]
struct State {
    outage: Option<Outage>,
    /// Outages that began too soon after another to be logged.
    unlogged: u64,
    /// What the server said last.
    said: Option<(Instant, String)>,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    cause: Option<String>,
    failures: u64,
    told: Told,
}

/// Whether the log has a line of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    NotYet,
    Yes,
    /// It began too soon after another.
    LeftOut,
}

impl OutageLog {
    pub(super) fn new(connection: &'static str) -> Self {
        Self {
            connection,
            state: Mutex::default(),
            pace: LogPace::default(),
        }
    }

    /// No server could be reached at the start.
    pub(super) fn no_server_yet(&self, url: &str, error: &dyn std::error::Error) {
        let mut state = self.lock();
        let is_first = state.outage.is_none();
        let outage = state.outage.get_or_insert_with(|| Outage {
            since: Instant::now(),
            cause: Some(error.to_string()),
            failures: 0,
            told: Told::Yes,
        });
        outage.failures += 1;
        if is_first {
            tracing::warn!(nats.connection = self.connection, nats.url = url, error = %error, "no NATS server yet; trying again until there is one");
        }
    }

    /// The server reports an error, after which it may end the connection.
    pub(super) fn server_said(&self, error: &str) {
        self.lock().said = Some((Instant::now(), error.to_owned()));
    }

    /// The connection is lost; the library tries to have it back.
    pub(super) fn lost(self: &Arc<Self>) {
        let mut state = self.lock();
        let said = state.said.take();
        let cause = said.filter(|(at, _)| at.elapsed() < SAID_WITHIN);
        self.begin(&mut state, cause.map(|(_, error)| error));
        if !self.is_untold(&state) {
            return;
        }
        let log = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(CAUSE_WITHIN).await;
            let mut state = log.lock();
            log.tell(&mut state, "the server does not reply");
        });
    }

    /// The client has ended, and another is to take its place.
    pub(super) fn ended(&self, cause: String) {
        let mut state = self.lock();
        self.begin(&mut state, Some(cause));
    }

    /// A try to connect failed.
    pub(super) fn failed(&self, error: &str) {
        let mut state = self.lock();
        let Some(outage) = &mut state.outage else {
            tracing::warn!(
                nats.connection = self.connection,
                error,
                "the NATS client reports an error"
            );
            return;
        };
        outage.failures += 1;
        outage.cause.get_or_insert_with(|| error.to_owned());
        self.tell(&mut state, error);
    }

    /// The server is connected to.
    pub(super) fn connected(&self) {
        let mut state = self.lock();
        self.tell(&mut state, "the connection was closed");
        match state.outage.take() {
            None => tracing::info!(
                nats.connection = self.connection,
                "connected to the NATS server"
            ),
            Some(outage) if outage.told == Told::Yes => tracing::info!(
                nats.connection = self.connection,
                outage.seconds = outage.since.elapsed().as_secs_f64(),
                outage.failures = outage.failures,
                "connected to the NATS server"
            ),
            Some(_) => {}
        }
    }

    /// How long the server has been away, and why, for people.
    pub(super) fn shown(&self) -> Option<String> {
        let state = self.lock();
        let outage = state.outage.as_ref()?;
        let seconds = outage.since.elapsed().as_secs();
        let cause = outage.cause.as_deref().unwrap_or("it is lost");
        Some(format!(
            "for {seconds} s (connection `{}`): {cause}",
            self.connection
        ))
    }

    fn begin(&self, state: &mut State, cause: Option<String>) {
        if state.outage.is_some() {
            return;
        }
        let has_cause = cause.is_some();
        let told = match self.pace.is_due() {
            true => Told::NotYet,
            false => Told::LeftOut,
        };
        state.unlogged += u64::from(told == Told::LeftOut);
        state.outage = Some(Outage {
            since: Instant::now(),
            cause,
            failures: 0,
            told,
        });
        if has_cause {
            self.tell(state, "");
        }
    }

    fn is_untold(&self, state: &State) -> bool {
        let outage = state.outage.as_ref();
        outage.is_some_and(|outage| outage.told == Told::NotYet)
    }

    /// Logs that the connection is lost, if that is not done yet.
    fn tell(&self, state: &mut State, otherwise: &str) {
        if !self.is_untold(state) {
            return;
        }
        let unlogged = std::mem::take(&mut state.unlogged);
        if let Some(outage) = &mut state.outage {
            outage.told = Told::Yes;
            tracing::warn!(
                nats.connection = self.connection,
                error = outage.cause.as_deref().unwrap_or(otherwise),
                outages.unlogged = (unlogged > 0).then_some(unlogged),
                "lost the NATS server; connecting again until it is back"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the client library panicked last. What it said may have been sent by somebody, and is for the log alone.
static PANICKED: Mutex<Option<(Instant, String)>> = Mutex::new(None);

/// Takes note of the place of a panic in a task of the client library, which ends a connection.
pub fn note_client_panic(place: String) {
    *PANICKED.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), place));
}

/// Why a client has ended that nobody asked to.
pub(super) fn cause_of_end() -> String {
    let panicked = PANICKED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*panicked {
        Some((at, place)) if at.elapsed() < SAID_WITHIN => {
            format!("the NATS client panicked at {place}")
        }
        _ => "the NATS client ended by itself".to_owned(),
    }
}
