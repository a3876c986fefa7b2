//! `tasklatch secrets make`.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

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
            name == "nats/accounts.conf" || after[name] == *text,
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
