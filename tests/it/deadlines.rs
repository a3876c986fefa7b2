//! Deadlines, and clocks that do not move as they should. The time is an argument here, so that every instant can be had.

use serde_json::json;
use tasklatch::ledger::{Applied, Command, Found, SWEEP_TASKS_MAX};
use tasklatch::report::Selector;
use tasklatch::task::Lifecycle;
use tasklatch::wire::{Code, Endpoint, Outcome};

use crate::support::bench::{self, Bench, at};

const DEADLINE: i64 = 1_000;

async fn bench_with_deadline() -> Bench {
    let mut bench = Bench::open().await;
    let body = json!({"task_id": "t", "title": "a task", "deadline": at(DEADLINE).to_string()});
    bench.one(at(0), bench::create(&body)).await;
    bench
}

fn report(summary: &str) -> Command {
    bench::report(&json!({"task_id": "t"}), "completed", summary)
}

fn get() -> Command {
    bench::get(&json!({"task_id": "t"}))
}

fn assert_expired(applied: &Applied) {
    let refusal = bench::refusal(applied);
    assert_eq!(
        (refusal.code, refusal.lifecycle),
        (Code::TaskTerminal, Some(Lifecycle::Expired))
    );
}

/// A sweep that expired so many tasks and left nothing that is due.
fn assert_swept(applied: &Applied, tasks: usize) {
    let all = matches!(applied, Applied::Swept { expired, more: false } if *expired == tasks);
    assert!(all, "{tasks}: {applied:?}");
}
#[tokio::test]
async fn a_microsecond_before_its_deadline_a_task_is_open_and_from_the_deadline_on_it_is_expired_for_everybody()
 {
    for (now, open) in [
        (DEADLINE - 1, true),
        (DEADLINE, false),
        (DEADLINE + 1, false),
    ] {
        let mut bench = bench_with_deadline().await;
        let applied = bench.one(at(now), report("done")).await;
        match open {
            true => assert_eq!(bench::done(&applied).1, Some(Outcome::Accepted)),
            false => assert_expired(&applied),
        }

        let mut bench = bench_with_deadline().await;
        let found = bench
            .ledger
            .get(
                &Selector::TaskId("t".to_owned()),
                bench.circumstances(at(now)),
            )
            .await
            .unwrap();
        assert_eq!(
            matches!(found, Found::Answer(_)),
            open,
            "a reader does not show it as open at {now}"
        );
        assert_eq!(bench.ledger.is_any_due(at(now)).await.unwrap(), !open);
        let task = bench::task(&bench.one(at(now), get()).await);
        assert_eq!(
            task["lifecycle"],
            if open { "submitted" } else { "expired" }
        );

        let mut bench = bench_with_deadline().await;
        let swept = bench.one(at(now), Command::Sweep).await;
        assert_swept(&swept, usize::from(!open));
        assert_swept(&bench.one(at(now), Command::Sweep).await, 0);
        let expected: &[&str] = if open {
            &["t.1.task"]
        } else {
            &["t.1.task", "t.2.task"]
        };
        assert_eq!(bench.event_ids().await, expected);
    }
}

#[tokio::test]
async fn a_new_task_needs_a_deadline_that_is_still_to_come() {
    let mut bench = Bench::open().await;
    for (deadline, good) in [(-1, false), (0, false), (1, true)] {
        let body = json!({"task_id": "t", "title": "t", "deadline": at(deadline).to_string()});
        let applied = bench.one(at(0), bench::create(&body)).await;
        match good {
            true => assert_eq!(bench::task(&applied)["deadline"], at(deadline).to_string()),
            false => {
                let refusal = bench::refusal(&applied);
                assert_eq!(
                    (refusal.code, refusal.field.as_deref()),
                    (Code::InvalidRequest, Some("/deadline"))
                );
            }
        }
    }
}

#[tokio::test]
async fn creating_again_after_the_deadline_answers_the_expired_task_and_not_that_the_deadline_has_passed()
 {
    let mut bench = bench_with_deadline().await;
    let offset = at(DEADLINE).to_string().replace('Z', "+00:00");
    let body = json!({"task_id": "t", "title": "a task", "deadline": offset});
    let applied = bench.one(at(DEADLINE + 5), bench::create(&body)).await;
    let task = bench::task(&applied);
    assert_eq!(
        (&task["lifecycle"], &task["revision"]),
        (&json!("expired"), &json!(2))
    );
    let other = json!({"task_id": "t", "title": "other", "deadline": at(1).to_string()});
    let refusal = bench.one(at(DEADLINE + 6), bench::create(&other)).await;
    assert_eq!(bench::refusal(&refusal).differs, ["title", "deadline"]);
    assert_eq!(bench.event_ids().await, ["t.1.task", "t.2.task"]);
}

