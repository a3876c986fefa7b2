//! What the fuzz targets share: the code under test, and what it is compared with.
//!
//! The modules under test do no I/O and use nothing else of the service (`tests/it/house.rs` holds them to that), so
//! they are built here from their source, without the store and the broker. That takes seconds instead of minutes.

#[allow(dead_code, missing_docs)]
#[path = "../../src"]
mod service {
    pub mod content;
    pub mod report;
    pub mod task;
    pub mod wire;
}

pub use service::{content, report, task, wire};

pub mod reference;
pub mod requests;
pub mod rewrite;
