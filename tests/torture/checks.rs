//! What must hold whenever the workers rest: what they were told, what the file says, and what observers heard.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row as _, SqliteConnection};
use tokio::time::timeout;

use crate::answers::{Answer, insist};
use crate::archive::{Archive, Row, Source};
use crate::model::{Dice, Failure, Kept, count, holds};
use crate::stage::{Stage, connect, look};

/// How long the service may take to publish all there is.
const PUBLISH_WITHIN: Duration = Duration::from_secs(30);

/// How long reports may stay in the report stream: what a service that was killed had in hand comes again after 30 s.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// How long the service may take to answer one question, however often it must be asked.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// How many of the tasks that an earlier check has asked about are asked about again.
const OLD_ASKED: usize = 200;

/// How many questions are under way at once.
const ASKED_AT_ONCE: usize = 32;

/// Checks everything, and knows what it has seen.
pub struct Checker {
    source: Source,
    archive: Archive,
    is_stream: bool,
    ledger_id: String,
    /// How many of the stories have been asked about.
    asked: usize,
    dice: Dice,
}

impl Checker {
    /// Looks from now on. The service has made its ledger, and nobody has done anything yet.
    pub async fn new(stage: &Stage) -> Self {
        let mut database = open(&stage.database()).await;
        let ledger_id: String = sqlx::query_scalar("SELECT ledger_id FROM ledger")
            .fetch_one(&mut database)
            .await
            .unwrap();
        database.close().await.unwrap();
        let is_stream = stage.is_jetstream();
        let source = match is_stream {
            true => Source::stream(stage.client.clone()),
            false => Source::witness(connect(&stage.server_url()).await).await,
        };
        let archive = Archive::new(&ledger_id, is_stream, stage.shared.clone());
        let dice = Dice::new(stage.shared.seed ^ 0xc4ec);
        let mut checker = Self {
            source,
            archive,
            is_stream,
            ledger_id,
            asked: 0,
            dice,
        };
        // The server knows the witness when this returns.
        checker.source.more().await.ok();
        checker
    }

    /// Checks what there is while the workers rest; at the end, everything again.
    pub async fn check(&mut self, stage: &Stage, is_last: bool) -> Result<(), Failure> {
        if stage.is_durable() {
            reports_are_taken(stage).await?;
            queued_are_kept(stage).await?;
        }
        self.ask_again(stage, is_last).await?;
        until_published(&stage.database()).await?;
        ledger_verify(stage).await?;
        count_rows(&stage.database()).await?;
        holds(!stage.has_panicked(), || {
            Failure::new(
                "the service never breaks off",
                "-",
                "no panic in its log",
                "one; see service.log",
            )
        })?;
        for event in self.source.more().await? {
            self.archive.file(&event)?;
        }
        self.check_events(stage).await?;
        if is_last && self.is_stream {
            // From the start of the stream, as an observer that comes late.
            let mut source = Source::stream(stage.client.clone());
            let late = Archive::new(&self.ledger_id, true, stage.shared.clone());
            self.archive = late;
            for event in source.more().await? {
                self.archive.file(&event)?;
            }
            self.check_events(stage).await?;
        }
        stage.shared.server_died.store(false, Ordering::SeqCst);
        stage.shared.connection_lost.store(false, Ordering::SeqCst);
        count(&stage.shared.counts.checks);
        Ok(())
    }

    /// Asks again what was answered before: nothing of it may have changed.
    async fn ask_again(&mut self, stage: &Stage, everything: bool) -> Result<(), Failure> {
        let stories: Vec<Kept> = {
            let kept = stage.shared.kept.lock().unwrap();
            let mut chosen: Vec<usize> = match everything {
                true => (0..kept.len()).collect(),
                false => (self.asked..kept.len()).collect(),
            };
            if !everything && self.asked > 0 {
                let old = (0..OLD_ASKED).map(|_| self.dice.below(self.asked as u64) as usize);
                chosen.extend(old);
            }
            self.asked = kept.len();
            chosen
                .into_iter()
                .map(|number| kept[number].clone())
                .collect()
        };
        let questions = stories.iter().map(|kept| ask_about(stage, kept));
        let mut answers = stream::iter(questions).buffer_unordered(ASKED_AT_ONCE);
        while let Some(answer) = answers.next().await {
            answer?;
        }
        Ok(())
    }