#[tokio::test]
async fn a_sweep_takes_a_bounded_number_of_tasks_says_that_there_are_more_and_the_next_takes_those()
{
    let mut bench = Bench::open().await;
    let tasks = SWEEP_TASKS_MAX + 3;
    let create = |number: usize| {
        let deadline = at(DEADLINE + i64::try_from(number).unwrap()).to_string();
        bench::create(&json!({"task_id": format!("t{number}"), "title": "t", "deadline": deadline}))
    };
    let batch: Vec<Command> = (0..tasks).map(create).collect();
    bench.apply(at(0), &batch).await;
    let now = at(2 * DEADLINE);
    let first = bench.one(now, Command::Sweep).await;
    let bounded = matches!(
        first,
        Applied::Swept {
            expired: SWEEP_TASKS_MAX,
            more: true
        }
    );
    assert!(bounded, "{first:?}");
    assert_eq!(bench.event_ids().await.len(), tasks + SWEEP_TASKS_MAX);
    assert_swept(&bench.one(now, Command::Sweep).await, 3);
    let ids = bench.event_ids().await;
    let expired: Vec<String> = (0..tasks)
        .map(|number| format!("t{number}.2.task"))
        .collect();
    assert_eq!(ids[tasks..], expired, "in the order of their deadlines");
}
#[tokio::test]
async fn a_sweep_and_a_report_in_one_batch_agree_whichever_comes_first() {
    for sweep_first in [true, false] {
        let batch = || {
            let mut batch = [Command::Sweep, report("done")];
            if !sweep_first {
                batch.reverse();
            }
            batch
        };
        // At the deadline the task is expired, once, whoever finds out.
        let mut late = bench_with_deadline().await;
        let mut applied = late.apply(at(DEADLINE), &batch()).await;
        if !sweep_first {
            applied.reverse();
        }
        assert_swept(&applied[0], usize::from(sweep_first));
        assert_expired(&applied[1]);
        assert_eq!(late.event_ids().await, ["t.1.task", "t.2.task"]);
        // Just before it the report is accepted, and no sweep undoes that.
        let mut early = bench_with_deadline().await;
        let mut applied = early.apply(at(DEADLINE - 1), &batch()).await;
        if !sweep_first {
            applied.reverse();
        }
        assert_swept(&applied[0], 0);
        assert_eq!(bench::done(&applied[1]).1, Some(Outcome::Accepted));
        let after = early
            .apply(at(DEADLINE + 1), &[Command::Sweep, get()])
            .await;
        assert_swept(&after[0], 0);
        assert_eq!(bench::task(&after[1])["lifecycle"], "completed");
        assert_eq!(
            early.event_ids().await,
            ["t.1.task", "t.2.result", "t.2.task"]
        );
    }
}

