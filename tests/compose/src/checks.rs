//! The checks, in the order in which they run.

use std::future::Future;
use std::pin::Pin;

use serde_json::{Value, json};

use crate::Result;
use crate::engine::{Engine, Run};
use crate::load::Load;
use crate::wire::{User, ask, log_in, seed};
use crate::{permissions, stream};

/// The service of compose.yaml that is tested.
const SERVICE: &str = "tasklatch";

/// Where its volume is, in its container.
const DATA: &str = "/var/lib/tasklatch";

/// How many tasks are settled before something is done to a container, and after it.
const SOME_TASKS: usize = 60;

/// What the checks share.
pub struct Stage {
    engine: Engine,
    coordinator: User,
    worker: User,
    /// What the IDs of this run begin with: a run finds the tasks of earlier ones on the volume.
    run: String,
}

type Check<'a> = Pin<Box<dyn Future<Output = Result> + 'a>>;

/// All checks, with what each says.
pub fn all(stage: &Stage) -> Vec<(&'static str, Check<'_>)> {
    vec![
        (
            "the containers are hardened as compose.yaml says",
            Box::pin(stage.hardened()),
        ),
        (
            "each role may do what is its own, and the server keeps it from the rest",
            Box::pin(permissions::check()),
        ),
        (
            "a report makes the round trip, a retry reads it back, and another is refused",
            Box::pin(stage.round_trip()),
        ),
        (
            "the events of a report are in the stream once",
            Box::pin(stage.events()),
        ),
        (
            "a service that is killed under load loses nothing and says nothing twice",
            Box::pin(stage.killed(SERVICE)),
        ),
        (
            "a NATS server that is killed under load loses nothing and has nothing twice",
            Box::pin(stage.killed("nats")),
        ),
        (
            "a container is replaced on its volume under load, and ends well",
            Box::pin(stage.replaced()),
        ),
        (
            "a snapshot goes out, comes in elsewhere, and answers retries there",
            Box::pin(stage.snapshot()),
        ),
        (
            "no secret and no content of a task is in the logs",
            Box::pin(stage.quiet_logs()),
        ),
    ]
}

impl Stage {
    /// Logs in.
    pub async fn prepare() -> Result<Self> {
        let coordinator = log_in("coordinator").await?;
        // The end of an inbox is made at random.
        let inbox = coordinator.client.new_inbox();
        let run = inbox.rsplit('.').next().unwrap_or(&inbox);
        Ok(Self {
            engine: Engine::reach().await?,
            run: format!("compose-{run}"),
            coordinator,
            worker: log_in("worker").await?,
        })
    }

    async fn create(&self, task_id: &str) -> Result {
        let create = json!({"task_id": task_id, "title": "A task of the compose test"});
        let created = ask(&self.coordinator.client, "tasklatch.task.create", &create).await?;
        match created.code() {
            None => Ok(()),
            Some(code) => Err(format!("{task_id} was not created: {code}").into()),
        }
    }

    async fn report(&self, report: &Value) -> Result<crate::wire::Answer> {
        ask(&self.worker.client, "tasklatch.report", report).await
    }

    async fn hardened(&self) -> Result {
        for name in [SERVICE, "nats"] {
            let container = serde_json::to_value(self.engine.inspect(name).await?)?;
            let host = &container["HostConfig"];
            let user = container["Config"]["User"].as_str().unwrap_or_default();
            let facts = [
                ("a user", !matches!(user, "" | "0" | "root" | "0:0")),
                ("read-only", host["ReadonlyRootfs"] == true),
                ("no capabilities", host["CapDrop"] == json!(["ALL"])),
                ("a limit of memory", host["Memory"].as_i64() > Some(0)),
                ("a limit of processes", host["PidsLimit"].as_i64() > Some(0)),
                (
                    "restarts",
                    host["RestartPolicy"]["Name"] == "unless-stopped",
                ),
                (
                    "no new privileges",
                    host["SecurityOpt"]
                        .to_string()
                        .contains("no-new-privileges"),
                ),
                (
                    "healthy",
                    container["State"]["Health"]["Status"] == "healthy",
                ),
            ];
            for (fact, holds) in facts {
                expect(holds, || format!("{name}: {fact}: {host}"))?;
            }
        }
        Ok(())
    }

    async fn round_trip(&self) -> Result {
        let task_id = format!("{}-trip", self.run);
        self.create(&task_id).await?;
        let start = json!({"task_id": task_id});
        let started = ask(&self.worker.client, "tasklatch.task.start", &start).await?;
        expect(started.body["lifecycle"] == "working", || {
            started.body.to_string()
        })?;
        let report = json!({"task_id": task_id, "status": "completed", "summary": "Done"});
        let first = self.report(&report).await?;
        expect(first.outcome() == Some("accepted"), || {
            first.body.to_string()
        })?;
        let again = self.report(&report).await?;
        expect(again.outcome() == Some("replayed"), || {
            again.body.to_string()
        })?;
        expect(again.body == first.body, || again.body.to_string())?;
        let other = json!({"task_id": task_id, "status": "failed", "summary": "Done"});
        let refused = self.report(&other).await?;
        expect(refused.code() == Some("result_conflict"), || {
            refused.body.to_string()
        })
    }

