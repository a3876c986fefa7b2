//! House rules that nobody has to remember: what may use what, how long a file may be, and how JSON is built in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::docs::rust_files;

const LINES_MAX: usize = 600;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of a folder with their text, by their path in the project.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    rust_files(&root().join(folder), &mut files);
    let named = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (
            path.strip_prefix(root())
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned(),
            text,
        )
    };
    let mut sources: Vec<(String, String)> = files.into_iter().map(named).collect();
    assert!(!sources.is_empty());
    sources.sort();
    sources
}

/// A module of the crate: its file, or a file in its folder.
fn is_of(file: &str, module: &str) -> bool {
    let rest = file
        .strip_prefix("src/")
        .and_then(|rest| rest.strip_prefix(module));
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// The lines of code, without comments and without what stands in a `mod tests` at the end.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .take_while(|line| *line != "#[cfg(test)]")
        .map(|line| line.split("//").next().unwrap_or_default())
}

/// Which modules of the crate a file names, by `crate::module` anywhere in its code.
fn modules_used(text: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for line in code(text) {
        for part in line.split("crate::").skip(1) {
            used.insert(
                part.split(|c: char| !c.is_alphanumeric() && c != '_')
                    .next()
                    .unwrap()
                    .to_owned(),
            );
        }
    }
    used.remove("");
    used
}

fn names_crate(text: &str, name: &str) -> bool {
    code(text)
        .any(|line| line.contains(&format!("{name}::")) || line.contains(&format!("use {name};")))
}

#[test]
fn what_decides_does_no_io_and_each_layer_uses_only_those_below_it() {
    let io = ["sqlx", "async_nats", "tokio"];
    let pure: &[(&str, &[&str])] = &[
        ("content", &["content"]),
        ("task", &["task", "content"]),
        ("report", &["report", "task", "content"]),
        ("wire", &["wire", "report", "task", "content"]),
    ];
    for (file, text) in sources("src") {
        for (module, may_use) in pure.iter().filter(|(module, _)| is_of(&file, module)) {
            for name in io {
                assert!(
                    !names_crate(&text, name),
                    "{file} is of {module} and must not use {name}"
                );
            }
            for used in modules_used(&text) {
                assert!(
                    may_use.contains(&used.as_str()),
                    "{file} is of {module} and must not use crate::{used}"
                );
            }
        }
    }
}

#[test]
fn all_sql_is_in_the_ledger_and_the_client_and_the_command_line_know_no_store() {
    for (file, text) in sources("src") {
        if !is_of(&file, "ledger") {
            assert!(
                !names_crate(&text, "sqlx"),
                "{file} must not use sqlx: all SQL is in the ledger"
            );
            let select = code(&text)
                .find(|line| line.contains("\"SELECT ") || line.contains("\"INSERT INTO "));
            assert_eq!(select, None, "{file} has SQL in it");
        } else {
            assert!(
                !names_crate(&text, "async_nats"),
                "{file} must not use async_nats"
            );
            for module in [
                "consumer", "relay", "service", "client", "cli", "snapshot", "nats", "http",
                "config",
            ] {
                assert!(
                    !modules_used(&text).contains(module),
                    "{file} must not use crate::{module}"
                );
            }
        }
        let opens = [
            "cli/serve",
            "cli/dev",
            "cli/snapshot",
            "cli/events",
            "cli/ledger",
        ]
        .iter()
        .any(|module| is_of(&file, module));
        if is_of(&file, "client") || (is_of(&file, "cli") && !opens) {
            for module in ["ledger", "snapshot", "consumer", "relay"] {
                assert!(
                    !modules_used(&text).contains(module),
                    "{file} must not use crate::{module}"
                );
            }
        }
        if is_of(&file, "snapshot") {
            assert!(
                !names_crate(&text, "async_nats"),
                "{file} must not use async_nats"
            );
        }
    }
}

#[test]
fn no_source_file_is_longer_than_people_read() {
    let mut long = Vec::new();
    for folder in ["src", "tests", "examples"] {
        for (file, text) in sources(folder) {
            let lines = text.lines().count();
            if lines > LINES_MAX {
                long.push(format!("{file} has {lines} lines"));
            }
        }
    }
    assert!(
        long.is_empty(),
        "more than {LINES_MAX}: {}",
        long.join(", ")
    );
}

