//! The ledger against a model: a plain, sequential one, written from the protocol alone, in [`plain`].
//!
//! The same commands go to the model, to a ledger one by one, and to a ledger in batches, each on a real file. All three
//! must give the same answers, the same tasks and the same events.

mod plain;

use proptest::prelude::*;
use serde_json::{Value, json};
use tasklatch::ledger::{Applied, Command, Found};
use tasklatch::report::Selector;
use tasklatch::wire::Endpoint;

use crate::support::bench::{self, Bench, at};
use plain::{Answer, Content, Model, Order, Seat};

/// How many tasks there are at most.
const TASKS: usize = 6;

/// Commands that come together, and how far the clock moves before them; it may move back.
#[derive(Clone, Debug)]
struct Batch {
    step: i64,
    orders: Vec<Order>,
}

fn seat() -> impl Strategy<Value = Seat> {
    let task = 0..TASKS;
    let pane = 0..2_usize;
    prop_oneof![
        3 => task.clone().prop_map(Seat::Task),
        5 => pane.clone().prop_map(Seat::Pane),
        2 => (task, pane).prop_map(|(task, pane)| Seat::Both(task, pane)),
    ]
}

/// Few contents, so that reports repeat each other; each in two spellings, which are one content.
fn content() -> impl Strategy<Value = Content> {
    let which = prop_oneof![4 => Just(0_usize), 1 => Just(1), 1 => Just(2)];
    (which, 0..2_usize).prop_map(|(which, spelling)| Content { which, spelling })
}

fn order() -> impl Strategy<Value = Order> {
    let deadline = prop_oneof![3 => Just(None), 1 => (-2..12_i64).prop_map(Some)];
    let title = prop_oneof![5 => Just(0_usize), 1 => Just(1)];
    let create = (
        0..TASKS,
        prop::option::weighted(0.9, 0..2_usize),
        title,
        deadline,
    )
        .prop_map(|(task, pane, title, deadline)| Order::Create {
            task,
            pane,
            title,
            deadline,
        });
    prop_oneof![
        5 => create,
        8 => (seat(), content()).prop_map(|(seat, content)| Order::Report { seat, content }),
        2 => seat().prop_map(Order::Start),
        2 => (seat(), prop::option::of(0..2_usize)).prop_map(|(seat, reason)| Order::Cancel { seat, reason }),
        2 => (seat(), 0..3_usize, any::<bool>()).prop_map(|(seat, verdict, note)| Order::Review { seat, verdict, note }),
        2 => seat().prop_map(Order::Get),
        1 => Just(Order::Sweep),
    ]
}

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let step = prop_oneof![8 => 0..4_i64, 1 => -6..0_i64];
    let batch = (step, prop::collection::vec(order(), 1..12))
        .prop_map(|(step, orders)| Batch { step, orders });
    prop::collection::vec(batch, 4..10)
}

/// The command that an order is, as it would come off the wire.
fn command(order: &Order) -> Command {
    let with = |seat: &Seat, rest: Value| {
        let mut body = seat.json();
        body.as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        body
    };
    match order {
        Order::Create {
            task,
            pane,
            title,
            deadline,
        } => bench::create(&json!({
            "task_id": plain::task_id(*task), "pane_id": pane.map(plain::pane_id), "title": plain::title(*title),
            "deadline": deadline.map(|deadline| at(deadline).to_string()),
        })),
        Order::Report { seat, content } => {
            bench::command(Endpoint::Report, &with(seat, content.json()))
        }
        Order::Start(seat) => bench::command(Endpoint::Start, &seat.json()),
        Order::Cancel { seat, reason } => bench::command(
            Endpoint::Cancel,
            &with(seat, json!({"reason": reason.map(plain::reason)})),
        ),
        Order::Review {
            seat,
            verdict,
            note,
        } => {
            let review =
                json!({"verdict": plain::VERDICTS[*verdict], "note": note.then_some("a note")});
            bench::command(Endpoint::Review, &with(seat, review))
        }
        Order::Get(seat) => bench::get(&seat.json()),
        Order::Sweep => Command::Sweep,
    }
}

/// What a ledger answered, in the model's words.
fn answer(applied: &Applied) -> Answer {
    match applied {
        Applied::Task { body, outcome } => Answer::Task {
            task: serde_json::from_slice(body).unwrap(),
            outcome: outcome.map(|outcome| outcome.to_string()),
        },
        Applied::Refused(refusal) => Answer::Refused {
            code: refusal.code.to_string(),
            task_id: refusal.task_id.clone(),
            lifecycle: refusal.lifecycle.map(|lifecycle| lifecycle.to_string()),
            differs: refusal.differs.clone(),
        },
        Applied::Swept { expired, more } => Answer::Swept {
            expired: *expired,
            more: *more,
        },
        Applied::Published
        | Applied::Parked
        | Applied::Pruned
        | Applied::Probed
        | Applied::Folded
        | Applied::Looked => {
            panic!("nobody asked for that")
        }
    }
}

/// What a ledger has to publish, as `(ce-id, payload)`.
async fn published(bench: &Bench) -> Vec<(String, Value)> {
    let events = bench.events().await;
    events
        .iter()
        .map(|event| (event.id(), serde_json::from_slice(&event.data).unwrap()))
        .collect()
}

/// Sees that each task reads as the model has it, by a reader beside the writer.
async fn reads_alike(bench: &Bench, model: &Model, now: i64) -> Result<(), TestCaseError> {
    for task in 0..TASKS {
        let selector = Selector::TaskId(plain::task_id(task));
        match bench
            .ledger
            .get(&selector, bench.circumstances(at(now)))
            .await
            .unwrap()
        {
            Found::Answer(applied) => {
                let expected = model.clone().carry_out(&Order::Get(Seat::Task(task)), now);
                prop_assert_eq!(answer(&applied), expected, "read at {}", now);
            }
            Found::Due => prop_assert!(
                model.is_due(task, now),
                "task {} is not due at {}",
                task,
                now
            ),
        }
    }
    Ok(())
}

async fn agree(batches: &[Batch]) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    let mut together = Bench::open().await;
    let mut one_by_one = Bench::open().await;
    let mut now = 0;
    for batch in batches {
        now += batch.step;
        let commands: Vec<Command> = batch.orders.iter().map(command).collect();
        let applied = together.apply(at(now), &commands).await;
        for ((order, command), applied) in batch.orders.iter().zip(&commands).zip(&applied) {
            let expected = model.carry_out(order, now);
            let alone = one_by_one.one(at(now), command.clone()).await;
            prop_assert_eq!(&answer(&alone), &expected, "alone, at {}: {:?}", now, order);
            prop_assert_eq!(
                &answer(applied),
                &expected,
                "in its batch, at {}: {:?}",
                now,
                order
            );
        }
        reads_alike(&together, &model, now).await?;
    }
    let expected = model.published();
    prop_assert_eq!(&published(&one_by_one).await, &expected);
    prop_assert_eq!(&published(&together).await, &expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ledger_answers_and_tells_what_a_plain_sequential_model_does_in_batches_or_one_by_one(batches in batches()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(agree(&batches))?;
    }
}
