//! Tasks that are no more: what is asked of them is refused, and says so.

use sqlx::{Row, SqliteConnection};

use super::{Desk, Named};
use crate::ledger::fault::{During, Fault};
use crate::task::Timestamp;
use crate::wire::Refusal;

use super::load::json_array;

impl Desk {
    /// Loads when those of the named tasks were pruned that are not there.
    pub(in crate::ledger) async fn load_pruned(
        &mut self,
        connection: &mut SqliteConnection,
        named: &Named<'_>,
    ) -> Result<(), Fault> {
        let missing = (named.task_ids())
            .filter(|task_id| !self.keys.contains_key(*task_id))
            .collect::<std::collections::HashSet<_>>();
        if missing.is_empty() {
            return Ok(());
        }
        let rows = sqlx::query(
            "SELECT task_id, pruned_at FROM json_each(?1) AS named
             CROSS JOIN pruned_tasks ON task_id = named.value",
        )
        .bind(json_array(&missing))
        .fetch_all(connection)
        .await
        .during("reading pruned tasks")?;
        for row in rows {
            let read =
                || -> Result<(String, i64), sqlx::Error> { Ok((row.try_get(0)?, row.try_get(1)?)) };
            let (task_id, pruned_at) = read().during("reading a pruned task")?;
            if let Some(pruned_at) = Timestamp::from_micros(pruned_at) {
                self.pruned.insert(task_id, pruned_at);
            }
        }
        Ok(())
    }

    /// Why there is no task of this ID.
    pub(super) fn not_found(&self, task_id: &str) -> Refusal {
        match self.pruned.get(task_id) {
            Some(pruned_at) => Refusal::task_pruned(task_id, *pruned_at),
            None => Refusal::task_not_found(task_id),
        }
    }
}
