//! What a NATS server sends to a client, read from the front of a buffer.

/// One thing that the server said.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'b> {
    /// `MSG` or `HMSG`.
    Message(Message<'b>),
    /// It wants a `PONG`.
    Ping,
    /// It has taken all that was sent before the `PING`.
    Pong,
    /// `-ERR` and its words.
    Error(&'b [u8]),
    /// `INFO` or `+OK`.
    Other,
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub struct Message<'b> {
    /// Where it was published.
    pub subject: &'b [u8],
    /// The block of headers with its version line; empty if there is none.
    pub headers: &'b [u8],
    /// The content.
    pub payload: &'b [u8],
}

/// The buffer does not begin with what a NATS server sends.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent a line that is not of the NATS protocol: {0:?}")]
pub struct NotNats(String);

const LINE_END: &[u8] = b"\r\n";

/// Reads one item and how many bytes it takes; `None` while the buffer does not hold all of it.
///
/// # Errors
/// If the buffer begins with something else.
pub fn read(buffer: &[u8]) -> Result<Option<(Item<'_>, usize)>, NotNats> {
    let Some(line_bytes) = buffer.windows(2).position(|pair| pair == LINE_END) else {
        return Ok(None);
    };
    let (line, rest) = (&buffer[..line_bytes], &buffer[line_bytes + 2..]);
    let wrong = || NotNats(String::from_utf8_lossy(&line[..line.len().min(100)]).into_owned());
    let (word, arguments) = split_word(line);
    let item = match word {
        b"MSG" => return message(arguments, false, rest, line_bytes + 2).ok_or_else(wrong),
        b"HMSG" => return message(arguments, true, rest, line_bytes + 2).ok_or_else(wrong),
        b"PING" => Item::Ping,
        b"PONG" => Item::Pong,
        b"-ERR" => Item::Error(arguments),
        b"INFO" | b"+OK" => Item::Other,
        _ => return Err(wrong()),
    };
    Ok(Some((item, line_bytes + 2)))
}

/// `Some(None)` while the payload is not all there, `None` if the arguments are not those of a message.
fn message<'b>(
    arguments: &'b [u8],
    with_headers: bool,
    rest: &'b [u8],
    line_bytes: usize,
) -> Option<Option<(Item<'b>, usize)>> {
    let mut words = arguments
        .split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty());
    let (subject, _subscription) = (words.next()?, words.next()?);
    let mut last = None;
    let mut before_last = None;
    for word in words {
        before_last = last.replace(word);
    }
    let total = number(last?)?;
    let headers = if with_headers {
        number(before_last?)?
    } else {
        0
    };
    if headers > total {
        return None;
    }
    if rest.len() < total + LINE_END.len() {
        return Some(None);
    }
    if &rest[total..total + LINE_END.len()] != LINE_END {
        return None;
    }
    let message = Message {
        subject,
        headers: &rest[..headers],
        payload: &rest[headers..total],
    };
    Some(Some((
        Item::Message(message),
        line_bytes + total + LINE_END.len(),
    )))
}

fn split_word(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|&byte| byte == b' ') {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (line, &[]),
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    str::from_utf8(digits).ok()?.parse().ok()
}

impl Message<'_> {
    /// The status of a message that the server made itself, such as 503 for no responders.
    pub fn status(&self) -> Option<&[u8]> {
        let line = self.headers.split(|&byte| byte == b'\r').next()?;
        let (_, status) = split_word(line);
        (!status.is_empty()).then_some(status)
    }

    /// The value of a header, by its name as it is sent.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let mut lines = self.headers.split(|&byte| byte == b'\n').skip(1);
        lines.find_map(|line| {
            let value = line.strip_prefix(name.as_bytes())?.strip_prefix(b":")?;
            Some(value.trim_ascii())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: &[u8] = b"INFO {\"version\":\"2\"}\r\n+OK\r\nPING\r\nMSG a.b 1 5\r\nhe\r\no\r\nMSG a.b 1 reply.to 0\r\n\r\n\
        HMSG _INBOX.x.7 1 46 48\r\nNATS/1.0\r\nTasklatch-Outcome: accepted\r\nA:1\r\n\r\n{}\r\nHMSG c 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\nPONG\r\n-ERR 'no'\r\n";

    /// Each item in a few words.
    fn told(item: &Item<'_>) -> String {
        match item {
            Item::Message(message) => format!(
                "{} {:?} {:?} {:?}",
                message.subject.escape_ascii(),
                message.payload.escape_ascii().to_string(),
                message
                    .header("Tasklatch-Outcome")
                    .map(|value| value.escape_ascii().to_string()),
                message
                    .status()
                    .map(|status| status.escape_ascii().to_string()),
            ),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn items_fed_byte_by_byte_come_out_whole() {
        let mut buffer = Vec::new();
        let mut items = Vec::new();
        for &byte in SENT {
            buffer.push(byte);
            while let Some((item, bytes)) = read(&buffer).unwrap() {
                items.push(told(&item));
                buffer.drain(..bytes);
            }
        }
        assert_eq!(
            items,
            [
                "Other",
                "Other",
                "Ping",
                r#"a.b "he\\r\\no" None None"#,
                r#"a.b "" None None"#,
                r#"_INBOX.x.7 "{}" Some("accepted") None"#,
                r#"c "" None Some("503")"#,
                "Pong",
                &told(&Item::Error(b"'no'")),
            ]
        );
        assert!(buffer.is_empty());
    }

    #[test]
    fn what_is_not_nats_is_refused() {
        for text in [
            "HTTP/1.1 200 OK\r\n",
            "MSG a 1\r\n",
            "MSG a 1 1\r\nabc\r\n",
            "HMSG a 1 9 3\r\n",
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
