//! Rows to tasks and back.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, sqlite::SqliteValueRef};

use crate::content::JsonText;
use crate::task::{Disposition, Lifecycle, ReviewVerdict, Status, Task, TaskResult, Timestamp};

/// The columns of a task and its result, in the order in which [`task_from`] reads them; the tables are `t` and `r`.
macro_rules! task_columns {
    () => {
        "t.task_key, t.task_id, t.pane_id, t.title, t.metadata, t.deadline, t.created_at, t.reason, \
         t.lifecycle, t.revision, t.updated_at, t.verdict, t.note, t.reviewer, t.reviewed_at, \
         r.status, r.summary, r.artifacts, r.evidence, r.reported_at"
    };
}
pub(super) use task_columns;

/// The same for a task as of a revision `v`: what can change comes from the revision.
macro_rules! task_as_of_columns {
    () => {
        "t.task_key, t.task_id, t.pane_id, t.title, t.metadata, t.deadline, t.created_at, t.reason, \
         v.lifecycle, v.revision, v.updated_at, v.verdict, v.note, v.reviewer, v.reviewed_at, \
         r.status, r.summary, r.artifacts, r.evidence, r.reported_at, v.seq"
    };
}
pub(super) use task_as_of_columns;

/// Where `v.seq` stands in [`task_as_of_columns`].
pub(super) const SEQ_COLUMN: usize = 20;

/// A task and its key from a row of [`task_columns`] or [`task_as_of_columns`]. A result belongs to it exactly if its
/// lifecycle is a reported status, a reason exactly if it is canceled; so a row as of an earlier revision leaves out what
/// came later.
pub(super) fn task_from(row: &SqliteRow) -> Result<(i64, Task), sqlx::Error> {
    let lifecycle = word(row, 8, Lifecycle::from_word)?;
    let result = match lifecycle {
        Lifecycle::Completed | Lifecycle::Failed | Lifecycle::Rejected => Some(result_from(row)?),
        _ => None,
    };
    let reason = match lifecycle {
        Lifecycle::Canceled => row.try_get(7)?,
        _ => None,
    };
    let task = Task {
        task_id: row.try_get(1)?,
        pane_id: row.try_get(2)?,
        title: row.try_get(3)?,
        lifecycle,
        metadata: row
            .try_get::<Option<String>, _>(4)?
            .map(|text| json(4, text))
            .transpose()?,
        deadline: row
            .try_get::<Option<i64>, _>(5)?
            .map(|micros| time(5, micros))
            .transpose()?,
        reason,
        result,
        disposition: disposition_from(row)?,
        revision: row.try_get(9)?,
        created_at: time(6, row.try_get(6)?)?,
        updated_at: time(10, row.try_get(10)?)?,
    };
    Ok((row.try_get(0)?, task))
}

fn result_from(row: &SqliteRow) -> Result<TaskResult, sqlx::Error> {
    let artifacts: &str = row.try_get(17)?;
    Ok(TaskResult {
        status: word(row, 15, Status::from_word)?,
        summary: row.try_get(16)?,
        artifacts: serde_json::from_str(artifacts).map_err(|error| undecodable(17, error))?,
        evidence: json(18, row.try_get(18)?)?,
        reported_at: time(19, row.try_get(19)?)?,
    })
}

fn disposition_from(row: &SqliteRow) -> Result<Option<Disposition>, sqlx::Error> {
    if is_null(row, 11)? {
        return Ok(None);
    }
    Ok(Some(Disposition {
        verdict: word(row, 11, ReviewVerdict::from_word)?,
        note: row.try_get(12)?,
        reviewer: row.try_get(13)?,
        reviewed_at: time(14, row.try_get(14)?)?,
    }))
}

fn is_null(row: &SqliteRow, index: usize) -> Result<bool, sqlx::Error> {
    let value: SqliteValueRef<'_> = row.try_get_raw(index)?;
    Ok(sqlx::ValueRef::is_null(&value))
}

fn word<T>(
    row: &SqliteRow,
    index: usize,
    from_word: fn(&str) -> Option<T>,
) -> Result<T, sqlx::Error> {
    let text: &str = row.try_get(index)?;
    from_word(text).ok_or_else(|| undecodable(index, format!("{text:?} is not a known word")))
}

fn time(index: usize, micros: i64) -> Result<Timestamp, sqlx::Error> {
    Timestamp::from_micros(micros)
        .ok_or_else(|| undecodable(index, format!("{micros} µs is no time that can be written")))
}

fn json(index: usize, text: String) -> Result<JsonText, sqlx::Error> {
    JsonText::from_stored(text).map_err(|error| undecodable(index, error))
}

fn undecodable(
    index: usize,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: index.to_string(),
        source: source.into(),
    }
}
