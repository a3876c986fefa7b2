//! Latches the first accepted report of a task: a retry reads it back, nothing overwrites it, observers hear of it exactly
//! once.
//!
//! The path of a report, in order:
//!
//! 1. [`wire`] knows protocol version 1: a message is decoded into a [`report::Report`] with its selector, strictly, by
//!    the rules of [`content`].
//! 2. [`consumer`] takes requests off their subscriptions, bounds the work in hand, and hands it to the one task that
//!    writes.
//! 3. [`ledger`] applies all that waits in one SQLite transaction. What a report gets is decided by
//!    [`report::decide`], a pure function of the stored [`task::Task`] and the report.
//! 4. The answer goes out after the commit, and [`relay`] publishes the events from the outbox.
//!
//! Around it: [`service`] puts the parts together, [`snapshot`] carries a ledger elsewhere, [`client`] and [`cli`] are
//! the other end of the wire. [`secrets`] makes what a secured server needs.

pub mod cli;
pub mod client;
pub mod config;
pub mod consumer;
pub mod content;
pub mod faults;
pub mod health;
pub mod http;
pub mod ids;
pub mod ledger;
pub mod metrics;
pub mod nats;
pub mod operate;
pub mod relay;
pub mod report;
pub mod secrets;
pub mod service;
pub mod snapshot;
pub mod streams;
pub mod task;
pub mod telemetry;
pub mod wire;
