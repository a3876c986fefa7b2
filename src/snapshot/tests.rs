//! Against real SQLite files in temporary folders.

mod content;
mod damage;
mod ledgers;
mod refusals;

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use super::*;
use crate::content::JsonText;
use crate::ledger::{self, Applied, FaultKind};
use crate::task::{Lifecycle, Task};
use crate::wire::Outcome;
use ledgers::*;

async fn restore_from(
    file: &Path,
    database: &Path,
    pending: Pending,
) -> Result<Restored, SnapshotError> {
    restore(
        &mut SnapshotFile::open(file)?,
        database,
        pending,
        &mut go_on,
    )
    .await
}

#[tokio::test]
async fn a_restored_ledger_saves_the_same_task_lines_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("1.jsonl"), folder.path().join("2.jsonl"));
    let database = various_ledger(folder.path()).await;
    let saved = save(&database, &first, at(900), &mut go_on).await.unwrap();
    assert_eq!(saved.tasks, 10);
    assert_eq!(saved.unpublished_events, 7);
    assert_eq!(saved.created_at, at(900));

    let other = folder.path().join("other.db");
    let restored = restore_from(&first, &other, Pending::Drop).await.unwrap();
    assert_eq!(restored.snapshot, saved);
    assert_ne!(restored.ledger_id, saved.ledger_id);

    let again = save(&other, &second, at(901), &mut go_on).await.unwrap();
    assert_eq!(again.ledger_id, restored.ledger_id);
    assert_eq!(again.unpublished_events, 0);
    assert_eq!(task_lines(&second), task_lines(&first));
    verify(&mut SnapshotFile::open(&second).unwrap(), &mut go_on)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_file_is_as_the_protocol_describes_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.jsonl");
    let database = various_ledger(folder.path()).await;
    let summary = save(&database, &file, at(0), &mut go_on).await.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let ledger_id = &summary.ledger_id;
    assert_eq!(
        lines[0],
        format!(
            r#"{{"tasklatch_snapshot":1,"created_at":"2026-11-30T07:00:00.000000Z","ledger_id":"{ledger_id}"}}"#
        )
    );
    assert!(lines[1].starts_with(r#"{"task_id":"submitted","pane_id":null,"title":""#));
    assert!(lines[11].starts_with(&format!(
        r#"{{"unpublished_event":{{"specversion":"1.0","id":"twice.1.task","source":"tasklatch/{ledger_id}","#
    )));
    let (before, end) = text.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(
        end,
        format!(
            r#"{{"end":true,"tasks":10,"sha256":"{}"}}"#,
            sha256(&format!("{before}\n"))
        )
    );
    assert!(text.ends_with("}\n"));
}

#[tokio::test]
async fn unpublished_events_are_published_again_only_if_that_is_asked_for_and_keep_their_ids_and_order()
 {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("1.jsonl"), folder.path().join("2.jsonl"));
    let database = various_ledger(folder.path()).await;
    save(&database, &first, at(900), &mut go_on).await.unwrap();
    for (pending, expected) in [
        (Pending::Drop, vec![]),
        (Pending::Publish, event_lines(&first)),
    ] {
        let other = folder.path().join(format!("{pending:?}.db"));
        let restored = restore_from(&first, &other, pending).await.unwrap();
        assert_eq!(restored.snapshot.unpublished_events, 7);
        save(&other, &second, at(900), &mut go_on).await.unwrap();
        // Only the source tells of the new ledger.
        let old = format!("tasklatch/{}", restored.snapshot.ledger_id);
        let new = format!("tasklatch/{}", restored.ledger_id);
        let expected: Vec<String> = expected
            .iter()
            .map(|line| line.replace(&old, &new))
            .collect();
        assert_eq!(event_lines(&second), expected);
        verify(&mut SnapshotFile::open(&second).unwrap(), &mut go_on)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_retry_after_a_restore_is_a_replay_and_other_content_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.jsonl");
    let database = various_ledger(folder.path()).await;
    save(&database, &file, at(900), &mut go_on).await.unwrap();
    let other = folder.path().join("other.db");
    restore_from(&file, &other, Pending::Drop).await.unwrap();

    let mut writer = open(&other).await;
    let same = report("completed", "done\0 twice", HARD_EVIDENCE);
    let applied = apply(&mut writer, at(950), vec![same]).await.remove(0);
    let Applied::Task {
        body,
        outcome: Some(Outcome::Replayed),
    } = applied
    else {
        panic!("{applied:?}")
    };
    let line = task_lines(&file)
        .into_iter()
        .find(|line| line.contains(r#""completed""#))
        .unwrap();
    assert_eq!(std::str::from_utf8(&body).unwrap(), line);
    let changed = report("completed", "done\0 once", HARD_EVIDENCE);
    let refused = apply(&mut writer, at(950), vec![changed]).await.remove(0);
    assert!(matches!(refused, Applied::Refused(_)), "{refused:?}");
    assert_eq!(writer.last_seq(), 0);
}

#[tokio::test]
async fn a_service_may_run_during_a_save_and_what_it_does_meanwhile_is_not_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.jsonl");
    let database = various_ledger(folder.path()).await;
    let mut writer = open(&database).await;
    // The picture is taken when it is begun.
    let connection = ledger::open_read_only(&database).await.unwrap();
    let mut reader = ledger::SnapshotReader::begin(connection).await.unwrap();
    apply(
        &mut writer,
        at(800),
        vec![create("late"), report("late", "ok", "{}")],
    )
    .await;
    assert_eq!(reader.next_tasks().await.unwrap().len(), 10);
    assert_eq!(reader.next_unpublished().await.unwrap().len(), 5);
    reader.close().await.unwrap();

    let summary = save(&database, &file, at(900), &mut go_on).await.unwrap();
    assert_eq!((summary.tasks, summary.unpublished_events), (11, 10));
    verify(&mut SnapshotFile::open(&file).unwrap(), &mut go_on)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_snapshot_can_be_written_to_a_stream_and_read_from_one() {
    let folder = tempfile::tempdir().unwrap();
    let database = various_ledger(folder.path()).await;
    let mut bytes = Vec::new();
    let saved = save_to(&database, &mut bytes, at(900), &mut go_on)
        .await
        .unwrap();
    let mut file =
        SnapshotFile::keep(bytes.as_slice(), "standard input", Some(folder.path())).unwrap();
    assert_eq!(verify(&mut file, &mut go_on).await.unwrap(), saved);
    let other = folder.path().join("other.db");
    restore(&mut file, &other, Pending::Drop, &mut go_on)
        .await
        .unwrap();
    let names = names_in(folder.path());
    assert!(
        names
            .iter()
            .all(|name| name.starts_with("ledger.db") || name.starts_with("other.db")),
        "{names:?}"
    );
}

#[tokio::test]
async fn a_reader_that_goes_away_is_told_of_apart_from_other_failures() {
    struct Closed;
    impl io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let database = various_ledger(folder.path()).await;
    let error = save_to(&database, Closed, at(0), &mut go_on)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, SnapshotError::Output(why) if why.kind() == io::ErrorKind::BrokenPipe),
        "{error}"
    );
}

#[tokio::test]
async fn an_empty_ledger_can_be_saved_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let (database, file) = (
        folder.path().join("ledger.db"),
        folder.path().join("snapshot.jsonl"),
    );
    open(&database).await.close().await.unwrap();
    assert_eq!(
        save(&database, &file, at(0), &mut go_on)
            .await
            .unwrap()
            .tasks,
        0
    );
    let restored = restore_from(&file, &database, Pending::Publish)
        .await
        .unwrap();
    assert_eq!(restored.snapshot.tasks, 0);
    // It was empty, so it is as good as new, and gets another identity.
    assert_eq!(
        save(&database, &file, at(0), &mut go_on)
            .await
            .unwrap()
            .ledger_id,
        restored.ledger_id
    );
}

