//! What an operator does to a ledger over the years: backups, limits, upgrades, and letting old tasks go.

mod backup;
mod log_size;
mod page;
mod prune;
mod versions;

use std::path::Path;
use std::process::Output;

use crate::support::stage;

/// Runs `tasklatch` on a database, and gives how it ended and what it said.
async fn tasklatch(words: &[&str], database: &Path) -> (i32, String, String) {
    let database = ["--database", database.to_str().unwrap()];
    let Output {
        status,
        stdout,
        stderr,
    } = stage::run(&[words, &database].concat()).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}
