//! What the service shows of itself: the page of metrics, what is built on it, and its log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Broker, Service, Stage, Worker, eventually, full_report, http_get};

fn file(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The samples of a page: each name with its labels, as they are written, and its value.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.map(sample).collect()
}

async fn page(stage: &Stage) -> BTreeMap<String, f64> {
    let (_, page) = http_get(&stage.service.ready_line, "/metrics").await;
    samples(&page)
}

/// A service that does all that is counted, and has done some of it.
async fn busy(options: &[&str]) -> Stage {
    let options = [&["--http", "127.0.0.1:0"], options].concat();
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start_with_jetstream().await;
    let service = Service::start(&broker, &folder.path().join("ledger.db"), &options).await;
    let stage = Stage {
        worker: Worker::connect(&broker).await,
        broker,
        service,
        folder,
    };
    for task_id in ["a", "b"] {
        stage.worker.create(task_id).await;
        let report = full_report(task_id, "completed");
        assert_eq!(
            stage.worker.report(&report).await.outcome(),
            Some("accepted")
        );
        assert_eq!(
            stage.worker.report(&report).await.outcome(),
            Some("replayed")
        );
        let other = full_report(task_id, "failed");
        assert_eq!(stage.worker.report(&other).await.code(), "result_conflict");
    }
    let bad = stage.worker.report(&json!({"task_id": "a"})).await;
    assert_eq!(bad.code(), "invalid_report");
    stage
}

#[tokio::test]
async fn reports_refusals_commits_replies_and_events_are_counted_in_both_modes() {
    for options in [&[][..], &["--events", "jetstream"]] {
        let stage = busy(options).await;
        let page = eventually("all events are published", async || {
            let page = page(&stage).await;
            (page["tasklatch_relay_lag_changes"] == 0.0).then_some(page)
        })
        .await;
        for (name, wanted) in [
            ("tasklatch_reports_total{outcome=\"accepted\"}", 2.0),
            ("tasklatch_reports_total{outcome=\"replayed\"}", 2.0),
            ("tasklatch_reports_total{outcome=\"refused\"}", 3.0),
            ("tasklatch_refusals_total{code=\"result_conflict\"}", 2.0),
            ("tasklatch_refusals_total{code=\"invalid_report\"}", 1.0),
            ("tasklatch_refusals_total{code=\"internal\"}", 0.0),
            ("tasklatch_events_published_total{kind=\"result\"}", 2.0),
            ("tasklatch_events_published_total{kind=\"task\"}", 4.0),
            ("tasklatch_commit_duration_seconds_count", 4.0),
            (
                "tasklatch_reply_duration_seconds_count{endpoint=\"report\"}",
                7.0,
            ),
            ("tasklatch_ready", 1.0),
            ("tasklatch_events_parked", 0.0),
            ("tasklatch_requests_in_hand_limit", 8192.0),
        ] {
            assert_eq!(page.get(name), Some(&wanted), "{name} with {options:?}");
        }
        for name in [
            "tasklatch_database_size_bytes",
            "tasklatch_wal_size_bytes",
            "process_resident_memory_bytes",
        ] {
            assert!(page[name] >= 4096.0, "{name} with {options:?}");
        }
    }
}

#[tokio::test]
async fn no_page_shows_the_content_of_a_task() {
    let stage = busy(&[]).await;
    let create =
        json!({"task_id": "seen", "title": "secret-title", "metadata": {"m": "secret-metadata"}});
    stage.worker.create_with(create).await;
    let report = json!({
        "task_id": "seen", "status": "completed", "summary": "secret-summary",
        "artifacts": ["secret-artifact"], "evidence": {"e": "secret-evidence"},
    });
    stage.worker.report(&report).await;
    for path in ["/live", "/ready", "/metrics"] {
        let (status, page) = http_get(&stage.service.ready_line, path).await;
        assert_eq!(status, 200, "{path}");
        assert!(!page.contains("secret"), "{path}: {page}");
        assert!(!page.contains("seen"), "{path}: {page}");
    }
}

/// The metrics that an expression of PromQL names, each with the values of its labels that it names.
fn selected(expression: &str) -> Vec<(String, Vec<(String, String)>)> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = expression;
    let mut all = Vec::new();
    while let Some(at) = rest.find(is_of_name) {
        rest = &rest[at..];
        let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        let mut labels = Vec::new();
        if let Some(matchers) = rest.strip_prefix('{') {
            let (inside, after) = matchers.split_once('}').unwrap();
            rest = after;
            for matcher in inside.split(", ") {
                let (label, values) = matcher.split_once('=').unwrap();
                let values = values.trim_start_matches('~').trim_matches('"');
                labels.extend(
                    values
                        .split('|')
                        .map(|value| (label.to_owned(), value.to_owned())),
                );
            }
        }
        if name.starts_with("tasklatch_") || name.starts_with("process_") {
            all.push((name.to_owned(), labels));
        }
    }
    all
}

/// Every expression of the dashboard and of the alerts.
fn expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&file("deploy/grafana-dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut all: Vec<String> = targets
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect();
    assert!(all.len() >= 20, "{all:?}");
    let alerts = file("deploy/alerts.yaml");
    let rules = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    all.extend(rules.map(str::to_owned));
    all
}

