//! What the writer remembers of the tasks that it had in hand lately.
//!
//! A retry is answered from here without going to the store, and a first report for a task that is remembered is decided
//! without reading it again. Only the writer puts something in, after the commit and before anybody is answered; so what
//! is remembered is true, and whoever has seen a change is never answered from before it. Should it be wrong all the
//! same, since some other program has written to the file, the statements that write find other rows than they must, and
//! the batch fails.

use std::sync::Arc;

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::desk::Key;
use super::{Applied, Circumstances};
use crate::report::{self, Report, Selector, Verdict};
use crate::task::Task;
use crate::wire::{Outcome, Refusal};

/// How much is remembered, in bytes: about 25,000 tasks of 900 bytes.
const REMEMBERED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What an entry takes beside its content, roughly: the allocations of a task and the entry's place.
const ENTRY_BYTES: usize = 512;

/// The tasks that are remembered, by their ID.
#[derive(Clone, Debug)]
pub(super) struct Recent(Arc<Cache<String, Remembered, Weight>>);

/// A task as it is in the store.
#[derive(Clone, Debug)]
pub(super) struct Remembered {
    pub key: Key,
    pub task: Arc<Task>,
    /// The task as it is answered.
    pub body: Bytes,
}

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<String, Remembered> for Weight {
    fn weight(&self, _: &String, remembered: &Remembered) -> u64 {
        // Once as the task and once as its JSON.
        (2 * remembered.body.len() + ENTRY_BYTES) as u64
    }
}

impl Recent {
    pub(super) fn new() -> Self {
        let tasks = REMEMBERED_BYTES_MAX as usize / (2 * 900 + ENTRY_BYTES);
        Self(Arc::new(Cache::with_weighter(
            tasks,
            REMEMBERED_BYTES_MAX,
            Weight,
        )))
    }

    pub(super) fn find(&self, task_id: &str) -> Option<Remembered> {
        self.0.get(task_id)
    }

    /// Remembers a task as it is now.
    pub(super) fn remember(&self, remembered: Remembered) {
        self.0.insert(remembered.task.task_id.clone(), remembered);
    }

    /// A task is not any more as it is remembered.
    pub(super) fn forget(&self, task_id: &str) {
        self.0.remove(task_id);
    }

    /// It is not known what has become of a transaction.
    pub(super) fn forget_all(&self) {
        self.0.clear();
    }

    /// What a report gets whose task is remembered and has its result. A task that is named by its pane alone is not
    /// looked for.
    pub(super) fn answer(
        &self,
        selector: &Selector,
        report: &Report,
        circumstances: Circumstances,
    ) -> Option<Applied> {
        let Remembered { task, body, .. } = self.find(selector.task_id()?)?;
        let other_pane = selector
            .pane_id()
            .is_some_and(|pane_id| task.pane_id.as_deref() != Some(pane_id));
        if other_pane || circumstances.fit(&body).is_err() {
            return None;
        }
        match report::decide(&task, report) {
            Verdict::Replayed => Some(Applied::Task {
                body,
                outcome: Some(Outcome::Replayed),
            }),
            Verdict::Conflicting { differs } => Some(Applied::Refused(Refusal::result_conflict(
                &task.task_id,
                task.lifecycle,
                &differs,
            ))),
            Verdict::Accepted | Verdict::Terminal(_) => None,
        }
    }
}
