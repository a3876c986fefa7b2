//! The documents say what the code does: each example decodes, each table is the code's, each requirement has its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tasklatch::content;
use tasklatch::task::Task;
use tasklatch::wire::{Change, CloudEvent, Code, Endpoint, Refusal, Request, decode, events_of};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn document(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// The examples of a document, by name: the code blocks after `<!-- example: NAME -->`.
fn examples(name: &str) -> BTreeMap<String, String> {
    let text = document(name);
    let mut examples = BTreeMap::new();
    for part in text.split("<!-- example: ").skip(1) {
        let (name, rest) = part
            .split_once(" -->\n```json\n")
            .expect("an example is a block of JSON");
        let (json, _) = rest.split_once("\n```").unwrap();
        assert!(
            examples.insert(name.to_owned(), json.to_owned()).is_none(),
            "two examples {name}"
        );
    }
    assert!(!examples.is_empty());
    examples
}

/// The cells of every row of the first table whose header begins with these cells, without back quotes.
pub fn table(text: &str, header: &[&str]) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().replace('`', ""))
            .collect()
    };
    let mut lines = text.lines().skip_while(|line| {
        !line.starts_with('|') || !cells(line).iter().zip(header).all(|(a, b)| a == b)
    });
    assert!(lines.next().is_some(), "a table with {header:?}");
    lines
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(cells)
        .collect()
}

/// JSON without the white space between its tokens, and nothing else changed.
fn compact(json: &str) -> String {
    content::parse(json.as_bytes(), content::MAX_LEVELS)
        .unwrap()
        .to_text()
}

fn task(json: &str) -> Task {
    let json = compact(json);
    let task: Task = serde_json::from_str(&json).unwrap();
    assert_eq!(
        serde_json::to_string(&task).unwrap(),
        json,
        "as the service writes it, key by key"
    );
    task
}

fn refusal(json: &str) {
    let body: Value = serde_json::from_str(json).unwrap();
    let refusal: Refusal = serde_json::from_value(body["error"].clone()).unwrap();
    assert_eq!(refusal.action, refusal.code.action(), "{json}");
    assert_eq!(
        serde_json::to_value(&refusal).unwrap(),
        body["error"],
        "with no field that the code does not know"
    );
    assert_eq!(body.as_object().unwrap().len(), 1);
}

fn request(endpoint: Endpoint, json: &str) -> Request {
    decode(endpoint, None, json.as_bytes(), tasklatch::ids::new_task_id)
        .unwrap_or_else(|refusal| panic!("{refusal}: {json}"))
}

#[test]
fn each_example_of_the_protocol_decodes_by_the_code() {
    let examples = examples("protocol.md");
    for (name, json) in &examples {
        match name.as_str() {
            "task" => drop(task(json)),
            "selector" => drop(request(Endpoint::Get, json)),
            "report" | "minimal-report" => assert!(matches!(
                request(Endpoint::Report, json),
                Request::Change(Change::Report { .. })
            )),
            "create" => drop(request(Endpoint::Create, json)),
            "list-request" => drop(request(Endpoint::List, json)),
            "list-answer" => {
                let answer: BTreeMap<String, Value> = serde_json::from_str(json).unwrap();
                assert_eq!(answer.keys().collect::<Vec<_>>(), ["cursor", "tasks"]);
                for one in answer["tasks"].as_array().unwrap() {
                    serde_json::from_value::<Task>(one.clone()).unwrap();
                }
            }
            "cancel" => drop(request(Endpoint::Cancel, json)),
            "review" => drop(request(Endpoint::Review, json)),
            "event-result" | "event-task" => {
                let events = events_of(&task(&examples["event-task"])).unwrap();
                let event = usize::from(name == "event-task");
                assert_eq!(
                    String::from_utf8_lossy(&events[event].data),
                    compact(json),
                    "{name}"
                );
            }
            "snapshot-unpublished-event" => {
                let line: BTreeMap<String, CloudEvent> = serde_json::from_str(json).unwrap();
                let event = &line["unpublished_event"];
                assert_eq!(
                    event.data.get().parse::<Value>().unwrap(),
                    examples["event-result"].parse::<Value>().unwrap()
                );
                let ids = events_of(&task(&examples["event-task"])).unwrap();
                assert_eq!(
                    (event.id.as_str(), event.specversion.as_str()),
                    (ids[0].id().as_str(), "1.0")
                );
            }
            name if name.starts_with("refusal-") => refusal(json),
            name => panic!("an example that no test knows: {name}"),
        }
    }
    let Request::Change(Change::Create(new)) = request(Endpoint::Create, &examples["create"])
    else {
        panic!("create")
    };
    let task = task(&examples["task"]);
    assert_eq!(
        (new.title, new.pane_id, new.metadata, new.deadline),
        (task.title, task.pane_id, task.metadata, task.deadline)
    );
}

