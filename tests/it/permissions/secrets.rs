//! `tasklatch secrets make`.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use tasklatch::task::Timestamp;
use tasklatch::wire::Subjects;

use crate::support::BINARY;

fn make(folder: &Path, options: &[&str]) -> Output {
    Command::new(BINARY)
        .args(["secrets", "make"])
        .arg(folder)
        .args(options)
        .output()
        .unwrap()
}

/// The files under a folder with their text.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for part in ["ca", "nats", "service", "clients"] {
        for entry in std::fs::read_dir(folder.join(part)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap();
            found.insert(name.to_owned(), std::fs::read_to_string(&path).unwrap());
        }
    }
    found
}

#[test]
fn what_is_there_is_kept_and_workers_are_added_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = make(folder.path(), &[]);
    assert!(first.status.success(), "{first:?}");
    let before = files(folder.path());
    let again = make(folder.path(), &[]);
    assert!(
        again.status.success() && again.stderr.is_empty(),
        "{again:?}"
    );
    assert_eq!(files(folder.path()), before);
    let more = make(folder.path(), &["--worker", "w2,w3=t-1"]);
    assert!(more.status.success(), "{more:?}");
    let after = files(folder.path());
    for (name, text) in &before {
        assert!(
            // The key of the check is another one whenever something else is.
            ["nats/accounts.conf", "clients/reload-check.nk"].contains(&name.as_str())
                || after[name] == *text,
            "{name}"
        );
    }
    let new: Vec<&str> = (after.keys().map(String::as_str))
        .filter(|name| !before.contains_key(*name))
        .collect();
    assert_eq!(new, ["clients/w2.nk", "clients/w3.nk", "clients/w3.task"]);
    let users = &after["nats/accounts.conf"];
    assert!(users.contains("# w3: worker of task t-1") && users.contains("# w2: worker\n"));
    // Those that were added stay without being named again.
    assert!(make(folder.path(), &[]).status.success());
    assert_eq!(files(folder.path()), after);
}

/// What of the server's certificate is there, after making secrets at a time.
fn certificate(folder: &Path, hosts: &[&str], now: Timestamp) -> [String; 3] {
    let subjects = Subjects::new("tasklatch").unwrap();
    let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
    tasklatch::secrets::make(folder, &subjects, &hosts, &[], &[], now).unwrap();
    let files = files(folder);
    ["nats/server.pem", "nats/server.key", "ca/ca.pem"].map(|name| files[name].clone())
}

#[test]
fn a_certificate_is_made_anew_for_another_host_and_before_it_ends_unless_it_is_of_another_ca() {
    let folder = tempfile::tempdir().unwrap();
    let day =
        |day: i64| Timestamp::from_micros(2_000_000_000_000_000 + day * 86_400_000_000).unwrap();
    let first = certificate(folder.path(), &["a.example"], day(0));
    assert_eq!(certificate(folder.path(), &["a.example"], day(764)), first);
    assert_eq!(certificate(folder.path(), &["localhost"], day(1)), first);
    let other = certificate(folder.path(), &["b.example"], day(1));
    assert!(other[0] != first[0] && other[1] != first[1] && other[2] == first[2]);
    assert_eq!(
        certificate(folder.path(), &["a.example", "b.example"], day(765)),
        other
    );
    let renewed = certificate(folder.path(), &[], day(766));
    assert!(renewed[0] != other[0] && renewed[2] == first[2]);
    assert_eq!(
        certificate(folder.path(), &["a.example", "b.example"], day(767)),
        renewed
    );
    // One whose making was interrupted.
    std::fs::remove_file(folder.path().join("nats/server.pem")).unwrap();
    let whole = certificate(folder.path(), &[], day(767));
    assert!(whole[0] != renewed[0] && whole[1] != renewed[1]);
    std::fs::write(folder.path().join("nats/server.pem"), "of another CA").unwrap();
    let foreign = certificate(folder.path(), &["c.example"], day(5_000));
    assert_eq!(foreign[0], "of another CA");
}

#[test]
fn only_the_owner_can_read_what_was_made_and_no_seed_is_printed_or_given_to_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("secrets");
    let made = make(&root, &["--worker", "w2"]);
    assert!(made.status.success(), "{made:?}");
    let said = String::from_utf8([made.stdout, made.stderr].concat()).unwrap();
    let all = files(&root);
    for (name, text) in &all {
        let mode = std::fs::metadata(root.join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
        if name.ends_with(".nk") {
            assert!(
                text.starts_with("SU") && !said.contains(text.trim()),
                "{name}"
            );
            assert!(!all["nats/accounts.conf"].contains(text.trim()), "{name}");
        }
    }
    for part in ["", "ca", "nats", "service", "clients"] {
        let mode = std::fs::metadata(root.join(part))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o027, 0, "{part}");
    }
}

#[test]
fn users_are_printed_as_text_or_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let text = make(folder.path(), &["--worker", "w2=t-1"]);
    assert_eq!(
        String::from_utf8(text.stdout).unwrap(),
        "coordinator: coordinator\nobserver: observer\nservice: service\nw2: worker of task t-1\nworker: worker\n"
    );
    let printed = make(folder.path(), &["--json"]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    let rows: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 5);
    assert_eq!(
        rows[3],
        json!({"user": "w2", "role": "worker", "task_id": "t-1"})
    );
    assert_eq!(
        rows[4],
        json!({"user": "worker", "role": "worker", "task_id": null})
    );
}

#[test]
fn names_that_no_worker_can_have_are_refused_and_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("secrets");
    let long = "x".repeat(65);
    for bad in [
        "service",
        "observer",
        "coordinator",
        "",
        "a.b",
        "a b",
        "../x",
        "ü",
        "w=a.b",
        "w=*",
        "w=",
        &long,
    ] {
        let made = make(&root, &["--worker", bad]);
        assert_eq!(made.status.code(), Some(2), "{bad}: {made:?}");
        assert!(!root.exists(), "{bad}");
        let said = String::from_utf8(made.stderr).unwrap();
        let is_task = bad.contains('=');
        assert_eq!(said.contains("is no task ID"), is_task, "{bad}: {said}");
    }
}

#[test]
fn a_file_that_is_not_what_it_must_be_is_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    assert!(
        make(folder.path(), &["--worker", "w2=t-1"])
            .status
            .success()
    );
    let users = std::fs::read_to_string(folder.path().join("nats/accounts.conf")).unwrap();
    for (file, text) in [
        ("clients/worker.nk", "not a seed"),
        ("service/service.nk", ""),
        ("clients/w2.task", "t-2 } \" >"),
        ("clients/w2.task", ">"),
        ("clients/bad name.nk", "SU"),
        ("ca/ca.key", "no key"),
    ] {
        let path = folder.path().join(file);
        let was = std::fs::read_to_string(&path).ok();
        std::fs::write(&path, text).unwrap();
        let made = make(folder.path(), &[]);
        let said = String::from_utf8(made.stderr).unwrap();
        assert_eq!(made.status.code(), Some(1), "{file}: {said}");
        assert!(
            said.contains(file) && said.contains("remove it"),
            "{file}: {said}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "{file}");
        assert_eq!(
            std::fs::read_to_string(folder.path().join("nats/accounts.conf")).unwrap(),
            users
        );
        match was {
            Some(was) => std::fs::write(&path, was).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
    }
    let other = make(folder.path(), &["--worker", "w2=t-2"]);
    let said = String::from_utf8(other.stderr).unwrap();
    assert!(
        said.contains("clients/w2.task is of another task"),
        "{said}"
    );
}
