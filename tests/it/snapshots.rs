//! Snapshots by the command line: saved beside a running service, checked whole, restored whole or not at all.

mod damage;
mod restores;
mod running;

use std::path::Path;
use std::process::Output;

use sha2::{Digest, Sha256};

use crate::support::stage::run;

/// Runs `tasklatch snapshot`, to its end.
async fn snapshot(verb: &str, file: &Path, more: &[&str]) -> Output {
    let mut arguments = vec!["snapshot", verb, text(file)];
    arguments.extend(more);
    run(&arguments).await
}

/// Restores, which must succeed, and gives what it printed.
async fn restored(file: &Path, database: &Path, more: &[&str]) -> String {
    let mut options = vec!["--database", text(database)];
    options.extend(more);
    let output = snapshot("restore", file, &options).await;
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The lines of a snapshot file, without their ends.
fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The lines between the first and the last.
fn content(file: &Path) -> Vec<String> {
    let mut lines = lines(file);
    lines.pop();
    lines.remove(0);
    lines
}

/// A snapshot of these lines, closed by a last line that is right for them.
fn closed(lines: &[String], tasks: usize) -> String {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let sha256 = hex::encode(Sha256::digest(&body));
    format!("{body}{{\"end\":true,\"tasks\":{tasks},\"sha256\":\"{sha256}\"}}\n")
}
