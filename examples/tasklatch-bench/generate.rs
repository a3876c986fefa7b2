//! The load: one connection, one thread, a fixed number of requests in flight; every answer is checked and counted.

mod check;
mod connection;
mod latency;
mod measured;
mod plan;

use std::time::{Duration, Instant};

use clap::Args;

pub use check::Expect;
pub use latency::Latency;
pub use measured::{GENERATOR, Measured, Usage};
pub use plan::{Kind, Workload};

use crate::content::{REPORT_BYTES, Template, task_id_text};
use crate::failure::{Failure, Result};
use crate::lines::{Item, Message};
use check::check;
use connection::Connection;
use measured::Window;
use plan::{Plan, Request};

/// Where reports and new tasks go.
const REPORT_SUBJECT: &str = "tasklatch.report";
const CREATE_SUBJECT: &str = "tasklatch.task.create";

/// The last token of a reply subject: a slot in 16 bits, and how often that was used.
const SLOT_BITS: u32 = 16;

/// What is to be sent, and how it is measured.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The NATS server, as host:port
    #[arg(long)]
    pub server: String,
    /// What is sent
    #[arg(long, value_enum)]
    pub workload: Workload,
    /// How many requests wait for their answer at any time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..1 << SLOT_BITS))]
    pub in_flight: u32,
    /// The number of the first task
    #[arg(long, default_value_t = 0)]
    pub first_task: u64,
    /// How many tasks there are
    #[arg(long)]
    pub tasks: u64,
    /// The size of a report
    #[arg(long, default_value_t = REPORT_BYTES)]
    pub report_bytes: usize,
    /// What an answer must be
    #[arg(long, value_enum, default_value_t = Expect::Protocol)]
    pub expect: Expect,
    /// Seconds that are not measured, at first
    #[arg(long, default_value_t = 0.0)]
    pub warm_up: f64,
    /// Seconds that are measured; left out, all that is sent
    #[arg(long)]
    pub window: Option<f64>,
    /// Seconds to wait for the next answer before the run has failed
    #[arg(long, default_value_t = 10.0)]
    pub patience: f64,
    /// Tell the processor time of a process, as NAME=PID
    #[arg(long, value_parser = parse_watched)]
    pub watch: Vec<(String, u32)>,
    /// Tell what each second was like
    #[arg(long)]
    pub seconds: bool,
}

fn parse_watched(text: &str) -> std::result::Result<(String, u32), String> {
    let (name, pid) = text.split_once('=').ok_or("write NAME=PID")?;
    let pid = pid
        .parse()
        .map_err(|_| format!("{pid:?} is no process ID"))?;
    Ok((name.to_owned(), pid))
}

/// Sends the load and measures it.
///
/// # Errors
/// If a request got no answer, or another one than it should: no figure is worth anything then.
pub fn generate(options: &Options) -> Result<Measured> {
    let patience = seconds(options.patience)?;
    let mut connection = Connection::open(&options.server, patience)?;
    let inbox = format!("_INBOX.bench{}", std::process::id());
    connection.send(format!("SUB {inbox}.* 1\r\n").as_bytes())?;
    connection.round_trip()?;
    let mut load = Load::new(options, &inbox)?;
    let mut window = Window::new(options)?;
    load.fill();
    load.send(&mut connection)?;
    while load.outstanding > 0 {
        connection
            .receive()
            .map_err(|failure| load.unanswered(&failure))?;
        let now = Instant::now();
        while let Some(item) = connection.next()? {
            match item {
                Item::Message(message) => {
                    let latency = load.take(&message, now)?;
                    window.count(latency);
                }
                Item::Ping => load.out.extend_from_slice(b"PONG\r\n"),
                Item::Error(words) => return Err(refused(words)),
                Item::Pong | Item::Other => {}
            }
        }
        window.look_at_the_clock(now, load.plan.is_used_up())?;
        if !window.is_over() {
            load.fill();
        }
        load.send(&mut connection)?;
    }
    window.close(Instant::now())?;
    // Whatever the server still had for this connection comes before its answer to this: an answer too many would show.
    if let Some(extra) = connection.round_trip()? {
        return Err(Failure::new(format!(
            "an answer too many came, after every request was answered: {extra}"
        )));
    }
    window.measured(load.answered)
}

fn refused(words: &[u8]) -> Failure {
    Failure::new(format!(
        "the NATS server refuses what is sent: {}",
        String::from_utf8_lossy(words)
    ))
}

fn seconds(number: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(number)
        .map_err(|error| Failure::new(format!("{number} seconds are no time: {error}")))
}

/// A request that waits for its answer, or room for one.
struct Slot {
    /// How often it was used; part of the reply subject, so that a second answer is not taken for that of the next request.
    uses: u64,
    waiting: Option<(Request, Instant)>,
}