#[tokio::test]
async fn more_tasks_and_events_than_one_batch_or_page_come_through_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("1.jsonl"), folder.path().join("2.jsonl"));
    let database = folder.path().join("ledger.db");
    let mut writer = open(&database).await;
    let names: Vec<String> = (0..333)
        .map(|number| format!("t-{}", (number * 7919) % 333))
        .collect();
    let changes = names
        .iter()
        .flat_map(|name| [create(name), report(name, "ok", "{}")]);
    apply(&mut writer, at(1), changes.collect()).await;
    writer.close().await.unwrap();
    let saved = save(&database, &first, at(2), &mut go_on).await.unwrap();
    assert_eq!((saved.tasks, saved.unpublished_events), (333, 999));
    let ids: Vec<String> = task_lines(&first)
        .iter()
        .map(|line| task(line).task_id)
        .collect();
    assert_eq!(ids, names);
    let other = folder.path().join("other.db");
    restore_from(&first, &other, Pending::Publish)
        .await
        .unwrap();
    save(&other, &second, at(2), &mut go_on).await.unwrap();
    assert_eq!(task_lines(&second), task_lines(&first));
    assert_eq!(event_lines(&second).len(), 999);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn whatever_a_service_can_come_to_hold_it_saves_as_a_good_snapshot(
        steps in proptest::collection::vec((0_usize..7, 0_usize..3, 0_i64..60), 1..60),
        published in 0_i64..60,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let (database, file) = (folder.path().join("ledger.db"), folder.path().join("s.jsonl"));
            let mut writer = open(&database).await;
            for (step, which, second) in steps {
                // The clock goes back and forth.
                apply(&mut writer, at(second), vec![any_command(step, &format!("t{which}"), at(second + 20))]).await;
            }
            let published = ledger::Command::Published(published.min(writer.last_seq()));
            apply(&mut writer, at(0), vec![published]).await;
            writer.close().await.unwrap();
            let saved = save(&database, &file, at(0), &mut go_on).await.unwrap();
            let checked = verify(&mut SnapshotFile::open(&file).unwrap(), &mut go_on).await;
            assert_eq!(checked.unwrap(), saved);
        });
    }
}

