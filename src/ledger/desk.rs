//! The tasks of one batch, laid out in memory: loaded in sets, changed one command after the other, written in sets.
//!
//! Several commands for one task meet here: each sees what those before it did, so that of several reports for one task
//! one is accepted and the rest are replays or refusals, all in one transaction.

pub(super) mod load;
mod panes;
mod pruned;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use bytes::Bytes;

use super::fresh::FreshRevision;
use super::recent::{Recent, Remembered};
use super::{Applied, Circumstances, Command, ParkedEvent, SWEEP_TASKS_MAX};
use crate::report::{self, Report, Selector, Verdict};
use crate::task::{Lifecycle, ReviewVerdict, Task, Timestamp};
use crate::wire::{Change, Code, NewTask, Outcome, Refusal, Trace};
pub(super) use load::Named;
use panes::Pane;

/// The key of a task's row.
pub(super) type Key = i64;

/// The tasks of one batch, and what is to be written of them.
pub(super) struct Desk {
    circumstances: Circumstances,
    tasks: HashMap<Key, Arc<Task>>,
    /// The JSON of tasks that were asked for, as they are now: what is answered is encoded once.
    bodies: HashMap<Key, Bytes>,
    keys: HashMap<String, Key>,
    panes: HashMap<String, Pane>,
    /// Named tasks that are no more, and since when.
    pruned: HashMap<String, Timestamp>,
    /// Keys of loaded tasks whose deadline has come, for the sweep.
    due: Vec<Key>,
    next_key: Key,
    outbox: OutboxRoom,
    /// Whether the write-ahead log is too long for new work.
    pub(super) log_is_overlong: bool,
    pub(super) writes: Writes,
}

/// How many changes may wait to be published, and how many more there is room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutboxRoom {
    pub limit: i64,
    pub left: i64,
}

impl OutboxRoom {
    /// For those who change nothing.
    pub(super) const UNUSED: Self = Self { limit: 0, left: 0 };
}

/// What a batch changes, in the order in which it came to be.
#[derive(Default)]
pub(super) struct Writes {
    /// One for each change.
    pub revisions: Vec<Revision>,
    /// How far events are known to be published.
    pub published: Option<i64>,
    /// Events that can never be published as they are.
    pub parked: Vec<ParkedEvent>,
    /// What may leave the outbox: from the first to the second, if it was made before the third.
    pub prune: Option<(i64, i64, Timestamp)>,
    /// Whether to write for the sake of writing.
    pub probe: bool,
}

/// A change of a task: a row of the outbox.
pub(super) struct Revision {
    pub key: Key,
    /// The task as it is then.
    pub task: Arc<Task>,
    /// The same as JSON, if that is made already.
    pub body: Option<Bytes>,
    pub step: Step,
    /// The trace that its events belong to.
    pub trace: Option<Box<Trace>>,
}

/// What a change does. A task takes its steps in this order, so that the changes of a batch may be written step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It makes the task.
    Created,
    /// It changes a task that has no result, and brings none.
    WithoutResult,
    /// It brings the result.
    Reported,
    /// It changes a task that has its result.
    WithResult,
}

impl Writes {
    pub(super) fn is_empty(&self) -> bool {
        self.revisions.is_empty()
            && self.published.is_none()
            && self.parked.is_empty()
            && self.prune.is_none()
            && !self.probe
    }
}

/// What a change needs from a task, besides its place: the command's way to say "no".
type Decision = Result<(Key, Option<Outcome>), Refusal>;

impl Desk {
    /// A desk with nothing on it. `next_key` is the key of the next new task.
    pub(super) fn new(circumstances: Circumstances, next_key: Key, outbox: OutboxRoom) -> Self {
        Self {
            circumstances,
            tasks: HashMap::new(),
            bodies: HashMap::new(),
            keys: HashMap::new(),
            panes: HashMap::new(),
            pruned: HashMap::new(),
            due: Vec::new(),
            next_key,
            outbox,
            log_is_overlong: false,
            writes: Writes::default(),
        }
    }

    /// The time of the batch.
    pub(super) fn now(&self) -> Timestamp {
        self.circumstances.now
    }

    /// Lays out a task that is as it is in the store.
    fn lay_out(&mut self, key: Key, task: Arc<Task>) {
        self.keys.insert(task.task_id.clone(), key);
        self.tasks.insert(key, task);
    }

