//! The unpublished events of a snapshot. Each must be what the ledger will build again from the task and the revision,
//! or it would not be the same event any more when it is published.

use super::damage::{Place, Wrong};
use super::error::SnapshotError;
use super::rules;
use crate::ledger::SnapshotWriter;
use crate::task::{Lifecycle, Task};
use crate::wire::{CloudEvent, EventKind, events_of};

/// The events of a file, in its order.
pub(super) struct Events {
    ledger_id: String,
    /// A result event, until the task event of the same revision comes.
    waiting: Option<(Place, Box<CloudEvent>)>,
    count: u64,
}

/// An event that does not fit, or a failure that has nothing to do with it.
pub(super) enum Unfit {
    Wrong(Place, Wrong),
    Failed(SnapshotError),
}

impl<E: Into<SnapshotError>> From<E> for Unfit {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Events {
    /// For a file that was saved from this ledger.
    pub(super) fn of(ledger_id: &str) -> Self {
        Self {
            ledger_id: ledger_id.to_owned(),
            waiting: None,
            count: 0,
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Counts an event, and no more.
    pub(super) fn pass(&mut self) {
        self.count += 1;
    }

    /// Takes the next event, and puts its revision into the outbox.
    pub(super) async fn take(
        &mut self,
        place: Place,
        event: Box<CloudEvent>,
        into: &mut SnapshotWriter<'_>,
    ) -> Result<(), Unfit> {
        self.count += 1;
        if event.kind == EventKind::Result {
            let before = self.waiting.replace((place, event));
            return before.map_or(Ok(()), |(place, _)| {
                Err(Unfit::Wrong(place, without_task_event()))
            });
        }
        let here = |wrong| Unfit::Wrong(place, wrong);
        let as_of = read_task(&event).map_err(here)?;
        let Some((key, task)) = into.find_task(&as_of.task_id).await? else {
            let what = format!(
                "the event speaks of task {}, which is not in the snapshot",
                as_of.task_id
            );
            return Err(here(Wrong::altered(what)));
        };
        let rebuilt = as_of_revision(task, &as_of).map_err(here)?;
        let found = self.waiting.take().into_iter().chain([(place, event)]);
        self.compare(&rebuilt, found.collect())?;
        if !into.add_unpublished(key, &rebuilt).await? {
            let what = format!(
                "revision {} of task {} comes after a later one, or twice",
                rebuilt.revision, rebuilt.task_id
            );
            return Err(here(Wrong::altered(what)));
        }
        Ok(())
    }

    /// Says where an event is missing, once there are no more.
    pub(super) fn finish(&mut self) -> Result<(), Unfit> {
        match self.waiting.take() {
            Some((place, _)) => Err(Unfit::Wrong(place, without_task_event())),
            None => Ok(()),
        }
    }

    fn compare(&self, task: &Task, found: Vec<(Place, Box<CloudEvent>)>) -> Result<(), Unfit> {
        let wrong = |place: Place, what: String| Unfit::Wrong(place, Wrong::altered(what));
        let expected = events_of(task).and_then(|events| {
            events
                .iter()
                .map(|event| event.to_cloud_event(&self.ledger_id))
                .collect::<Result<Vec<_>, _>>()
        });
        let last = found
            .last()
            .map_or(Place { line: 0, offset: 0 }, |(place, _)| *place);
        let expected = expected.map_err(|error| wrong(last, error.to_string()))?;
        if expected.len() > found.len() {
            return Err(wrong(
                last,
                "the event of the result is missing before this one".to_owned(),
            ));
        }
        if let (true, Some((first, _))) = (expected.len() < found.len(), found.first()) {
            return Err(Unfit::Wrong(*first, without_task_event()));
        }
        for ((place, found), expected) in found.iter().zip(&expected) {
            if let Some(field) = differing(found, expected) {
                let what = format!(
                    "{field} is not what the event of task {} at revision {} has",
                    task.task_id, task.revision
                );
                return Err(wrong(*place, what));
            }
        }
        Ok(())
    }
}

fn without_task_event() -> Wrong {
    Wrong::altered("the task event of the same revision does not follow this result event")
}

fn read_task(event: &CloudEvent) -> Result<Task, Wrong> {
    let task: Task = serde_json::from_str(event.data.get())
        .map_err(|_| Wrong::altered("the data of the event is not a task"))?;
    rules::check(&task)
        .map_err(|what| Wrong::altered(format!("in the data of the event: {what}")))?;
    Ok(task)
}

/// The task as of the revision that an event speaks of, built as the ledger builds it: from the task of the snapshot
/// and from what changes with a revision.
fn as_of_revision(task: Task, as_of: &Task) -> Result<Task, Wrong> {
    let order = |lifecycle| match lifecycle {
        Lifecycle::Submitted => 0,
        Lifecycle::Working => 1,
        _ => 2,
    };
    let ended = as_of.lifecycle.is_terminal();
    let earlier = as_of.revision < task.revision;
    let possible = as_of.revision <= task.revision
        && as_of.updated_at <= task.updated_at
        && order(as_of.lifecycle) <= order(task.lifecycle)
        && (!ended || as_of.lifecycle == task.lifecycle)
        // Only reviews come after the end of a task.
        && !(ended && earlier && task.disposition.is_none())
        && (earlier || as_of.disposition == task.disposition);
    if !possible {
        let what = format!(
            "the task in the snapshot, at revision {}, cannot have come from this event's, at revision {}",
            task.revision, as_of.revision
        );
        return Err(Wrong::altered(what));
    }
    let reported = as_of.result.is_some();
    let canceled = as_of.lifecycle == Lifecycle::Canceled;
    Ok(Task {
        lifecycle: as_of.lifecycle,
        revision: as_of.revision,
        updated_at: as_of.updated_at,
        disposition: as_of.disposition.clone(),
        result: task.result.filter(|_| reported),
        reason: task.reason.filter(|_| canceled),
        ..task
    })
}

fn differing(found: &CloudEvent, expected: &CloudEvent) -> Option<&'static str> {
    [
        ("specversion", found.specversion == expected.specversion),
        ("id", found.id == expected.id),
        ("source", found.source == expected.source),
        ("type", found.kind == expected.kind),
        ("time", found.time == expected.time),
        ("subject", found.subject == expected.subject),
        (
            "datacontenttype",
            found.datacontenttype == expected.datacontenttype,
        ),
        ("data", found.data.get() == expected.data.get()),
    ]
    .into_iter()
    .find_map(|(field, same)| (!same).then_some(field))
}
