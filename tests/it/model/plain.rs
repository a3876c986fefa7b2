//! Tasks and panes as the protocol describes them, in plain steps: one request after the other, everything looked up by
//! going through a list.

use serde_json::{Value, json};

use crate::support::bench::at;

pub const VERDICTS: [&str; 3] = ["approved", "rework", "blocked"];

pub fn task_id(task: usize) -> String {
    format!("task-{task}")
}

pub fn pane_id(pane: usize) -> String {
    format!("pane {pane}")
}

pub fn title(title: usize) -> String {
    format!("title {title}")
}

pub fn reason(reason: usize) -> String {
    format!("reason {reason}")
}

/// How a request names its task.
#[derive(Clone, Debug)]
pub enum Seat {
    Task(usize),
    Pane(usize),
    Both(usize, usize),
}

impl Seat {
    pub fn json(&self) -> Value {
        match *self {
            Self::Task(task) => json!({"task_id": task_id(task)}),
            Self::Pane(pane) => json!({"pane_id": pane_id(pane)}),
            Self::Both(task, pane) => json!({"task_id": task_id(task), "pane_id": pane_id(pane)}),
        }
    }
}

/// What a report says: two contents are the same if `which` is, whatever their spelling.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    pub which: usize,
    pub spelling: usize,
}

impl Content {
    const FIELDS: [&str; 4] = ["status", "summary", "artifacts", "evidence"];

    /// Contents 0 and 1 differ in everything, 0 and 2 in their evidence alone.
    pub fn json(self) -> Value {
        let number = match self.spelling {
            0 => json!(self.which),
            _ => json!(f64::from(u8::try_from(self.which).unwrap())),
        };
        let (status, summary, artifact) = if self.which == 1 {
            ("failed", "other", "b")
        } else {
            ("completed", "done", "a")
        };
        json!({"status": status, "summary": summary, "artifacts": [artifact], "evidence": {"n": number}})
    }

    fn differs(self, other: Self) -> Vec<String> {
        let (one, two) = (
            Self {
                spelling: 0,
                ..self
            }
            .json(),
            Self {
                spelling: 0,
                ..other
            }
            .json(),
        );
        Self::FIELDS
            .into_iter()
            .filter(|&field| one[field] != two[field])
            .map(str::to_owned)
            .collect()
    }
}

#[derive(Clone, Debug)]
pub enum Order {
    Create {
        task: usize,
        pane: Option<usize>,
        title: usize,
        deadline: Option<i64>,
    },
    Report {
        seat: Seat,
        content: Content,
    },
    Start(Seat),
    Cancel {
        seat: Seat,
        reason: Option<usize>,
    },
    Review {
        seat: Seat,
        verdict: usize,
        note: bool,
    },
    Get(Seat),
    Sweep,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Task {
        task: Value,
        outcome: Option<String>,
    },
    Refused {
        code: String,
        task_id: Option<String>,
        lifecycle: Option<String>,
        differs: Vec<String>,
    },
    Swept {
        expired: usize,
        more: bool,
    },
}

#[derive(Clone, Debug)]
struct Task {
    task: usize,
    pane: Option<usize>,
    title: usize,
    lifecycle: &'static str,
    deadline: Option<i64>,
    reason: Option<usize>,
    result: Option<(Content, i64)>,
    disposition: Option<(usize, bool, i64)>,
    revision: i64,
    created_at: i64,
    updated_at: i64,
}

impl Task {
    fn is_open(&self) -> bool {
        matches!(self.lifecycle, "submitted" | "working")
    }

    fn is_due(&self, now: i64) -> bool {
        self.is_open() && self.deadline.is_some_and(|deadline| now >= deadline)
    }

    fn json(&self) -> Value {
        let result = self.result.map(|(content, reported_at)| {
            let mut result = content.json();
            result["reported_at"] = json!(at(reported_at).to_string());
            result
        });
        let disposition = self.disposition.map(|(verdict, note, reviewed_at)| {
            json!({
                "verdict": VERDICTS[verdict], "note": note.then_some("a note"), "reviewer": null,
                "reviewed_at": at(reviewed_at).to_string(),
            })
        });
        json!({
            "task_id": task_id(self.task), "pane_id": self.pane.map(pane_id), "title": title(self.title),
            "lifecycle": self.lifecycle, "metadata": null, "deadline": self.deadline.map(|deadline| at(deadline).to_string()),
            "reason": self.reason.map(reason), "result": result, "disposition": disposition, "revision": self.revision,
            "created_at": at(self.created_at).to_string(), "updated_at": at(self.updated_at).to_string(),
        })
    }

