//! Integration tests: the real service as a child process, a real nats-server and a real file in each test.
//!
//! `support` is what they stand on. `requirements.md` in `docs/` says which test shows what.

// clippy's allow-unwrap-in-tests does not reach functions that only tests call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod broker_faults;
mod cases;
mod command_line;
mod concurrency;
mod configuration;
mod deadlines;
mod discovery;
mod docs;
mod durable;
mod environment;
mod events;
mod hostile;
mod house;
mod metrics;
mod model;
mod operations;
mod outages;
mod outcomes;
mod permissions;
mod readiness;
mod remembered;
mod replies;
mod requests;
mod scenarios;
mod selectors;
mod snapshots;
mod stopping;
mod store_faults;
mod streams;
mod support;
mod traces;
mod upkeep;
mod watch_since;
mod workflows;
