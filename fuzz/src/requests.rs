//! Requests that were read: written again, and held against the limits and the reference.

use serde_json::json;
use serde_json::value::RawValue;

use crate::content::JsonText;
use crate::reference::{Value, member, read, same};
use crate::report::{Report, Selector};
use crate::wire::{Change, Endpoint, ListQuery, Request, limits};

/// Writes a request as a payload for an endpoint that needs no task ID in its subject.
pub fn written(request: &Request) -> (Endpoint, Vec<u8>) {
    let mut fields = Fields::default();
    let endpoint = match request {
        Request::Get(selector) => {
            fields.selector(selector);
            Endpoint::Get
        }
        Request::List(query) => {
            fields.list(query);
            Endpoint::List
        }
        Request::Change(Change::Start(selector)) => {
            fields.selector(selector);
            Endpoint::Start
        }
        Request::Change(Change::Cancel { selector, reason }) => {
            fields.selector(selector);
            fields.put("reason", reason);
            Endpoint::Cancel
        }
        Request::Change(Change::Review {
            selector,
            verdict,
            note,
            reviewer,
        }) => {
            fields.selector(selector);
            fields.put("verdict", verdict);
            fields.put("note", note);
            fields.put("reviewer", reviewer);
            Endpoint::Review
        }
        Request::Change(Change::Create(task)) => {
            fields.put("task_id", &task.task_id);
            fields.put("pane_id", &task.pane_id);
            fields.put("title", &task.title);
            fields.put("deadline", &task.deadline);
            fields.text("metadata", task.metadata.as_ref());
            Endpoint::Create
        }
        Request::Change(Change::Report { selector, report }) => {
            fields.selector(selector);
            fields.put("status", &report.status);
            fields.put("summary", &report.summary);
            fields.put("artifacts", &report.artifacts);
            fields.text("evidence", Some(&report.evidence));
            Endpoint::Report
        }
    };
    let payload = serde_json::to_vec(&fields.0).expect("strings and JSON are written");
    (endpoint, payload)
}

