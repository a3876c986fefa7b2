//! Lists of tasks, page by page, newest created first.

use std::time::{Duration, Instant};

use futures_util::TryStreamExt;

use crate::ledger::fault::{During, Fault};
use crate::ledger::rows::{task_columns, task_from};
use crate::ledger::{Circumstances, Ledger};
use crate::wire::{Code, ListQuery, Refusal};

/// An answer to a list request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// `{"tasks": […], "cursor": …}`.
    Body(Vec<u8>),
    /// The cursor is none of ours, or a task is larger than the server carries now.
    Refused(Refusal),
}

/// How many rows a filter looks at before it is asked again whether the page has cost enough.
const WINDOW_ROWS: i64 = 20_000;

/// What one page may cost in time. A page that finds little by then ends with a cursor, so that no request, however rare
/// what it looks for, holds a connection for long.
const PAGE_TIME_MAX: Duration = Duration::from_millis(500);

/// What the headers of the answer, the brackets and the cursor around the tasks take at most, in bytes. Less than what a
/// single task leaves room for, so that every task that could be written fits into a list.
const FRAME_BYTES: usize = 256;

macro_rules! list_sql {
    ($range:literal) => {
        concat!(
            "SELECT ",
            task_columns!(),
            " FROM tasks AS t LEFT JOIN results AS r ON r.task_key = t.task_key WHERE ",
            $range,
            " AND (?3 IS NULL OR t.lifecycle IN (SELECT value FROM json_each(?3)))
              AND (?4 IS NULL OR coalesce(t.verdict, 'none') IN (SELECT value FROM json_each(?4)))
              AND (?5 IS NULL OR t.updated_at >= ?5)
              ORDER BY t.task_key DESC LIMIT ?6"
        )
    };
}

const BY_KEY: &str = list_sql!("t.task_key < ?1 AND t.task_key >= ?2");
const BY_PANE: &str = list_sql!("t.pane_id = ?7 AND t.task_key < ?1 AND t.task_key >= ?2");

/// A page as it grows.
struct Growing {
    tasks: Vec<u8>,
    count: usize,
    /// The key of the last task in it.
    last: i64,
}

enum Step {
    WindowDone,
    PageFull,
    TooLarge(Refusal),
}

impl Ledger {
    /// One page of tasks. It ends early rather than outgrow the server's `max_payload` or cost too much.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn list(
        &self,
        query: &ListQuery,
        circumstances: Circumstances,
    ) -> Result<Page, Fault> {
        let Some(mut below) = self.start_of(query).await? else {
            let message = "cursor is none that this service gave; leave it out to begin anew";
            return Ok(Page::Refused(
                Refusal::new(Code::InvalidRequest, message).at("/cursor"),
            ));
        };
        let began = Instant::now();
        let mut page = Growing {
            tasks: Vec::new(),
            count: 0,
            last: below,
        };
        loop {
            let floor = (below - WINDOW_ROWS).max(0);
            match self
                .read_window(query, circumstances, &mut page, (floor, below))
                .await?
            {
                Step::TooLarge(refusal) => return Ok(Page::Refused(refusal)),
                Step::PageFull => return Ok(page.end(Some(page.last))),
                Step::WindowDone if floor <= 1 => return Ok(page.end(None)),
                Step::WindowDone if began.elapsed() >= PAGE_TIME_MAX => {
                    return Ok(page.end(Some(floor)));
                }
                Step::WindowDone => below = floor,
            }
        }
    }

    /// The key below which the page begins; `None` for a cursor that is none of ours.
    async fn start_of(&self, query: &ListQuery) -> Result<Option<i64>, Fault> {
        let top: i64 = sqlx::query_scalar("SELECT coalesce(max(task_key), 0) + 1 FROM tasks")
            .fetch_one(&self.readers)
            .await
            .during("reading the newest task")?;
        Ok(match &query.cursor {
            Some(cursor) => key_of(cursor).filter(|key| *key <= top),
            None => Some(top),
        })
    }

    async fn read_window(
        &self,
        query: &ListQuery,
        circumstances: Circumstances,
        page: &mut Growing,
        (floor, below): (i64, i64),
    ) -> Result<Step, Fault> {
        let wanted = query.limit - page.count;
        let sql = if query.pane_id.is_some() {
            BY_PANE
        } else {
            BY_KEY
        };
        let mut statement = sqlx::query(sql)
            .bind(below)
            .bind(floor)
            .bind(
                query
                    .lifecycle
                    .as_ref()
                    .map(|words| json_words(words.iter().map(|word| word.as_str()))),
            )
            .bind(query.disposition.as_ref().map(|words| {
                json_words(
                    words
                        .iter()
                        .map(|word| word.map_or("none", |verdict| verdict.as_str())),
                )
            }))
            .bind(query.updated_since.map(crate::task::Timestamp::micros))
            // One more than wanted tells whether there is a next page.
            .bind(wanted as i64 + 1);
        if let Some(pane_id) = &query.pane_id {
            statement = statement.bind(pane_id.clone());
        }
        let mut rows = statement.fetch(&self.readers);
        while let Some(row) = rows.try_next().await.during("reading tasks")? {
            if page.count == query.limit {
                return Ok(Step::PageFull);
            }
            let (key, task) = task_from(&row).during("reading a task")?;
            let text = serde_json::to_vec(&task).map_err(|error| {
                Fault::new("encoding a task", sqlx::Error::Encode(error.into()))
            })?;
            let actual = page.tasks.len() + text.len() + 1 + FRAME_BYTES;
            if actual > circumstances.max_payload {
                if page.count > 0 {
                    return Ok(Step::PageFull);
                }
                return Ok(Step::TooLarge(too_large(
                    &task.task_id,
                    circumstances.max_payload,
                    actual,
                )));
            }
            page.push(key, &text);
        }
        Ok(Step::WindowDone)
    }
}

impl Growing {
    fn push(&mut self, key: i64, text: &[u8]) {
        if self.count > 0 {
            self.tasks.push(b',');
        }
        self.tasks.extend_from_slice(text);
        self.count += 1;
        self.last = key;
    }

    fn end(&self, next_below: Option<i64>) -> Page {
        let cursor = next_below.map_or("null".to_owned(), |key| format!("\"k{key}\""));
        let mut body = br#"{"tasks":["#.to_vec();
        body.extend_from_slice(&self.tasks);
        body.extend_from_slice(format!(r#"],"cursor":{cursor}}}"#).as_bytes());
        Page::Body(body)
    }
}

fn key_of(cursor: &str) -> Option<i64> {
    cursor
        .strip_prefix('k')?
        .parse()
        .ok()
        .filter(|key| *key >= 0)
}

fn json_words<'a>(words: impl Iterator<Item = &'a str>) -> String {
    // The words of the protocol need no escaping.
    format!(
        "[{}]",
        words
            .map(|word| format!("\"{word}\""))
            .collect::<Vec<_>>()
            .join(",")
    )
}

fn too_large(task_id: &str, limit: usize, actual: usize) -> Refusal {
    let message = format!(
        "a list with task {task_id} has {actual} bytes, but the server's max_payload is {limit} now; raise max_payload"
    );
    Refusal::new(Code::Unavailable, message)
        .over(limit, actual)
        .about(task_id)
}
