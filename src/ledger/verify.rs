//! The rules between the tables of a ledger, checked on what is there: `tasklatch ledger verify` stands on it.

use sqlx::{Connection, SqliteConnection};

use super::fault::{During, Fault};

/// A rule, and how to find what breaks it: a statement that gives the task ID, or another name, of each offender.
struct Rule {
    rule: &'static str,
    offenders: &'static str,
}

/// How many offenders of one rule are named.
const NAMED_MAX: i64 = 10;

/// What is in the schema to guard the rules; without it another program can break them unnoticed.
const GUARDS: [&str; 17] = [
    "cursor_moves_forward",
    "only_what_has_ended_is_pruned",
    "pruned_tasks_are_not_made_again",
    "pruned_tasks_never_change",
    "pruned_tasks_never_go",
    "results_latch",
    "results_never_change",
    "results_never_go",
    "revisions_go_once_published",
    "traces_go_with_their_revision",
    "tasks_are_made_once",
    "tasks_begin_with_their_result",
    "tasks_end_once",
    "tasks_end_with_their_result",
    "tasks_keep_what_they_are",
    "tasks_move_forward",
    "tasks_never_go",
];

const RULES: [Rule; 12] = [
    Rule {
        rule: "a result belongs to a task that ended with its status",
        offenders: "SELECT coalesce(t.task_id, 'key ' || r.task_key) FROM results AS r LEFT JOIN tasks AS t USING (task_key)
                    WHERE t.lifecycle IS NOT r.status",
    },
    Rule {
        rule: "a task that was reported on has its result",
        offenders: "SELECT task_id FROM tasks WHERE lifecycle IN ('completed', 'failed', 'rejected')
                    AND NOT EXISTS (SELECT 1 FROM results AS r WHERE r.task_key = tasks.task_key)",
    },
    Rule {
        rule: "a result was reported between the making of its task and the task's last change",
        offenders: "SELECT task_id FROM tasks JOIN results USING (task_key)
                    WHERE reported_at NOT BETWEEN created_at AND updated_at",
    },
    Rule {
        rule: "the last change of a task in the outbox is the task as it is, or an earlier one",
        offenders: "SELECT t.task_id FROM (SELECT task_key, max(revision) AS last FROM revisions GROUP BY task_key) AS v
                    JOIN tasks AS t USING (task_key) JOIN revisions AS w ON w.task_key = v.task_key AND w.revision = v.last
                    WHERE v.last > t.revision OR (v.last = t.revision
                      AND (w.lifecycle, w.updated_at, w.verdict, w.note, w.reviewer, w.reviewed_at)
                          IS NOT (t.lifecycle, t.updated_at, t.verdict, t.note, t.reviewer, t.reviewed_at))",
    },
    Rule {
        rule: "a change in the outbox is one of a task",
        offenders: "SELECT 'seq ' || seq FROM revisions WHERE task_key NOT IN (SELECT task_key FROM tasks)",
    },
    Rule {
        rule: "the changes of a task follow each other in the order of the outbox, in time and in state",
        offenders: "SELECT t.task_id FROM (
                        SELECT task_key, revision, updated_at, lifecycle,
                               lag(revision) OVER one AS revision_before, lag(updated_at) OVER one AS updated_before,
                               lag(lifecycle) OVER one AS lifecycle_before
                        FROM revisions WINDOW one AS (PARTITION BY task_key ORDER BY seq)) AS v
                    JOIN tasks AS t USING (task_key)
                    WHERE v.revision <= revision_before OR updated_before > v.updated_at
                       OR (lifecycle_before NOT IN ('submitted', 'working') AND v.lifecycle <> lifecycle_before)",
    },
    Rule {
        rule: "one change of a task brings its result",
        offenders: "SELECT task_id FROM revisions JOIN tasks USING (task_key)
                    WHERE revisions.lifecycle IN ('completed', 'failed', 'rejected') AND revisions.verdict IS NULL
                    GROUP BY task_key HAVING count(*) > 1",
    },
    Rule {
        rule: "what waits to be published is there without a gap",
        offenders: "SELECT 'after seq ' || published_seq FROM ledger
                    WHERE (SELECT count(*) FROM revisions WHERE seq > published_seq)
                       <> (SELECT coalesce(max(seq), published_seq) - published_seq FROM revisions)",
    },
    Rule {
        rule: "the cursor does not stand past the end of the outbox",
        offenders: "SELECT 'published_seq ' || published_seq FROM ledger
                    WHERE published_seq > (SELECT coalesce(max(seq), 0) FROM revisions)",
    },
    Rule {
        rule: "the ledger has one identity",
        offenders: "SELECT 'ledger' WHERE (SELECT count(*) FROM ledger) <> 1",
    },
    Rule {
        rule: "a pruned task is gone",
        offenders: "SELECT task_id FROM pruned_tasks JOIN tasks USING (task_id)",
    },
    Rule {
        rule: "a parked event is one that its change has",
        offenders: "SELECT 'seq ' || p.seq || ' ' || p.kind FROM parked_events AS p LEFT JOIN revisions AS v USING (seq)
                    WHERE v.seq IS NULL OR (p.kind = 'result'
                          AND (v.lifecycle NOT IN ('completed', 'failed', 'rejected') OR v.verdict IS NOT NULL))",
    },
];

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The rule.
    pub rule: String,
    /// Some of those that break it.
    pub offenders: Vec<String>,
}

/// Checks the file and every rule between its tables, as of one moment, beside a service that may be running on it.
///
/// # Errors
/// If the store cannot be read at all.
pub async fn find_broken(connection: &mut SqliteConnection) -> Result<Vec<Broken>, Fault> {
    let mut transaction = connection.begin().await.during("beginning to read")?;
    let mut broken = Vec::new();
    let mut add = |rule: &str, offenders: Vec<String>| {
        if !offenders.is_empty() {
            let rule = rule.to_owned();
            broken.push(Broken { rule, offenders });
        }
    };
    let pages: Vec<String> = sqlx::query_scalar("PRAGMA integrity_check(10)")
        .fetch_all(&mut *transaction)
        .await
        .during("checking the file")?;
    let damage = pages.into_iter().filter(|line| line != "ok").collect();
    add("the file is whole", damage);
    let foreign: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT \"table\" || ' ' || coalesce(rowid, '') FROM pragma_foreign_key_check LIMIT ?1",
    )
    .bind(NAMED_MAX)
    .fetch_all(&mut *transaction)
    .await
    .during("checking what rows refer to")?;
    add("rows refer to rows that are there", foreign);
    let guards: Vec<String> =
        sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
            .fetch_all(&mut *transaction)
            .await
            .during("reading the schema")?;
    let missing = GUARDS
        .iter()
        .filter(|guard| !guards.iter().any(|name| name == *guard))
        .map(|guard| (*guard).to_owned());
    add("the schema guards its rules", missing.collect());
    for Rule { rule, offenders } in RULES {
        let sql = format!("SELECT * FROM ({offenders}) LIMIT {NAMED_MAX}");
        let found = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_all(&mut *transaction)
            .await;
        // What cannot be read is what verifying is for.
        add(rule, found.unwrap_or_else(|error| vec![error.to_string()]));
    }
    Ok(broken)
}
