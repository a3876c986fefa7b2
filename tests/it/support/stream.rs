//! The event stream, as any client of JetStream sees it.

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;

use super::{Broker, Seen, eventually};

/// What is in the event stream.
pub struct EventStream {
    pub context: Context,
}

pub const NAME: &str = "TASKLATCH_EVENTS";

impl EventStream {
    /// Looks on a connection of its own.
    pub async fn of(broker: &Broker) -> Self {
        Self {
            context: async_nats::jetstream::new(broker.client().await),
        }
    }

    /// Makes the stream before a service does.
    pub async fn make(&self, config: Config) {
        let config = Config {
            name: NAME.to_owned(),
            subjects: vec!["tasklatch.event.>".to_owned()],
            ..config
        };
        self.context.create_stream(config).await.unwrap();
    }

    /// Changes the stream's configuration.
    pub async fn change(&self, change: impl FnOnce(&mut Config)) {
        let stream = self.context.get_stream(NAME).await.unwrap();
        let mut config = stream.cached_info().config.clone();
        change(&mut config);
        self.context.update_stream(config).await.unwrap();
    }

    /// All messages of the stream, in its order. Nothing if there is no stream.
    pub async fn all(&self) -> Vec<Seen> {
        let Ok(stream) = self.context.get_stream(NAME).await else {
            return Vec::new();
        };
        let state = &stream.cached_info().state;
        let mut seen = Vec::new();
        for sequence in state.first_sequence.max(1)..=state.last_sequence {
            // One that was deleted.
            let Ok(message) = stream.get_raw_message(sequence).await else {
                continue;
            };
            seen.push(Seen {
                subject: message.subject.to_string(),
                headers: message.headers,
                payload: message.payload,
            });
        }
        seen
    }

    /// The `ce-id` of all messages, in the order of the stream.
    pub async fn ids(&self) -> Vec<String> {
        let id = |seen: Seen| {
            let id = seen.headers.get("ce-id").map(|id| id.as_str().to_owned());
            id.unwrap_or_else(|| seen.subject.clone())
        };
        self.all().await.into_iter().map(id).collect()
    }

    /// How many messages it has taken since it was made.
    pub async fn last_sequence(&self) -> u64 {
        match self.context.get_stream(NAME).await {
            Ok(stream) => stream.cached_info().state.last_sequence,
            Err(_) => 0,
        }
    }

    /// Waits until it has taken so many messages.
    pub async fn until(&self, last_sequence: u64) {
        eventually(
            &format!("{last_sequence} messages in the stream"),
            async || (self.last_sequence().await >= last_sequence).then_some(()),
        )
        .await;
    }

    /// Waits until the stream has forgotten the IDs of all that it has taken so far.
    pub async fn until_window_is_over(&self) {
        let id = format!("probe-{}", uuid::Uuid::now_v7());
        let publish = async || {
            let message = async_nats::jetstream::message::PublishMessage::build()
                .header("ce-id", "tasklatch.event.probe")
                .message_id(&id);
            let ack = self
                .context
                .send_publish("tasklatch.event.probe.x", message);
            ack.await.unwrap().await.unwrap()
        };
        assert!(!publish().await.duplicate);
        eventually("the duplicate window is over", async || {
            (!publish().await.duplicate).then_some(())
        })
        .await;
    }
}
