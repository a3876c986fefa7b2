//! The JetStream streams of the protocol: made where they are missing, checked where they are there
//! (docs/protocol.md, "Names").

use std::time::Duration;

use async_nats::jetstream::context::{
    CreateStreamError, GetStreamError, GetStreamErrorKind, RequestError, RequestErrorKind,
};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{Context, ErrorCode};

use crate::config::{DUPLICATE_WINDOW_MIN, EventsOptions, RetentionMode};
use crate::wire::{StreamKind, Subjects};

/// How long the server may take to answer about a stream.
pub const JETSTREAM_WITHIN: Duration = Duration::from_secs(5);

/// Why a stream cannot be used now. All of it may pass: an operator can mend each.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The server does not say.
    #[error(
        "the stream {name} cannot be asked for: {source}; check that the server has JetStream, and the permissions on $JS.API.>"
    )]
    Get {
        /// The stream.
        name: String,
        /// Why.
        source: GetStreamError,
    },
    /// It is missing and cannot be made.
    #[error("the stream {name} is missing and cannot be made: {source}")]
    Create {
        /// The stream.
        name: String,
        /// Why.
        source: CreateStreamError,
    },
    /// It is there, and is not what it must be.
    #[error("the stream {name} {what}; change it, or remove it and have it made anew")]
    Unfit {
        /// The stream.
        name: String,
        /// What is wrong with it.
        what: String,
    },
}

/// How a stream must be, and how it is made.
#[derive(Clone, Debug)]
pub struct Wanted {
    config: Config,
}

/// A stream that is there.
#[derive(Debug)]
pub struct Ensured {
    /// The stream, with what the server said of it just now.
    pub stream: Stream,
    /// Whether it was made for this.
    pub is_new: bool,
}

impl Wanted {
    /// The stream of events.
    pub fn events(subjects: &Subjects, options: &EventsOptions) -> Self {
        let retention = match options.events_retention {
            RetentionMode::Limits => RetentionPolicy::Limits,
            RetentionMode::Interest => RetentionPolicy::Interest,
        };
        let max_age = options.events_max_age.unwrap_or_default();
        let duplicate_window = match options.events_max_age {
            // The server takes no window that is longer than the age.
            Some(max_age) => options.events_duplicate_window.min(max_age),
            None => options.events_duplicate_window,
        };
        Self::of(
            subjects,
            StreamKind::Events,
            Config {
                retention,
                num_replicas: options.events_replicas,
                duplicate_window,
                max_age,
                ..Config::default()
            },
        )
    }

    /// The stream of reports: each is taken out once it is settled.
    pub fn reports(subjects: &Subjects) -> Self {
        Self::of(
            subjects,
            StreamKind::Reports,
            Config {
                retention: RetentionPolicy::WorkQueue,
                num_replicas: 1,
                // Reports are told apart by their content. A worker that knows what `Nats-Msg-Id` another will send could
                // have its report taken for a duplicate, and dropped.
                duplicate_window: DUPLICATE_WINDOW_MIN,
                ..Config::default()
            },
        )
    }

    /// The stream of reports that can never be applied.
    pub fn dead(subjects: &Subjects) -> Self {
        Self::of(
            subjects,
            StreamKind::Dead,
            Config {
                num_replicas: 1,
                ..Config::default()
            },
        )
    }

    fn of(subjects: &Subjects, kind: StreamKind, config: Config) -> Self {
        let config = Config {
            name: subjects.stream(kind),
            subjects: vec![subjects.all_of(kind)],
            storage: StorageType::File,
            // A stream that is full must say so, and not let go of what nobody has seen.
            discard: DiscardPolicy::New,
            ..config
        };
        Self { config }
    }

    /// The name of the stream.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Gets the stream, and makes it if it is missing. A stream that is there is left as it is.
    ///
    /// # Errors
    /// [`StreamError`].
    pub async fn ensure(&self, context: &Context) -> Result<Ensured, StreamError> {
        let name = || self.config.name.clone();
        let mut is_new = false;
        let stream = match context.get_stream(&self.config.name).await {
            Ok(stream) => stream,
            Err(error) if is_missing(&error) => {
                let made = context.create_stream(self.config.clone()).await;
                let stream = made.map_err(|source| StreamError::Create {
                    name: name(),
                    source,
                })?;
                tracing::info!(stream.name = %self.config.name, "made a stream");
                is_new = true;
                stream
            }
            Err(source) => {
                return Err(StreamError::Get {
                    name: name(),
                    source,
                });
            }
        };
        match self.unfit(&stream.cached_info().config) {
            None => Ok(Ensured { stream, is_new }),
            Some(what) => Err(StreamError::Unfit { name: name(), what }),
        }
    }

    /// What keeps a stream that is there from being the one that is meant.
    fn unfit(&self, there: &Config) -> Option<String> {
        let wanted = &self.config;
        let subject = &wanted.subjects[0];
        if !there.subjects.iter().any(|one| covers(one, subject)) {
            return Some(format!(
                "has the subjects {}, and not {subject}",
                there.subjects.join(", ")
            ));
        }
        if there.storage != StorageType::File {
            return Some("is kept in memory, and would lose what it holds".to_owned());
        }
        if there.no_ack {
            return Some("acknowledges nothing".to_owned());
        }
        if there.sealed {
            return Some("is sealed and takes nothing".to_owned());
        }
        let is_queue = |config: &Config| config.retention == RetentionPolicy::WorkQueue;
        if is_queue(there) != is_queue(wanted) {
            return Some(format!(
                "has the retention {:?}, which is not for this use",
                there.retention
            ));
        }
        None
    }
}

/// Whether the server, or the account of this login, has JetStream. A server that says nothing of it may have it: then it is
/// only not there now, or this login may not ask.
pub async fn has_jetstream(context: &Context, wanted: &Wanted) -> bool {
    let Err(error) = context.get_stream(wanted.name()).await else {
        return true;
    };
    let off = [
        ErrorCode::JETSTREAM_NOT_ENABLED,
        ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT,
    ];
    match error.kind() {
        GetStreamErrorKind::JetStream(error) => !off.contains(&error.error_code()),
        // Nobody subscribes to the subjects of the API where there is no JetStream.
        _ => !has_no_responders(&error),
    }
}

fn has_no_responders(error: &GetStreamError) -> bool {
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<RequestError>())
        .is_some_and(|error| error.kind() == RequestErrorKind::NoResponders)
}

fn is_missing(error: &GetStreamError) -> bool {
    matches!(error.kind(), GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

/// Whether all that the subject `inner` stands for is part of `outer`.
fn covers(outer: &str, inner: &str) -> bool {
    let mut inner = inner.split('.');
    let mut outer = outer.split('.');
    loop {
        match (outer.next(), inner.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_covers_what_it_stands_for_and_no_more() {
        for outer in ["a.event.>", "a.>", ">", "*.event.>"] {
            assert!(covers(outer, "a.event.>"), "{outer}");
        }
        for outer in ["a.event.*", "a.event", "a.event.task.>", "b.>"] {
            assert!(!covers(outer, "a.event.>"), "{outer}");
        }
    }
}
