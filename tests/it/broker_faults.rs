//! What happens to nats-server, to connections and to those who ask must not change what was promised.

mod limits;
mod pauses;
mod requesters;
mod restarts;
mod stopping;