    /// Lays out those of the named tasks that are remembered.
    pub(super) fn recall(&mut self, recent: &Recent, named: &Named<'_>) {
        for task_id in named.task_ids() {
            if let Some(Remembered { key, task, body }) = recent.find(task_id) {
                self.lay_out(key, task);
                self.bodies.insert(key, body);
            }
        }
    }

    /// Has the tasks forgotten whose answer this batch changes though they have their result: as soon as it is committed
    /// somebody may read it, and must not be answered from before it then.
    pub(super) fn forget_changed(&self, recent: &Recent) {
        for revision in &self.writes.revisions {
            if revision.step == Step::WithResult {
                recent.forget(&revision.task.task_id);
            }
        }
    }

    /// Has the tasks remembered as they are now, once that is committed; and forgotten, if what they have become was not
    /// asked for.
    pub(super) fn leave_tasks(&mut self, recent: &Recent) {
        for (key, task) in std::mem::take(&mut self.tasks) {
            match self.bodies.remove(&key) {
                Some(body) => recent.remember(Remembered { key, task, body }),
                None => recent.forget(&task.task_id),
            }
        }
    }

    /// The changes from `first_seq` on, for the relay, as far as they were encoded; once that is committed.
    pub(super) fn fresh(&mut self, first_seq: i64) -> impl Iterator<Item = FreshRevision> {
        (first_seq..)
            .zip(self.writes.revisions.drain(..))
            .filter_map(|(seq, revision)| {
                let Revision {
                    task, body, trace, ..
                } = revision;
                Some(FreshRevision {
                    seq,
                    task,
                    body: body?,
                    trace,
                })
            })
    }

    /// Carries out one command on the desk.
    ///
    /// # Errors
    /// Only if a task does not encode as JSON.
    pub(super) fn apply(&mut self, command: &Command) -> Result<Applied, serde_json::Error> {
        let decision = match command {
            Command::Sweep => return Ok(self.sweep()),
            Command::Probe => {
                self.writes.probe = true;
                return Ok(Applied::Probed);
            }
            Command::Fold => return Ok(Applied::Folded),
            Command::Look => return Ok(Applied::Looked),
            Command::Published(seq) => {
                self.writes.published = self.writes.published.max(Some(*seq));
                return Ok(Applied::Published);
            }
            Command::Park(event) => {
                self.writes.parked.push(event.clone());
                return Ok(Applied::Parked);
            }
            &Command::Prune {
                first,
                last,
                before,
            } => {
                self.writes.prune = Some((first, last, before));
                return Ok(Applied::Pruned);
            }
            Command::Get(selector) => self.select(selector).map(|key| (key, None)),
            Command::Change(change) => self.change(change)?,
            Command::Traced(change, trace) => {
                let before = self.writes.revisions.len();
                let decision = self.change(change)?;
                let revisions = &mut self.writes.revisions[before..];
                let reported = (revisions.iter_mut()).find(|change| change.step == Step::Reported);
                if let Some(reported) = reported {
                    reported.trace = Some(trace.clone());
                }
                decision
            }
        };
        match decision {
            Ok((key, outcome)) => self.answer(key, outcome),
            Err(refusal) => Ok(Applied::Refused(refusal)),
        }
    }

    fn change(&mut self, change: &Change) -> Result<Decision, serde_json::Error> {
        match change {
            Change::Report { selector, report } => self.report(selector, report),
            Change::Create(new) => self.create(new),
            Change::Start(selector) => self.start(selector),
            Change::Cancel { selector, reason } => self.cancel(selector, reason.as_deref()),
            Change::Review {
                selector,
                verdict,
                note,
                reviewer,
            } => self.review(selector, *verdict, note.as_ref(), reviewer.as_ref()),
        }
    }

    fn answer(&mut self, key: Key, outcome: Option<Outcome>) -> Result<Applied, serde_json::Error> {
        let task = &self.tasks[&key];
        let body = match self.bodies.entry(key) {
            Entry::Occupied(body) => body.get().clone(),
            Entry::Vacant(place) => place
                .insert(serde_json::to_vec(task.as_ref())?.into())
                .clone(),
        };
        Ok(match self.circumstances.fit(&body) {
            Ok(()) => Applied::Task { body, outcome },
            Err((limit, actual)) => Applied::Refused(answer_too_large(task, limit, actual)),
        })
    }