/// The fields of a payload, as JSON text, so that no number is read on the way.
#[derive(Default)]
struct Fields(std::collections::BTreeMap<&'static str, Box<RawValue>>);

impl Fields {
    fn put(&mut self, name: &'static str, value: &impl serde::Serialize) {
        let text = serde_json::value::to_raw_value(value).expect("plain data is written");
        self.0.insert(name, text);
    }

    fn text(&mut self, name: &'static str, value: Option<&JsonText>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    fn selector(&mut self, selector: &Selector) {
        self.put("task_id", &selector.task_id());
        self.put("pane_id", &selector.pane_id());
    }

    fn list(&mut self, query: &ListQuery) {
        let verdicts = query.disposition.as_ref().map(|verdicts| {
            let word =
                |verdict: &Option<_>| verdict.map_or(json!("none"), |verdict| json!(verdict));
            verdicts.iter().map(word).collect::<Vec<_>>()
        });
        self.put("disposition", &verdicts);
        self.put("lifecycle", &query.lifecycle);
        self.put("pane_id", &query.pane_id);
        self.put("updated_since", &query.updated_since);
        self.put("limit", &query.limit);
        self.put("cursor", &query.cursor);
    }
}

/// Checks that a request that was read from `payload` is within every limit, and that its content is what the
/// reference reads there, which it gives.
///
/// # Panics
/// Where it is not.
pub fn check(endpoint: Endpoint, request: &Request, payload: &[u8]) -> Value {
    let levels = match endpoint {
        Endpoint::Create => limits::METADATA_LEVELS,
        _ => limits::EVIDENCE_LEVELS,
    };
    let Some(Value::Object(sent)) = read(payload, levels + 1) else {
        panic!("the reference refuses what was read as {request:?}")
    };
    match request {
        Request::Get(selector) | Request::Change(Change::Start(selector)) => {
            check_selector(selector);
        }
        Request::List(query) => {
            assert!((1..=limits::LIST_TASKS).contains(&query.limit));
            at_most(query.cursor.as_deref(), limits::TASK_ID_BYTES);
            query
                .pane_id
                .as_deref()
                .iter()
                .for_each(|id| check_pane_id(id));
        }
        Request::Change(Change::Cancel { selector, reason }) => {
            check_selector(selector);
            at_most(reason.as_deref(), limits::REASON_BYTES);
        }
        Request::Change(Change::Review {
            selector,
            note,
            reviewer,
            ..
        }) => {
            check_selector(selector);
            at_most(note.as_deref(), limits::NOTE_BYTES);
            at_most(reviewer.as_deref(), limits::REVIEWER_BYTES);
        }
        Request::Change(Change::Create(task)) => {
            check_task_id(&task.task_id);
            task.pane_id
                .as_deref()
                .iter()
                .for_each(|id| check_pane_id(id));
            assert!(!task.title.is_empty());
            at_most(Some(&task.title), limits::TITLE_BYTES);
            let metadata = task.metadata.as_ref();
            check_object(
                metadata,
                limits::METADATA_BYTES,
                levels,
                member(&sent, "metadata"),
            );
        }
        Request::Change(Change::Report { selector, report }) => {
            check_selector(selector);
            check_report(report, &sent);
        }
    }
    Value::Object(sent)
}

fn check_report(report: &Report, sent: &[(String, Value)]) {
    assert!(!report.summary.trim().is_empty());
    at_most(Some(&report.summary), limits::SUMMARY_BYTES);
    assert!(report.artifacts.len() <= limits::ARTIFACTS);
    for artifact in &report.artifacts {
        assert!(!artifact.is_empty());
        at_most(Some(artifact), limits::ARTIFACT_BYTES);
    }
    let evidence = match member(sent, "evidence") {
        None | Some(Value::Null) => &Value::Object(Vec::new()),
        Some(evidence) => evidence,
    };
    let read = Some(&report.evidence);
    check_object(
        read,
        limits::EVIDENCE_BYTES,
        limits::EVIDENCE_LEVELS,
        Some(evidence),
    );
    let string = |text: &str| Value::String(text.to_owned());
    let same_as_sent = |name, value: Value| match member(sent, name) {
        None | Some(Value::Null) => same(&value, &Value::Array(Vec::new())),
        Some(sent) => same(&value, sent),
    };
    assert!(same_as_sent("summary", string(&report.summary)));
    assert!(same_as_sent("status", string(report.status.as_str())));
    let artifacts = report.artifacts.iter().map(|text| string(text)).collect();
    assert!(same_as_sent("artifacts", Value::Array(artifacts)));
}

fn check_object(object: Option<&JsonText>, bytes: usize, levels: usize, sent: Option<&Value>) {
    let Some(object) = object else {
        return assert!(matches!(sent, None | Some(Value::Null)));
    };
    assert!(object.get().len() <= bytes);
    let read = read(object.get().as_bytes(), levels).expect("what is kept of an object is JSON");
    assert!(matches!(read, Value::Object(_)));
    assert!(sent.is_some_and(|sent| same(&read, sent)));
}

fn check_selector(selector: &Selector) {
    assert!(selector.task_id().is_some() || selector.pane_id().is_some());
    selector.task_id().into_iter().for_each(check_task_id);
    selector.pane_id().into_iter().for_each(check_pane_id);
}

fn check_task_id(id: &str) {
    assert!((1..=limits::TASK_ID_BYTES).contains(&id.len()));
    let may_be = |char: char| char.is_ascii_alphanumeric() || "_-".contains(char);
    assert!(id.chars().all(may_be));
}

fn check_pane_id(id: &str) {
    assert!((1..=limits::PANE_ID_CHARS).contains(&id.chars().count()));
    assert!(!id.chars().any(char::is_control));
}

fn at_most(text: Option<&str>, bytes: usize) {
    assert!(text.is_none_or(|text| text.len() <= bytes));
}
