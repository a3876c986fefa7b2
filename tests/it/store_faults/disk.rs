//! Disks that are full, fail, or give back something else than was written.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Broker, Reply, Service, Stage, Worker, first_of_each, insist};

/// A page of SQLite, and about the smallest piece that a disk is filled by.
const PAGE: usize = 4096;

/// A report of this many bytes and a little.
fn report_of_size(task_id: &str, bytes: usize) -> Value {
    json!({"task_id": task_id, "status": "completed", "summary": "large", "evidence": {"text": "x".repeat(bytes)}})
}

/// The words before a command that let it mount file systems which nobody else sees.
fn own_mounts() -> &'static [&'static str] {
    let ways: [&[&str]; 2] = [&["unshare", "-Urm"], &["unshare", "-m"]];
    let works = |way: &&&[&str]| {
        let try_it = Command::new(way[0])
            .args(&way[1..])
            .args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"])
            .output();
        try_it.is_ok_and(|output| output.status.success())
    };
    ways.iter().find(works).copied().unwrap_or_else(|| {
        panic!(
            "this machine allows no file system of one's own (`unshare -Urm mount -t tmpfs tmpfs /mnt` and the same \
             with -m alone fail), so that a full disk cannot be tested here; run the tests as root or allow user namespaces"
        )
    })
}

/// Fills a disk but for so many pages.
fn fill(disk: &Path, pages_left: usize) {
    std::fs::write(disk.join("room"), vec![1; pages_left * PAGE]).unwrap();
    let mut filler = std::fs::File::create(disk.join("filler")).unwrap();
    while filler.write_all(&[1; PAGE]).is_ok() {}
    std::fs::remove_file(disk.join("room")).unwrap();
}

#[tokio::test]
async fn a_full_disk_is_answered_unavailable_and_with_room_again_the_same_report_is_accepted_with_one_pair_of_events()
 {
    let broker = Broker::start().await;
    let folder = tempfile::tempdir().unwrap();
    let mut wrapper = own_mounts().to_vec();
    let mount = "mount -t tmpfs -o size=4m tmpfs \"$0\" && exec \"$@\"";
    wrapper.extend(["sh", "-c", mount, folder.path().to_str().unwrap()]);
    let database = folder.path().join("ledger.db");
    let service = match Service::try_start_by(&wrapper, &broker.url(), &database, &[]).await {
        Ok(service) => service,
        Err(output) => panic!(
            "no service on its own disk: {}",
            String::from_utf8_lossy(&output.stderr)
        ),
    };
    // The disk as the service sees it.
    let root = format!("/proc/{}/root", service.pid());
    let disk = PathBuf::from(root).join(folder.path().strip_prefix("/").unwrap());
    assert!(
        disk.join("ledger.db").exists(),
        "the test sees the service's disk"
    );
    let worker = Worker::connect(&broker).await;
    let mut observer = crate::support::Observer::watch(&broker).await;

    // With more and more pages left, the disk becomes full at another step: of the log, of the commit, of the checkpoint.
    let mut unavailable = Vec::new();
    let mut wanted = Vec::new();
    let lefts = [0, 1, 2, 3, 5, 8, 13, 21, 25, 26, 27, 28, 30, 34, 40, 55];
    for left in lefts {
        let task_id = format!("t-{left}");
        worker.create(&task_id).await;
        fill(&disk, left);
        let report = report_of_size(&task_id, 100_000);
        let reply = worker.report(&report).await;
        if reply.outcome().is_none() {
            let error = reply.error();
            assert_eq!(
                (&error["code"], &error["action"]),
                (&json!("unavailable"), &json!("retry"))
            );
            assert_eq!(
                worker.get(&task_id).await.task()["revision"],
                json!(1),
                "nothing of it is there"
            );
            unavailable.push(left);
        }
        std::fs::remove_file(disk.join("filler")).unwrap();
        let after = insist(&worker, "tasklatch.report", &report).await;
        let expected = if reply.outcome().is_none() {
            "accepted"
        } else {
            "replayed"
        };
        assert_eq!(
            after.outcome(),
            Some(expected),
            "{left} pages left: {}",
            after.json()
        );
        assert_eq!(worker.report(&report).await.body, after.body);
        wanted.extend(["1.task", "2.result", "2.task"].map(|event| format!("{task_id}.{event}")));
    }
    assert!(
        unavailable.contains(&0),
        "the disk was full: {unavailable:?}"
    );
    assert!(
        unavailable.len() < lefts.len(),
        "the disk was not full with {} pages left",
        lefts[lefts.len() - 1]
    );
    assert_eq!(observer.ids_so_far().await, wanted);
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
}

