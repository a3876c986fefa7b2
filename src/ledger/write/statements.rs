//! The writes of a batch.
//!
//! Rows go in as one VALUES list, padded with NULL rows to a power of two so that few texts of statements come to be, and
//! each is found prepared.

use sqlx::encode::Encode;
use sqlx::error::BoxDynError;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments, AssertSqlSafe, Sqlite, SqliteConnection, Type};

use super::{Next, outbox};
use crate::faults::{self, Point};
use crate::ledger::desk::{Desk, Key, Revision, Step};
use crate::ledger::fault::{During, Fault};
use crate::task::{Disposition, Task, TaskResult, Timestamp};
use crate::wire::Trace;

/// Makes what [`write_all`] writes through, on a new connection.
pub(super) async fn make_views(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(include_str!("views.sql"))
        .execute(connection)
        .await
        .map(drop)
}

/// Writes what a batch changed, commits, and gives the numbers that come next. Where no transaction has `begun` it begins
/// one, unless a single statement does it.
pub(super) async fn write_all(
    connection: &mut SqliteConnection,
    desk: &Desk,
    now: Timestamp,
    next: Next,
    begun: &mut bool,
) -> Result<Next, Fault> {
    let writes = &desk.writes;
    let of = |step| -> Vec<Numbered<'_>> {
        let numbered = (next.seq..).zip(&writes.revisions);
        numbered
            .filter(|(_, revision)| revision.step == step)
            .collect()
    };
    let created = of(Step::Created);
    let without_result = of(Step::WithoutResult);
    let reported = of(Step::Reported);
    let with_result = of(Step::WithResult);
    let lists = [&created, &without_result, &reported, &with_result];
    let statements = lists.iter().filter(|list| !list.is_empty()).count()
        + usize::from(!writes.parked.is_empty())
        + usize::from(writes.published.is_some())
        + usize::from(writes.prune.is_some())
        + usize::from(writes.probe);
    // One statement is a transaction by itself.
    let alone = !*begun && statements == 1;
    if !*begun && !alone {
        execute(connection, "BEGIN IMMEDIATE").await?;
        *begun = true;
    }
    if alone {
        // It commits itself.
        faults::pass(Point::BeforeCommit);
    }
    insert_creations(connection, &created).await?;
    insert_changes(connection, &without_result).await?;
    insert_reports(connection, &reported).await?;
    insert_changes(connection, &with_result).await?;
    // Before the cursor, which passes them.
    outbox::park(connection, &writes.parked, now).await?;
    if let Some(seq) = writes.published {
        outbox::move_cursor(connection, seq).await?;
    }
    if let Some((first, last, before)) = writes.prune {
        outbox::prune(connection, first, last, before).await?;
    }
    if writes.probe {
        execute(connection, "UPDATE ledger SET probes = probes + 1").await?;
    }
    if !alone {
        faults::pass(Point::BeforeCommit);
        execute(connection, "COMMIT").await?;
    }
    Ok(Next {
        key: next.key + created.len() as i64,
        seq: next.seq + writes.revisions.len() as i64,
        published: next.published.max(writes.published.unwrap_or(0)),
    })
}

/// Carries out a statement without parameters.
pub(super) async fn execute(
    connection: &mut SqliteConnection,
    sql: &'static str,
) -> Result<(), Fault> {
    let done = sqlx::query(sql).execute(connection).await;
    done.during(sql).map(drop)
}

/// A change and its place in the outbox.
type Numbered<'d> = (i64, &'d Revision);