/// Of the cancel
#[tokio::test]
async fn a_cancel_and_a_report_in_one_batch_leave_the_first_of_them_standing() {
    let cancel = || bench::command(Endpoint::Cancel, &json!({"task_id": "t"}));
    let mut bench = bench_with_deadline().await;
    let applied = bench.apply(at(1), &[report("done"), cancel(), get()]).await;
    assert_eq!(
        bench::refusal(&applied[1]).lifecycle,
        Some(Lifecycle::Completed)
    );
    assert_eq!(bench::task(&applied[2])["lifecycle"], "completed");
    let mut bench = bench_with_deadline().await;
    let applied = bench.apply(at(1), &[cancel(), report("done"), get()]).await;
    assert_eq!(
        bench::refusal(&applied[1]).lifecycle,
        Some(Lifecycle::Canceled)
    );
    assert_eq!(bench::task(&applied[2])["result"], json!(null));
    assert_eq!(bench.event_ids().await, ["t.1.task", "t.2.task"]);
}
#[tokio::test]
async fn a_report_after_a_cancel_an_expiry_another_status_or_a_trailing_space_is_refused_for_a_reason_of_its_own()
 {
    let mut reasons = Vec::new();
    let mut reason = async |bench: &mut Bench, now: i64, command: Command| {
        let applied = bench.one(at(now), command).await;
        let refusal = bench::refusal(&applied);
        reasons.push((refusal.code, refusal.lifecycle, refusal.differs.clone()));
    };
    let mut canceled = bench_with_deadline().await;
    canceled
        .one(
            at(1),
            bench::command(Endpoint::Cancel, &json!({"task_id": "t"})),
        )
        .await;
    reason(&mut canceled, 2, report("ok")).await;
    let mut expired = bench_with_deadline().await;
    reason(&mut expired, DEADLINE, report("ok")).await;
    let mut completed = bench_with_deadline().await;
    completed.one(at(1), report("ok")).await;
    reason(
        &mut completed,
        2,
        bench::report(&json!({"task_id": "t"}), "failed", "ok"),
    )
    .await;
    reason(&mut completed, 2, report("ok ")).await;
    let of = |fields: &[&str]| {
        fields
            .iter()
            .map(|&field| field.to_owned())
            .collect::<Vec<_>>()
    };
    let expected = [
        (Code::TaskTerminal, Some(Lifecycle::Canceled), vec![]),
        (Code::TaskTerminal, Some(Lifecycle::Expired), vec![]),
        (
            Code::ResultConflict,
            Some(Lifecycle::Completed),
            of(&["status"]),
        ),
        (
            Code::ResultConflict,
            Some(Lifecycle::Completed),
            of(&["summary"]),
        ),
    ];
    assert_eq!(reasons, expected);
}
#[tokio::test]
async fn a_retry_is_a_replay_after_the_deadline_a_review_a_new_task_of_the_pane_and_a_smaller_server()
 {
    let mut bench = Bench::open().await;
    let body = json!({"task_id": "t", "pane_id": "p", "title": "a task", "deadline": at(DEADLINE).to_string()});
    bench.one(at(0), bench::create(&body)).await;
    let both = json!({"task_id": "t", "pane_id": "p"});
    let accepted = bench
        .one(at(1), bench::report(&both, "completed", &"x".repeat(3000)))
        .await;
    let accepted = bench::task(&accepted);
    let review = bench::command(
        Endpoint::Review,
        &json!({"task_id": "t", "verdict": "blocked"}),
    );
    let current = bench::done(&bench.one(at(DEADLINE + 1), review).await).0;
    bench
        .one(
            at(DEADLINE + 2),
            bench::create(&json!({"task_id": "u", "pane_id": "p", "title": "next"})),
        )
        .await;
    // The answer still fits, but a report of that size would be refused today if it were new.
    bench.max_payload = 3000 + 2048;
    let retry = bench
        .one(
            at(DEADLINE + 3),
            bench::report(&both, "completed", &"x".repeat(3000)),
        )
        .await;
    assert_eq!(
        bench::done(&retry),
        (current.clone(), Some(Outcome::Replayed))
    );
    let current: serde_json::Value = serde_json::from_slice(&current).unwrap();
    assert_eq!(current["result"], accepted["result"]);
    assert_eq!(current["disposition"]["verdict"], "blocked");
}
#[tokio::test]
async fn a_clock_that_steps_back_neither_turns_back_a_task_nor_brings_an_expired_one_to_life() {
    let mut bench = bench_with_deadline().await;
    bench
        .one(
            at(500),
            bench::command(Endpoint::Start, &json!({"task_id": "t"})),
        )
        .await;
    let accepted = bench.one(at(-3_600_000_000), report("done")).await;
    let task = bench::task(&accepted);
    assert_eq!(
        (&task["revision"], &task["updated_at"]),
        (&json!(3), &json!(at(500).to_string()))
    );
    assert_eq!(task["result"]["reported_at"], at(500).to_string());
    let review = bench::command(
        Endpoint::Review,
        &json!({"task_id": "t", "verdict": "approved"}),
    );
    let reviewed = bench::task(&bench.one(at(-1), review).await);
    assert_eq!(
        (&reviewed["revision"], &reviewed["updated_at"]),
        (&json!(4), &json!(at(500).to_string()))
    );
    assert_eq!(reviewed["result"], task["result"]);
    let replay = bench.one(at(-2), report("done")).await;
    assert_eq!(bench::task(&replay), reviewed);
    let ids = bench.event_ids().await;
    assert_eq!(
        ids,
        ["t.1.task", "t.2.task", "t.3.result", "t.3.task", "t.4.task"],
        "in the order of the changes"
    );

    let mut bench = bench_with_deadline().await;
    assert_expired(&bench.one(at(DEADLINE), report("done")).await);
    for now in [DEADLINE - 1, 0, -3_600_000_000] {
        assert_expired(&bench.one(at(now), report("done")).await);
        assert_eq!(
            bench::task(&bench.one(at(now), get()).await)["updated_at"],
            at(DEADLINE).to_string()
        );
    }
    // Ten years on, the result is what it was.
    let mut bench = bench_with_deadline().await;
    let accepted = bench.one(at(1), report("done")).await;
    let ten_years = 10 * 365 * 24 * 3_600 * 1_000_000;
    assert_eq!(
        bench::done(&bench.one(at(ten_years), report("done")).await).0,
        bench::done(&accepted).0
    );
}
#[tokio::test]
async fn deadlines_given_with_any_digits_and_offset_are_the_same_instants_to_the_microsecond() {
    let mut bench = Bench::open().await;
    let spellings = [
        "2040-01-01T00:00:00Z",
        "2040-01-01T02:00:00+02:00",
        "2039-12-31T19:00:00.000-05:00",
        "2040-01-01T00:00:00.000000999Z",
        "2040-01-01T00:00:00.000000000+00:00",
    ];
    for (number, deadline) in spellings.iter().enumerate() {
        let body = json!({"task_id": "t", "title": "t", "deadline": deadline});
        let applied = bench
            .one(at(number.try_into().unwrap()), bench::create(&body))
            .await;
        let task = bench::task(&applied);
        assert_eq!(
            (&task["deadline"], &task["revision"]),
            (&json!("2040-01-01T00:00:00.000000Z"), &json!(1)),
            "{deadline}"
        );
    }
}
