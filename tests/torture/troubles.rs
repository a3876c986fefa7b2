//! What goes wrong: each trouble with what was rolled for it, and how it is made.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use crate::model::{Dice, Failure, count, holds};
use crate::proxy::Mode;
use crate::stage::{END_WITHIN, MAX_PAYLOAD, MAX_PAYLOAD_LOW, Stage, last, look, pass, run};

/// One trouble. Times are in milliseconds.
#[derive(Clone, Debug)]
pub enum Trouble {
    KillService { down: u64 },
    DieAt { point: &'static str, pass: u64 },
    StopService,
    KillWhileStopping { after: u64 },
    KillServer { down: u64 },
    PowerCut { down: u64 },
    Cut { times: u64, pause: u64 },
    Refuse { lasts: u64 },
    Stall { lasts: u64, cut: bool },
    Slow { lasts: u64 },
    PauseService { lasts: u64 },
    PauseServer { lasts: u64 },
    Lock { lasts: u64 },
    StartUnderLock { lasts: u64 },
    FullDisk { pages_left: u64, lasts: u64 },
    StartOnFullDisk { pages_left: u64 },
    FailingDisk { limit: u64 },
    Clock { before: i64, after: i64 },
    SmallPayload { lasts: u64 },
}

use Trouble::*;

/// Each kind of trouble once, in an order and of a size that the dice say.
pub fn deck(dice: &mut Dice, only: &str) -> Vec<Trouble> {
    const HOUR: i64 = 3600;
    const YEARS: i64 = 10 * 365 * 24 * HOUR;
    let points = [
        "before-commit",
        "after-commit",
        "after-reply",
        "after-publish",
        "before-cursor",
    ];
    let point = dice.one_of(&points);
    let passes = match point {
        "after-reply" => 500,
        "before-cursor" => 4,
        "after-publish" => 60,
        _ => 150,
    };
    let long = |dice: &mut Dice| dice.between(3000, 7000);
    let short = |dice: &mut Dice| dice.between(300, 2500);
    let pages = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55];
    let mut deck = vec![
        KillService {
            down: dice.below(500),
        },
        DieAt {
            point,
            pass: 1 + dice.below(passes),
        },
        StopService,
        KillWhileStopping {
            after: dice.below(200),
        },
        KillServer {
            down: dice.below(1500),
        },
        PowerCut {
            down: dice.below(500),
        },
        Cut {
            times: dice.between(1, 5),
            pause: dice.below(300),
        },
        Refuse { lasts: short(dice) },
        Stall {
            lasts: long(dice),
            cut: dice.percent(50),
        },
        Slow { lasts: short(dice) },
        PauseService { lasts: long(dice) },
        PauseServer { lasts: long(dice) },
        Lock {
            lasts: dice.between(2200, 4500),
        },
        StartUnderLock {
            lasts: dice.between(500, 3500),
        },
        FullDisk {
            pages_left: dice.one_of(&pages),
            lasts: short(dice),
        },
        StartOnFullDisk {
            pages_left: dice.one_of(&pages),
        },
        FailingDisk {
            limit: dice.one_of(&[0, 4096, 40_960, 102_400]),
        },
        Clock {
            before: dice.one_of(&[HOUR, -HOUR, YEARS]),
            after: dice.one_of(&[0, HOUR, -HOUR, YEARS]),
        },
        SmallPayload { lasts: short(dice) },
    ];
    for last in (1..deck.len()).rev() {
        deck.swap(last, dice.below(last as u64 + 1) as usize);
    }
    deck.retain(|trouble| trouble.to_string().contains(only));
    deck
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KillService { down } => write!(f, "kill the service, {down} ms down"),
            DieAt { point, pass } => write!(f, "the service dies at {point}:{pass}"),
            StopService => write!(f, "stop the service under load"),
            KillWhileStopping { after } => {
                write!(f, "stop the service and kill it {after} ms later")
            }
            KillServer { down } => write!(f, "kill nats-server, {down} ms down"),
            PowerCut { down } => write!(f, "kill both, a power cut, {down} ms down"),
            Cut { times, pause } => {
                write!(f, "cut all connections {times} times, {pause} ms between")
            }
            Refuse { lasts } => write!(f, "cut and refuse connections for {lasts} ms"),
            Stall { lasts, cut: false } => write!(f, "half-open connections for {lasts} ms"),
            Stall { lasts, cut: true } => {
                write!(f, "half-open connections for {lasts} ms, then cut")
            }
            Slow { lasts } => write!(f, "slow connections for {lasts} ms"),
            PauseService { lasts } => write!(f, "pause the service for {lasts} ms"),
            PauseServer { lasts } => write!(f, "pause nats-server for {lasts} ms"),
            Lock { lasts } => write!(f, "write lock of another process for {lasts} ms"),
            StartUnderLock { lasts } => {
                write!(
                    f,
                    "kill and start the service under a write lock for {lasts} ms"
                )
            }
            FullDisk { pages_left, lasts } => {
                write!(f, "full disk, {pages_left} pages left, for {lasts} ms")
            }
            StartOnFullDisk { pages_left } => {
                write!(
                    f,
                    "kill and start the service on a full disk, {pages_left} pages left"
                )
            }
            FailingDisk { limit } => {
                write!(f, "failing disk: no write past {limit} bytes of a file")
            }
            Clock { before, after } => write!(
                f,
                "clock wrong by {before} s, then by {after} s, then right"
            ),
            SmallPayload { lasts } => write!(f, "max_payload lowered for {lasts} ms"),
        }
    }
}

