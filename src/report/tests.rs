//! The decision against a plain model of it.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::content::{Json, parse};
use crate::task::{Disposition, ReviewVerdict};

/// Content as the model sees it: numbers are integers, objects are sorted.
#[derive(Clone, Debug, PartialEq)]
enum Plain {
    Null,
    Flag(bool),
    Number(i32),
    Text(&'static str),
    List(Vec<Plain>),
    Keyed(std::collections::BTreeMap<&'static str, Plain>),
}

/// Evidence is an object, so the model's is keyed.
type Evidence = std::collections::BTreeMap<&'static str, Plain>;

fn plain() -> impl Strategy<Value = Plain> {
    let leaf = prop_oneof![
        Just(Plain::Null),
        any::<bool>().prop_map(Plain::Flag),
        (-2..3i32).prop_map(Plain::Number),
        select(vec!["", "a", "A", "1"]).prop_map(Plain::Text),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Plain::List),
            keyed(inner).prop_map(Plain::Keyed),
        ]
    })
}

fn keyed(inner: impl Strategy<Value = Plain>) -> impl Strategy<Value = Evidence> {
    proptest::collection::btree_map(select(vec!["a", "b", "c"]), inner, 0..3)
}

/// Writes a value in one of many spellings of the same content, chosen by the digits of `style`.
fn spell(value: &Plain, style: &mut u64) -> String {
    let mut choose = |ways: u64| {
        *style = style
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*style >> 33) % ways
    };
    match value {
        Plain::Null => "null".to_owned(),
        Plain::Flag(flag) => flag.to_string(),
        Plain::Number(number) => match choose(4) {
            0 => number.to_string(),
            1 => format!("{number}.0"),
            2 => format!("{number}e0"),
            _ if *number == 0 => "-0e7".to_owned(),
            _ => format!("{number}0e-1"),
        },
        Plain::Text(text) => match choose(2) {
            0 => format!("\"{text}\""),
            _ => format!(
                "\"{}\"",
                text.chars()
                    .map(|c| format!("\\u{:04x}", c as u32))
                    .collect::<String>()
            ),
        },
        Plain::List(items) => {
            let items: Vec<String> = items.iter().map(|item| spell(item, style)).collect();
            format!("[{}]", items.join(" , "))
        }
        Plain::Keyed(fields) => spell_object(fields, style),
    }
}

fn spell_object(fields: &Evidence, style: &mut u64) -> String {
    let mut members: Vec<String> = fields
        .iter()
        .map(|(key, value)| format!("\"{key}\": {}", spell(value, style)))
        .collect();
    if style.is_multiple_of(2) {
        members.reverse();
    }
    format!("{{{}}}", members.join(","))
}

fn evidence_from(fields: &Evidence, style: u64) -> JsonText {
    let mut style = style;
    let value: Json = parse(spell_object(fields, &mut style).as_bytes(), 64).unwrap();
    JsonText::from(&value)
}

/// A report as the model sees it.
#[derive(Clone, Debug, PartialEq)]
struct PlainReport {
    status: Status,
    summary: &'static str,
    artifacts: Vec<&'static str>,
    evidence: Evidence,
}

fn plain_report() -> impl Strategy<Value = PlainReport> {
    let status = select(Status::ALL.to_vec());
    let summary = select(vec!["done", "done ", "Done"]);
    let artifacts = proptest::collection::vec(select(vec!["x", "y"]), 0..3);
    (status, summary, artifacts, keyed(plain())).prop_map(
        |(status, summary, artifacts, evidence)| PlainReport {
            status,
            summary,
            artifacts,
            evidence,
        },
    )
}

impl PlainReport {
    fn spelled(&self, style: u64) -> Report {
        Report {
            status: self.status,
            summary: self.summary.to_owned(),
            artifacts: self
                .artifacts
                .iter()
                .map(|&artifact| artifact.to_owned())
                .collect(),
            evidence: evidence_from(&self.evidence, style),
        }
    }
}

fn instant(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn task(lifecycle: Lifecycle) -> Task {
    Task {
        task_id: "t".to_owned(),
        pane_id: None,
        title: "title".to_owned(),
        lifecycle,
        metadata: None,
        deadline: None,
        reason: None,
        result: None,
        disposition: None,
        revision: 1,
        created_at: instant(1),
        updated_at: instant(1),
    }
}

fn plain_verdict(
    lifecycle: Lifecycle,
    accepted: Option<&PlainReport>,
    report: &PlainReport,
) -> Verdict {
    let Some(accepted) = accepted else {
        return match lifecycle {
            Lifecycle::Submitted | Lifecycle::Working => Verdict::Accepted,
            ended => Verdict::Terminal(ended),
        };
    };
    let mut differs = Vec::new();
    if accepted.status != report.status {
        differs.push(ContentField::Status);
    }
    if accepted.summary != report.summary {
        differs.push(ContentField::Summary);
    }
    if accepted.artifacts != report.artifacts {
        differs.push(ContentField::Artifacts);
    }
    if accepted.evidence != report.evidence {
        differs.push(ContentField::Evidence);
    }
    if differs.is_empty() {
        Verdict::Replayed
    } else {
        Verdict::Conflicting { differs }
    }
}

proptest! {
    #[test]
    fn the_decision_agrees_with_a_plain_model_of_it(
        lifecycle in select(vec![Lifecycle::Submitted, Lifecycle::Working, Lifecycle::Canceled, Lifecycle::Expired]),
        first in plain_report(),
        second in plain_report(),
        styles in any::<[u64; 2]>(),
        accept in any::<bool>(),
        reviewed in any::<bool>(),
    ) {
        let mut stored = task(lifecycle);
        let accepted = accept.then(|| {
            stored.lifecycle = first.status.into();
            stored.result = Some(first.spelled(styles[0]).into_result(instant(5)));
            stored.disposition = reviewed.then(|| Disposition {
                verdict: ReviewVerdict::Rework,
                note: None,
                reviewer: None,
                reviewed_at: instant(6),
            });
            &first
        });
        prop_assert_eq!(
            decide(&stored, &second.spelled(styles[1])),
            plain_verdict(stored.lifecycle, accepted, &second)
        );
        // The same content in another spelling, whatever has happened since, is a replay.
        if accept {
            prop_assert_eq!(decide(&stored, &first.spelled(styles[1])), Verdict::Replayed);
        }
    }

    #[test]
    fn the_time_of_a_result_takes_no_part_in_the_comparison(report in plain_report(), times in any::<[u16; 2]>()) {
        let result = report.spelled(1).into_result(instant(times[0].into()));
        let later = TaskResult { reported_at: instant(times[1].into()), ..result };
        prop_assert_eq!(differing_fields(&later, &report.spelled(2)), vec![]);
    }
}
