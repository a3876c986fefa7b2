//! Which task a selector names, and when a pane is too uncertain to be used.

use serde_json::{Value, json};
use tasklatch::ledger::Command;
use tasklatch::wire::{Code, Endpoint, Outcome};

use crate::support::bench::{self, Bench, at};
use crate::support::{Reply, Stage};

async fn given(stage: &Stage, task_id: &str, pane_id: &str) {
    stage
        .worker
        .create_with(json!({"task_id": task_id, "pane_id": pane_id, "title": "a task"}))
        .await;
}

async fn report(stage: &Stage, selector: Value, summary: &str) -> Reply {
    let mut body = selector;
    body["status"] = json!("completed");
    body["summary"] = json!(summary);
    stage.worker.report(&body).await
}

fn create_on(task_id: &str, pane_id: &str) -> Command {
    bench::create(&json!({"task_id": task_id, "pane_id": pane_id, "title": "a task"}))
}
#[tokio::test]
async fn the_late_retry_by_pane_of_a_worker_whose_pane_was_given_on_does_not_settle_the_next_task()
{
    let stage = Stage::set().await;
    given(&stage, "t1", "p").await;
    let first = report(&stage, json!({"pane_id": "p"}), "done").await;
    assert_eq!(first.task()["task_id"], "t1");
    given(&stage, "t2", "p").await;
    let mut observer = stage.observer_from_now().await;
    for _ in 0..3 {
        let late = report(&stage, json!({"pane_id": "p"}), "done").await;
        assert_eq!(late.code(), "ambiguous_pane");
        assert!(
            late.error()["message"]
                .as_str()
                .unwrap()
                .contains("task ID"),
            "it says what to send"
        );
    }
    assert_eq!(stage.worker.get("t2").await.task()["revision"], 1);
    assert_eq!(observer.ids_so_far().await, [""; 0]);
    // By its ID the retry is a replay, and other content by pane is for the next task.
    let by_id = report(&stage, json!({"task_id": "t1"}), "done").await;
    assert_eq!(
        (by_id.outcome(), &by_id.body),
        (Some("replayed"), &first.body)
    );
    let both = report(&stage, json!({"task_id": "t1", "pane_id": "p"}), "done").await;
    assert_eq!(
        (both.outcome(), &both.body),
        (Some("replayed"), &first.body)
    );
    let next = report(&stage, json!({"pane_id": "p"}), "also done").await;
    assert_eq!(next.outcome(), Some("accepted"));
    assert_eq!(next.task()["task_id"], "t2");
}