    fn report(
        &mut self,
        selector: &Selector,
        report: &Report,
    ) -> Result<Decision, serde_json::Error> {
        let key = match self.select_for_report(selector, report) {
            Ok(key) => key,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let task = &self.tasks[&key];
        match report::decide(task, report) {
            Verdict::Replayed => Ok(Ok((key, Some(Outcome::Replayed)))),
            Verdict::Conflicting { differs } => Ok(Err(Refusal::result_conflict(
                &task.task_id,
                task.lifecycle,
                &differs,
            ))),
            Verdict::Terminal(lifecycle) => {
                let wanted = "a report cannot follow, so stop";
                Ok(Err(Refusal::task_terminal(
                    &task.task_id,
                    lifecycle,
                    wanted,
                )))
            }
            Verdict::Accepted => {
                let mut accepted = Task::clone(task);
                let now = self.circumstances.now;
                accepted.accept(report.clone().into_result(now), now);
                self.keep(key, accepted, Code::InvalidReport, Some(Outcome::Accepted))
            }
        }
    }

    fn create(&mut self, new: &NewTask) -> Result<Decision, serde_json::Error> {
        if let Some(&key) = self.keys.get(&new.task_id) {
            self.settle(key);
            let task = &self.tasks[&key];
            let differs = differing_creation(task, new);
            return Ok(match differs.is_empty() {
                true => Ok((key, None)),
                false => Err(Refusal::task_conflict(
                    &task.task_id,
                    task.lifecycle,
                    &differs,
                )),
            });
        }
        if let Some(pruned_at) = self.pruned.get(&new.task_id) {
            return Ok(Err(Refusal::pruned_id(&new.task_id, *pruned_at)));
        }
        let now = self.circumstances.now;
        if new.deadline.is_some_and(|deadline| deadline <= now) {
            let message = "deadline has passed already; it must lie in the future";
            return Ok(Err(
                Refusal::new(Code::InvalidRequest, message).at("/deadline")
            ));
        }
        let task = Task {
            task_id: new.task_id.clone(),
            pane_id: new.pane_id.clone(),
            title: new.title.clone(),
            lifecycle: Lifecycle::Submitted,
            metadata: new.metadata.clone(),
            deadline: new.deadline,
            reason: None,
            result: None,
            disposition: None,
            revision: 1,
            created_at: now,
            updated_at: now,
        };
        let key = self.next_key;
        let decision = self.keep(key, task, Code::InvalidRequest, None)?;
        if decision.is_ok() {
            self.next_key += 1;
            self.keys.insert(new.task_id.clone(), key);
        }
        Ok(decision)
    }

    fn start(&mut self, selector: &Selector) -> Result<Decision, serde_json::Error> {
        self.change_selected(selector, |task, now| match task.lifecycle {
            Lifecycle::Working => Ok(false),
            Lifecycle::Submitted => {
                task.start(now);
                Ok(true)
            }
            ended => Err(Refusal::task_terminal(
                &task.task_id,
                ended,
                "it cannot be started",
            )),
        })
    }

    fn cancel(
        &mut self,
        selector: &Selector,
        reason: Option<&str>,
    ) -> Result<Decision, serde_json::Error> {
        self.change_selected(selector, |task, now| match task.lifecycle {
            Lifecycle::Canceled => Ok(false),
            ended if ended.is_terminal() => Err(Refusal::task_terminal(
                &task.task_id,
                ended,
                "it cannot be canceled",
            )),
            _ => {
                task.cancel(reason.map(str::to_owned), now);
                Ok(true)
            }
        })
    }

    fn review(
        &mut self,
        selector: &Selector,
        verdict: ReviewVerdict,
        note: Option<&String>,
        reviewer: Option<&String>,
    ) -> Result<Decision, serde_json::Error> {
        self.change_selected(selector, |task, now| {
            if task.result.is_none() {
                return Err(Refusal::no_result(&task.task_id, task.lifecycle));
            }
            let same = task.disposition.as_ref().is_some_and(|there| {
                there.verdict == verdict
                    && there.note.as_ref() == note
                    && there.reviewer.as_ref() == reviewer
            });
            if !same {
                task.review(verdict, note.cloned(), reviewer.cloned(), now);
            }
            Ok(!same)
        })
    }

    /// Changes the selected task by `change`, which says whether it did.
    fn change_selected(
        &mut self,
        selector: &Selector,
        change: impl FnOnce(&mut Task, Timestamp) -> Result<bool, Refusal>,
    ) -> Result<Decision, serde_json::Error> {
        let key = match self.select(selector) {
            Ok(key) => key,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut task = Task::clone(&self.tasks[&key]);
        match change(&mut task, self.circumstances.now) {
            Ok(true) => self.keep(key, task, Code::InvalidRequest, None),
            Ok(false) => Ok(Ok((key, None))),
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    /// Takes a changed or new task onto the desk, unless too much waits to be published, the log is too long, or its answer or
    /// events would be larger than the server carries: that is found out before anything is written (docs/protocol.md,
    /// "Limits").
    fn keep(
        &mut self,
        key: Key,
        task: Task,
        too_large: Code,
        outcome: Option<Outcome>,
    ) -> Result<Decision, serde_json::Error> {
        if self.writes.revisions.len() as i64 >= self.outbox.left {
            return Ok(Err(Refusal::too_much_unpublished(self.outbox.limit)));
        }
        if self.log_is_overlong {
            return Ok(Err(Refusal::log_too_long()));
        }
        let body = Bytes::from(serde_json::to_vec(&task)?);
        if let Err((limit, actual)) = self.circumstances.fit(&body) {
            let message = format!(
                "the task would have {actual} bytes as an answer or event, headers included; the server's max_payload is {limit}"
            );
            let refusal = Refusal::new(too_large, message)
                .over(limit, actual)
                .about(&task.task_id);
            return Ok(Err(refusal));
        }
        self.record(key, task, Some(body));
        Ok(Ok((key, outcome)))
    }

    /// Notes a change for writing, and what it means for the task's pane; with the task's JSON, if that is made already.
    fn record(&mut self, key: Key, task: Task, body: Option<Bytes>) {
        let before = self.tasks.get(&key).map(Arc::as_ref);
        let task = Arc::new(task);
        let step = match (before, &task.result) {
            (None, _) => Step::Created,
            (Some(_), None) => Step::WithoutResult,
            (Some(before), Some(_)) if before.result.is_none() => Step::Reported,
            (Some(_), Some(_)) => Step::WithResult,
        };
        self.writes.revisions.push(Revision {
            key,
            task: task.clone(),
            body: body.clone(),
            step,
            trace: None,
        });
        if let Some(pane) = task
            .pane_id
            .as_ref()
            .and_then(|pane_id| self.panes.get_mut(pane_id))
        {
            let newest = pane.newest.and_then(|newest| self.tasks.get(&newest));
            let newest_has_result = newest.is_some_and(|newest| newest.result.is_some());
            pane.follow(
                key,
                before,
                &task,
                newest_has_result,
                self.circumstances.now,
            );
        }
        match body {
            Some(body) => self.bodies.insert(key, body),
            None => self.bodies.remove(&key),
        };
        self.tasks.insert(key, task);
    }

    /// Expires a task whose deadline has come, before anything else looks at it.
    fn settle(&mut self, key: Key) {
        let now = self.circumstances.now;
        if let Some(task) = self.tasks.get(&key).filter(|task| task.is_due(now)) {
            let mut expired = Task::clone(task);
            expired.expire(now);
            self.record(key, expired, None);
        }
    }

    /// Expires what was loaded as due. Another command of the batch may have expired some of it before, which says nothing
    /// of what was not loaded.
    fn sweep(&mut self) -> Applied {
        let before = self.writes.revisions.len();
        for at in 0..self.due.len() {
            self.settle(self.due[at]);
        }
        Applied::Swept {
            expired: self.writes.revisions.len() - before,
            more: self.due.len() == SWEEP_TASKS_MAX,
        }
    }
}

/// An answer that would not fit, since the server's limit was lowered after the task was written.
fn answer_too_large(task: &Task, limit: usize, actual: usize) -> Refusal {
    let message = format!(
        "the answer has {actual} bytes, but the server's max_payload is {limit} now; \
         the task is safe: raise max_payload and send the same again"
    );
    Refusal::new(Code::Unavailable, message)
        .over(limit, actual)
        .about(&task.task_id)
}

/// The fields in which a request to create differs from the task that is there; the deadline as an instant.
fn differing_creation(task: &Task, new: &NewTask) -> Vec<&'static str> {
    [
        ("pane_id", task.pane_id != new.pane_id),
        ("title", task.title != new.title),
        ("metadata", task.metadata != new.metadata),
        ("deadline", task.deadline != new.deadline),
    ]
    .into_iter()
    .filter_map(|(field, differs)| differs.then_some(field))
    .collect()
}
