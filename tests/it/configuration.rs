//! Configuration: every option from every layer, and the files that come with the project.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::BINARY;

/// A value of each option for the file, the environment and the command line. A new option needs a line here, and one in
/// docs/configuration.md.
const VALUES: &[(&str, [&str; 3])] = &[
    ("json", ["true", "true", "true"]),
    ("quiet", ["true", "true", "true"]),
    ("color", ["always", "never", "auto"]),
    ("nats-url", ["nats://a:1", "nats://b:2", "nats://c:3"]),
    ("nats-creds", ["a", "b", "c"]),
    ("nats-user", ["a", "b", "c"]),
    ("nats-password", ["@a", "@b", "@c"]),
    ("nats-token", ["@a", "@b", "@c"]),
    ("nats-nkey", ["@a", "@b", "@c"]),
    ("nats-tls-ca", ["a", "b", "c"]),
    ("nats-tls-cert", ["a", "b", "c"]),
    ("nats-tls-key", ["a", "b", "c"]),
    ("inbox-prefix", ["a", "b", "c"]),
    ("prefix", ["a", "b", "c"]),
    ("timeout", ["1s", "2s", "3s"]),
    ("database", ["a.db", "b.db", "c.db"]),
    ("events", ["jetstream", "core", "jetstream"]),
    ("events-retention", ["interest", "limits", "interest"]),
    ("events-replicas", ["2", "3", "4"]),
    ("events-duplicate-window", ["1m", "3m", "4m"]),
    ("events-max-age", ["1h", "2h", "3h"]),
    ("keep-events", ["1d", "2d", "3d"]),
    ("max-unpublished", ["1", "2", "3"]),
    ("max-wal-size", ["1GiB", "2GiB", "3GiB"]),
    ("durable-reports", ["true", "true", "true"]),
    ("http", ["127.0.0.1:1", "127.0.0.1:2", "off"]),
    (
        "otlp-endpoint",
        ["http://a:4318", "http://b:4318", "http://c:4318"],
    ),
    ("allow-other-ledgers", ["true", "true", "true"]),
    ("max-in-hand", ["1", "2", "3"]),
    ("log-format", ["json", "text", "json"]),
    ("log", ["warn", "debug", "error"]),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn run(environment: &[(&str, &str)], arguments: &[&str]) -> Ran {
    let mut command = Command::new(BINARY);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TASKLATCH_")) {
        command.env_remove(name);
    }
    let output = command
        .envs(environment.iter().copied())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// What `config show` says: value and origin of each option, in order.
fn shown(environment: &[(&str, &str)], arguments: &[&str]) -> Vec<(String, Value, Value)> {
    let mut all = vec!["config", "show", "--json"];
    all.extend(arguments);
    let ran = run(environment, &all);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines = ran.stdout.lines();
    lines
        .map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            let name = line["option"].as_str().unwrap().to_owned();
            (name, line["value"].take(), line["from"].take())
        })
        .collect()
}

fn of(shown: &[(String, Value, Value)], name: &str) -> (String, String) {
    let found = shown.iter().find(|(option, ..)| option == name).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    (text(&found.1), text(&found.2))
}

#[test]
fn every_option_comes_from_the_file_unless_the_environment_says_otherwise_and_from_a_flag_before_both()
 {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasklatch.toml");
    let path = file.to_str().unwrap();
    let values: BTreeMap<&str, [&str; 3]> = VALUES.iter().copied().collect();
    for (name, default, from) in shown(&[], &[]) {
        let Some([in_file, in_environment, on_the_line]) = values.get(name.as_str()).copied()
        else {
            panic!("--{name} has no values in this test");
        };
        // `config show --json` is how this test asks.
        if name != "json" {
            let expected = if default.is_null() { "-" } else { "default" };
            assert_eq!(from.as_str().unwrap_or("-"), expected, "{name}");
        }
        let is_switch = in_file == "true";
        let quoted = match in_file {
            "true" => "true".to_owned(),
            text => format!("{text:?}"),
        };
        std::fs::write(&file, format!("\n{name} = {quoted}\n")).unwrap();
        let variable = format!("TASKLATCH_{}", name.to_uppercase().replace('-', "_"));
        let set = [(variable.as_str(), in_environment)];
        let flag = match is_switch {
            true => format!("--{name}"),
            false => format!("--{name}={on_the_line}"),
        };
        if name != "json" {
            let shown = shown(&[], &["--config", path]);
            let origin = format!("file {path}:2");
            assert_eq!(of(&shown, &name), (in_file.to_owned(), origin), "{name}");
            let shown = self::shown(&set, &["--config", path]);
            let origin = format!("environment {variable}");
            assert_eq!(
                of(&shown, &name),
                (in_environment.to_owned(), origin),
                "{name}"
            );
            let shown = self::shown(&set, &["--config", path, &flag]);
            let expected = (on_the_line.to_owned(), "flag".to_owned());
            assert_eq!(of(&shown, &name), expected, "{name}");
        }
    }
}

