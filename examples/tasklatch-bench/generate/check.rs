//! Whether an answer is what the request should get.

use clap::ValueEnum;
use tasklatch::wire::header;

use super::plan::{Kind, Request};
use crate::content::task_id;
use crate::failure::{Failure, Result};
use crate::lines::Message;

/// How much of an answer is shown of one that is wrong.
const SHOWN_BYTES: usize = 300;

/// How much is asked of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Expect {
    /// There is one, and it is not the server's own.
    Any,
    /// It also says the outcome that it should, and begins with the task.
    Outcome,
    /// It also has the header of the protocol.
    Protocol,
}

/// Checks an answer.
///
/// # Errors
/// If it is not the one that this request should get.
pub fn check(message: &Message<'_>, request: Request, expect: Expect) -> Result<()> {
    match wrong_with(message, request, expect) {
        None => Ok(()),
        Some(what) => Err(Failure::new(format!(
            "{} of task {} got a wrong answer, {what}: {:?} {:?}",
            request.kind.words(),
            task_id(request.task).escape_ascii(),
            shown(message.headers),
            shown(message.payload),
        ))),
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES)]).into_owned()
}

fn wrong_with(message: &Message<'_>, request: Request, expect: Expect) -> Option<&'static str> {
    match message.status() {
        Some(b"503") => return Some("as nobody serves its subject"),
        Some(_) => return Some("which is one of the server's own"),
        None => {}
    }
    if message.payload.is_empty() {
        return Some("which is empty");
    }
    if expect == Expect::Any {
        return None;
    }
    if expect == Expect::Protocol && message.header(header::PROTOCOL) != Some(b"1") {
        return Some("without the header of the protocol");
    }
    let code = message.header(header::SERVICE_ERROR_CODE);
    let outcome = message.header(header::OUTCOME);
    let as_it_should = match request.kind {
        Kind::Create => code.is_none() && is_of_task(message, request),
        Kind::First => outcome == Some(b"accepted") && is_of_task(message, request),
        Kind::Retry => outcome == Some(b"replayed") && is_of_task(message, request),
        Kind::Conflict => code == Some(b"409") && is_conflict(message.payload),
    };
    (!as_it_should).then_some("not that which it should get")
}

/// A task's JSON begins with its ID.
fn is_of_task(message: &Message<'_>, request: Request) -> bool {
    let rest = message.payload.strip_prefix(br#"{"task_id":""#);
    rest.is_some_and(|rest| rest.starts_with(&task_id(request.task)))
}

fn is_conflict(payload: &[u8]) -> bool {
    const CODE: &[u8] = br#""code":"result_conflict""#;
    payload.windows(CODE.len()).any(|part| part == CODE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::task_id_text;

    fn answer(headers: &str, payload: &str, kind: Kind, expect: Expect) -> Result<()> {
        let message = Message {
            subject: b"_INBOX.a.1",
            headers: headers.as_bytes(),
            payload: payload.as_bytes(),
        };
        check(&message, Request { kind, task: 3 }, expect)
    }

    #[test]
    fn each_request_must_get_its_own_outcome() {
        let task = format!(r#"{{"task_id":"{}","rest":1}}"#, task_id_text(3));
        let other = format!(r#"{{"task_id":"{}","rest":1}}"#, task_id_text(4));
        let accepted = "NATS/1.0\r\nTasklatch-Protocol: 1\r\nTasklatch-Outcome: accepted\r\n\r\n";
        let replayed = "NATS/1.0\r\nTasklatch-Protocol: 1\r\nTasklatch-Outcome: replayed\r\n\r\n";
        let refused = "NATS/1.0\r\nTasklatch-Protocol: 1\r\nNats-Service-Error-Code: 409\r\n\r\n";
        let conflict = r#"{"error":{"code":"result_conflict"}}"#;
        let protocol = Expect::Protocol;
        assert!(answer(accepted, &task, Kind::First, protocol).is_ok());
        assert!(answer(accepted, &other, Kind::First, protocol).is_err());
        assert!(answer(replayed, &task, Kind::First, protocol).is_err());
        assert!(answer(replayed, &task, Kind::Retry, protocol).is_ok());
        assert!(answer(accepted, &task, Kind::Retry, protocol).is_err());
        assert!(answer(refused, conflict, Kind::Conflict, protocol).is_ok());
        assert!(
            answer(
                refused,
                r#"{"error":{"code":"task_terminal"}}"#,
                Kind::Conflict,
                protocol
            )
            .is_err()
        );
        assert!(answer(accepted, &task, Kind::Conflict, protocol).is_err());
        assert!(answer(refused, conflict, Kind::Create, protocol).is_err());
    }

    #[test]
    fn what_the_server_itself_says_is_no_answer() {
        assert!(answer("NATS/1.0 503\r\n\r\n", "", Kind::First, Expect::Any).is_err());
        assert!(
            answer(
                "NATS/1.0 408 Timeout\r\n\r\n",
                "x",
                Kind::First,
                Expect::Any
            )
            .is_err()
        );
        assert!(answer("", "", Kind::First, Expect::Any).is_err());
        assert!(answer("", "x", Kind::First, Expect::Any).is_ok());
        assert!(answer("", "x", Kind::First, Expect::Outcome).is_err());
        let without = "NATS/1.0\r\nTasklatch-Outcome: accepted\r\n\r\n";
        let task = format!(r#"{{"task_id":"{}"}}"#, task_id_text(3));
        assert!(answer(without, &task, Kind::First, Expect::Outcome).is_ok());
        assert!(answer(without, &task, Kind::First, Expect::Protocol).is_err());
    }
}