async fn insert_creations(
    connection: &mut SqliteConnection,
    revisions: &[Numbered<'_>],
) -> Result<(), Fault> {
    let rows = Rows {
        what: "creating tasks",
        head: "INSERT INTO creations ",
        columns: 8,
        tail: "",
    };
    let done = rows.execute(connection, revisions, |row, &(seq, revision)| {
        let task = &revision.task;
        row.bind(seq)
            .bind(revision.key)
            .bind(task.task_id.as_str())
            .bind(task.pane_id.as_deref())
            .bind(task.deadline.map(Timestamp::micros))
            .bind(task.created_at.micros())
            .bind(task.title.as_str())
            .bind(task.metadata.as_ref().map(|metadata| metadata.get()));
        Ok(())
    });
    done.await.map(drop)
}

async fn insert_reports(
    connection: &mut SqliteConnection,
    revisions: &[Numbered<'_>],
) -> Result<(), Fault> {
    let is_traced = (revisions.iter()).any(|(_, revision)| revision.trace.is_some());
    let rows = match is_traced {
        false => Rows {
            what: "writing reports",
            head: "INSERT INTO reports ",
            columns: 8,
            tail: "",
        },
        true => Rows {
            what: "writing traced reports",
            head: "INSERT INTO traced_reports ",
            columns: 10,
            tail: "",
        },
    };
    let done = rows.execute(connection, revisions, |row, &(seq, revision)| {
        let task = &revision.task;
        let result = task.result.as_ref();
        let result = result.ok_or_else(|| Fault::new(rows.what, sqlx::Error::RowNotFound))?;
        row.bind(seq)
            .bind(revision.key)
            .bind(task.revision)
            .bind(result.status.as_str())
            .bind(result.reported_at.micros())
            .bind(result.summary.as_str())
            .bind(artifacts_text(&result.artifacts))
            .bind(result.evidence.get());
        if is_traced {
            let trace = revision.trace.as_deref();
            row.bind(trace.map(Trace::traceparent))
                .bind(trace.and_then(|trace| trace.state.as_deref()));
        }
        Ok(())
    });
    done.await.map(drop)
}

async fn insert_changes(
    connection: &mut SqliteConnection,
    revisions: &[Numbered<'_>],
) -> Result<(), Fault> {
    let rows = Rows {
        what: "changing tasks",
        head: "INSERT INTO changes ",
        columns: 10,
        tail: "",
    };
    let done = rows.execute(connection, revisions, |row, &(seq, revision)| {
        let task = &revision.task;
        row.bind(seq)
            .bind(revision.key)
            .bind(task.revision)
            .bind(task.lifecycle.as_str())
            .bind(task.updated_at.micros())
            .bind(task.reason.as_deref())
            .bind_disposition(task.disposition.as_ref());
        Ok(())
    });
    done.await.map(drop)
}

/// Adds tasks as they are, whose results are there already.
pub(super) async fn insert_tasks(
    connection: &mut SqliteConnection,
    tasks: &[(Key, &Task)],
) -> Result<(), Fault> {
    let rows = Rows {
        what: "inserting tasks",
        head: "INSERT INTO tasks (task_key, lifecycle, revision, updated_at, task_id, pane_id, deadline, created_at, \
               title, metadata, reason, verdict, note, reviewer, reviewed_at) SELECT * FROM (",
        columns: 15,
        tail: WITHOUT_PADDING,
    };
    let done = rows.execute(connection, tasks, |row, &(key, task)| {
        row.bind(key)
            .bind(task.lifecycle.as_str())
            .bind(task.revision)
            .bind(task.updated_at.micros())
            .bind(task.task_id.as_str())
            .bind(task.pane_id.as_deref())
            .bind(task.deadline.map(Timestamp::micros))
            .bind(task.created_at.micros())
            .bind(task.title.as_str())
            .bind(task.metadata.as_ref().map(|metadata| metadata.get()))
            .bind(task.reason.as_deref())
            .bind_disposition(task.disposition.as_ref());
        Ok(())
    });
    all_written(done.await?, tasks)
}

/// Adds results, whose tasks are added next.
pub(super) async fn insert_results(
    connection: &mut SqliteConnection,
    results: &[(Key, &TaskResult)],
) -> Result<(), Fault> {
    let rows = Rows {
        what: "inserting results",
        head: "INSERT INTO results (task_key, status, reported_at, summary, artifacts, evidence) SELECT * FROM (",
        columns: 6,
        tail: WITHOUT_PADDING,
    };
    let done = rows.execute(connection, results, |row, &(key, result)| {
        row.bind(key)
            .bind(result.status.as_str())
            .bind(result.reported_at.micros())
            .bind(result.summary.as_str())
            .bind(artifacts_text(&result.artifacts))
            .bind(result.evidence.get());
        Ok(())
    });
    all_written(done.await?, results)
}

/// Puts a revision of a task into the outbox.
pub(super) async fn insert_revision(
    connection: &mut SqliteConnection,
    seq: i64,
    key: Key,
    as_of: &Task,
) -> Result<(), Fault> {
    let only = [as_of];
    let rows = Rows {
        what: "inserting a revision",
        head: "INSERT INTO revisions (seq, task_key, revision, lifecycle, updated_at, verdict, note, reviewer, reviewed_at) ",
        columns: 9,
        tail: "",
    };
    let done = rows.execute(connection, &only, |row, as_of| {
        row.bind(seq)
            .bind(key)
            .bind(as_of.revision)
            .bind(as_of.lifecycle.as_str())
            .bind(as_of.updated_at.micros())
            .bind_disposition(as_of.disposition.as_ref());
        Ok(())
    });
    all_written(done.await?, &only)
}

/// A row that did not go in where it was sure to is a fault, never something to pass over.
fn all_written<T>(written: u64, items: &[T]) -> Result<(), Fault> {
    match written == items.len() as u64 {
        true => Ok(()),
        false => Err(Fault::new("inserting rows", sqlx::Error::RowNotFound)),
    }
}

fn artifacts_text(artifacts: &[String]) -> String {
    // Strings always encode.
    #[allow(clippy::expect_used)]
    serde_json::to_string(artifacts).expect("an array of strings encodes as JSON")
}

/// Padding is dropped by its NULL key.
const WITHOUT_PADDING: &str = ") WHERE column1 IS NOT NULL";

/// A statement over a list of rows.
pub(super) struct Rows {
    pub what: &'static str,
    pub head: &'static str,
    pub columns: usize,
    pub tail: &'static str,
}

/// The parameters of a statement.
#[derive(Default)]
pub(super) struct Parameters {
    arguments: SqliteArguments,
    unbindable: Option<BoxDynError>,
}

impl Parameters {
    pub(super) fn bind<'t, T: Encode<'t, Sqlite> + Type<Sqlite>>(&mut self, value: T) -> &mut Self {
        if let Err(error) = self.arguments.add(value) {
            self.unbindable = Some(error);
        }
        self
    }

    fn bind_disposition(&mut self, disposition: Option<&Disposition>) -> &mut Self {
        self.bind(disposition.map(|disposition| disposition.verdict.as_str()))
            .bind(disposition.and_then(|disposition| disposition.note.as_deref()))
            .bind(disposition.and_then(|disposition| disposition.reviewer.as_deref()))
            .bind(disposition.map(|disposition| disposition.reviewed_at.micros()))
    }
}

impl Rows {
    /// Gives how many rows were written, as SQLite counts.
    pub(super) async fn execute<T>(
        &self,
        connection: &mut SqliteConnection,
        items: &[T],
        bind: impl Fn(&mut Parameters, &T) -> Result<(), Fault>,
    ) -> Result<u64, Fault> {
        if items.is_empty() {
            return Ok(0);
        }
        let padded = items.len().next_power_of_two();
        let mut parameters = Parameters::default();
        parameters.arguments.reserve(padded * self.columns, 0);
        for item in items {
            bind(&mut parameters, item)?;
        }
        for _ in 0..(padded - items.len()) * self.columns {
            parameters.bind(None::<i64>);
        }
        if let Some(error) = parameters.unbindable {
            return Err(Fault::new(self.what, sqlx::Error::Encode(error)));
        }
        let done = sqlx::query_with(AssertSqlSafe(self.text(padded)), parameters.arguments)
            .execute(connection)
            .await
            .during(self.what)?;
        Ok(done.rows_affected())
    }

    fn text(&self, rows: usize) -> String {
        let row = format!(",({})", vec!["?"; self.columns].join(","));
        let Self { head, tail, .. } = self;
        format!("{head}VALUES {}{}{tail}", &row[1..], row.repeat(rows - 1))
    }
}
