//! Tests the composition of compose.yaml from a container of its own: `make compose-test`.
//!
//! It speaks the protocol over TLS as the roles of deploy/nats.conf, and kills, stops and replaces containers through the
//! engine's socket. It can be run again and again on the same volumes. The exit code is 1 if a check failed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

mod checks;
mod engine;
mod load;
mod permissions;
mod stream;
mod wire;

/// What a check gives: nothing, or why it failed.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How long a check may take in all.
const CHECK_WITHIN: Duration = Duration::from_secs(240);

#[tokio::main]
async fn main() -> ExitCode {
    let stage = match checks::Stage::prepare().await {
        Ok(stage) => stage,
        Err(error) => {
            eprintln!("the composition cannot be tested: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (mut passed, mut failed) = (0, 0);
    for (name, check) in checks::all(&stage) {
        let began = Instant::now();
        let result = tokio::time::timeout(CHECK_WITHIN, check).await;
        let seconds = began.elapsed().as_secs_f64();
        match result {
            Ok(Ok(())) => {
                passed += 1;
                println!("ok      {name} ({seconds:.1} s)");
            }
            Ok(Err(error)) => {
                failed += 1;
                println!("FAILED  {name} ({seconds:.1} s): {error}");
            }
            Err(_) => {
                failed += 1;
                println!(
                    "FAILED  {name}: not done after {} s",
                    CHECK_WITHIN.as_secs()
                );
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}
