//! The one place where identity made at random enters.

use uuid::Uuid;

/// A task ID for a task whose creator brought none: `t-` and a UUIDv7 (docs/protocol.md, "The task"), which sorts by time.
pub fn new_task_id() -> String {
    format!("t-{}", Uuid::now_v7())
}

/// The identity of a ledger, made with it and anew by a restore (docs/protocol.md, "Events").
pub fn new_ledger_id() -> String {
    Uuid::now_v7().to_string()
}

/// The identity of a span of ours: the random half of a UUIDv7, which is never all zeros.
pub fn new_span_id() -> [u8; 8] {
    let id = Uuid::now_v7().into_bytes();
    std::array::from_fn(|at| id[8 + at])
}

/// The identity of one running service in discovery (ADR-32).
pub fn new_instance_id() -> String {
    Uuid::now_v7().simple().to_string()
}