    /// Compares events with the database and with what the workers were told.
    async fn check_events(&mut self, stage: &Stage) -> Result<(), Failure> {
        let mut database = open(&stage.database()).await;
        let parked = find_parked(&mut database).await;
        let sql = "SELECT task_id, tasks.revision, status, summary, artifacts, evidence FROM tasks LEFT JOIN results USING (task_key)";
        let rows = sqlx::query(sql).fetch_all(&mut database).await.unwrap();
        database.close().await.unwrap();
        let rows: Vec<Row> = rows
            .iter()
            .map(|row| {
                let status: Option<String> = row.get(2);
                Row {
                    task_id: row.get(0),
                    revision: row.get::<i64, _>(1) as u64,
                    result: status.map(|status| [status, row.get(3), row.get(4), row.get(5)]),
                }
            })
            .collect();
        self.archive.check(&rows, &parked)?;
        let revisions: HashMap<&str, u64> = rows
            .iter()
            .map(|row| (row.task_id.as_str(), row.revision))
            .collect();
        for task_id in self.archive.task_ids() {
            holds(revisions.contains_key(task_id.as_str()), || {
                Failure::new(
                    "an event tells what was committed",
                    task_id,
                    "a task in the database",
                    "none",
                )
            })?;
        }
        for kept in stage.shared.kept.lock().unwrap().iter() {
            let Some(revision) = revisions.get(kept.task_id.as_str()) else {
                return Err(Failure::new(
                    "what was answered is there",
                    &kept.task_id,
                    text(&kept.body),
                    "no such task",
                ));
            };
            if let Some(event) = self.archive.newest(&kept.task_id, *revision) {
                holds(kept.may_expire || *event == kept.body, || {
                    Failure::new(
                        "the newest task event is the task as answered",
                        &kept.task_id,
                        text(&kept.body),
                        text(event),
                    )
                })?;
            }
        }
        Ok(())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asks the service, which has no trouble and answers everybody.
async fn ask(stage: &Stage, subject: &str, payload: &Bytes) -> Result<Answer, Failure> {
    let answer = insist(&stage.client, &stage.shared, subject, payload);
    timeout(ANSWERED_WITHIN, answer).await.map_err(|_| {
        let expected = format!("an answer on {subject} within {ANSWERED_WITHIN:?}");
        let seen = format!("none; its log ends with\n{}", stage.log_end());
        Failure::new("every question is answered in calm", "-", expected, seen)
    })
}

/// Asks about one task what was asked before.
async fn ask_about(stage: &Stage, kept: &Kept) -> Result<(), Failure> {
    count(&stage.shared.counts.asked);
    let ask = async |subject, payload| ask(stage, subject, payload).await;
    for (report, code) in &kept.refused {
        let again = ask("tasklatch.report", report).await?;
        holds(again.code == *code, || {
            Failure::new(
                "what was refused stays refused",
                &kept.task_id,
                code,
                format!("{again:?}"),
            )
        })?;
    }
    if let Some(report) = &kept.winner {
        let again = ask("tasklatch.report", report).await?;
        holds(
            again.outcome == "replayed" && again.body == kept.body,
            || {
                let expected = format!("replayed, {}", text(&kept.body));
                Failure::new(
                    "what was accepted is answered for ever",
                    &kept.task_id,
                    expected,
                    format!("{again:?}"),
                )
            },
        )?;
    } else {
        let get = format!(r#"{{"task_id":"{}"}}"#, kept.task_id).into();
        let again = ask("tasklatch.task.get", &get).await?;
        holds(
            again.body == kept.body || kept.may_expire && again.code.is_empty(),
            || {
                Failure::new(
                    "a task stays as it was answered",
                    &kept.task_id,
                    text(&kept.body),
                    format!("{again:?}"),
                )
            },
        )?;
    }
    Ok(())
}

async fn open(database: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new()
        .filename(database)
        .read_only(true);
    options.connect().await.unwrap()
}

async fn number(database: &mut SqliteConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(database)
        .await
        .unwrap()
}

/// Waits until the cursor is at the end of the outbox.
async fn until_published(database: &Path) -> Result<(), Failure> {
    let mut database = open(database).await;
    let left = "SELECT coalesce((SELECT max(seq) FROM revisions), 0) - published_seq FROM ledger";
    let published = look(PUBLISH_WITHIN, async || {
        (number(&mut database, left).await == 0).then_some(())
    })
    .await;
    let left = number(&mut database, left).await;
    database.close().await.unwrap();
    holds(published.is_some(), || {
        Failure::new(
            "all events are published in calm",
            "-",
            format!("within {PUBLISH_WITHIN:?}"),
            format!("{left} revisions left"),
        )
    })
}

/// The events that the service has put aside, as no server takes them.
async fn find_parked(database: &mut SqliteConnection) -> BTreeSet<String> {
    let sql = "SELECT task_id || '.' || revisions.revision || '.' || kind FROM parked_events \
               JOIN revisions USING (seq) JOIN tasks USING (task_key)";
    sqlx::query_scalar(sql)
        .fetch_all(database)
        .await
        .unwrap()
        .into_iter()
        .collect()
}

/// Has `tasklatch ledger verify` check the ledger, and in `jetstream` mode the stream against the cursor.
pub async fn ledger_verify(stage: &Stage) -> Result<(), Failure> {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_tasklatch"))
        .args(["ledger", "verify", "--events", stage.events_mode()])
        .args(["--nats-url", &stage.server_url()])
        .arg("--database")
        .arg(stage.database())
        .output()
        .await
        .unwrap();
    holds(output.status.success(), || {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let seen = format!("{}{}", text(&output.stdout), text(&output.stderr));
        Failure::new("tasklatch ledger verify", "-", "all rules hold", seen)
    })
}

/// Checks by numbers of the suite's own how many there must be of something.
async fn count_rows(database: &Path) -> Result<(), Failure> {
    let mut database = open(database).await;
    let problems: Vec<String> = sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_all(&mut database)
        .await
        .unwrap();
    holds(problems == ["ok"], || {
        Failure::new("the file is sound", "-", "ok", problems.join("; "))
    })?;
    let none = [
        (
            "a result belongs to a task that ended so",
            "SELECT count(*) FROM results LEFT JOIN tasks USING (task_key) WHERE status IS NOT lifecycle",
        ),
        (
            "a reported task has its result",
            "SELECT count(*) FROM tasks LEFT JOIN results USING (task_key) \
             WHERE lifecycle IN ('completed', 'failed', 'rejected') AND status IS NULL",
        ),
        (
            "a revision is in the outbox once",
            "SELECT count(*) - count(DISTINCT task_key || '.' || revision) FROM revisions",
        ),
        (
            "a revision in the outbox is not above its task's",
            "SELECT count(*) FROM revisions JOIN tasks USING (task_key) WHERE revisions.revision > tasks.revision",
        ),
        (
            "every revision is in the outbox that is not published",
            "SELECT coalesce(max(seq), published_seq) - published_seq - count(seq) FROM ledger \
             LEFT JOIN revisions ON seq > published_seq",
        ),
        (
            "the newest revision in the outbox is the task",
            "SELECT count(*) FROM tasks JOIN (SELECT task_key, max(revision) AS newest FROM revisions GROUP BY task_key) \
             USING (task_key) WHERE newest <> revision",
        ),
        (
            "every row has what it refers to",
            "SELECT count(*) FROM pragma_foreign_key_check",
        ),
    ];
    for (check, sql) in none {
        let seen = number(&mut database, sql).await;
        holds(seen == 0, || Failure::new(check, "-", 0, seen))?;
    }
    // A clock that was years ahead has let go of what is published.
    let gone = number(
        &mut database,
        "SELECT coalesce(max(seq), 0) - count(*) FROM revisions",
    )
    .await;
    if gone == 0 {
        let sql = "SELECT (SELECT coalesce(sum(revision), 0) FROM tasks) - (SELECT count(*) FROM revisions)";
        let seen = number(&mut database, sql).await;
        holds(seen == 0, || {
            Failure::new(
                "there is a row in the outbox for each revision",
                "-",
                0,
                seen,
            )
        })?;
    }
    database.close().await.unwrap();
    Ok(())
}

/// The report stream is empty once all reports are settled.
async fn reports_are_taken(stage: &Stage) -> Result<(), Failure> {
    let context = jetstream::new(stage.client.clone());
    let taken = look(TAKEN_WITHIN, async || {
        let stream = context.get_stream("TASKLATCH_REPORTS").await.ok()?;
        (stream.cached_info().state.messages == 0).then_some(())
    });
    let taken = taken.await;
    holds(taken.is_some(), || {
        Failure::new(
            "durable reports are taken",
            "-",
            "an empty report stream",
            "some are left",
        )
    })
}

/// What the report stream said is safe has become the result of its task, though nobody has sent it again.
async fn queued_are_kept(stage: &Stage) -> Result<(), Failure> {
    let queued = std::mem::take(&mut *stage.shared.queued.lock().unwrap());
    for (task_id, report) in queued {
        let again = ask(stage, "tasklatch.report", &report).await?;
        holds(again.outcome == "replayed", || {
            let check = "a report that the report stream took is not lost";
            Failure::new(check, &task_id, "replayed", format!("{again:?}"))
        })?;
        let kept = Kept {
            task_id,
            winner: Some(report),
            body: again.body,
            refused: Vec::new(),
            may_expire: false,
        };
        stage.shared.kept.lock().unwrap().push(kept);
    }
    Ok(())
}
