//! A connection to a NATS server, as plain as it can be.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::failure::{During, Failure, Result};
use crate::lines::{self, Item};

/// How much is read at once at most, as long as no message is larger.
const BUFFER_BYTES: usize = 1024 * 1024;

/// The options of this client: answers may have headers, and a request that nobody serves is told so at once.
const CONNECT: &str = concat!(
    r#"CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"#,
    r#""name":"tasklatch-bench","lang":"rust","version":"1","protocol":1}"#,
    "\r\n"
);

/// A connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// What is in the buffer and not yet taken.
    from: usize,
    to: usize,
}

impl Connection {
    /// Connects. From then on no read takes longer than `patience`.
    ///
    /// # Errors
    /// If there is no NATS server.
    pub fn open(server: &str, patience: Duration) -> Result<Self> {
        let stream = TcpStream::connect(server)
            .during(format_args!("connect to the NATS server at {server}"))?;
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(patience)))
            .and_then(|()| stream.set_write_timeout(Some(patience)))
            .during("set up the connection")?;
        let mut connection = Self {
            stream,
            buffer: vec![0; BUFFER_BYTES],
            from: 0,
            to: 0,
        };
        connection.send(CONNECT.as_bytes())?;
        connection.round_trip()?;
        Ok(connection)
    }

    /// Sends all of it.
    ///
    /// # Errors
    /// If the connection is lost.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream
            .write_all(bytes)
            .during("send to the NATS server")
    }

    /// Waits until something has come.
    ///
    /// # Errors
    /// If nothing does, or the connection is lost.
    pub fn receive(&mut self) -> Result<()> {
        self.make_room();
        let bytes = self
            .stream
            .read(&mut self.buffer[self.to..])
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                    Failure::new("nothing comes any more")
                }
                _ => Failure::new(format!("cannot read from the NATS server: {error}")),
            })?;
        if bytes == 0 {
            return Err(Failure::new("the NATS server has closed the connection"));
        }
        self.to += bytes;
        Ok(())
    }

    fn make_room(&mut self) {
        self.buffer.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        if self.to == self.buffer.len() {
            self.buffer.resize(2 * self.to, 0);
        }
    }

    /// The next thing that has come, if all of it has.
    ///
    /// # Errors
    /// If it is not of the NATS protocol.
    pub fn next(&mut self) -> Result<Option<Item<'_>>> {
        match lines::read(&self.buffer[self.from..self.to]) {
            Ok(None) => Ok(None),
            Ok(Some((item, bytes))) => {
                self.from += bytes;
                Ok(Some(item))
            }
            Err(error) => Err(Failure::new(error.to_string())),
        }
    }

    /// Waits until the server has taken all that was sent and has sent all that it had; gives the subject of the first
    /// message that came meanwhile.
    ///
    /// # Errors
    /// If it does not.
    pub fn round_trip(&mut self) -> Result<Option<String>> {
        self.send(b"PING\r\n")?;
        let mut came = None;
        loop {
            while let Some(item) = self.next()? {
                match item {
                    Item::Pong => return Ok(came),
                    Item::Message(message) if came.is_none() => {
                        came = Some(message.subject.escape_ascii().to_string());
                    }
                    Item::Error(words) => return Err(super::refused(words)),
                    _ => {}
                }
            }
            self.receive()?;
        }
    }
}
