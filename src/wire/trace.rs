//! The context of a trace (W3C Trace Context): taken from a report, and handed on with its answer and its events.

use std::fmt::Write;

/// The header that carries the context.
pub const TRACEPARENT: &str = "traceparent";

/// The header that carries what tracing systems add to it.
pub const TRACESTATE: &str = "tracestate";

/// How long `tracestate` may be, in bytes; a longer one is not handed on.
pub const TRACESTATE_BYTES_MAX: usize = 512;

/// At most what both headers take, in bytes.
pub const TRACE_HEADERS_MAX_BYTES: usize = 640;

/// Which trace something belongs to, and which span of ours it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The trace; never all zeros.
    pub trace_id: [u8; 16],
    /// The span of whoever sent the report; never all zeros.
    pub parent_id: [u8; 8],
    /// Our span; never all zeros.
    pub span_id: [u8; 8],
    /// The flags, of which the lowest says whether the trace is recorded.
    pub flags: u8,
    /// What tracing systems add, as it came.
    pub state: Option<String>,
}

impl Trace {
    /// Continues the trace of these headers in the span `span_id`. `None` for what is no `traceparent`, which is as good as
    /// none; a `tracestate` that is too long, or no plain text, is left out.
    pub fn of(traceparent: &str, tracestate: Option<&str>, span_id: [u8; 8]) -> Option<Self> {
        let (version, rest) = traceparent.split_once('-')?;
        let (trace_id, rest) = rest.split_once('-')?;
        let (parent_id, rest) = rest.split_once('-')?;
        let (flags, more) = match rest.split_once('-') {
            Some((flags, _)) => (flags, true),
            None => (rest, false),
        };
        let [version] = bytes(version)?;
        // Later versions may add fields, the first may not; the last never comes.
        if version == 0xff || (version == 0 && more) {
            return None;
        }
        let [flags] = bytes(flags)?;
        let is_handed_on = |state: &&str| {
            let plain = state.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            !state.is_empty() && state.len() <= TRACESTATE_BYTES_MAX && plain
        };
        let trace = Self {
            trace_id: bytes(trace_id)?,
            parent_id: bytes(parent_id)?,
            span_id,
            flags,
            state: tracestate.filter(is_handed_on).map(str::to_owned),
        };
        let is_named = trace.trace_id != [0; 16] && trace.parent_id != [0; 8];
        is_named.then_some(trace)
    }

    /// The same from what a ledger keeps: `traceparent` has our span in it, and nobody knows the sender's any more.
    pub fn stored(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let trace = Self::of(traceparent, tracestate, [0; 8])?;
        Some(Self {
            span_id: trace.parent_id,
            ..trace
        })
    }

    /// The header for those who continue it: our span is their parent.
    pub fn traceparent(&self) -> String {
        let (trace_id, span_id) = (hex(&self.trace_id), hex(&self.span_id));
        // Of the flags only the one that version 00 knows.
        format!("00-{trace_id}-{span_id}-{:02x}", self.flags & 1)
    }

    /// Whether whoever began the trace records it.
    pub fn is_recorded(&self) -> bool {
        self.flags & 1 == 1
    }

    /// The ID of the trace, as it is written everywhere.
    pub fn trace_id_text(&self) -> String {
        hex(&self.trace_id)
    }
}

/// Lower-case hexadecimal digits of exactly so many bytes.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * N || !text.bytes().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // A string takes all that is written to it.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_is_continued_with_our_span_in_place_of_the_senders() {
        let trace = Trace::of(GOOD, Some("vendor=1"), [1; 8]).unwrap();
        assert_eq!(
            trace.traceparent(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0101010101010101-01"
        );
        assert_eq!(trace.state.as_deref(), Some("vendor=1"));
    }

    #[test]
    fn a_later_version_with_more_fields_is_continued_as_the_version_that_is_known() {
        let later = format!("cc{}-more", &GOOD[2..]);
        let trace = Trace::of(&later, None, [1; 8]).unwrap();
        assert!(trace.traceparent().starts_with("00-4bf9"));
    }

    #[test]
    fn what_is_no_context_is_as_good_as_none() {
        for bad in [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-more"),
            &format!("{GOOD}0"),
            &GOOD.to_uppercase(),
            &GOOD.replace("00-4", "ff-4"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473ü-00f067aa0ba902b7-01",
        ] {
            assert_eq!(Trace::of(bad, None, [1; 8]), None, "{bad:?}");
        }
    }

    #[test]
    fn a_state_that_is_too_long_or_no_plain_text_is_left_out_and_the_trace_goes_on() {
        let long = "x".repeat(TRACESTATE_BYTES_MAX + 1);
        for bad in ["", "a\nb", "ü=1", &long] {
            let trace = Trace::of(GOOD, Some(bad), [1; 8]).unwrap();
            assert_eq!(trace.state, None, "{bad:?}");
        }
        let longest = &long[1..];
        let trace = Trace::of(GOOD, Some(longest), [1; 8]).unwrap();
        let headers = TRACEPARENT.len() + TRACESTATE.len() + trace.traceparent().len();
        assert!(headers + longest.len() + "\r\n: \r\n: ".len() <= TRACE_HEADERS_MAX_BYTES);
    }
}
