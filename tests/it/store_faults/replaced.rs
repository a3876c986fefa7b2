//! A database that is not under its name any more: what is written to it is lost, so nothing may be answered for it.

use std::path::Path;
use std::process::Output;

use crate::support::{Service, Stage, full_report};

/// Changes the files of a running service, and sees that the next report is not claimed and the service ends.
async fn ends_without_a_claim(change: impl FnOnce(&Path)) {
    let stage = Stage::set().await;
    stage.worker.create("t-1").await;
    change(&stage.database());
    let refused = stage.worker.report(&full_report("t-1", "completed")).await;
    assert_eq!(refused.code(), "unavailable");
    let (status, log) = stage.service.ended().await;
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("removed or replaced"), "{log}");
}

#[tokio::test]
async fn a_report_is_not_accepted_into_a_database_that_was_removed() {
    ends_without_a_claim(|database| std::fs::remove_file(database).unwrap()).await;
}

#[tokio::test]
async fn a_report_is_not_accepted_into_a_database_that_was_renamed() {
    ends_without_a_claim(|database| {
        std::fs::rename(database, database.with_extension("moved")).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_report_is_not_accepted_when_somebody_else_could_have_the_lock() {
    ends_without_a_claim(|database| std::fs::remove_file(lock_of(database)).unwrap()).await;
}

#[tokio::test]
async fn a_service_whose_database_was_removed_ends_also_if_only_retries_come() {
    let stage = Stage::set().await;
    stage.worker.create("t-1").await;
    let report = full_report("t-1", "completed");
    stage.worker.report(&report).await;
    std::fs::remove_file(stage.database()).unwrap();
    let (status, log) = stage.service.ended().await;
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("removed or replaced"), "{log}");
}

fn lock_of(database: &Path) -> std::path::PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

#[tokio::test]
async fn a_database_with_two_names_is_refused_as_each_would_have_a_lock_of_its_own() {
    let mut stage = Stage::set().await;
    stage.service.kill().await;
    let second = stage.folder.path().join("second.db");
    std::fs::hard_link(stage.database(), &second).unwrap();
    for name in [stage.database(), second.clone()] {
        let refused = Service::try_start(&stage.broker.url(), &name, &[]).await;
        let Err(Output { status, stderr, .. }) = refused else {
            panic!("a service started on {}", name.display());
        };
        assert_eq!(status.code(), Some(1));
        assert!(String::from_utf8_lossy(&stderr).contains("2 names"));
    }
    std::fs::remove_file(second).unwrap();
    let _service = Service::start(&stage.broker, &stage.database(), &[]).await;
}
