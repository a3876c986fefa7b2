//! The workflows of the forge: what they use is pinned, what they run is there, and they build with the toolchain of
//! Cargo.toml.

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Each workflow with its name.
fn workflows() -> Vec<(String, String)> {
    let folder = root().join(".github/workflows");
    let paths = std::fs::read_dir(folder).unwrap();
    let paths: Vec<PathBuf> = paths.map(|entry| entry.unwrap().path()).collect();
    assert!(!paths.is_empty());
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    paths.iter().map(named).collect()
}

fn workflow(name: &str) -> String {
    let mut workflows = workflows().into_iter();
    workflows.find(|(found, _)| found == name).unwrap().1
}

/// What stands after a key, wherever the key begins a line or an item of a list.
fn values<'text>(text: &'text str, key: &str) -> Vec<&'text str> {
    let after_key = |line: &'text str| {
        let line = line.trim().trim_start_matches("- ");
        line.strip_prefix(key)?.strip_prefix(": ").map(str::trim)
    };
    text.lines().filter_map(after_key).collect()
}

#[test]
fn every_action_is_pinned_to_a_major_version_and_every_called_workflow_is_there() {
    for (name, text) in workflows() {
        for used in values(&text, "uses") {
            match used.strip_prefix("./") {
                Some(called) => assert!(root().join(called).is_file(), "{name}: {used}"),
                None => {
                    let version = used.split_once("@v").map(|(_, version)| version);
                    let is_major = version.is_some_and(|version| version.parse::<u32>().is_ok());
                    assert!(is_major, "{name}: write {used} as owner/action@vMAJOR");
                }
            }
        }
    }
}

#[test]
fn workflows_build_with_the_toolchain_that_cargo_toml_asks_for() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "))
        .unwrap()
        .trim_matches('"');
    for (name, text) in workflows() {
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("rustup"))
            .collect();
        assert!(!lines.is_empty(), "{name} names no toolchain");
        for line in lines {
            let expected = format!("rustup default {version}");
            assert!(line.ends_with(&expected), "{name}: {line}: not {expected}");
            let expected = format!("rustup toolchain install {version} ");
            assert!(line.contains(&expected), "{name}: {line}: not {expected}");
        }
    }
}

#[test]
fn a_change_runs_the_checks_of_the_repository_and_a_release_runs_them_before_it_builds() {
    assert!(root().join(".ci/run").is_file());
    assert!(values(&workflow("ci.yml"), "run").contains(&".ci/run"));
    let release = workflow("release.yml");
    assert!(values(&release, "uses").contains(&"./.github/workflows/ci.yml"));
    assert_eq!(values(&release, "needs"), ["test", "build"]);
}

#[test]
fn a_release_has_both_platforms_and_packs_files_that_are_there() {
    let release = workflow("release.yml");
    assert_eq!(
        values(&release, "platform"),
        ["linux-x86_64", "linux-aarch64"]
    );
    let packed = release
        .lines()
        .find_map(|line| line.trim().strip_prefix("cp -r target/dist/tasklatch "))
        .unwrap();
    for file in packed.split(' ').filter(|word| !word.starts_with('"')) {
        assert!(root().join(file).exists(), "{file}");
    }
}