#[test]
fn each_example_of_a_refusal_decodes_and_is_of_the_code_that_it_is_named_for() {
    for (name, json) in examples("errors.md") {
        refusal(&json);
        let body: Value = serde_json::from_str(&json).unwrap();
        let code = body["error"]["code"].as_str().unwrap().replace('_', "-");
        assert!(
            name.starts_with(&format!("refusal-{code}")),
            "{name} is of {code}"
        );
    }
}

#[test]
fn the_tables_of_codes_are_those_of_the_code_with_number_and_action_and_each_code_has_its_section()
{
    let expected: Vec<Vec<String>> = Code::ALL
        .iter()
        .map(|code| {
            vec![
                code.to_string(),
                code.number().to_string(),
                code.action().to_string(),
            ]
        })
        .collect();
    for name in ["protocol.md", "errors.md"] {
        let rows = table(&document(name), &["code", "header", "action"]);
        let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row[..3].to_vec()).collect();
        assert_eq!(rows, expected, "{name}");
    }
    let errors = document("errors.md");
    for code in Code::ALL {
        let heading = format!("\n## `{code}`\n");
        let (_, section) = errors
            .split_once(&heading)
            .unwrap_or_else(|| panic!("no section of {code}"));
        let section = section.split("\n## ").next().unwrap();
        for part in [
            "**What happened.**",
            "**Likely causes.**",
            "**Remedy.**",
            "**Fields.**",
        ] {
            assert!(section.contains(part), "{part} of {code}");
        }
    }
}

#[test]
fn the_limits_in_the_document_are_those_of_the_code() {
    use tasklatch::wire::limits;
    let text = document("protocol.md");
    let rows: BTreeMap<String, String> = table(&text, &["what", "limit"])
        .into_iter()
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    let kib = |bytes: usize| format!("{} KiB", bytes / 1024);
    for (what, parts) in [
        ("task_id", vec![limits::TASK_ID_BYTES.to_string()]),
        ("pane_id", vec![limits::PANE_ID_CHARS.to_string()]),
        ("title", vec![kib(limits::TITLE_BYTES)]),
        ("summary", vec![kib(limits::SUMMARY_BYTES)]),
        (
            "artifacts",
            vec![limits::ARTIFACTS.to_string(), kib(limits::ARTIFACT_BYTES)],
        ),
        (
            "evidence",
            vec![
                kib(limits::EVIDENCE_BYTES),
                format!("{} levels", limits::EVIDENCE_LEVELS),
            ],
        ),
        (
            "metadata",
            vec![
                kib(limits::METADATA_BYTES),
                format!("{} levels", limits::METADATA_LEVELS),
            ],
        ),
        ("reason", vec![kib(limits::REASON_BYTES)]),
        ("note", vec![kib(limits::NOTE_BYTES)]),
        ("reviewer", vec![limits::REVIEWER_BYTES.to_string()]),
        ("a whole report", vec![kib(limits::REPORT_BYTES)]),
        (
            "limit of a list",
            vec![
                limits::LIST_TASKS.to_string(),
                limits::LIST_TASKS_DEFAULT.to_string(),
            ],
        ),
    ] {
        for part in parts {
            assert!(
                rows[what].contains(&part),
                "{what}: {part} in {:?}",
                rows[what]
            );
        }
    }
}

/// Every test of the project, as `module::name` for integration tests and `name` alone for all.
pub fn tests() -> BTreeSet<String> {
    let mut files = Vec::new();
    for folder in ["src", "tests/it"] {
        rust_files(&root().join(folder), &mut files);
    }
    let mut tests = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let module = file.file_stem().unwrap().to_str().unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some(rest) = line
                .strip_prefix("async fn ")
                .or_else(|| line.strip_prefix("fn "))
            {
                if std::mem::take(&mut is_test) {
                    let name = rest.split(['(', '<']).next().unwrap();
                    tests.insert(format!("{module}::{name}"));
                }
            } else if !line.starts_with("#[") && !line.starts_with("//") && !line.is_empty() {
                is_test = false;
            }
        }
    }
    tests
}

pub fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn each_requirement_scenario_edge_case_and_criterion_of_the_feature_is_mapped_to_tests_that_exist()
{
    let rows = table(&document("requirements.md"), &["number", "what", "tests"]);
    let numbers: BTreeSet<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(numbers.len(), rows.len(), "each number once");
    let mut needed: Vec<String> = (1..=8).map(|number| format!("FR-00{number}")).collect();
    needed.extend((1..=4).map(|number| format!("SC-00{number}")));
    needed.extend(
        (1..=2).flat_map(|story| (1..=3).map(move |scenario| format!("US{story}.{scenario}"))),
    );
    needed.extend((1..=5).map(|number| format!("Edge {number}")));
    for number in needed {
        assert!(numbers.contains(number.as_str()), "{number} is in no row");
    }
    let tests = tests();
    for row in &rows {
        let named: Vec<&str> = row[2]
            .split("<br>")
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .collect();
        assert!(!named.is_empty(), "{} has no test", row[0]);
        assert!(!row[1].is_empty(), "{} says nothing", row[0]);
        for name in named {
            assert!(tests.contains(name), "{}: there is no test {name}", row[0]);
        }
    }
}
