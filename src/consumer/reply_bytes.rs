//! How many bytes of replies wait for the connection.
//!
//! A reply waits from its commit, or its read, until the client has written it to the socket. The client tells of that by a
//! flush alone; one for each reply would cost as much as the reply, so it is asked once for some megabytes of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_nats::Client;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many bytes of replies with a task or a list may wait. Refusals are small, and are bounded by the requests in flight.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// After how many bytes the client is asked whether they are written.
const FLUSH_BYTES: usize = 4 * 1024 * 1024;

/// The bytes of replies that wait.
#[derive(Debug)]
pub(super) struct ReplyBytes {
    room: Arc<Semaphore>,
    /// Bytes that were handed to the client and that no flush is asked for yet.
    sent: AtomicUsize,
}

/// The room of one reply.
#[derive(Debug)]
pub(super) struct Room(OwnedSemaphorePermit);

impl Default for ReplyBytes {
    fn default() -> Self {
        Self {
            room: Arc::new(Semaphore::new(WAITING_BYTES_MAX)),
            sent: AtomicUsize::new(0),
        }
    }
}

impl ReplyBytes {
    /// Room for a reply of so many bytes, if there is any now.
    pub(super) fn try_take(&self, bytes: usize) -> Option<Room> {
        let room = self.room.clone().try_acquire_many_owned(permits(bytes));
        room.ok().map(Room)
    }

    /// Room for a reply of so many bytes, as soon as there is some.
    pub(super) async fn take(&self, bytes: usize) -> Room {
        let room = self.room.clone().acquire_many_owned(permits(bytes)).await;
        // The semaphore is never closed.
        #[allow(clippy::expect_used)]
        Room(room.expect("room for a reply"))
    }

    /// A reply was handed to the client; its room is free once it is written.
    pub(super) fn sent(&self, room: Room, client: Arc<Client>) {
        let bytes = room.0.num_permits();
        room.0.forget();
        if self.sent.fetch_add(bytes, Ordering::Relaxed) + bytes < FLUSH_BYTES {
            return;
        }
        let bytes = self.sent.swap(0, Ordering::Relaxed);
        let room = self.room.clone();
        tokio::spawn(async move {
            // With a client that has ended, what it held is gone too.
            let _ = client.flush().await;
            room.add_permits(bytes);
        });
    }
}

/// A reply that an unusually large `max_payload` allows counts as no more than half of the room, so that it has some in the end.
fn permits(bytes: usize) -> u32 {
    bytes.clamp(1, WAITING_BYTES_MAX / 2) as u32
}
