//! Workers: each tells the story of one task after the other, retries as the protocol asks, and judges what it is told.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, HeaderMap, jetstream};
use bytes::Bytes;
use serde_json::{Value, json};
use tasklatch::task::Timestamp;
use tokio::sync::RwLockWriteGuard;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Options;
use crate::answers::{ANSWER_WITHIN, Answer, Answers, RETRY_MAX, insist, judge, result_text, show};
use crate::model::{Dice, Failure, Kept, Shared, count, holds};
use crate::stage::{Stage, connect, last};

/// How many workers there are, and how many of them go through the proxy.
const WORKERS: u64 = 12;
const WORKERS_PROXIED: u64 = 3;

/// How long workers may take to end the stories that they are in, once trouble is over.
const REST_WITHIN: Duration = Duration::from_secs(60);

/// All workers.
pub struct Crew {
    shared: Arc<Shared>,
    set: JoinSet<()>,
}

impl Crew {
    pub async fn hire(stage: &Stage, options: &Options) -> Self {
        let mut set = JoinSet::new();
        for number in 0..WORKERS {
            let url = match number < WORKERS_PROXIED {
                true => stage.workers_proxy.url(),
                false => stage.server_url(),
            };
            let worker = Worker {
                number,
                client: connect(&url).await,
                other: connect(&stage.server_url()).await,
                shared: stage.shared.clone(),
                dice: Dice::new(options.seed ^ (number + 1) << 32),
                durable: options.durable,
            };
            let shared = stage.shared.clone();
            set.spawn(async move {
                // A worker that breaks off is a failure of the suite, and must not go unseen.
                if let Err(broken) = tokio::spawn(worker.work()).await
                    && broken.is_panic()
                {
                    shared.fail(Failure::new("a worker works", "-", "it goes on", broken));
                }
            });
        }
        Self {
            shared: stage.shared.clone(),
            set,
        }
    }

    /// Has all workers end their stories and rest for as long as the guard lives. That they end shows that the service
    /// answers everybody again.
    pub async fn rest(&self) -> Result<RwLockWriteGuard<'_, ()>, Failure> {
        timeout(REST_WITHIN, self.shared.gate.write())
            .await
            .map_err(|_| {
                let check = "every worker gets its answers once trouble is over";
                Failure::new(
                    check,
                    "-",
                    format!("within {REST_WITHIN:?}"),
                    "some wait still",
                )
            })
    }

    pub fn go_home(mut self) {
        self.set.abort_all();
    }
}

struct Worker {
    number: u64,
    client: Client,
    /// For what is sent by two at once.
    other: Client,
    shared: Arc<Shared>,
    dice: Dice,
    durable: bool,
}

/// What a report says.
#[derive(Clone)]
struct Content {
    status: &'static str,
    summary: String,
    artifacts: String,
    evidence: String,
}

impl Content {
    fn roll(dice: &mut Dice) -> Self {
        let mut evidence = format!(
            "{{\"seconds\":{}.50,\"big\":9007199254740993",
            dice.below(100)
        );
        if dice.percent(2) {
            let _ = write!(
                evidence,
                ",\"log\":\"{}\"",
                "x".repeat(dice.between(40_000, 90_000) as usize)
            );
        }
        evidence.push('}');
        Self {
            status: dice.one_of(&["completed", "failed", "rejected"]),
            summary: format!("done \u{1f980} {}", dice.below(1 << 40)),
            artifacts: format!("[\"branch:{}\",\"pr:118\"]", dice.below(1000)),
            evidence,
        }
    }

    /// The same with one field of another content.
    fn but_for_one_field(&self, other: &Self, dice: &mut Dice) -> Self {
        let (mut content, other) = (self.clone(), other.clone());
        match dice.below(4) {
            0 if other.status != content.status => content.status = other.status,
            1 if other.artifacts != content.artifacts => content.artifacts = other.artifacts,
            2 if other.evidence != content.evidence => content.evidence = other.evidence,
            _ => content.summary = other.summary,
        }
        content
    }

