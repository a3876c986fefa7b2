//! Places that must not be written to, and work that is ended early.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::ledgers::*;
use super::restore_from;
use crate::ledger::OpenError;
use crate::snapshot::*;

struct Given {
    folder: tempfile::TempDir,
    database: PathBuf,
    file: PathBuf,
}

impl Given {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = various_ledger(folder.path()).await;
        let file = folder.path().join("snapshot.jsonl");
        save(&database, &file, at(900), &mut go_on).await.unwrap();
        Self {
            folder,
            database,
            file,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_ledger_with_tasks_is_never_restored_into() {
    let given = Given::new().await;
    let before = std::fs::read(&given.database).unwrap();
    let error = restore_from(&given.file, &given.database, Pending::Drop)
        .await
        .unwrap_err();
    assert!(matches!(error, SnapshotError::NotEmpty(_)), "{error}");
    assert_eq!(std::fs::read(&given.database).unwrap(), before);
}

#[tokio::test]
async fn an_empty_ledger_stays_as_it_is_when_the_file_is_bad_and_is_filled_when_it_is_good() {
    let given = Given::new().await;
    let (empty, bad) = (given.path("empty.db"), given.path("bad.jsonl"));
    open(&empty).await.close().await.unwrap();
    let before = std::fs::read(&empty).unwrap();
    let good = std::fs::read(&given.file).unwrap();
    std::fs::write(&bad, &good[..good.len() - 1]).unwrap();
    restore_from(&bad, &empty, Pending::Drop).await.unwrap_err();
    assert_eq!(std::fs::read(&empty).unwrap(), before);
    restore_from(&given.file, &empty, Pending::Drop)
        .await
        .unwrap();
    assert!(!open(&empty).await.is_empty().await.unwrap());
}

#[tokio::test]
async fn a_database_that_cannot_be_made_is_found_out_before_the_file_is_checked() {
    let given = Given::new().await;
    let nowhere = given.path("nowhere").join("new.db");
    let bad = given.path("bad.jsonl");
    std::fs::write(&bad, "bad").unwrap();
    let error = restore_from(&bad, &nowhere, Pending::Drop)
        .await
        .unwrap_err();
    assert!(
        matches!(error, SnapshotError::Open(OpenError::Io { .. })),
        "{error}"
    );
    assert!(!given.path("nowhere").exists());
}

#[tokio::test]
async fn a_ledger_that_a_service_holds_is_not_restored_into() {
    let given = Given::new().await;
    let held = given.path("held.db");
    let _service = open(&held).await;
    let error = restore_from(&given.file, &held, Pending::Drop)
        .await
        .unwrap_err();
    assert!(
        matches!(error, SnapshotError::Open(OpenError::Lock { .. })),
        "{error}"
    );
    assert!(
        error.to_string().contains("a test with process ID"),
        "{error}"
    );
}

#[tokio::test]
async fn a_file_that_changes_between_its_check_and_its_loading_is_not_restored() {
    let given = Given::new().await;
    let other = given.path("other.db");
    let good = std::fs::read(&given.file).unwrap();
    let smaller = {
        let mut lines = lines(&given.file);
        lines.truncate(4);
        sealed(&lines)
    };
    for changed in [
        String::from_utf8(good.clone())
            .unwrap()
            .replacen("Do ", "Go ", 1),
        smaller,
    ] {
        std::fs::write(&given.file, &good).unwrap();
        let mut file = SnapshotFile::open(&given.file).unwrap();
        let mut watch = |progress: Progress| {
            if progress.phase == Phase::Checking && progress.done == progress.total {
                std::fs::write(&given.file, &changed).unwrap();
            }
            ControlFlow::Continue(())
        };
        let error = restore(&mut file, &other, Pending::Drop, &mut watch)
            .await
            .unwrap_err();
        assert!(
            matches!(error, SnapshotError::ChangedMeanwhile(_)),
            "{error}"
        );
        assert!(open(&other).await.is_empty().await.unwrap());
    }
}

#[tokio::test]
async fn work_that_is_ended_early_leaves_nothing_behind() {
    let given = Given::new().await;
    let before = std::fs::read(&given.file).unwrap();
    let names = names_in(given.folder.path());
    let mut end = |_: Progress| ControlFlow::Break(());
    let error = save(&given.database, &given.file, at(901), &mut end)
        .await
        .unwrap_err();
    assert!(matches!(error, SnapshotError::Interrupted), "{error}");
    assert_eq!(std::fs::read(&given.file).unwrap(), before);
    let mut file = SnapshotFile::open(&given.file).unwrap();
    let new = given.path("new.db");
    restore(&mut file, &new, Pending::Drop, &mut end)
        .await
        .unwrap_err();
    assert_eq!(names_in(given.folder.path()), names);

    let mut end_loading = |progress: Progress| match progress.phase {
        Phase::Loading => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    restore(&mut file, &new, Pending::Drop, &mut end_loading)
        .await
        .unwrap_err();
    assert!(open(&new).await.is_empty().await.unwrap());
    restore(&mut file, &new, Pending::Drop, &mut go_on)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_file_that_is_replaced_keeps_its_permissions_and_a_link_keeps_leading_to_it() {
    let given = Given::new().await;
    std::fs::set_permissions(&given.file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let link = given.path("latest");
    std::os::unix::fs::symlink("snapshot.jsonl", &link).unwrap();
    save(&given.database, &link, at(901), &mut go_on)
        .await
        .unwrap();
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(mode(&given.file), 0o600);
    assert!(lines(&given.file)[0].contains("07:15:01"));
}

#[tokio::test]
async fn neither_a_database_nor_a_folder_nor_a_device_is_replaced_by_a_snapshot() {
    let given = Given::new().await;
    let before = std::fs::read(&given.database).unwrap();
    for (path, part) in [
        (
            given.database.as_path(),
            "it is a database, and would be lost",
        ),
        (given.folder.path(), "it is a folder"),
        (
            Path::new("/nowhere/snapshot.jsonl"),
            "No such file or directory",
        ),
    ] {
        let error = save(&given.database, path, at(0), &mut go_on)
            .await
            .unwrap_err();
        assert!(matches!(error, SnapshotError::WrongFile { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(std::fs::read(&given.database).unwrap(), before);
    save(&given.database, Path::new("/dev/null"), at(0), &mut go_on)
        .await
        .unwrap();
    assert!(
        Path::new("/dev/null")
            .metadata()
            .unwrap()
            .file_type()
            .is_char_device()
    );
}

#[tokio::test]
async fn what_is_not_there_cannot_be_saved_or_read() {
    let folder = tempfile::tempdir().unwrap();
    let (missing, file) = (
        folder.path().join("missing"),
        folder.path().join("snapshot.jsonl"),
    );
    let error = save(&missing, &file, at(0), &mut go_on).await.unwrap_err();
    assert!(
        matches!(error, SnapshotError::Open(OpenError::Missing { .. })),
        "{error}"
    );
    let error = SnapshotFile::open(&missing).unwrap_err().to_string();
    assert!(error.contains("No such file"), "{error}");
    let error = SnapshotFile::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("it is a folder"), "{error}");
    assert_eq!(names_in(folder.path()), Vec::<String>::new());
}

#[tokio::test]
async fn a_stream_without_an_end_that_is_no_snapshot_does_not_fill_the_disk() {
    let mut file = SnapshotFile::keep(io::repeat(b'x'), "standard input", None).unwrap();
    assert_eq!(file.bytes(), 64 * 1024);
    let error = verify(&mut file, &mut go_on).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("standard input: line 1, at byte 0: the file does not begin"),
        "{error}"
    );
    let mut broken =
        SnapshotFile::keep(io::empty().chain(io::empty()), "standard input", None).unwrap();
    verify(&mut broken, &mut go_on).await.unwrap_err();
}