    fn refused(&self, code: &str, differs: Vec<String>) -> Answer {
        Answer::Refused {
            code: code.to_owned(),
            task_id: Some(task_id(self.task)),
            lifecycle: Some(self.lifecycle.to_owned()),
            differs,
        }
    }
}

fn refused(code: &str, task: Option<usize>) -> Answer {
    Answer::Refused {
        code: code.to_owned(),
        task_id: task.map(task_id),
        lifecycle: None,
        differs: Vec::new(),
    }
}

/// All tasks in the order of their creation, and all events in the order of their changes.
#[derive(Clone, Debug, Default)]
pub struct Model {
    tasks: Vec<Task>,
    published: Vec<(String, Value)>,
}

impl Model {
    pub fn published(&self) -> Vec<(String, Value)> {
        self.published.clone()
    }

    pub fn is_due(&self, task: usize, now: i64) -> bool {
        self.tasks
            .iter()
            .any(|there| there.task == task && there.is_due(now))
    }

    /// Does what is asked, wholly, before anything else is.
    pub fn carry_out(&mut self, order: &Order, now: i64) -> Answer {
        let done = match order {
            Order::Create {
                task,
                pane,
                title,
                deadline,
            } => self.create(*task, *pane, *title, *deadline, now),
            Order::Report { seat, content } => {
                return self
                    .report(seat, *content, now)
                    .unwrap_or_else(|refused| refused);
            }
            Order::Start(seat) => self.start(seat, now),
            Order::Cancel { seat, reason } => self.cancel(seat, *reason, now),
            Order::Review {
                seat,
                verdict,
                note,
            } => self.review(seat, (*verdict, *note), now),
            Order::Get(seat) => self.select(seat, now),
            Order::Sweep => return self.sweep(now),
        };
        match done {
            Ok(index) => Answer::Task {
                task: self.tasks[index].json(),
                outcome: None,
            },
            Err(refused) => refused,
        }
    }

    fn changed(&mut self, index: usize, now: i64) {
        let task = &mut self.tasks[index];
        task.revision += 1;
        task.updated_at = task.updated_at.max(now);
    }

    fn publish(&mut self, index: usize, accepted: bool) {
        let task = &self.tasks[index];
        let id = |kind: &str| format!("{}.{}.{kind}", task_id(task.task), task.revision);
        let whole = task.json();
        if accepted {
            let data = json!({
                "task_id": whole["task_id"], "pane_id": whole["pane_id"], "revision": whole["revision"], "result": whole["result"],
            });
            self.published.push((id("result"), data));
        }
        self.published.push((id("task"), whole));
    }

    fn expire_if_due(&mut self, index: usize, now: i64) {
        if self.tasks[index].is_due(now) {
            self.tasks[index].lifecycle = "expired";
            self.changed(index, now);
            self.publish(index, false);
        }
    }

    fn find(&self, task: usize) -> Result<usize, Answer> {
        let found = self.tasks.iter().position(|there| there.task == task);
        found.ok_or_else(|| refused("task_not_found", Some(task)))
    }

    fn newest_of(&self, pane: usize) -> Option<usize> {
        self.tasks
            .iter()
            .rposition(|there| there.pane == Some(pane))
    }

    fn find_on_pane(&self, task: usize, pane: usize) -> Result<usize, Answer> {
        let index = self.find(task)?;
        match self.tasks[index].pane == Some(pane) {
            true => Ok(index),
            false => Err(refused("selector_mismatch", Some(task))),
        }
    }

    fn select(&mut self, seat: &Seat, now: i64) -> Result<usize, Answer> {
        let index = match *seat {
            Seat::Task(task) => self.find(task)?,
            Seat::Pane(pane) => {
                let newest = self
                    .newest_of(pane)
                    .ok_or_else(|| refused("task_not_found", None))?;
                let open = self
                    .tasks
                    .iter()
                    .filter(|task| task.pane == Some(pane) && task.is_open() && !task.is_due(now));
                if open.count() >= 2 {
                    return Err(refused("ambiguous_pane", None));
                }
                newest
            }
            Seat::Both(task, pane) => {
                let index = self.find_on_pane(task, pane)?;
                if self.newest_of(pane) != Some(index) {
                    return Err(refused("selector_mismatch", Some(task)));
                }
                index
            }
        };
        self.expire_if_due(index, now);
        Ok(index)
    }

