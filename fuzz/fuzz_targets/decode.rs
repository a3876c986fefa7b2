//! Any bytes as the payload of a request: the task ID of its subject, a zero byte, and the payload; without a zero byte
//! all of it is the payload.
//!
//! Reading never panics. What is accepted is within the limits, is what the reference reads, is read back equal when it
//! is written, is read equal in any other spelling, and is refused with a key repeated. A refusal can be sent. The same holds
//! of an accepted one with one change.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tasklatch_fuzz::reference::Value;
use tasklatch_fuzz::requests::{check, written};
use tasklatch_fuzz::rewrite::{Choices, changed, respelled, with_repeated_key};
use tasklatch_fuzz::wire::{Answer, Endpoint, Refusal, Request, decode};

fuzz_target!(|data: &[u8]| {
    let (subject, payload) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (str::from_utf8(&data[..at]).ok(), &data[at + 1..]),
        None => (None, data),
    };
    for endpoint in Endpoint::ALL {
        let subject = subject.filter(|_| endpoint == Endpoint::ReportOfTask);
        let choices = &mut Choices::new(data);
        if let Some(value) = check_request(endpoint, subject, payload, choices) {
            let other = respelled(&changed(&value, choices), choices);
            check_request(endpoint, subject, other.as_bytes(), choices);
        }
    }
});

/// Checks what becomes of one payload, and gives it as the reference reads it where it is accepted.
fn check_request(
    endpoint: Endpoint,
    subject: Option<&str>,
    payload: &[u8],
    choices: &mut Choices,
) -> Option<Value> {
    let request = match decoded(endpoint, subject, payload) {
        Ok(request) => request,
        Err(refusal) => {
            check_answer(&refusal);
            return None;
        }
    };
    let value = check(endpoint, &request, payload);

    let (plain, text) = written(&request);
    assert_eq!(decoded(plain, None, &text), Ok(request.clone()));
    if let Some(repeated) = with_repeated_key(&value, choices) {
        let repeated = respelled(&repeated, choices);
        let again = decoded(endpoint, subject, repeated.as_bytes());
        assert!(again.is_err(), "{repeated}");
    }
    // The number of a list's page is no content: it is a whole number, written as one.
    if !matches!(request, Request::List(_)) {
        let text = respelled(&value, choices);
        let again = decoded(endpoint, subject, text.as_bytes());
        assert_eq!(again, Ok(request), "{text}");
    }
    Some(value)
}

fn decoded(endpoint: Endpoint, subject: Option<&str>, payload: &[u8]) -> Result<Request, Refusal> {
    decode(endpoint, subject, payload, || "made-here".to_owned())
}

/// A refusal is sent in a header line and a body, which the client reads.
fn check_answer(refusal: &Refusal) {
    #[derive(serde::Deserialize)]
    struct Body {
        error: Refusal,
    }
    let answer = Answer::refused(refusal);
    for (_, text) in &answer.headers {
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
    let body: Body = serde_json::from_slice(&answer.body).expect("a refusal can be read");
    assert_eq!(body.error, *refusal);
}