    /// The report in one of two ways to write the same.
    fn text(&self, selector: &str, other_way: bool) -> Bytes {
        let Self {
            status,
            summary,
            artifacts,
            evidence,
        } = self;
        let text = match other_way {
            false => format!(
                r#"{{{selector},"status":"{status}","summary":"{summary}","artifacts":{artifacts},"evidence":{evidence}}}"#
            ),
            true => format!(
                r#"{{ "evidence": {evidence}, "artifacts": {artifacts}, "summary": "{summary}", {selector}, "status": "{status}" }}"#
            ),
        };
        text.into()
    }
}

impl Worker {
    async fn work(mut self) {
        for story in 0_u64.. {
            let shared = self.shared.clone();
            let open = shared.gate.read().await;
            let task_id = format!("w{}-{story}-s{}", self.number, self.shared.seed);
            if let Err(failure) = self.story(&task_id).await {
                return self.shared.fail(failure);
            }
            drop(open);
            // The load is meant to be steady, not the most that there can be.
            last(Duration::from_millis(self.dice.below(120))).await;
        }
    }

    async fn ask(&self, subject: &str, body: &Value) -> Answer {
        insist(
            &self.client,
            &self.shared,
            subject,
            &body.to_string().into(),
        )
        .await
    }

    async fn task(&self, task_id: &str, verb: &str) -> Answer {
        self.ask(
            &format!("tasklatch.task.{verb}"),
            &json!({"task_id": task_id}),
        )
        .await
    }