#[tokio::test]
async fn the_dashboard_and_the_alerts_name_only_metrics_and_label_values_that_are_there() {
    let stage = busy(&[]).await;
    let page = page(&stage).await;
    let names: BTreeSet<&str> = page
        .keys()
        .map(|name| name.split('{').next().unwrap())
        .collect();
    for expression in expressions() {
        for (name, labels) in selected(&expression) {
            assert!(names.contains(name.as_str()), "{name} of {expression}");
            for (label, value) in labels {
                // These are set by Prometheus.
                if label == "job" || label == "instance" {
                    continue;
                }
                let wanted = format!("{label}=\"{value}\"");
                let is_there =
                    |sample: &&String| sample.starts_with(&name) && sample.contains(&wanted);
                assert!(
                    page.keys().any(|sample| is_there(&sample)),
                    "{wanted} of {expression}"
                );
            }
        }
    }
}

#[tokio::test]
async fn the_document_of_metrics_has_every_metric_of_the_page_with_its_type_and_labels_and_no_other()
 {
    let stage = busy(&[]).await;
    let (_, text) = http_get(&stage.service.ready_line, "/metrics").await;
    let mut shown = BTreeMap::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            shown.insert(format!("{name}{suffix}"), kind.to_owned());
        }
    }
    let document = file("docs/metrics.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    let metrics = rows.filter(|row| row.starts_with("tasklatch_") || row.starts_with("process_"));
    let mut documented = BTreeMap::new();
    for row in metrics {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells[0].trim_end_matches('`');
        documented.insert(name.to_owned(), cells[1].to_owned());
        let sample = text.lines().find(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ', '_']))
        });
        let inside = sample.unwrap().split_once('{').map(|(_, inside)| inside);
        let label = inside.and_then(|inside| inside.split('=').next());
        let label = label.filter(|label| *label != "le");
        let said = cells[3].split('`').nth(1);
        assert_eq!(said, label, "the label of {name}");
    }
    assert_eq!(documented, shown);
}

#[test]
fn every_alert_says_what_it_is_about_and_points_to_its_runbook() {
    let alerts = file("deploy/alerts.yaml");
    let rules: Vec<&str> = alerts.split("      - alert: ").skip(1).collect();
    assert!(rules.len() >= 12, "{}", rules.len());
    for rule in rules {
        let name = rule.lines().next().unwrap();
        let mut anchor = String::new();
        for c in name.chars() {
            if c.is_ascii_uppercase() && !anchor.is_empty() {
                anchor.push('-');
            }
            anchor.push(c.to_ascii_lowercase());
        }
        for wanted in [
            "summary: ",
            "description: \"",
            "severity: ",
            &format!("runbook: docs/operations.md#{anchor}\n"),
        ] {
            assert!(rule.contains(wanted), "{name} lacks {wanted:?}");
        }
    }
}

/// The lines that a service logs of 200 reports, as JSON.
async fn log_of_reports(filter: &str) -> Vec<Value> {
    let stage = Stage::set_with(&["--log", filter, "--log-format", "json"]).await;
    for number in 0..40 {
        let task_id = format!("t{number}");
        stage.worker.create(&task_id).await;
        let report = full_report(&task_id, "completed");
        for _ in 0..4 {
            stage.worker.report(&report).await.task();
        }
        let other = full_report(&task_id, "failed");
        assert_eq!(stage.worker.report(&other).await.code(), "result_conflict");
    }
    let (_, log) = stage.service.stop().await;
    // What it says to people, at its end, is no event.
    log.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn each_report_is_logged_once_at_debug_with_what_became_of_it_and_nothing_of_its_content() {
    let log = log_of_reports("info,tasklatch=debug").await;
    let reports: Vec<&Value> = log
        .iter()
        .filter(|event| event["message"] == "report")
        .collect();
    assert_eq!(reports.len(), 200);
    let of = |outcome: &str| {
        let outcomes = reports.iter().map(|event| &event["report.outcome"]);
        outcomes.filter(|said| **said == outcome).count()
    };
    assert_eq!(
        [of("accepted"), of("replayed"), of("refused")],
        [40, 120, 40]
    );
    let last = reports[199];
    assert_eq!(last["task.id"], "t39");
    assert_eq!(last["report.code"], "result_conflict");
    assert!(last["report.duration_us"].is_u64(), "{last}");
    let named = log.iter().filter(|event| event["task.id"] == "t7");
    assert_eq!(named.count(), 5, "one event for each of its reports");
    let all = format!("{log:?}");
    for content in ["clock was read", "branch:fix", "passed", "a task"] {
        assert!(!all.contains(content), "{content}");
    }
}

#[tokio::test]
async fn reports_leave_no_line_at_info() {
    let log = log_of_reports("info").await;
    let of_reports =
        |event: &&Value| event.to_string().contains("report") || event.get("task.id").is_some();
    let found = log.iter().find(of_reports);
    assert_eq!(found, None);
    assert!(log.len() < 20, "{log:?}");
}
