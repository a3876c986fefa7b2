//! Ports for servers that are stopped and started again.

use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// Where ports are taken from: below those that operating systems give to whoever asks for any, as each client that connects
/// does. One of those could be somebody else's by the time that the server comes back to it.
const FIRST: u16 = 10_000;
const PORTS: u16 = 20_000;

/// A port of the loopback interface that is free, and that no other test of this process is given.
pub fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    // Tests of several checkouts may run at once.
    let next = NEXT.get_or_init(|| AtomicU16::new(RandomState::new().hash_one(0) as u16));
    (0..PORTS)
        .map(|_| FIRST + next.fetch_add(1, Ordering::Relaxed) % PORTS)
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        .expect("one of 20,000 ports is free")
}