    async fn story(&mut self, task_id: &str) -> Result<(), Failure> {
        if self.dice.percent(3) {
            return self.report_unknown(&format!("{task_id}-nobody")).await;
        }
        let mut create = json!({"task_id": task_id, "title": format!("task {task_id}"), "metadata": {"n": self.dice.below(9)}});
        let by_pane = self.dice.percent(20);
        if by_pane {
            create["pane_id"] = json!(format!("pane {task_id}"));
        }
        let deadline = match self.dice.below(100) {
            0..10 => Some(self.dice.between(300, 1500)),
            10..25 => Some(3_600_000),
            _ => None,
        };
        if let Some(millis) = deadline {
            let at =
                Timestamp::from_micros(Timestamp::now().micros() + 1000 * millis as i64).unwrap();
            create["deadline"] = json!(at.to_string());
        }
        let made = self.ask("tasklatch.task.create", &create).await;
        if made.code == "invalid_request"
            && deadline.is_some()
            && made.at("/error/field") == "/deadline"
        {
            // It was past when the service took the request, or its clock is wrong.
            let found = self.task(task_id, "get").await;
            return holds(found.code == "task_not_found", || {
                Failure::new(
                    "what was refused is not there",
                    task_id,
                    "task_not_found",
                    show(&found),
                )
            });
        }
        holds(
            made.code.is_empty() && made.at("/task_id") == task_id,
            || Failure::new("a task is made", task_id, "the task", show(&made)),
        )?;
        count(&self.shared.counts.tasks);
        if self.dice.percent(10) {
            create["title"] = json!("another");
            let other = self.ask("tasklatch.task.create", &create).await;
            holds(other.code == "task_conflict", || {
                Failure::new(
                    "a task is made once",
                    task_id,
                    "task_conflict",
                    show(&other),
                )
            })?;
        }
        if self.dice.percent(50) {
            let started = self.task(task_id, "start").await;
            let is_so = match started.code.as_str() {
                "" => started.at("/lifecycle") == "working",
                code => code == "task_terminal" && deadline.is_some(),
            };
            holds(is_so, || {
                Failure::new("a task is started", task_id, "working", show(&started))
            })?;
        }
        if self.dice.percent(5) {
            self.report_invalid(task_id).await?;
        }
        let selector = match by_pane && self.dice.percent(50) {
            true => format!(r#""pane_id":"pane {task_id}""#),
            false => format!(r#""task_id":"{task_id}""#),
        };
        self.end(task_id, &selector, deadline).await
    }

    async fn report_unknown(&mut self, task_id: &str) -> Result<(), Failure> {
        let report =
            Content::roll(&mut self.dice).text(&format!(r#""task_id":"{task_id}""#), false);
        let answer = insist(&self.client, &self.shared, "tasklatch.report", &report).await;
        holds(answer.code == "task_not_found", || {
            Failure::new(
                "a report of an unknown task is refused",
                task_id,
                "task_not_found",
                show(&answer),
            )
        })
    }

    async fn report_invalid(&mut self, task_id: &str) -> Result<(), Failure> {
        let text = match self.dice.below(3) {
            0 => format!(r#"{{"task_id":"{task_id}","status":"completed","summary":"  "}}"#),
            1 => format!(r#"{{"task_id":"{task_id}","status":"done","summary":"x"}}"#),
            _ => format!(
                r#"{{"task_id":"{task_id}","status":"failed","summary":"x","summary":"y"}}"#
            ),
        };
        let answer = insist(&self.client, &self.shared, "tasklatch.report", &text.into()).await;
        holds(answer.code == "invalid_report", || {
            Failure::new(
                "an invalid report is refused",
                task_id,
                "invalid_report",
                show(&answer),
            )
        })
    }

    /// How the task ends, if it does.
    async fn end(
        &mut self,
        task_id: &str,
        selector: &str,
        deadline: Option<u64>,
    ) -> Result<(), Failure> {
        let mut contents = [Content::roll(&mut self.dice), Content::roll(&mut self.dice)];
        let plot = self.dice.below(100);
        if self.dice.percent(50) {
            contents[1] = contents[0].but_for_one_field(&contents[1], &mut self.dice);
        }
        if plot < 6 && self.durable && deadline.is_none() {
            // A large one may end among the dead reports while max_payload is lowered.
            contents[0].evidence = "{}".to_owned();
            self.report_through_the_stream(task_id, &contents[0]).await;
            let text = contents[0].text(selector, true);
            let queued = (task_id.to_owned(), text);
            self.shared.queued.lock().unwrap().push(queued);
            return Ok(());
        }
        // Who sends which content, all at once.
        let senders: Vec<usize> = match plot {
            // Nobody: it stays open. Without a deadline, only the report stream has the report.
            0..6 => vec![],
            6..50 => vec![0],
            50..70 => vec![0; self.dice.between(2, 5) as usize],
            70..88 => (0..self.dice.between(2, 5) as usize)
                .map(|sender| sender % 2)
                .collect(),
            // Beside a cancel.
            _ => vec![0],
        };
        let cancels = plot >= 88;
        let cancels_first = plot >= 95;
        let mut canceled = None;
        if cancels_first {
            canceled = Some(self.task(task_id, "cancel").await);
        }
        if self.durable && senders == [0] && !cancels && deadline.is_none() {
            self.report_through_the_stream(task_id, &contents[0]).await;
        }
        let asked = senders.iter().enumerate().map(|(number, &content)| {
            let text = contents[content].text(selector, number % 3 == 1);
            let client = if number % 2 == 0 {
                self.client.clone()
            } else {
                self.other.clone()
            };
            let shared = self.shared.clone();
            async move {
                (
                    content,
                    insist(&client, &shared, "tasklatch.report", &text).await,
                )
            }
        });
        let asked = futures_util::future::join_all(asked);
        let mut answers: Answers;
        if cancels && !cancels_first {
            let (told, other) = tokio::join!(asked, self.task(task_id, "cancel"));
            answers = told;
            canceled = Some(other);
        } else {
            answers = asked.await;
        }
        // Each content once more, in the way that was not taken first.
        let mut again: Vec<usize> = senders.clone();
        again.sort_unstable();
        again.dedup();
        for &content in &again {
            let text = contents[content].text(selector, true);
            answers.push((
                content,
                insist(&self.client, &self.shared, "tasklatch.report", &text).await,
            ));
        }
        let found = self.task(task_id, "get").await;
        let winner = judge(task_id, &answers, &found, deadline.is_some() || cancels)?;
        if let Some(canceled) = &canceled {
            let is_so = match (canceled.code.as_str(), found.at("/lifecycle").as_str()) {
                ("", Some("canceled")) => true,
                ("task_terminal", Some("expired")) => deadline.is_some(),
                ("task_terminal", Some(_)) => winner.is_some(),
                _ => false,
            };
            holds(is_so, || {
                let seen = format!("{} beside {}", show(canceled), show(&found));
                Failure::new(
                    "a cancel is answered by what became of the task",
                    task_id,
                    "canceled, or terminal",
                    seen,
                )
            })?;
        }
        let mut body = found.body.clone();
        if winner.is_some() && self.dice.percent(30) {
            body = self.review(task_id, &found).await?;
        }
        let refused = again
            .iter()
            .filter(|content| Some(**content) != winner)
            .map(|&content| {
                let code = answers
                    .iter()
                    .rev()
                    .find(|(of, _)| *of == content)
                    .unwrap()
                    .1
                    .code
                    .clone();
                (contents[content].text(selector, false), code)
            });
        let lifecycle = found.at("/lifecycle");
        let kept = Kept {
            task_id: task_id.to_owned(),
            winner: winner.map(|content| contents[content].text(selector, false)),
            body,
            refused: refused.collect(),
            may_expire: deadline.is_some() && (lifecycle == "submitted" || lifecycle == "working"),
        };
        self.shared.kept.lock().unwrap().push(kept);
        Ok(())
    }

    /// Reviews a task, which must keep its result byte for byte; gives the task as it is then.
    async fn review(&mut self, task_id: &str, found: &Answer) -> Result<Bytes, Failure> {
        let verdict = self.dice.one_of(&["approved", "rework", "blocked"]);
        let review =
            json!({"task_id": task_id, "verdict": verdict, "note": "seen", "reviewer": "suite"});
        let mut reviewed = self.ask("tasklatch.task.review", &review).await;
        if self.dice.percent(30) {
            let again = self.ask("tasklatch.task.review", &review).await;
            holds(again.body == reviewed.body, || {
                Failure::new(
                    "the same review changes nothing",
                    task_id,
                    show(&reviewed),
                    show(&again),
                )
            })?;
            reviewed = again;
        }
        let is_so = reviewed.at("/disposition/verdict") == verdict
            && result_text(&reviewed.body) == result_text(&found.body);
        holds(is_so, || {
            let expected = format!("verdict {verdict} over {}", show(found));
            Failure::new(
                "a review leaves the result as it is",
                task_id,
                expected,
                show(&reviewed),
            )
        })?;
        Ok(reviewed.body)
    }

    /// Puts the report into the report stream, which says when it is safe.
    async fn report_through_the_stream(&self, task_id: &str, content: &Content) {
        let stream = jetstream::new(self.client.clone());
        let text = content.text(&format!(r#""task_id":"{task_id}""#), false);
        loop {
            let mut headers = HeaderMap::new();
            headers.insert("Tasklatch-Reply-To", self.client.new_inbox());
            let subject = format!("tasklatch.queue.report.{task_id}");
            let safe = async {
                let sent = stream
                    .publish_with_headers(subject, headers, text.clone())
                    .await;
                match sent {
                    Ok(acknowledgment) => acknowledgment.await.is_ok(),
                    Err(_) => false,
                }
            };
            if timeout(ANSWER_WITHIN, safe).await.unwrap_or(false) {
                return;
            }
            last(RETRY_MAX).await;
        }
    }
}