struct Load {
    plan: Plan,
    expect: Expect,
    templates: Templates,
    inbox: String,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots whose requests are in `out` and get their time when that is sent.
    fresh: Vec<usize>,
    outstanding: usize,
    out: Vec<u8>,
    /// How many requests of each kind were answered as they should.
    answered: [u64; Kind::COUNT],
}

struct Templates {
    create: Template,
    report: Template,
    conflicting: Template,
}

impl Load {
    fn new(options: &Options, inbox: &str) -> Result<Self> {
        let slots = options.in_flight as usize;
        Ok(Self {
            plan: Plan::new(options.workload, options.first_task, options.tasks),
            expect: options.expect,
            templates: Templates {
                create: Template::create(),
                report: Template::report(options.report_bytes)?,
                conflicting: Template::conflicting_report(options.report_bytes)?,
            },
            inbox: format!("{inbox}."),
            slots: std::iter::repeat_with(|| Slot {
                uses: 0,
                waiting: None,
            })
            .take(slots)
            .collect(),
            free: (0..slots).rev().collect(),
            fresh: Vec::with_capacity(slots),
            outstanding: 0,
            out: Vec::new(),
            answered: [0; Kind::COUNT],
        })
    }

    /// Puts a request into every free slot, as long as there are any.
    fn fill(&mut self) {
        while let Some(&at) = self.free.last() {
            let Some(request) = self.plan.next() else {
                return;
            };
            self.free.pop();
            self.write(at, request);
            self.fresh.push(at);
            self.outstanding += 1;
            // The time is put right when it is sent.
            self.slots[at].waiting = Some((request, Instant::now()));
        }
    }

    fn write(&mut self, at: usize, request: Request) {
        let (subject, template) = match request.kind {
            Kind::Create => (CREATE_SUBJECT, &self.templates.create),
            Kind::First | Kind::Retry => (REPORT_SUBJECT, &self.templates.report),
            Kind::Conflict => (REPORT_SUBJECT, &self.templates.conflicting),
        };
        let slot = &mut self.slots[at];
        slot.uses += 1;
        let token = (slot.uses << SLOT_BITS) | at as u64;
        for part in ["PUB ", subject, " ", &self.inbox] {
            self.out.extend_from_slice(part.as_bytes());
        }
        write_number(&mut self.out, token);
        self.out.push(b' ');
        write_number(&mut self.out, template.len() as u64);
        self.out.extend_from_slice(b"\r\n");
        template.write(request.task, &mut self.out);
        self.out.extend_from_slice(b"\r\n");
    }

    fn send(&mut self, connection: &mut Connection) -> Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        for at in self.fresh.drain(..) {
            if let Some((_, sent)) = &mut self.slots[at].waiting {
                *sent = now;
            }
        }
        connection.send(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Checks an answer, and gives how long it took.
    fn take(&mut self, message: &Message<'_>, now: Instant) -> Result<Duration> {
        let token = message.subject.strip_prefix(self.inbox.as_bytes());
        let token: Option<u64> = token.and_then(|token| str::from_utf8(token).ok()?.parse().ok());
        let at = token.map(|token| token as usize & ((1 << SLOT_BITS) - 1));
        let slot = at.and_then(|at| self.slots.get_mut(at));
        let (Some(token), Some(at), Some(slot)) = (token, at, slot) else {
            return Err(stray(message));
        };
        if token >> SLOT_BITS != slot.uses {
            return Err(stray(message));
        }
        let Some((request, sent)) = slot.waiting.take() else {
            return Err(stray(message));
        };
        check(message, request, self.expect)?;
        self.free.push(at);
        self.outstanding -= 1;
        self.answered[request.kind as usize] += 1;
        self.plan.answered(request);
        Ok(now.saturating_duration_since(sent))
    }

    /// Says which request waits in vain.
    fn unanswered(&self, failure: &Failure) -> Failure {
        let oldest = self
            .slots
            .iter()
            .filter_map(|slot| slot.waiting)
            .min_by_key(|(_, sent)| *sent);
        let which = oldest.map_or_else(String::new, |(request, sent)| {
            format!(
                "; the oldest is {} of task {}, sent {:.1} s ago",
                request.kind.words(),
                task_id_text(request.task),
                sent.elapsed().as_secs_f64()
            )
        });
        Failure::new(format!(
            "{} of {} requests got no answer ({failure}){which}",
            self.outstanding,
            self.outstanding as u64 + self.answered.iter().sum::<u64>()
        ))
    }
}

fn stray(message: &Message<'_>) -> Failure {
    Failure::new(format!(
        "an answer came to {}, where no request waits for one: it was answered twice, or the answer is not for this run",
        message.subject.escape_ascii()
    ))
}

fn write_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut from = digits.len();
    loop {
        from -= 1;
        digits[from] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[from..]);
}

#[cfg(test)]
mod tests;
