//! A stream of events, as they come.

use async_nats::{HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::value::RawValue;

use super::ClientError;
use super::history::History;
use crate::task::Timestamp;
use crate::wire::{CloudEvent, EventKind};

/// A running subscription to events. It ends when it is dropped.
pub struct Watch {
    pub(super) source: Source,
    pub(super) subject: String,
}

/// Where the events of a watch come from.
pub(super) enum Source {
    /// From whoever publishes them, while somebody listens.
    Live(Subscriber),
    /// From the event stream.
    Stream(Box<History>),
}

impl Watch {
    /// The subject that it listens on.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The next event; `None` when the connection has ended for good. An error is only said once: the next call waits
    /// until it has passed, and leaves out nothing.
    pub async fn next(&mut self) -> Option<Result<WatchedEvent, ClientError>> {
        let came = match &mut self.source {
            Source::Live(subscriber) => Ok(subscriber.next().await?),
            Source::Stream(history) => history.next().await,
        };
        let Message {
            subject,
            payload,
            headers,
            ..
        } = match came {
            Ok(message) => message,
            Err(error) => return Some(Err(error)),
        };
        let headers = headers.unwrap_or_default();
        Some(Ok(WatchedEvent {
            subject: subject.into_string(),
            headers,
            payload,
        }))
    }
}

/// A message on an event subject, as it came.
#[derive(Clone, Debug)]
pub struct WatchedEvent {
    /// Where it was published.
    pub subject: String,
    /// The attributes of the event.
    pub headers: HeaderMap,
    /// The data of the event.
    pub payload: Bytes,
}

/// A message on an event subject that is no event of this protocol: somebody else published it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message on {subject} is no event: {what}")]
pub struct NotAnEvent {
    subject: String,
    what: String,
}

impl WatchedEvent {
    /// The event in the JSON format of CloudEvents, with its data as it came.
    ///
    /// # Errors
    /// [`NotAnEvent`].
    pub fn cloud_event(&self) -> Result<CloudEvent, NotAnEvent> {
        let wrong = |what: String| NotAnEvent {
            subject: self.subject.clone(),
            what,
        };
        let header = |name: &str| {
            let value = self
                .headers
                .get(name)
                .map(|value| value.as_str().to_owned());
            value.ok_or_else(|| wrong(format!("it has no header {name}")))
        };
        let kind = header("ce-type")?;
        let time = header("ce-time")?;
        Ok(CloudEvent {
            specversion: header("ce-specversion")?,
            id: header("ce-id")?,
            source: header("ce-source")?,
            kind: EventKind::from_word(&kind)
                .ok_or_else(|| wrong(format!("its type {kind:?} is not known")))?,
            time: Timestamp::parse(&time)
                .ok_or_else(|| wrong(format!("its time {time:?} is no time")))?,
            subject: header("ce-subject")?,
            datacontenttype: header("content-type")?,
            data: serde_json::from_slice::<Box<RawValue>>(&self.payload)
                .map_err(|error| wrong(format!("its payload is not JSON: {error}")))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> WatchedEvent {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-id", "t-1.2.task"),
            ("ce-source", "tasklatch/l"),
            ("ce-type", "tasklatch.task.updated"),
            ("ce-time", "2026-11-30T07:41:22.123456Z"),
            ("ce-subject", "t-1"),
            ("content-type", "application/json"),
        ] {
            headers.insert(name, value);
        }
        let payload = Bytes::from_static(br#"{"n":1.0}"#);
        WatchedEvent {
            subject: "tasklatch.event.task.t-1".to_owned(),
            headers,
            payload,
        }
    }

    #[test]
    fn an_event_in_the_json_format_has_every_attribute_and_its_data_as_it_came() {
        let text = serde_json::to_string(&event().cloud_event().unwrap()).unwrap();
        let expected = concat!(
            r#"{"specversion":"1.0","id":"t-1.2.task","source":"tasklatch/l","#,
            r#""type":"tasklatch.task.updated","time":"2026-11-30T07:41:22.123456Z","subject":"t-1","#,
            r#""datacontenttype":"application/json","data":{"n":1.0}}"#
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_message_that_is_no_event_says_why() {
        let bare = WatchedEvent {
            headers: HeaderMap::new(),
            ..event()
        };
        let error = bare.cloud_event().unwrap_err().to_string();
        assert_eq!(
            error,
            "a message on tasklatch.event.task.t-1 is no event: it has no header ce-type"
        );
        let garbled = WatchedEvent {
            payload: Bytes::from_static(b"nope"),
            ..event()
        };
        assert!(garbled.cloud_event().is_err());
    }
}
