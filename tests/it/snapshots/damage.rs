//! Files that are not what a service saved.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{closed, content, lines, snapshot, text};
use crate::support::{Outside, Service, Stage, full_report};

/// A saved snapshot of a few tasks with and without results, and the folder it is in.
async fn saved() -> (Stage, PathBuf) {
    let mut stage = Stage::set().await;
    for number in 0..6 {
        let task_id = format!("t-{number}");
        stage
            .worker
            .create_with(json!({"task_id": task_id, "title": "a task", "metadata": {"n": number}}))
            .await;
        if number % 2 == 0 {
            let mut report = full_report(&task_id, "completed");
            report["summary"] = json!("x".repeat(900));
            stage.worker.report(&report).await.task();
        }
    }
    stage
        .worker
        .ask(
            "tasklatch.task.cancel",
            &json!({"task_id": "t-5", "reason": "off"}),
        )
        .await
        .task();
    Outside::read(&stage.database())
        .await
        .until_published()
        .await;
    stage.service.kill().await;
    let file = stage.folder.path().join("good.snapshot");
    let output = snapshot("save", &file, &["--database", text(&stage.database())]).await;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    (stage, file)
}

/// Has a file refused by `verify` and by `restore`, which makes no database, and gives what `restore` says.
async fn refused(folder: &Path, what: &str, bytes: &[u8]) -> String {
    let file = folder.join("bad.snapshot");
    std::fs::write(&file, bytes).unwrap();
    let target = folder.join("target");
    std::fs::create_dir_all(&target).unwrap();
    let database = target.join("ledger.db");
    let check = snapshot("verify", &file, &[]).await;
    let output = snapshot("restore", &file, &["--database", text(&database)]).await;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{what}: {stderr}");
    assert_eq!(check.status.code(), Some(2), "{what}: verify says the same");
    assert_eq!(
        std::fs::read_dir(&target).unwrap().count(),
        0,
        "{what}: nothing is made"
    );
    assert!(
        output.stdout.is_empty() && check.stdout.is_empty(),
        "{what}: nothing on standard output"
    );
    stderr
}

/// The byte of the place that a message names.
fn offset(message: &str) -> usize {
    let (_, rest) = message
        .split_once(", at byte ")
        .unwrap_or_else(|| panic!("no position: {message}"));
    rest.split(':').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_snapshot_that_is_cut_anywhere_is_refused_whole_with_the_place_and_no_database_is_made() {
    let (stage, file) = saved().await;
    let bytes = std::fs::read(&file).unwrap();
    let mut cuts: Vec<usize> = (0..bytes.len()).step_by(1024).collect();
    let line_ends = bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at);
    // After each whole line, and before its end.
    cuts.extend(
        line_ends
            .flat_map(|at| [at, at + 1])
            .filter(|at| *at < bytes.len()),
    );
    assert!(cuts.len() > 15, "{cuts:?}");
    for cut in cuts {
        // Without the end of its last line, the file is still all there; that is for the service to take or refuse.
        if cut + 1 == bytes.len() {
            continue;
        }
        let message = refused(stage.folder.path(), &format!("cut at {cut}"), &bytes[..cut]).await;
        assert!(offset(&message) <= cut, "cut at {cut}: {message}");
    }
}