fn millis(time: u64) -> Duration {
    Duration::from_millis(time)
}

impl Trouble {
    /// Whether the service may end for it, and be started again. Elsewhere it must go on.
    pub fn may_end_the_service(&self) -> bool {
        matches!(self, StartOnFullDisk { .. } | StartUnderLock { .. })
    }

    /// Makes it, and has it be over.
    pub async fn make(&self, stage: &mut Stage) -> Result<(), Failure> {
        let shared = stage.shared.clone();
        let counts = &shared.counts;
        // Whatever ends a process or a connection of the service, what was on its way may come again.
        let keeps_connections = matches!(
            self,
            Lock { .. } | FullDisk { .. } | PauseService { .. } | Slow { .. }
        );
        if !keeps_connections {
            shared.connection_lost.store(true, Ordering::SeqCst);
        }
        match *self {
            KillService { down } => {
                stage.kill_service().await;
                last(millis(down)).await;
                stage.start_service(&[]);
            }
            DieAt { point, pass } => {
                stage.kill_service().await;
                stage.start_service(&[("TASKLATCH_DIE_AT", format!("{point}:{pass}"))]);
                let status = stage.service_ended().await?;
                count(&counts.kills);
                holds(status.to_string().contains("SIGABRT"), || {
                    let seen = format!("{status}\n{}", stage.log_end());
                    Failure::new("the service dies at a point", "-", "SIGABRT", seen)
                })?;
                stage.start_service(&[]);
            }
            StopService => {
                stage.stop_service().await?;
                stage.start_service(&[]);
            }
            KillWhileStopping { after } => {
                stage.signal_service("TERM").await;
                last(millis(after)).await;
                stage.kill_service().await;
                stage.start_service(&[]);
            }
            KillServer { down } => {
                stage.kill_server().await;
                last(millis(down)).await;
                stage.start_server(MAX_PAYLOAD).await;
            }
            PowerCut { down } => {
                stage.kill_server().await;
                stage.kill_service().await;
                last(millis(down)).await;
                // The service is often there first.
                stage.start_service(&[]);
                stage.start_server(MAX_PAYLOAD).await;
            }
            Cut { times, pause } => {
                for _ in 0..times {
                    count(&counts.cuts);
                    stage.proxy.cut();
                    stage.workers_proxy.cut();
                    last(millis(pause)).await;
                }
            }
            Refuse { lasts } => {
                count(&counts.cuts);
                stage.proxy.set(Mode::Refuse);
                stage.proxy.cut();
                stage.workers_proxy.cut();
                last(millis(lasts)).await;
                pass([&stage.proxy, &stage.workers_proxy]);
            }
            Stall { lasts, cut } => {
                count(&counts.cuts);
                stage.proxy.set(Mode::Stall);
                stage.workers_proxy.set(Mode::Stall);
                last(millis(lasts)).await;
                if cut {
                    stage.proxy.cut();
                }
                pass([&stage.proxy, &stage.workers_proxy]);
            }
            Slow { lasts } => {
                count(&counts.cuts);
                stage.proxy.set(Mode::Slow);
                last(millis(lasts)).await;
                pass([&stage.proxy, &stage.workers_proxy]);
            }
            PauseService { lasts } => {
                count(&counts.pauses);
                stage.signal_service("STOP").await;
                last(millis(lasts)).await;
                stage.signal_service("CONT").await;
            }
            PauseServer { lasts } => {
                count(&counts.pauses);
                stage.signal_server("STOP").await;
                last(millis(lasts)).await;
                stage.signal_server("CONT").await;
            }
            Lock { lasts } => {
                count(&counts.locks);
                let mut other = write_lock(stage).await;
                last(millis(lasts)).await;
                sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
                other.close().await.unwrap();
            }
            StartUnderLock { lasts } => {
                count(&counts.locks);
                stage.kill_service().await;
                let mut other = write_lock(stage).await;
                stage.start_service(&[]);
                stage.service_ended_within(millis(lasts)).await;
                sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
                other.close().await.unwrap();
            }
            FullDisk { pages_left, lasts } => {
                count(&counts.disk);
                stage.fill_disk(pages_left).await;
                last(millis(lasts)).await;
                stage.empty_disk().await;
            }
            StartOnFullDisk { pages_left } => {
                count(&counts.disk);
                stage.kill_service().await;
                stage.fill_disk(pages_left).await;
                stage.start_service(&[]);
                stage.service_ended_within(millis(1500)).await;
                stage.empty_disk().await;
            }
            FailingDisk { limit } => {
                count(&counts.disk);
                let pid = stage.service_pid().to_string();
                run("prlimit", &["--pid", &pid, &format!("--fsize={limit}")]).await;
                let status = stage.service_ended().await?;
                stage.judge_end(status).await?;
                holds(!status.success(), || {
                    let seen = format!("{status}\n{}", stage.log_end());
                    Failure::new(
                        "a failing disk ends the service",
                        "-",
                        "an exit status of a fault",
                        seen,
                    )
                })?;
                stage.start_service(&[]);
            }
            Clock { before, after } => {
                count(&counts.clocks);
                turn(stage, before);
                stage.stop_service().await?;
                let environment = stage.wrong_clock();
                stage.start_service(&environment);
                stage.recover(false).await?;
                last(millis(800)).await;
                turn(stage, after);
                last(millis(800)).await;
                stage.kill_service().await;
                stage.start_service(&[]);
            }
            SmallPayload { lasts } => {
                count(&counts.payloads);
                stage.kill_server().await;
                stage.start_server(MAX_PAYLOAD_LOW).await;
                last(millis(lasts)).await;
                stage.kill_server().await;
                stage.start_server(MAX_PAYLOAD).await;
            }
        }
        Ok(())
    }
}

/// Has the clock be wrong by so many seconds from now on.
fn turn(stage: &Stage, seconds: i64) {
    let half = stage.clock_file().with_extension("half");
    std::fs::write(&half, seconds.to_string()).unwrap();
    std::fs::rename(half, stage.clock_file()).unwrap();
}

/// Takes the lock that the service writes under.
async fn write_lock(stage: &Stage) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(stage.database());
    let mut other = options.connect().await.unwrap();
    let locked = look(END_WITHIN, async || {
        sqlx::query("BEGIN IMMEDIATE")
            .execute(&mut other)
            .await
            .is_ok()
            .then_some(())
    });
    locked.await.expect("the lock can be had");
    other
}