    async fn events(&self) -> Result {
        let client = &self.coordinator.client;
        let sequence = stream::last_sequence(client).await?;
        let task_id = format!("{}-events", self.run);
        self.create(&task_id).await?;
        let report = json!({"task_id": task_id, "status": "rejected", "summary": "Not ours"});
        for _ in 0..3 {
            self.report(&report).await?;
        }
        let events = stream::until(client, sequence, |events| {
            events.get(&task_id).is_some_and(|events| events.len() >= 3)
        })
        .await?;
        let kinds: Vec<&str> = events
            .get(&task_id)
            .into_iter()
            .flatten()
            .map(|event| event.kind.as_str())
            .collect();
        let right = [
            "tasklatch.task.updated",
            "tasklatch.result.accepted",
            "tasklatch.task.updated",
        ];
        expect(kinds == right, || format!("{kinds:?}"))?;
        let result = &events[&task_id][1].body["result"];
        expect(result["summary"] == "Not ours", || result.to_string())
    }

    async fn load(&self, name: &str) -> Result<Load> {
        let name = format!("{}-{name}", self.run);
        Load::begin(&self.coordinator.client, &self.worker.client, &name).await
    }

    async fn killed(&self, name: &str) -> Result {
        let load = self.load(name).await?;
        for _ in 0..2 {
            load.progress(SOME_TASKS).await?;
            self.engine.kill(name).await?;
            self.engine.start(name).await?;
        }
        load.progress(SOME_TASKS).await?;
        load.end().await
    }

    async fn replaced(&self) -> Result {
        let load = self.load("replaced").await?;
        for _ in 0..2 {
            load.progress(SOME_TASKS).await?;
            let exit_code = self.engine.replace(SERVICE).await?;
            expect(exit_code == 0, || {
                format!("the old container ended with {exit_code}")
            })?;
        }
        load.progress(SOME_TASKS).await?;
        load.end().await
    }

    /// Runs `tasklatch` in a container like the service's.
    async fn tasklatch(&self, args: &[&str]) -> Result<String> {
        let run = self.engine.run(SERVICE, &json!({"Cmd": args})).await?;
        let Run { exit_code, output } = run;
        expect(exit_code == 0, || {
            format!(
                "`tasklatch {}` ended with {exit_code}: {output}",
                args.join(" ")
            )
        })?;
        Ok(output)
    }

    async fn snapshot(&self) -> Result {
        let task_id = format!("{}-snapshot", self.run);
        self.create(&task_id).await?;
        let report = json!({"task_id": task_id, "status": "completed", "summary": "Kept"});
        let first = self.report(&report).await?;
        let file = format!("{DATA}/{}.jsonl", self.run);
        let elsewhere = format!("{DATA}/{}.db", self.run);
        self.tasklatch(&["snapshot", "save", &file]).await?;
        self.tasklatch(&["snapshot", "verify", &file]).await?;
        self.tasklatch(&["snapshot", "restore", &file, "--database", &elsewhere])
            .await?;
        self.engine.stop(SERVICE).await?;
        let served = json!({"Cmd": ["serve", "--database", elsewhere]});
        let beside = self.engine.begin(SERVICE, &served).await?;
        let again = self.report(&report).await;
        self.engine.end(&beside).await?;
        self.engine.start(SERVICE).await?;
        let again = again?;
        expect(again.outcome() == Some("replayed"), || {
            again.body.to_string()
        })?;
        expect(again.body == first.body, || again.body.to_string())?;
        let files = [
            file,
            elsewhere.clone(),
            format!("{elsewhere}-wal"),
            format!("{elsewhere}-shm"),
            format!("{elsewhere}.lock"),
        ];
        let mut remove = vec!["rm".to_owned(), "-f".to_owned()];
        remove.extend(files);
        let removed = json!({"Entrypoint": remove, "Cmd": null});
        let run = self.engine.run(SERVICE, &removed).await?;
        expect(run.exit_code == 0, || run.output.clone())
    }

    async fn quiet_logs(&self) -> Result {
        let worker = seed("worker")?;
        let coordinator = seed("coordinator")?;
        for name in [SERVICE, "nats"] {
            let logs = self.engine.logs_of(name).await?;
            for secret in [&*worker, &*coordinator, "PRIVATE KEY", "Not ours"] {
                // What it is must not show here either.
                expect(!logs.contains(secret), || {
                    format!("the logs of {name} hold a secret")
                })?;
            }
        }
        Ok(())
    }
}

/// Fails with what was seen if it does not hold.
fn expect(holds: bool, seen: impl FnOnce() -> String) -> Result {
    match holds {
        true => Ok(()),
        false => Err(seen().into()),
    }
}
