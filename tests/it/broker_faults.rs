//! What happens to nats-server, to connections and to those who ask must not change what was promised.

mod limits;
mod pauses;
pub mod requesters;
mod restarts;
mod stopping;
