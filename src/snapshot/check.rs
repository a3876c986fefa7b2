//! One pass over a snapshot file: every line is checked and put into a ledger that is being filled. The ledger finds
//! what takes more than one line to see, such as a task that comes twice, without holding all of them in memory.

use super::damage::{DamageKind, Place, Wrong};
use super::error::{Doing, SnapshotError};
use super::events::{Events, Unfit};
use super::file::SnapshotFile;
use super::format::{self, End, LINE_BYTES_MAX, Line};
use super::lines::{At, Lines};
use super::{Pending, Phase, Summary, Watch, rules, tell};
use crate::ledger::SnapshotWriter;
use crate::task::Task;
use crate::wire::CloudEvent;

/// How many tasks go into the store at once, and about how many bytes.
const BATCH_TASKS_MAX: usize = 64;
const BATCH_BYTES_MAX: usize = 1024 * 1024;

/// How many lines are read between two looks at who waits.
const LINES_PER_TELL: u64 = 256;

/// What a file is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To find out whether it is good.
    Check,
    /// To load it, once it was found good. That it still is shows in its checksum.
    Load(Pending),
}

/// Reads a whole file and fills a ledger with it. What was filled must not be committed if this fails.
pub(super) async fn read_into(
    into: &mut SnapshotWriter<'_>,
    purpose: Purpose,
    file: &mut SnapshotFile,
    watch: &mut Watch<'_>,
) -> Result<Summary, SnapshotError> {
    let total = file.bytes();
    let (name, file) = file.parts();
    let lines = Lines::new(file).doing(|| format!("read {name}"))?;
    let mut pass = Pass {
        name,
        lines,
        into,
        purpose,
        tasks: 0,
        batch: Batch::default(),
    };
    pass.read(total, watch).await
}

struct Pass<'p, 'w> {
    name: &'p str,
    lines: Lines<'p>,
    into: &'p mut SnapshotWriter<'w>,
    purpose: Purpose,
    tasks: u64,
    batch: Batch,
}

/// Tasks on their way into the store.
#[derive(Default)]
struct Batch {
    places: Vec<Place>,
    tasks: Vec<Task>,
    bytes: usize,
}

impl Pass<'_, '_> {
    async fn read(&mut self, total: u64, watch: &mut Watch<'_>) -> Result<Summary, SnapshotError> {
        let phase = match self.purpose {
            Purpose::Check => Phase::Checking,
            Purpose::Load(_) => Phase::Loading,
        };
        let head = self.read_head()?;
        let mut events = Events::of(&head.ledger_id);
        let end = loop {
            self.next_line()?;
            let place = self.lines.place();
            if place.line.is_multiple_of(LINES_PER_TELL) {
                tell(watch, phase, place.offset, total)?;
            }
            let checked = self.purpose != Purpose::Check;
            let line = format::decode(self.lines.text(), checked);
            match line.map_err(|wrong| self.wrong(wrong))? {
                Line::Task(_) if events.count() > 0 => {
                    let what = "a task stands after the unpublished events";
                    return Err(self.wrong(Wrong::altered(what)));
                }
                Line::Task(task) => self.take_task(*task).await?,
                Line::Event(event) => self.take_event(&mut events, event).await?,
                Line::End(end) => break end,
            }
        };
        self.write_batch().await?;
        events.finish().map_err(|unfit| self.unfit(unfit))?;
        self.check_end(&end)?;
        tell(watch, phase, total, total)?;
        Ok(Summary {
            tasks: self.tasks,
            unpublished_events: events.count(),
            sha256: end.sha256,
            created_at: head.created_at,
            ledger_id: head.ledger_id,
        })
    }

    async fn take_event(
        &mut self,
        events: &mut Events,
        event: Box<CloudEvent>,
    ) -> Result<(), SnapshotError> {
        self.write_batch().await?;
        if self.purpose == Purpose::Load(Pending::Drop) {
            events.pass();
            return Ok(());
        }
        let taken = events.take(self.lines.place(), event, self.into).await;
        taken.map_err(|unfit| self.unfit(unfit))
    }

    fn read_head(&mut self) -> Result<format::Head, SnapshotError> {
        let at = self.advance()?;
        let text = self.lines.text();
        let decoded = match at {
            At::Line => format::decode_head(text),
            At::CutShort if format::may_begin_with(text) => Err(cut_short()),
            At::TooLong if format::may_begin_with(text) => Err(too_long()),
            At::CutShort | At::TooLong | At::End => Err(format::not_a_snapshot(text)),
        };
        decoded.map_err(|wrong| self.wrong(wrong))
    }

    async fn take_task(&mut self, task: Task) -> Result<(), SnapshotError> {
        if self.purpose == Purpose::Check {
            rules::check(&task).map_err(|what| self.wrong(Wrong::altered(what)))?;
        }
        self.tasks += 1;
        self.batch.places.push(self.lines.place());
        self.batch.tasks.push(task);
        self.batch.bytes += self.lines.text().len();
        let full = self.batch.tasks.len() >= BATCH_TASKS_MAX || self.batch.bytes >= BATCH_BYTES_MAX;
        if full {
            self.write_batch().await
        } else {
            Ok(())
        }
    }

    async fn write_batch(&mut self) -> Result<(), SnapshotError> {
        if self.batch.tasks.is_empty() {
            return Ok(());
        }
        let Batch { places, tasks, .. } = std::mem::take(&mut self.batch);
        match self.into.add_tasks(&tasks).await? {
            None => Ok(()),
            Some(at) => {
                let wrong =
                    Wrong::altered(format!("task {} is there a second time", tasks[at].task_id));
                Err(wrong.at(self.name, places[at]).into())
            }
        }
    }

    fn check_end(&mut self, end: &End) -> Result<(), SnapshotError> {
        if end.tasks != self.tasks {
            let what = format!(
                "the end says {} tasks, but there are {}",
                end.tasks, self.tasks
            );
            return Err(self.wrong(Wrong::altered(what)));
        }
        if end.sha256 != self.lines.sha256_before() {
            let what =
                "the checksum is not that of the lines before it: something in them was changed";
            return Err(self.wrong(Wrong::altered(what)));
        }
        match self.advance()? {
            At::End => Ok(()),
            At::Line | At::CutShort | At::TooLong => Err(self.wrong(Wrong::altered(
                "there is something after the last line of the snapshot",
            ))),
        }
    }

    fn next_line(&mut self) -> Result<(), SnapshotError> {
        let wrong = match self.advance()? {
            At::Line => return Ok(()),
            At::CutShort if self.lines.text().contains(&0) => format::nul_bytes(),
            At::CutShort => cut_short(),
            At::TooLong => too_long(),
            At::End => Wrong::new(
                DamageKind::CutShort,
                "the file ends here, without the last line of a snapshot",
            ),
        };
        Err(self.wrong(wrong))
    }

    fn advance(&mut self) -> Result<At, SnapshotError> {
        self.lines.advance().doing(|| format!("read {}", self.name))
    }

    fn wrong(&self, wrong: Wrong) -> SnapshotError {
        wrong.at(self.name, self.lines.place()).into()
    }

    fn unfit(&self, unfit: Unfit) -> SnapshotError {
        match unfit {
            Unfit::Wrong(place, wrong) => wrong.at(self.name, place).into(),
            Unfit::Failed(error) => error,
        }
    }
}

fn cut_short() -> Wrong {
    Wrong::new(
        DamageKind::CutShort,
        "the file ends in the middle of this line",
    )
}

fn too_long() -> Wrong {
    Wrong::altered(format!(
        "the line is longer than {LINE_BYTES_MAX} bytes, the limit"
    ))
}