#[test]
fn everything_that_is_wrong_with_a_file_is_told_with_its_line_and_no_verb_reads_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasklatch.toml");
    let path = file.to_str().unwrap();
    std::fs::write(
        &file,
        "nat-url = 'x'\nmax-in-hand = 'many'\nnats-nkey = 5.5\ndurable-reports = 'yes'\nevents = 'rabbit'\nconfig = 'x'\n[serve]\n",
    )
    .unwrap();
    for verb in [&["task", "list"][..], &["config", "check"], &["serve"]] {
        let mut arguments = verb.to_vec();
        arguments.extend(["--config", path]);
        let ran = run(&[], &arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{verb:?}");
        for part in [
            ":1: there is no option nat-url; did you mean nats-url?",
            ":2: invalid value 'many' for '--max-in-hand <value>'",
            ":3: nats-nkey takes a string or a whole number",
            ":4: durable-reports is on or off: write true or false",
            ":5: invalid value 'rabbit' for '--events <value>' [possible values: core, jetstream]",
            ":6: there is no option config",
            ":7: there is no option serve",
        ] {
            assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
        }
        assert_eq!(ran.stderr.lines().count(), 7, "{}", ran.stderr);
    }
    for (text, part) in [
        ("a = [", ":1: not TOML: "),
        (
            "quiet = true\nquiet = true\n",
            ":2: not TOML: duplicate key",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let ran = run(&[], &["config", "check", "--config", path]);
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
    let missing = folder.path().join("missing.toml");
    let ran = run(
        &[],
        &["config", "check", "--config", missing.to_str().unwrap()],
    );
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("cannot read"), "{}", ran.stderr);
}

#[test]
fn config_check_looks_at_what_belongs_together_at_files_and_at_variables_that_nothing_reads() {
    for (arguments, part) in [
        (
            &["--nats-user", "me"][..],
            "--nats-user needs --nats-password",
        ),
        (
            &["--nats-token", "x", "--nats-user", "me"],
            "2 ways to log in",
        ),
        (
            &["--nats-nkey", "@/nowhere/seed"],
            "cannot read /nowhere/seed",
        ),
        (
            &["--nats-tls-ca", "/nowhere/ca.pem"],
            "cannot read /nowhere/ca.pem",
        ),
        (
            &["--nats-url", "http://a"],
            "invalid scheme for NATS server URL",
        ),
        (&["--nats-nkey", "SUNOSEED"], "--nats-nkey is no seed"),
        (
            &["--inbox-prefix", "a.*"],
            "--inbox-prefix \"a.*\" is no subject",
        ),
        (
            &["--inbox-prefix", "tasklatch.x"],
            "lies under --prefix tasklatch",
        ),
        (&["--log", "tasklatch=loud"], "is no filter"),
        // And all of them at once.
        (
            &[
                "--nats-url",
                "http://a",
                "--nats-user",
                "me",
                "--nats-tls-cert",
                "x",
                "--inbox-prefix",
                "a.*",
            ],
            "invalid scheme",
        ),
        (
            &["--nats-url", "http://a", "--nats-user", "me"],
            "needs --nats-password",
        ),
        (
            &["--nats-user", "me", "--nats-tls-cert", "x"],
            "only go together",
        ),
        (
            &[
                "--nats-tls-cert",
                "x",
                "--inbox-prefix",
                "a.*",
                "--log",
                "tasklatch=loud",
            ],
            "is no filter",
        ),
    ] {
        let mut all = vec!["config", "check"];
        all.extend(arguments);
        let ran = run(&[], &all);
        assert_eq!(ran.code, 2, "{arguments:?}");
        assert!(ran.stderr.contains(part), "{arguments:?}: {}", ran.stderr);
    }
    let ran = run(&[("TASKLATCH_NATS_URI", "x")], &["config", "check"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (0, "the configuration can be used\n")
    );
    let warning = "TASKLATCH_NATS_URI is set and is no variable of an option; did you mean TASKLATCH_NATS_URL?";
    assert!(ran.stderr.contains(warning), "{}", ran.stderr);
}

#[test]
fn a_secret_of_the_file_is_shown_by_no_message_no_help_and_no_listing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasklatch.toml");
    let path = file.to_str().unwrap();
    for line in [
        "nats-token = 'hush-hush'",
        "nats-nkey = 'hush-hush'",
        "nats-url = 'nats://me:hush-hush@127.0.0.1:4222'",
        "nats-url = 'http://me:hush-hush@127.0.0.1:4222'",
        "nats-password = 'hush-hush'\nnats-user = 'me'",
        "otlp-endpoint = 'http://me:hush-hush@127.0.0.1:4318'",
    ] {
        std::fs::write(&file, line).unwrap();
        for verb in [
            &["config", "show"][..],
            &["config", "show", "--json"],
            &["config", "check"],
            &["--help"],
            &["serve", "--help"],
            &["task", "list", "--timeout", "100ms"],
        ] {
            let mut arguments = verb.to_vec();
            arguments.extend(["--config", path]);
            let ran = run(&[("TASKLATCH_LOG", "trace")], &arguments);
            let all = ran.stdout + &ran.stderr;
            assert!(!all.contains("hush-hush"), "{line}: {verb:?}");
        }
    }
    let endpoint = "http://me:hush-hush@127.0.0.1:4318";
    for verb in [&["config", "show"][..], &["serve", "--help"], &["serve"]] {
        let ran = run(&[("TASKLATCH_OTLP_ENDPOINT", endpoint)], verb);
        let all = ran.stdout + &ran.stderr;
        assert!(!all.contains("hush-hush"), "{verb:?}: {all}");
    }
}

#[test]
fn false_in_the_environment_wins_over_true_in_the_file_and_one_way_to_log_in_over_another() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasklatch.toml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, "durable-reports = true\nnats-token = '@/nowhere'\n").unwrap();
    let off = [("TASKLATCH_DURABLE_REPORTS", "false")];
    let shown = shown(&off, &["--config", path]);
    let origin = "environment TASKLATCH_DURABLE_REPORTS".to_owned();
    assert_eq!(of(&shown, "durable-reports"), ("false".to_owned(), origin));
    let ran = run(&[], &["config", "check", "--config", path]);
    assert_eq!(ran.code, 2, "the file's own login is looked at");
    let login = ["config", "check", "--config", path, "--nats-user", "me"];
    let ran = run(&[("TASKLATCH_NATS_PASSWORD", "x")], &login);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn the_page_on_configuration_has_every_option_with_its_variable_and_its_default() {
    let page = std::fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let rows: Vec<String> = page
        .lines()
        .filter(|line| line.starts_with("| `--"))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            assert!(!cells[4].is_empty(), "{line} says nothing");
            cells[1..4].join(" ").replace('`', "")
        })
        .collect();
    let expected: Vec<String> = shown(&[], &[])
        .iter()
        .map(|(name, value, _)| {
            let variable = format!("TASKLATCH_{}", name.to_uppercase().replace('-', "_"));
            let default = match name.as_str() {
                "json" => "false",
                _ => value.as_str().unwrap_or("-"),
            };
            format!("--{name} {variable} {default}")
        })
        .collect();
    assert_eq!(
        rows, expected,
        "docs/configuration.md needs a row for each option, in this order: option, variable, default, meaning"
    );
}