#[tokio::test]
async fn a_disk_that_fails_ends_the_service_and_on_a_good_one_the_same_report_is_accepted() {
    let broker = Broker::start().await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("ledger.db");
    // Past this size the operating system refuses a write, not as a full disk would, but as a failing one.
    let wrapper = [
        "sh",
        "-c",
        "trap '' XFSZ && ulimit -f 4096 && exec \"$@\"",
        "sh",
    ];
    let service = Service::try_start_by(&wrapper, &broker.url(), &database, &[]).await;
    let service =
        service.unwrap_or_else(|output| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let worker = Worker::connect(&broker).await;
    let mut observer = crate::support::Observer::watch(&broker).await;
    let task_ids: Vec<_> = (0..40).map(|number| format!("t-{number}")).collect();
    let mut wanted = Vec::new();
    for task_id in &task_ids {
        worker.create(task_id).await;
        wanted.push(format!("{task_id}.1.task"));
    }
    let mut accepted = Vec::new();
    let mut reports = task_ids
        .iter()
        .map(|task_id| report_of_size(task_id, 200_000));
    let report = loop {
        let report = reports.next().expect("the disk fails at some time");
        let task_id = report["task_id"].as_str().unwrap();
        wanted.extend(["2.result", "2.task"].map(|event| format!("{task_id}.{event}")));
        let payload = report.to_string().into();
        // A write of the service's own may be the one that is struck, so that nobody is there to answer.
        let Ok(message) = worker.client.request("tasklatch.report", payload).await else {
            break report;
        };
        let headers = message.headers.unwrap_or_default();
        let reply = Reply {
            headers,
            body: message.payload,
        };
        match reply.outcome() {
            Some(outcome) => assert_eq!(outcome, "accepted"),
            None => {
                let error = reply.error();
                let found = (&error["code"], &error["action"]);
                assert_eq!(found, (&json!("unavailable"), &json!("retry")));
                break report;
            }
        }
        accepted.push((report, reply));
    };
    assert!(!accepted.is_empty());
    let (status, log) = service.ended().await;
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("disk"), "the log says what to look at: {log}");

    let _service = Service::start(&broker, &database, &[]).await;
    for (report, reply) in &accepted {
        let again = worker.report(report).await;
        assert_eq!(
            (again.outcome(), &again.body),
            (Some("replayed"), &reply.body)
        );
    }
    assert_eq!(worker.report(&report).await.outcome(), Some("accepted"));
    assert_eq!(first_of_each(observer.ids_so_far().await), wanted);
}

#[tokio::test]
async fn a_damaged_file_ends_the_service_is_not_written_to_and_is_refused_at_the_next_start() {
    let stage = Stage::set().await;
    let database = stage.database();
    for number in 0..200 {
        let create = json!({"task_id": format!("t-{number}"), "title": "x".repeat(900)});
        stage.worker.create_with(create).await;
    }
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    let service = Service::start(&stage.broker, &database, &[]).await;
    // All pages but the first, which says what the file is.
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&database)
        .unwrap();
    let length = file.metadata().unwrap().len() as usize;
    assert!(length > 20 * PAGE);
    file.write_all_at(&vec![0xa5; length - PAGE], PAGE as u64)
        .unwrap();
    drop(file);
    let damaged = std::fs::read(&database).unwrap();

    let error = stage
        .worker
        .report(&report_of_size("t-150", 10))
        .await
        .error();
    assert_eq!(
        (&error["code"], &error["action"]),
        (&json!("unavailable"), &json!("retry"))
    );
    let (status, log) = service.ended().await;
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(
        log.contains("damaged") && log.contains("snapshot"),
        "the log says what to do: {log}"
    );
    let refused = Service::try_start(&stage.broker.url(), &database, &[]).await;
    let output = refused
        .err()
        .expect("it refuses to start on a damaged file");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        std::fs::read(&database).unwrap() == damaged,
        "the file is as it was found"
    );
}