#[tokio::test]
async fn a_snapshot_that_was_altered_is_refused_whole_with_the_place_also_if_its_checksum_is_right()
{
    let (stage, file) = saved().await;
    let all = lines(&file);
    let good = std::fs::read_to_string(&file).unwrap();
    let (head, tasks) = (all[0].clone(), content(&file));
    let body = |tasks: &[String]| [std::slice::from_ref(&head), tasks].concat();
    let with = |change: &dyn Fn(&mut Vec<String>)| {
        let mut changed = tasks.clone();
        change(&mut changed);
        closed(&body(&changed), changed.len())
    };
    assert_eq!(
        closed(&body(&tasks), tasks.len()),
        good,
        "the test knows how a snapshot is closed"
    );
    let last = all.last().unwrap();
    let digit = |text: &str| text.replace("\"sha256\":\"", "\"sha256\":\"0");
    let cases = [
        (
            "the last task twice",
            with(&|tasks| tasks.push(tasks[tasks.len() - 1].clone())),
        ),
        ("the last line twice", format!("{good}{last}\n")),
        ("text after the end", format!("{good}x")),
        (
            "a count that is too high",
            closed(&body(&tasks), tasks.len() + 1),
        ),
        (
            "a count that is too low",
            closed(&body(&tasks), tasks.len() - 1),
        ),
        ("a checksum of another length", digit(&good)),
        (
            "another checksum",
            closed(&body(&tasks[1..]), tasks.len())
                .replace(&body(&tasks[1..]).join("\n"), &body(&tasks).join("\n")),
        ),
        ("a changed summary", good.replacen("xxx", "xyx", 1)),
        (
            "a task that is missing",
            closed(&body(&tasks[1..]), tasks.len()),
        ),
        (
            "completed without a result",
            with(&|tasks| tasks[1] = tasks[1].replace("submitted", "completed")),
        ),
        (
            "a result that says failed",
            with(&|tasks| tasks[0] = tasks[0].replacen("completed", "failed", 1)),
        ),
        (
            "submitted with a result",
            with(&|tasks| tasks[0] = tasks[0].replacen("completed", "submitted", 1)),
        ),
        (
            "a reason without an end",
            with(&|tasks| tasks[5] = tasks[5].replace("canceled", "expired")),
        ),
        (
            "revision 0",
            with(&|tasks| tasks[1] = tasks[1].replace("\"revision\":1", "\"revision\":0")),
        ),
        (
            "a task ID with a dot",
            with(&|tasks| tasks[1] = tasks[1].replace("t-1", "t.1")),
        ),
        (
            "a key that no task has",
            with(&|tasks| tasks[1] = tasks[1].replacen('{', "{\"x\":1,", 1)),
        ),
        (
            "a key twice",
            with(&|tasks| tasks[1] = tasks[1].replace("\"n\":1", "\"n\":1,\"n\":1")),
        ),
        (
            "other white space",
            with(&|tasks| tasks[1] = tasks[1].replacen(':', ": ", 1)),
        ),
        (
            "an empty line",
            with(&|tasks| tasks.insert(1, String::new())),
        ),
        (
            "a second head",
            with(&|tasks| tasks.insert(1, head.clone())),
        ),
        ("lines that end in CR LF", good.replace('\n', "\r\n")),
        ("a byte order mark", format!("\u{feff}{good}")),
        (
            "a later format",
            good.replace("\"tasklatch_snapshot\":1", "\"tasklatch_snapshot\":2"),
        ),
        (
            "an event of no task",
            with(&|tasks| {
                let event = format!(
                    "{{\"unpublished_event\":{{\"specversion\":\"1.0\",\"id\":\"x.1.task\",\"source\":\"tasklatch/x\",\
                 \"type\":\"tasklatch.task.updated\",\"time\":\"2026-11-30T07:30:00.000000Z\",\"subject\":\"x\",\
                 \"datacontenttype\":\"application/json\",\"data\":{}}}}}",
                    tasks[1]
                );
                tasks.push(event);
            }),
        ),
    ];
    let changed: Vec<_> = cases
        .iter()
        .filter(|(_, bytes)| *bytes != good)
        .map(|(what, _)| *what)
        .collect();
    assert_eq!(
        changed.len(),
        cases.len(),
        "each case changes something: {changed:?}"
    );
    for (what, bytes) in cases {
        let message = refused(stage.folder.path(), what, bytes.as_bytes()).await;
        assert!(offset(&message) <= bytes.len(), "{what}: {message}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_snapshot_is_refused_and_nothing_is_made() {
    let (stage, file) = saved().await;
    let folder = stage.folder.path();
    let length = std::fs::metadata(&file).unwrap().len() as usize;
    let mut half_nul = std::fs::read(&file).unwrap();
    half_nul[length / 2..].fill(0);
    let database = std::fs::read(stage.database()).unwrap();
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("NUL bytes", vec![0; length]),
        ("NUL bytes in its second half", half_nul),
        ("a database", database),
        ("a text", b"no snapshot at all\n".repeat(50)),
        ("other JSON", b"{\"a\":1}\n".to_vec()),
        ("one line without an end", vec![b'{'; 3 << 20]),
        (
            "brackets without an end",
            [&b"{\"tasklatch_snapshot\":"[..], &[b'['; 200_000]].concat(),
        ),
    ] {
        let message = refused(folder, what, &bytes).await;
        offset(&message);
    }
    let missing = snapshot(
        "restore",
        &folder.join("missing"),
        &["--database", text(&folder.join("x.db"))],
    )
    .await;
    assert_eq!(missing.status.code(), Some(2));
    assert!(!folder.join("x.db").exists());
}

#[tokio::test]
async fn a_bad_snapshot_leaves_an_empty_ledger_as_it_was() {
    let (mut stage, file) = saved().await;
    let database = stage.folder.path().join("empty.db");
    let service = Service::start(&stage.broker, &database, &[]).await;
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
    let mut outside = Outside::read(&database).await;
    let before = outside.texts("SELECT ledger_id FROM ledger").await;
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, good.replacen("xxx", "xyx", 1)).unwrap();
    let output = snapshot("restore", &file, &["--database", text(&database)]).await;
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(outside.texts("SELECT ledger_id FROM ledger").await, before);
    assert_eq!(outside.number("SELECT count(*) FROM tasks").await, 0);
    stage.service = Service::start(&stage.broker, &database, &[]).await;
    stage.worker.create("t-0").await;
}