#[test]
fn the_file_for_a_machine_of_its_own_sets_only_what_there_is_and_the_unit_starts_with_it() {
    let file = root().join("deploy/tasklatch.toml");
    let shown = shown(&[], &["--config", file.to_str().unwrap()]);
    let set = shown
        .iter()
        .filter(|(_, _, from)| from.as_str().is_some_and(|from| from.starts_with("file")));
    let keys = std::fs::read_to_string(&file).unwrap();
    let keys = keys.lines().filter(|line| line.contains(" = ")).count();
    assert_eq!(set.count(), keys);
    assert_eq!(of(&shown, "events").0, "jetstream");

    let unit = std::fs::read_to_string(root().join("deploy/tasklatch.service")).unwrap();
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .unwrap();
    let words: Vec<&str> = start.split(' ').collect();
    assert_eq!(words[0], "/usr/local/bin/tasklatch");
    assert_eq!(
        words[1..],
        ["serve", "--config", "/etc/tasklatch/tasklatch.toml"]
    );
    // The files that the service itself cannot read are handed to it.
    for name in ["nats-nkey", "nats-tls-ca"] {
        let path = of(&shown, name).0.trim_start_matches('@').to_owned();
        let credential = path.rsplit('/').next().unwrap();
        assert!(
            unit.contains(&format!("\nLoadCredential={credential}:{path}\n")),
            "{name}"
        );
        let variable = format!("TASKLATCH_{}=", name.to_uppercase().replace('-', "_"));
        assert!(unit.contains(&variable), "{variable}");
        assert!(unit.contains(&format!("%d/{credential}")), "{name}");
    }
    let ran = run(
        &[],
        &["config", "check", "--config", file.to_str().unwrap()],
    );
    let lacks_seed = ran.stderr.contains("cannot read /etc/tasklatch");
    assert!(ran.code == 0 || lacks_seed, "{}", ran.stderr);
}

