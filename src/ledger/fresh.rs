//! Events of what was committed just now, on their way from the writer to the relay.
//!
//! The outbox is what events are published from, after a crash for one; but to read there what the writer has had in hand
//! a moment ago, and encode it again, costs as much as to apply it. So the writer leaves the tasks of each batch here, and
//! the relay takes them if they are the next ones. Whatever is not here it reads from the outbox.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::task::Task;
use crate::wire::Trace;

/// How many bytes wait here at most. What comes past it while the relay is behind is left to the outbox.
const FRESH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What a task takes beside its content, roughly.
const TASK_BYTES: usize = 512;

/// A committed revision.
#[derive(Debug)]
pub(super) struct FreshRevision {
    pub seq: i64,
    /// The task as of then.
    pub task: Arc<Task>,
    /// The same as JSON.
    pub body: Bytes,
    /// The trace that its events belong to.
    pub trace: Option<Box<Trace>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Fresh(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    /// In the order of the outbox, with gaps.
    revisions: VecDeque<FreshRevision>,
    bytes: usize,
}

impl FreshRevision {
    fn size(&self) -> usize {
        2 * self.body.len() + TASK_BYTES
    }
}

impl Fresh {
    /// Leaves committed revisions.
    pub(super) fn leave(&self, revisions: impl IntoIterator<Item = FreshRevision>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for revision in revisions {
            let bytes = revision.size();
            if waiting.bytes + bytes <= FRESH_BYTES_MAX {
                waiting.bytes += bytes;
                waiting.revisions.push_back(revision);
            }
        }
    }

    /// Takes the revisions that follow `seq` without a gap, one at least and up to about so many bytes.
    pub(super) fn take(&self, mut seq: i64, bytes_max: usize) -> Vec<FreshRevision> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = Vec::new();
        let mut taken_bytes = 0;
        while taken.is_empty() || taken_bytes < bytes_max {
            let Some(next) = waiting.revisions.pop_front_if(|next| next.seq <= seq + 1) else {
                break;
            };
            let size = next.size();
            waiting.bytes -= size;
            // What is older was read from the outbox meanwhile.
            if next.seq == seq + 1 {
                seq = next.seq;
                taken_bytes += size;
                taken.push(next);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Lifecycle, Timestamp};

    fn revision(seq: i64, body: usize) -> FreshRevision {
        let at = Timestamp::from_micros(0).unwrap();
        let task = Task {
            task_id: "t".to_owned(),
            pane_id: None,
            title: "a task".to_owned(),
            lifecycle: Lifecycle::Submitted,
            metadata: None,
            deadline: None,
            reason: None,
            result: None,
            disposition: None,
            revision: 1,
            created_at: at,
            updated_at: at,
        };
        FreshRevision {
            seq,
            task: Arc::new(task),
            body: vec![b' '; body].into(),
            trace: None,
        }
    }

    fn taken(fresh: &Fresh, seq: i64, bytes_max: usize) -> Vec<i64> {
        let revisions = fresh.take(seq, bytes_max);
        revisions.iter().map(|revision| revision.seq).collect()
    }

    #[test]
    fn what_follows_is_taken_up_to_a_gap_and_what_is_older_is_dropped() {
        let fresh = Fresh::default();
        fresh.leave([3, 4, 5, 7, 8].map(|seq| revision(seq, 1)));
        assert!(taken(&fresh, 1, usize::MAX).is_empty(), "2 is not there");
        assert_eq!(taken(&fresh, 3, usize::MAX), [4, 5]);
        assert!(taken(&fresh, 5, usize::MAX).is_empty(), "6 is not there");
        assert_eq!(taken(&fresh, 6, usize::MAX), [7, 8]);
        assert!(taken(&fresh, 8, usize::MAX).is_empty());
    }

    #[test]
    fn one_is_taken_at_least_and_more_only_as_far_as_there_is_room() {
        let fresh = Fresh::default();
        fresh.leave([1, 2, 3].map(|seq| revision(seq, 1000)));
        assert_eq!(taken(&fresh, 0, 0), [1]);
        assert_eq!(taken(&fresh, 1, 2600), [2, 3]);
    }

    #[test]
    fn what_comes_past_the_limit_is_left_to_the_outbox() {
        let fresh = Fresh::default();
        let large = FRESH_BYTES_MAX / 2 - TASK_BYTES;
        fresh.leave([1, 2].map(|seq| revision(seq, large / 2)));
        fresh.leave([revision(3, large / 2)]);
        assert_eq!(taken(&fresh, 0, usize::MAX), [1, 2]);
        fresh.leave([revision(4, 1)]);
        assert_eq!(taken(&fresh, 3, usize::MAX), [4], "there is room again");
    }
}