/// The two ends of the rule
#[tokio::test]
async fn a_pane_is_compared_with_the_most_recent_earlier_result_and_only_while_its_newest_task_is_open()
 {
    let stage = Stage::set().await;
    for (task_id, summary) in [
        ("t1", Some("one")),
        ("t2", Some("two")),
        ("t3", None),
        ("t4", None),
    ] {
        given(&stage, task_id, "p").await;
        match summary {
            Some(summary) => assert_eq!(
                report(&stage, json!({"task_id": task_id}), summary)
                    .await
                    .outcome(),
                Some("accepted")
            ),
            None if task_id == "t3" => {
                stage
                    .worker
                    .ask("tasklatch.task.cancel", &json!({"task_id": "t3"}))
                    .await
                    .task();
            }
            None => {}
        }
    }
    // t3 was canceled, so that the result before the open t4 is that of t2.
    assert_eq!(
        report(&stage, json!({"pane_id": "p"}), "two").await.code(),
        "ambiguous_pane"
    );
    let accepted = report(&stage, json!({"pane_id": "p"}), "four").await;
    assert_eq!(accepted.task()["task_id"], "t4");
    // The newest has ended: nothing can be settled wrongly any more, and it is compared with its own result.
    let conflict = report(&stage, json!({"pane_id": "p"}), "two").await;
    assert_eq!(conflict.code(), "result_conflict");
    assert_eq!(conflict.error()["task_id"], "t4");
}
#[tokio::test]
async fn a_pane_that_was_never_given_a_task_names_none() {
    let stage = Stage::set().await;
    stage.worker.create("t").await;
    assert_eq!(
        report(&stage, json!({"pane_id": "p"}), "done").await.code(),
        "task_not_found"
    );
    for verb in ["get", "start", "cancel"] {
        let reply = stage
            .worker
            .ask(&format!("tasklatch.task.{verb}"), &json!({"pane_id": "p"}))
            .await;
        assert_eq!(reply.code(), "task_not_found", "{verb}");
    }
}
#[tokio::test]
async fn a_pane_with_two_open_tasks_is_ambiguous_for_every_request_until_one_of_them_ends() {
    let stage = Stage::set().await;
    given(&stage, "t1", "p").await;
    given(&stage, "t2", "p").await;
    let by_pane = json!({"pane_id": "p"});
    assert_eq!(
        report(&stage, by_pane.clone(), "done").await.code(),
        "ambiguous_pane"
    );
    for (verb, body) in [
        ("get", by_pane.clone()),
        ("start", by_pane.clone()),
        ("cancel", by_pane.clone()),
        ("review", json!({"pane_id": "p", "verdict": "approved"})),
    ] {
        let reply = stage
            .worker
            .ask(&format!("tasklatch.task.{verb}"), &body)
            .await;
        assert_eq!(reply.code(), "ambiguous_pane", "{verb}");
        assert_eq!(reply.error()["field"], "/pane_id");
    }
    // As a filter of a list it is never ambiguous.
    let list = stage
        .worker
        .ask("tasklatch.task.list", &by_pane)
        .await
        .json();
    assert_eq!(list["tasks"].as_array().unwrap().len(), 2);
    assert_eq!(
        report(&stage, json!({"task_id": "t1"}), "done")
            .await
            .outcome(),
        Some("accepted")
    );
    let accepted = report(&stage, by_pane, "done too").await;
    assert_eq!(accepted.task()["task_id"], "t2");
}
#[tokio::test]
async fn two_selectors_must_name_the_same_task() {
    let stage = Stage::set().await;
    given(&stage, "t1", "p1").await;
    given(&stage, "t2", "p2").await;
    let mut observer = stage.observer_from_now().await;
    for (task_id, pane_id, code) in [
        ("t1", "p2", "selector_mismatch"),
        ("t1", "nobody", "selector_mismatch"),
        ("nobody", "p1", "task_not_found"),
    ] {
        let both = json!({"task_id": task_id, "pane_id": pane_id});
        assert_eq!(
            report(&stage, both.clone(), "done").await.code(),
            code,
            "{both}"
        );
        assert_eq!(
            stage.worker.ask("tasklatch.task.get", &both).await.code(),
            code,
            "{both}"
        );
    }
    assert_eq!(observer.ids_so_far().await, [""; 0]);
    let both = json!({"task_id": "t1", "pane_id": "p1"});
    assert_eq!(
        report(&stage, both.clone(), "done").await.outcome(),
        Some("accepted")
    );
    assert_eq!(
        report(&stage, both, "done").await.outcome(),
        Some("replayed")
    );
}

#[tokio::test]
async fn both_selectors_name_the_newest_of_two_open_tasks_of_a_pane_and_the_older_one_not() {
    let stage = Stage::set().await;
    given(&stage, "t1", "p").await;
    given(&stage, "t2", "p").await;
    let older = report(&stage, json!({"task_id": "t1", "pane_id": "p"}), "done").await;
    assert_eq!(older.code(), "selector_mismatch");
    assert_eq!(older.error()["task_id"], "t1");
    let newest = report(&stage, json!({"task_id": "t2", "pane_id": "p"}), "done").await;
    assert_eq!(newest.outcome(), Some("accepted"));
}

#[tokio::test]
async fn the_subject_names_a_task_too_and_a_selector_in_the_body_must_agree() {
    let stage = Stage::set().await;
    given(&stage, "t1", "p").await;
    given(&stage, "t2", "q").await;
    let content = json!({"status": "completed", "summary": "done"});
    let with = |key: &str, value: &str| {
        let mut body = content.clone();
        body[key] = json!(value);
        body
    };
    for other in [with("task_id", "t2"), with("pane_id", "q")] {
        let reply = stage.worker.ask("tasklatch.report.t1", &other).await;
        assert_eq!(reply.code(), "selector_mismatch", "{other}");
    }
    let accepted = stage.worker.ask("tasklatch.report.t1", &content).await;
    assert_eq!(accepted.outcome(), Some("accepted"));
    for same in [content.clone(), with("task_id", "t1"), with("pane_id", "p")] {
        let reply = stage.worker.ask("tasklatch.report.t1", &same).await;
        assert_eq!(
            (reply.outcome(), &reply.body),
            (Some("replayed"), &accepted.body),
            "{same}"
        );
    }
    assert_eq!(
        stage
            .worker
            .ask("tasklatch.report.nobody", &content)
            .await
            .code(),
        "task_not_found"
    );
    let long = format!("tasklatch.report.{}", "x".repeat(129));
    assert_eq!(
        stage.worker.ask(&long, &content).await.code(),
        "invalid_report"
    );
    assert_eq!(
        stage
            .worker
            .ask("tasklatch.report.ümlaut", &content)
            .await
            .code(),
        "invalid_report"
    );
}