/// Each word is put together here, so that this file does not contain it.
fn assert_nowhere(sources: &[(String, String)], word: [&str; 2]) {
    let word = word.concat();
    for (file, text) in sources {
        let found = text
            .lines()
            .find(|line| line.split("//").next().unwrap().contains(&word));
        assert_eq!(found, None, "{file} contains {word:?}");
    }
}

#[test]
fn no_unsafe_code_no_unfinished_code_no_test_that_is_left_out_and_none_that_waits_for_a_fixed_time()
{
    let mut tests = sources("tests");
    for all in [sources("src"), tests.clone()] {
        for word in [
            ["unsafe", " "],
            ["todo", "!("],
            ["unimplemented", "!("],
            ["#[ig", "nore"],
            ["db", "g!("],
        ] {
            assert_nowhere(&all, word);
        }
    }
    // `support` may look again for what sends no signal; it has a deadline for that. The fault suite has one place for how
    // long a trouble lasts.
    tests.retain(|(file, _)| {
        !file.starts_with("tests/it/support/") && file != "tests/torture/stage.rs"
    });
    assert_nowhere(&tests, ["sle", "ep("]);
}

#[test]
fn every_file_of_the_integration_tests_is_declared() {
    for (file, _) in sources("tests/it") {
        let path = Path::new(&file);
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if file == "tests/it/main.rs" {
            continue;
        }
        let folder = path.parent().unwrap();
        // The parent of `a/b.rs` is `a.rs` or `a/mod.rs`; of `a/mod.rs` it is that of `a`.
        let (name, parents) = match stem {
            "mod" => {
                let above = folder.parent().unwrap();
                (
                    folder.file_name().unwrap().to_str().unwrap(),
                    [above.join("main.rs"), above.join("mod.rs")],
                )
            }
            stem if folder == Path::new("tests/it") => {
                (stem, [folder.join("main.rs"), folder.join("mod.rs")])
            }
            stem => (stem, [folder.with_extension("rs"), folder.join("mod.rs")]),
        };
        let declared = parents.iter().any(|parent| {
            std::fs::read_to_string(root().join(parent)).is_ok_and(|text| {
                text.lines()
                    .any(|line| line.trim_start_matches("pub ") == format!("mod {name};"))
            })
        });
        assert!(
            declared,
            "{file} is declared nowhere, so its tests do not run"
        );
    }
}

/// Another crate of the build could turn features of serde_json on, and with them change what is equal.
#[test]
fn serde_json_is_built_with_the_features_that_are_meant_and_no_others() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let version = std::process::Command::new(&cargo).arg("-vV").output();
    let version = String::from_utf8(version.unwrap().stdout).unwrap();
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap();
    let output = std::process::Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        // What this build needs was fetched for it; what other platforms need may not be there.
        .args(["--filter-platform", host])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let built: Vec<&Value> = nodes
        .iter()
        .filter(|node| {
            let id = node["id"].as_str().unwrap();
            id.contains("serde_json@")
                || id.contains("serde_json#")
                || id.starts_with("serde_json ")
        })
        .collect();
    assert_eq!(built.len(), 1, "one serde_json is built");
    let mut features: Vec<&str> = built[0]["features"]
        .as_array()
        .unwrap()
        .iter()
        .map(|feature| feature.as_str().unwrap())
        .collect();
    features.sort_unstable();
    assert_eq!(features, ["default", "raw_value", "std"]);
}

#[test]
fn the_files_of_cases_are_there_and_each_line_of_them_is_a_case_of_its_own() {
    for (file, at_least) in [("same-content.jsonl", 31), ("refused-reports.jsonl", 33)] {
        let text = std::fs::read_to_string(root().join("tests/cases").join(file)).unwrap();
        let names: Vec<String> = text
            .lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).unwrap()["name"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        assert!(names.len() >= at_least, "{file} has {} cases", names.len());
        assert_eq!(
            names.iter().collect::<BTreeSet<_>>().len(),
            names.len(),
            "{file}"
        );
    }
}
