//! What the workers were told, what is counted, and how a check that does not hold is reported.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use bytes::Bytes;
use tokio::sync::{Notify, RwLock};

use crate::Options;

/// Random numbers from a seed.
#[derive(Clone)]
pub struct Dice(u64);

impl Dice {
    /// A seed that nobody chose.
    pub fn roll_seed() -> u64 {
        RandomState::new().hash_one(0) % 1_000_000
    }

    pub fn new(seed: u64) -> Self {
        // Seeds that are near each other must not give throws that are.
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    /// A number from 0 to below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// A number from `first` to `last`.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    pub fn one_of<T: Copy>(&mut self, many: &[T]) -> T {
        many[self.below(many.len() as u64) as usize]
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// A check that did not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    check: String,
    task: String,
    expected: String,
    seen: String,
    during: Option<String>,
}

impl Failure {
    pub fn new(
        check: &str,
        task: impl fmt::Display,
        expected: impl fmt::Display,
        seen: impl fmt::Display,
    ) -> Self {
        Self {
            check: check.to_owned(),
            task: task.to_string(),
            expected: expected.to_string(),
            seen: seen.to_string(),
            during: None,
        }
    }

    /// The round in which it was found.
    pub fn during(mut self, round: usize, trouble: &str) -> Self {
        self.during = Some(format!("in or after round {round}, {trouble}"));
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |text: &str| text.chars().take(1500).collect::<String>();
        writeln!(f, "CHECK FAILED: {}", self.check)?;
        if let Some(during) = &self.during {
            writeln!(f, "  when:     {during}")?;
        }
        writeln!(f, "  task:     {}", self.task)?;
        writeln!(f, "  expected: {}", short(&self.expected))?;
        write!(f, "  seen:     {}", short(&self.seen))
    }
}

/// Does what is said of `check` hold?
pub fn holds(is_so: bool, failure: impl FnOnce() -> Failure) -> Result<(), Failure> {
    if is_so { Ok(()) } else { Err(failure()) }
}

macro_rules! counts {
    ($($name:ident $says:literal),* $(,)?) => {
        /// What happened, counted.
        #[derive(Default)]
        pub struct Counts { $(pub $name: AtomicU64,)* }

        impl fmt::Display for Counts {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let all = [$(($says, self.$name.load(Ordering::Relaxed)),)*];
                let told = all.iter().map(|(says, number)| format!("{says} {number}"));
                write!(f, "counts: {}", told.collect::<Vec<_>>().join(", "))
            }
        }
    };
}

counts! {
    kills "kills", stops "stops", pauses "pauses", cuts "cuts", disk "disk troubles", locks "lock troubles",
    clocks "clock troubles", payloads "payload troubles", restarts "starts of the service", tasks "tasks",
    sent "requests sent", reports "reports sent", accepted "accepted", replayed "replayed", refused "refused",
    asked "asked again", events "events checked", twice "events seen twice", missed "events lost that may be",
    overtaken "events out of order that may be", parked "events parked", checks "checks of everything",
}

pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What is known of a task whose story is over.
#[derive(Clone)]
pub struct Kept {
    pub task_id: String,
    /// The report that was accepted, as one of those that sent it did.
    pub winner: Option<Bytes>,
    /// The task as it was last answered.
    pub body: Bytes,
    /// Reports that were refused, and how.
    pub refused: Vec<(Bytes, String)>,
    /// Nobody has ended it, and its deadline may.
    pub may_expire: bool,
}

/// What all parts of the suite share.
pub struct Shared {
    pub counts: Counts,
    /// Tasks whose story is over.
    pub kept: Mutex<Vec<Kept>>,
    /// Reports that the report stream took and nobody sent to the service itself, with their task.
    pub queued: Mutex<Vec<(String, Bytes)>>,
    /// Workers hold it while a story goes on; who has it alone finds them resting.
    pub gate: RwLock<()>,
    pub seed: u64,
    /// A server has died since the last check: what it held for subscribers is lost.
    pub server_died: AtomicBool,
    /// A connection of the service was lost since the last check.
    pub connection_lost: AtomicBool,
    failure: OnceLock<Failure>,
    has_failed: Notify,
}

impl Shared {
    pub fn new(options: &Options) -> Self {
        Self {
            counts: Counts::default(),
            kept: Mutex::default(),
            queued: Mutex::default(),
            gate: RwLock::default(),
            seed: options.seed,
            server_died: AtomicBool::new(false),
            connection_lost: AtomicBool::new(false),
            failure: OnceLock::new(),
            has_failed: Notify::new(),
        }
    }

    /// A check did not hold: the first that is told counts.
    pub fn fail(&self, failure: Failure) {
        let _ = self.failure.set(failure);
        self.has_failed.notify_one();
    }

    /// Waits for a check that does not hold.
    pub async fn failed(&self) -> Failure {
        loop {
            if let Some(failure) = self.failure.get() {
                return failure.clone();
            }
            self.has_failed.notified().await;
        }
    }
}
