//! A connection that can be cut, refused, held up and slowed down.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::stage::last;

/// What becomes of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// New ones are closed at once.
    Refuse,
    /// They are taken, and nothing passes: the other side seems to be there.
    Stall,
    /// What passes takes its time.
    Slow,
}

/// How much passes at once when it is slow, and how long that takes.
const SLOW_BYTES: usize = 2048;
const SLOW_TIME: Duration = Duration::from_millis(10);

/// A proxy on the loopback interface.
pub struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
    cuts: watch::Sender<u64>,
}

impl Proxy {
    /// Starts a proxy to a port.
    pub async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mode, modes) = watch::channel(Mode::Pass);
        let (cuts, cut) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *modes.borrow() != Mode::Refuse {
                    tokio::spawn(serve(near, to, modes.clone(), cut.clone()));
                }
            }
        });
        Self { port, mode, cuts }
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Ends all connections that there are.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn serve(
    near: TcpStream,
    to: u16,
    modes: watch::Receiver<Mode>,
    mut cut: watch::Receiver<u64>,
) {
    cut.mark_unchanged();
    let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else {
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    tokio::select! {
        () = pump(near_in, far_out, modes.clone()) => {}
        () = pump(far_in, near_out, modes) => {}
        _ = cut.changed() => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut modes: watch::Receiver<Mode>) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        if modes.wait_for(|mode| *mode != Mode::Stall).await.is_err() {
            return;
        }
        let is_slow = *modes.borrow() == Mode::Slow;
        let most = if is_slow { SLOW_BYTES } else { bytes.len() };
        let Ok(length @ 1..) = from.read(&mut bytes[..most]).await else {
            return;
        };
        // It may have come while nothing may pass.
        if modes.wait_for(|mode| *mode != Mode::Stall).await.is_err() {
            return;
        }
        if is_slow {
            last(SLOW_TIME).await;
        }
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}
