//! Selectors, and panes above all: which task a pane names, and when it may be used (docs/protocol.md, "Naming a task").

use super::{Desk, Key};
use crate::report::{Report, Selector, differing_fields};
use crate::task::{Task, Timestamp};
use crate::wire::{Code, Refusal};

/// What must be known of a pane to use it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::ledger) struct Pane {
    /// Its newest task, which it names.
    pub newest: Option<Key>,
    /// How many of its tasks are open and not due. Exact up to two more than a batch can close.
    pub open: i64,
    /// Of the tasks before the newest, the most recent one with a result.
    pub earlier_result: Option<Key>,
}

impl Pane {
    /// Follows a change of one of the pane's tasks; `newest_has_result` is that of its newest task before the change.
    pub(super) fn follow(
        &mut self,
        key: Key,
        before: Option<&Task>,
        after: &Task,
        newest_has_result: bool,
        now: Timestamp,
    ) {
        let counted = |task: &Task| !task.lifecycle.is_terminal() && !task.is_due(now);
        self.open += i64::from(counted(after)) - i64::from(before.is_some_and(counted));
        if before.is_none() {
            // Keys grow with creation, so a new task is the newest of its pane, and the newest so far an earlier one.
            if newest_has_result {
                self.earlier_result = self.newest;
            }
            self.newest = Some(key);
        }
        if after.result.is_some() && self.newest != Some(key) {
            self.earlier_result = self.earlier_result.max(Some(key));
        }
    }
}

impl Desk {
    /// The one task that a selector names, expired first if its deadline has come.
    pub(super) fn select(&mut self, selector: &Selector) -> Result<Key, Refusal> {
        let key = match selector {
            Selector::TaskId(task_id) => self.by_id(task_id)?,
            Selector::PaneId(pane_id) => self.by_pane(pane_id)?,
            Selector::Both { task_id, pane_id } => {
                let key = self.by_id_on_pane(task_id, pane_id)?;
                self.check_newest(key, task_id, pane_id)?;
                key
            }
        };
        self.settle(key);
        Ok(key)
    }

    /// As [`select`](Self::select), for a report. Two things are different: a task named by its ID that has its result is
    /// compared with the report before it is asked whether its pane was given on; and a pane alone is refused if the
    /// report repeats the result of an earlier task of the pane while its newest is still open.
    pub(super) fn select_for_report(
        &mut self,
        selector: &Selector,
        report: &Report,
    ) -> Result<Key, Refusal> {
        match selector {
            Selector::TaskId(_) => self.select(selector),
            Selector::Both { task_id, pane_id } => {
                let key = self.by_id_on_pane(task_id, pane_id)?;
                if self.tasks[&key].result.is_some() {
                    Ok(key)
                } else {
                    self.select(selector)
                }
            }
            Selector::PaneId(pane_id) => {
                let key = self.select(selector)?;
                if !self.tasks[&key].lifecycle.is_terminal()
                    && self.repeats_earlier_result(pane_id, report)
                {
                    let message = "this report repeats the result of an earlier task of that pane, whose newest task is still \
                                   open; send the task ID";
                    return Err(Refusal::new(Code::AmbiguousPane, message).at("/pane_id"));
                }
                Ok(key)
            }
        }
    }

    fn by_id(&self, task_id: &str) -> Result<Key, Refusal> {
        self.keys
            .get(task_id)
            .copied()
            .ok_or_else(|| self.not_found(task_id))
    }

    fn by_pane(&self, pane_id: &str) -> Result<Key, Refusal> {
        let pane = self.panes.get(pane_id).copied().unwrap_or_default();
        let newest = pane.newest.ok_or_else(Refusal::pane_not_found)?;
        if pane.open >= 2 {
            let message = "that pane has several tasks that have not ended; send the task ID";
            return Err(Refusal::new(Code::AmbiguousPane, message).at("/pane_id"));
        }
        Ok(newest)
    }

    fn by_id_on_pane(&self, task_id: &str, pane_id: &str) -> Result<Key, Refusal> {
        let key = self.by_id(task_id)?;
        if self.tasks[&key].pane_id.as_deref() != Some(pane_id) {
            let other = "that pane was never given that task";
            return Err(Refusal::selector_mismatch(task_id, other));
        }
        Ok(key)
    }

    fn check_newest(&self, key: Key, task_id: &str, pane_id: &str) -> Result<(), Refusal> {
        match self.panes.get(pane_id).and_then(|pane| pane.newest) {
            Some(newest) if newest != key => {
                let other = "that pane was given another task since";
                Err(Refusal::selector_mismatch(task_id, other))
            }
            _ => Ok(()),
        }
    }

    fn repeats_earlier_result(&self, pane_id: &str, report: &Report) -> bool {
        self.panes
            .get(pane_id)
            .and_then(|pane| pane.earlier_result)
            .and_then(|key| self.tasks.get(&key)?.result.as_ref())
            .is_some_and(|result| differing_fields(result, report).is_empty())
    }
}