    fn select_for_report(
        &mut self,
        seat: &Seat,
        content: Content,
        now: i64,
    ) -> Result<usize, Answer> {
        match *seat {
            Seat::Task(_) => self.select(seat, now),
            Seat::Both(task, pane) => {
                let index = self.find_on_pane(task, pane)?;
                if self.tasks[index].result.is_some() {
                    Ok(index)
                } else {
                    self.select(seat, now)
                }
            }
            Seat::Pane(pane) => {
                let index = self.select(seat, now)?;
                let before = self.tasks[..index]
                    .iter()
                    .filter(|task| task.pane == Some(pane));
                let previous = before.filter_map(|task| task.result).next_back();
                let repeats = previous.is_some_and(|(previous, _)| previous.which == content.which);
                match self.tasks[index].is_open() && repeats {
                    true => Err(refused("ambiguous_pane", None)),
                    false => Ok(index),
                }
            }
        }
    }

    fn report(&mut self, seat: &Seat, content: Content, now: i64) -> Result<Answer, Answer> {
        let index = self.select_for_report(seat, content, now)?;
        let task = &mut self.tasks[index];
        let outcome = match task.result {
            Some((there, _)) if there.which == content.which => "replayed",
            Some((there, _)) => return Err(task.refused("result_conflict", there.differs(content))),
            None if !task.is_open() => return Err(task.refused("task_terminal", Vec::new())),
            None => {
                task.lifecycle = if content.which == 1 {
                    "failed"
                } else {
                    "completed"
                };
                self.changed(index, now);
                let task = &mut self.tasks[index];
                task.result = Some((content, task.updated_at));
                self.publish(index, true);
                "accepted"
            }
        };
        Ok(Answer::Task {
            task: self.tasks[index].json(),
            outcome: Some(outcome.to_owned()),
        })
    }

    fn create(
        &mut self,
        task: usize,
        pane: Option<usize>,
        title: usize,
        deadline: Option<i64>,
        now: i64,
    ) -> Result<usize, Answer> {
        if let Ok(index) = self.find(task) {
            self.expire_if_due(index, now);
            let there = &self.tasks[index];
            let differs = [
                ("pane_id", there.pane != pane),
                ("title", there.title != title),
                ("deadline", there.deadline != deadline),
            ];
            let differs: Vec<String> = differs
                .iter()
                .filter(|field| field.1)
                .map(|field| field.0.to_owned())
                .collect();
            return if differs.is_empty() {
                Ok(index)
            } else {
                Err(there.refused("task_conflict", differs))
            };
        }
        if deadline.is_some_and(|deadline| deadline <= now) {
            return Err(refused("invalid_request", None));
        }
        self.tasks.push(Task {
            task,
            pane,
            title,
            lifecycle: "submitted",
            deadline,
            reason: None,
            result: None,
            disposition: None,
            revision: 1,
            created_at: now,
            updated_at: now,
        });
        self.publish(self.tasks.len() - 1, false);
        Ok(self.tasks.len() - 1)
    }

    fn start(&mut self, seat: &Seat, now: i64) -> Result<usize, Answer> {
        let index = self.select(seat, now)?;
        match self.tasks[index].lifecycle {
            "working" => {}
            "submitted" => {
                self.tasks[index].lifecycle = "working";
                self.changed(index, now);
                self.publish(index, false);
            }
            _ => return Err(self.tasks[index].refused("task_terminal", Vec::new())),
        }
        Ok(index)
    }

    fn cancel(&mut self, seat: &Seat, reason: Option<usize>, now: i64) -> Result<usize, Answer> {
        let index = self.select(seat, now)?;
        if self.tasks[index].is_open() {
            self.tasks[index].lifecycle = "canceled";
            self.tasks[index].reason = reason;
            self.changed(index, now);
            self.publish(index, false);
        } else if self.tasks[index].lifecycle != "canceled" {
            return Err(self.tasks[index].refused("task_terminal", Vec::new()));
        }
        Ok(index)
    }

    fn review(
        &mut self,
        seat: &Seat,
        (verdict, note): (usize, bool),
        now: i64,
    ) -> Result<usize, Answer> {
        let index = self.select(seat, now)?;
        if self.tasks[index].result.is_none() {
            return Err(self.tasks[index].refused("no_result", Vec::new()));
        }
        let there = self.tasks[index]
            .disposition
            .map(|(verdict, note, _)| (verdict, note));
        if there != Some((verdict, note)) {
            self.changed(index, now);
            self.tasks[index].disposition = Some((verdict, note, self.tasks[index].updated_at));
            self.publish(index, false);
        }
        Ok(index)
    }

    fn sweep(&mut self, now: i64) -> Answer {
        let mut due: Vec<usize> = (0..self.tasks.len())
            .filter(|&index| self.tasks[index].is_due(now))
            .collect();
        due.sort_by_key(|&index| self.tasks[index].deadline);
        for &index in &due {
            self.expire_if_due(index, now);
        }
        // There are far fewer tasks than one sweep takes.
        Answer::Swept {
            expired: due.len(),
            more: false,
        }
    }
}