/// Where systemd is, its own verdict; elsewhere what it would look at first.
#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let text = std::fs::read_to_string(root().join("deploy/tasklatch.service")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("tasklatch.service");
    // It looks for the program, which is not installed here.
    std::fs::write(&unit, text.replace("/usr/local/bin/tasklatch", BINARY)).unwrap();
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&unit)
        .output();
    if let Ok(output) = verified {
        let said = String::from_utf8_lossy(&output.stderr);
        let ours = said
            .lines()
            .filter(|line| line.contains("tasklatch.service"));
        assert_eq!(ours.collect::<Vec<_>>(), Vec::<&str>::new());
        return;
    }
    let mut section = "";
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
        } else if line.starts_with('[') {
            assert!(
                ["[Unit]", "[Service]", "[Install]"].contains(&line),
                "{line}"
            );
            section = line;
        } else {
            assert!(line.contains('=') && !section.is_empty(), "{line}");
        }
    }
}

#[test]
fn the_old_name_of_an_option_works_as_a_flag_a_variable_and_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasklatch.toml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, "max-log-size = '1GiB'\n").unwrap();
    let size = |environment: &[(&str, &str)], arguments: &[&str]| {
        of(&shown(environment, arguments), "max-wal-size").0
    };
    let from_file = ["--config", path];
    assert_eq!(size(&[], &from_file), "1GiB");
    let old = [("TASKLATCH_MAX_LOG_SIZE", "2GiB")];
    assert_eq!(size(&old, &from_file), "2GiB");
    let both = [old[0], ("TASKLATCH_MAX_WAL_SIZE", "3GiB")];
    assert_eq!(size(&both, &from_file), "3GiB", "the new name goes first");
    assert_eq!(size(&both, &["--max-log-size", "5GiB"]), "5GiB");
    std::fs::write(&file, "max-log-size = '1GiB'\nmax-wal-size = '1GiB'\n").unwrap();
    let ran = run(&[], &["config", "check", "--config", path]);
    assert_eq!(ran.code, 2);
    let part = ":2: max-wal-size is another name of an option that is set above";
    assert!(ran.stderr.contains(part), "{}", ran.stderr);
}