#[tokio::test]
async fn a_pane_survives_its_closing_a_restart_and_a_restore() {
    let mut stage = Stage::set().await;
    given(&stage, "t", "w1:p2 – \"ü\" 😀").await;
    let by_pane = json!({"pane_id": "w1:p2 – \"ü\" 😀"});
    let first = report(&stage, by_pane.clone(), "done").await;
    assert_eq!(first.outcome(), Some("accepted"));
    stage.crash_and_restart().await;
    assert_eq!(
        report(&stage, by_pane.clone(), "done").await.body,
        first.body
    );
    stage.move_to_a_restored_ledger().await;
    let replay = report(&stage, by_pane, "done").await;
    assert_eq!(
        (replay.outcome(), &replay.body),
        (Some("replayed"), &first.body)
    );
}

#[tokio::test]
async fn a_task_whose_deadline_has_come_no_longer_makes_its_pane_ambiguous() {
    let mut bench = Bench::open().await;
    let due =
        json!({"task_id": "due", "pane_id": "p", "title": "t", "deadline": at(100).to_string()});
    bench.one(at(0), bench::create(&due)).await;
    bench.one(at(0), create_on("open", "p")).await;
    let by_pane = json!({"pane_id": "p"});
    let early = bench.one(at(99), bench::get(&by_pane)).await;
    assert_eq!(bench::refusal(&early).code, Code::AmbiguousPane);
    let applied = bench
        .one(at(100), bench::report(&by_pane, "completed", "done"))
        .await;
    assert_eq!(bench::task(&applied)["task_id"], "open");
    bench.one(at(101), Command::Sweep).await;
    let ids = bench.event_ids().await;
    assert_eq!(
        ids[2..],
        ["open.2.result", "open.2.task", "due.2.task"],
        "the sweep expires the other"
    );
}

#[tokio::test]
async fn a_pane_whose_newest_task_is_past_its_deadline_names_that_task_and_it_is_expired() {
    let mut bench = Bench::open().await;
    bench.one(at(0), create_on("older", "p")).await;
    let due =
        json!({"task_id": "due", "pane_id": "p", "title": "t", "deadline": at(100).to_string()});
    bench.one(at(0), bench::create(&due)).await;
    let applied = bench
        .one(
            at(100),
            bench::report(&json!({"pane_id": "p"}), "completed", "done"),
        )
        .await;
    let refusal = bench::refusal(&applied);
    assert_eq!(
        (refusal.code, refusal.task_id.as_deref()),
        (Code::TaskTerminal, Some("due"))
    );
    assert_eq!(
        bench.event_ids().await,
        ["older.1.task", "due.1.task", "due.2.task"]
    );
}

#[tokio::test]
async fn a_pane_follows_what_happens_to_its_tasks_within_one_batch() {
    let mut bench = Bench::open().await;
    let by_pane = json!({"pane_id": "p"});
    let cancel = bench::command(Endpoint::Cancel, &json!({"task_id": "t1"}));
    let batch = [
        bench::report(&by_pane, "completed", "a"),
        create_on("t1", "p"),
        create_on("t2", "p"),
        bench::get(&by_pane),
        cancel,
        bench::get(&by_pane),
        bench::report(&by_pane, "completed", "a"),
        bench::report(&by_pane, "completed", "a"),
    ];
    let applied = bench.apply(at(0), &batch).await;
    assert_eq!(bench::refusal(&applied[0]).code, Code::TaskNotFound);
    assert_eq!(bench::refusal(&applied[3]).code, Code::AmbiguousPane);
    assert_eq!(bench::task(&applied[5])["task_id"], "t2");
    assert_eq!(bench::done(&applied[6]).1, Some(Outcome::Accepted));
    assert_eq!(bench::done(&applied[7]).1, Some(Outcome::Replayed));
}

/// Where the report, the next task and the late retry meet in one transaction
#[tokio::test]
async fn a_late_retry_by_pane_is_ambiguous_also_in_the_batch_that_gives_the_pane_its_next_task() {
    let by_pane = json!({"pane_id": "p"});
    let report = || bench::report(&by_pane, "completed", "done");

    let mut together = Bench::open().await;
    let batch = [
        create_on("t1", "p"),
        report(),
        create_on("t2", "p"),
        report(),
        bench::get(&json!({"task_id": "t2"})),
    ];
    let applied = together.apply(at(0), &batch).await;
    assert_eq!(bench::done(&applied[1]).1, Some(Outcome::Accepted));
    assert_eq!(bench::refusal(&applied[3]).code, Code::AmbiguousPane);
    assert_eq!(bench::task(&applied[4])["revision"], 1);

    let mut apart = Bench::open().await;
    apart.apply(at(0), &[create_on("t1", "p"), report()]).await;
    let applied = apart.apply(at(1), &[create_on("t2", "p"), report()]).await;
    assert_eq!(bench::refusal(&applied[1]).code, Code::AmbiguousPane);
    assert_eq!(apart.event_ids().await, together.event_ids().await);
}