#[tokio::test]
async fn every_rule_of_a_task_is_one_that_the_fixture_keeps_in_each_lifecycle() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.jsonl");
    save(
        &various_ledger(folder.path()).await,
        &file,
        at(900),
        &mut go_on,
    )
    .await
    .unwrap();
    let tasks: Vec<Task> = task_lines(&file).iter().map(|line| task(line)).collect();
    for lifecycle in Lifecycle::ALL {
        assert!(
            tasks.iter().any(|task| task.lifecycle == *lifecycle),
            "{lifecycle}"
        );
    }
    let hard = tasks
        .iter()
        .find(|task| task.task_id == "completed")
        .unwrap();
    assert_eq!(hard.result.as_ref().unwrap().evidence.get(), HARD_EVIDENCE);
    assert_eq!(
        hard.metadata.as_ref().map(JsonText::get),
        Some(r#"{"b":1.0,"a":[]}"#)
    );
}

#[tokio::test]
async fn a_store_that_refuses_for_another_reason_than_an_id_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = open(&folder.path().join("ledger.db")).await;
    let mut into = writer.restore().await.unwrap();
    let mut bad = task(&new_task_line("a"));
    bad.title.clear();
    let fault = into.add_tasks(&[bad]).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Refused);
    // A statement that failed leaves what came before it, and what comes after.
    let good = task(&new_task_line("a"));
    assert_eq!(
        into.add_tasks(std::slice::from_ref(&good)).await.unwrap(),
        None
    );
    assert_eq!(
        into.add_tasks(&[task(&new_task_line("b")), good])
            .await
            .unwrap(),
        Some(1)
    );
    drop(into);
    assert!(writer.is_empty().await.unwrap());
}

#[tokio::test]
async fn progress_grows_to_its_total_in_every_phase() {
    let folder = tempfile::tempdir().unwrap();
    let database = various_ledger(folder.path()).await;
    let file = folder.path().join("snapshot.jsonl");
    let mut seen: Vec<Progress> = Vec::new();
    let mut watch = |progress: Progress| {
        seen.push(progress);
        ControlFlow::Continue(())
    };
    save_to(&database, io::sink(), at(0), &mut watch)
        .await
        .unwrap();
    save(&database, &file, at(0), &mut watch).await.unwrap();
    let mut opened = SnapshotFile::open(&file).unwrap();
    restore(
        &mut opened,
        &folder.path().join("other.db"),
        Pending::Drop,
        &mut watch,
    )
    .await
    .unwrap();
    for phase in [
        Phase::Saving,
        Phase::Copying,
        Phase::Checking,
        Phase::Loading,
    ] {
        let of_phase: Vec<&Progress> = seen
            .iter()
            .filter(|progress| progress.phase == phase)
            .collect();
        assert!(
            of_phase
                .iter()
                .all(|progress| progress.done <= progress.total),
            "{phase:?}"
        );
        let last = of_phase.last().unwrap();
        assert_eq!(last.done, last.total, "{phase:?}");
    }
}
