//! What each role may do on a server run with deploy/nats.conf, and what the server keeps it from (docs/security.md).

mod login;
mod reload;
mod secrets;
mod work;

use futures_util::StreamExt;
use serde_json::json;
use tokio::time::timeout;

use crate::docs::{document, table, tests};
use crate::support::{DEADLINE, Secured, User};

/// What somebody tries.
#[derive(Clone, Copy)]
enum Try {
    /// Sends a request, which the service answers.
    Ask(&'static str),
    /// Publishes what nobody answers.
    Publish(&'static str),
    /// Subscribes.
    Subscribe(&'static str),
}

use Try::{Ask, Publish, Subscribe};

/// The roles in the order of the columns: the user, the heading, and the test that tries every row.
const ROLES: [(&str, &str, &str); 5] = [
    (
        "service",
        "service",
        "the_service_may_do_what_its_column_says_and_nothing_else",
    ),
    (
        "coordinator",
        "coordinator",
        "a_coordinator_may_do_what_its_column_says_and_nothing_else",
    ),
    (
        "worker",
        "worker",
        "a_worker_may_do_what_its_column_says_and_nothing_else",
    ),
    (
        "narrow",
        "worker of one task",
        "a_worker_of_one_task_may_do_what_its_column_says_and_nothing_else",
    ),
    (
        "observer",
        "observer",
        "an_observer_may_do_what_its_column_says_and_nothing_else",
    ),
];

/// Every action, how it is tried, and who may do it: s, c, w, n (the narrowed worker), o.
const ACTIONS: &[(&str, Try, &str)] = &[
    (
        "Report, with the task in the body",
        Ask("tasklatch.report"),
        "cw",
    ),
    (
        "Report on its own task",
        Ask("tasklatch.report.mine"),
        "cwn",
    ),
    (
        "Report on another task",
        Ask("tasklatch.report.other"),
        "cw",
    ),
    (
        "Leave a durable report on its own task",
        Publish("tasklatch.queue.report.mine"),
        "wn",
    ),
    (
        "Leave a durable report on another task",
        Publish("tasklatch.queue.report.other"),
        "w",
    ),
    ("Say that work has begun", Ask("tasklatch.task.start"), "cw"),
    ("Read a task", Ask("tasklatch.task.get"), "cw"),
    ("List tasks", Ask("tasklatch.task.list"), "cw"),
    ("Create a task", Ask("tasklatch.task.create"), "c"),
    ("Cancel a task", Ask("tasklatch.task.cancel"), "c"),
    ("Review a result", Ask("tasklatch.task.review"), "c"),
    (
        "See events as they come",
        Subscribe("tasklatch.event.>"),
        "co",
    ),
    (
        "Read the events of the past",
        Publish("$JS.API.CONSUMER.CREATE.TASKLATCH_EVENTS"),
        "c",
    ),
    (
        "Publish an event",
        Publish("tasklatch.event.result.other"),
        "s",
    ),
    (
        "Set a report aside as a dead letter",
        Publish("tasklatch.dead.other"),
        "s",
    ),
    ("Take requests", Subscribe("tasklatch.report"), "s"),
    (
        "Take reports on tasks",
        Subscribe("tasklatch.report.*"),
        "s",
    ),
    ("Answer others", Publish("_INBOX.somebody.x"), "s"),
    (
        "Read its own answers",
        Subscribe("_INBOX.{user}.x"),
        "scwno",
    ),
    (
        "Read the answers of others",
        Subscribe("_INBOX.somebody.>"),
        "",
    ),
    ("Read the answers of all", Subscribe("_INBOX.>"), ""),
    ("Read everything", Subscribe(">"), ""),
    ("Ask which services there are", Publish("$SRV.INFO"), "c"),
    ("Say that it is a service", Subscribe("$SRV.PING"), "s"),
    (
        "Make the event stream",
        Publish("$JS.API.STREAM.CREATE.TASKLATCH_EVENTS"),
        "s",
    ),
    (
        "Make another stream",
        Publish("$JS.API.STREAM.CREATE.OTHER"),
        "",
    ),
    (
        "Read an event by its number",
        Publish("$JS.API.STREAM.MSG.GET.TASKLATCH_EVENTS"),
        "sc",
    ),
    (
        "Read durable reports",
        Publish("$JS.API.CONSUMER.MSG.NEXT.TASKLATCH_REPORTS.tasklatch"),
        "s",
    ),
    (
        "Take a durable report off the stream",
        Publish("$JS.ACK.TASKLATCH_REPORTS.x"),
        "s",
    ),
    (
        "Delete the event stream",
        Publish("$JS.API.STREAM.DELETE.TASKLATCH_EVENTS"),
        "",
    ),
    (
        "Delete events",
        Publish("$JS.API.STREAM.PURGE.TASKLATCH_EVENTS"),
        "",
    ),
    (
        "Change a stream",
        Publish("$JS.API.STREAM.UPDATE.TASKLATCH_EVENTS"),
        "",
    ),
    (
        "Ask for the account in JetStream",
        Publish("$JS.API.INFO"),
        "",
    ),
    (
        "Ask the server for its state",
        Publish("$SYS.REQ.SERVER.PING"),
        "",
    ),
    ("Listen to the server", Subscribe("$SYS.>"), ""),
];

fn may(who: &str, column: usize) -> bool {
    who.contains(['s', 'c', 'w', 'n', 'o'][column])
}

/// Whether the server lets a user do it; panics if it refuses something else.
async fn is_allowed(server: &Secured, user: &str, what: Try) -> bool {
    // A login for each, so that no refusal is taken for that of another.
    let mut user_in = server.log_in(user).await;
    let client = user_in.client.clone();
    let mine = |subject: &str| subject.replace("{user}", user);
    let (kind, subject) = match what {
        Ask(subject) => {
            let inbox = client.new_inbox();
            let mut answers = client.subscribe(inbox.clone()).await.unwrap();
            let body = json!({"task_id": "nobody", "extra": 1}).to_string();
            let sent = client.publish_with_reply(subject, inbox, body.into());
            sent.await.unwrap();
            let refused = refusal_of(&mut user_in, "publish", subject).await;
            if !refused {
                let answer = timeout(DEADLINE, answers.next()).await;
                let headers = answer.expect("an answer in time").unwrap().headers.unwrap();
                assert!(headers.get("Tasklatch-Protocol").is_some(), "{subject}");
            }
            return !refused;
        }
        Publish(subject) => {
            client.publish(subject, "{}".into()).await.unwrap();
            ("publish", subject.to_owned())
        }
        Subscribe(subject) => {
            let subject = mine(subject);
            let _subscription = client.subscribe(subject.clone()).await.unwrap();
            return !refusal_of(&mut user_in, "subscription", &subject).await;
        }
    };
    !refusal_of(&mut user_in, kind, &subject).await
}

async fn refusal_of(user: &mut User, kind: &str, subject: &str) -> bool {
    let refusals = user.refusals().await;
    let expected = format!("permissions violation for {kind} to \"{subject}\"").to_lowercase();
    for refusal in &refusals {
        assert!(refusal.contains(&expected), "{refusal}, and not {expected}");
    }
    !refusals.is_empty()
}

/// Tries every action as one role, and sees that what is denied changes nothing.
async fn tries_everything(column: usize) {
    let server = Secured::start(&["narrow=mine"]).await;
    let service = server
        .serve(&["--events", "jetstream", "--durable-reports"])
        .await;
    for task_id in ["mine", "other"] {
        let created = ["task", "create", "a task", "--task-id", task_id];
        let created = server.run_as("coordinator", &created).await;
        assert!(created.status.success(), "{created:?}");
    }
    let tasks = async || {
        server
            .run_as("coordinator", &["task", "list", "--json"])
            .await
            .stdout
    };
    let before = tasks().await;
    let coordinator = server.log_in("coordinator").await.client;
    let mut events = coordinator.subscribe("tasklatch.event.>").await.unwrap();
    coordinator.flush().await.unwrap();
    let mut wrong = Vec::new();
    for (words, what, who) in ACTIONS {
        let allowed = is_allowed(&server, ROLES[column].0, *what).await;
        if allowed != may(who, column) {
            wrong.push(format!(
                "{words}: {}",
                if allowed { "allowed" } else { "denied" }
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(tasks().await, before, "nothing changes");
    if ROLES[column].0 != "service" {
        let marker = server.run_as(
            "coordinator",
            &["task", "create", "x", "--task-id", "marker"],
        );
        assert!(marker.await.status.success());
        let first = timeout(DEADLINE, events.next()).await.unwrap().unwrap();
        assert_eq!(first.subject.as_str(), "tasklatch.event.task.marker");
    }
    let (status, log) = service.stop().await;
    assert!(status.success(), "{log}");
}

#[tokio::test]
async fn the_service_may_do_what_its_column_says_and_nothing_else() {
    tries_everything(0).await;
}

#[tokio::test]
async fn a_coordinator_may_do_what_its_column_says_and_nothing_else() {
    tries_everything(1).await;
}

#[tokio::test]
async fn a_worker_may_do_what_its_column_says_and_nothing_else() {
    tries_everything(2).await;
}

#[tokio::test]
async fn a_worker_of_one_task_may_do_what_its_column_says_and_nothing_else() {
    tries_everything(3).await;
}

#[tokio::test]
async fn an_observer_may_do_what_its_column_says_and_nothing_else() {
    tries_everything(4).await;
}

/// The table of docs/security.md as it must be.
fn expected_rows() -> Vec<Vec<String>> {
    let row = |(words, _, who): &(&str, Try, &str)| {
        let cell = |column| {
            if may(who, column) {
                "allowed"
            } else {
                "denied"
            }
        };
        let cells = (0..ROLES.len()).map(|column| cell(column).to_owned());
        std::iter::once((*words).to_owned()).chain(cells).collect()
    };
    let mut rows: Vec<Vec<String>> = ACTIONS.iter().map(row).collect();
    let test = |(_, _, test): &(&str, &str, &str)| format!("permissions::{test}");
    rows.push(
        std::iter::once("Test".to_owned())
            .chain(ROLES.iter().map(test))
            .collect(),
    );
    rows
}

#[test]
fn the_table_of_roles_and_actions_is_what_the_tests_try_and_every_test_that_is_named_exists() {
    let text = document("security.md");
    let header: Vec<&str> = std::iter::once("Action")
        .chain(ROLES.iter().map(|role| role.1))
        .collect();
    let expected = expected_rows();
    let lines: Vec<String> = expected
        .iter()
        .map(|row| format!("| {} |", row.join(" | ")))
        .collect();
    assert_eq!(
        table(&text, &header),
        expected,
        "it must be:\n{}",
        lines.join("\n")
    );
    let tests = tests();
    for named in text
        .split('`')
        .filter(|word| word.contains("::") && !word.contains(' '))
    {
        assert!(tests.contains(named), "{named}");
    }
}
