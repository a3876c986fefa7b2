//! A connection that can be cut, and whose bytes can be held back.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What of the bytes to the server does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Nothing,
    /// From the first subscription to a request subject on, with all that follows it.
    Subscriptions,
    /// All.
    Everything,
}

/// What a subscription to a request subject begins with on the wire.
const SUBSCRIPTION: &[u8] = b"SUB tasklatch.";

/// A proxy on the loopback interface.
pub struct Proxy {
    port: u16,
    held: watch::Sender<Held>,
    /// Connections from which something is held back now.
    holding: watch::Sender<usize>,
    cuts: watch::Sender<u64>,
}

impl Proxy {
    /// Starts a proxy to a server.
    pub async fn start(server: &str) -> Self {
        let to = server.trim_start_matches("nats://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (held, _) = watch::channel(Held::Nothing);
        let (holding, _) = watch::channel(0);
        let (cuts, _) = watch::channel(0);
        let proxy = Self {
            port,
            held,
            holding,
            cuts,
        };
        let (held, holding, cuts) = (
            proxy.held.clone(),
            proxy.holding.clone(),
            proxy.cuts.clone(),
        );
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (held, holding, mut cut) =
                    (held.subscribe(), holding.clone(), cuts.subscribe());
                let to = to.clone();
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(to).await else {
                        return;
                    };
                    let (near_in, near_out) = near.into_split();
                    let (far_in, far_out) = far.into_split();
                    tokio::select! {
                        () = pass_held(near_in, far_out, held, holding) => {}
                        () = pass(far_in, near_out) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Holds back this from now on, and lets go of what was held before.
    pub fn hold(&self, held: Held) {
        self.held.send_replace(held);
    }

    /// Waits until something is held back.
    pub async fn until_holding(&self) {
        let mut holding = self.holding.subscribe();
        let wait = holding.wait_for(|&holding| holding > 0);
        tokio::time::timeout(super::DEADLINE, wait)
            .await
            .expect("something is held back in time")
            .unwrap();
    }

    /// Ends all connections that there are.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

async fn pass_held(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut held: watch::Receiver<Held>,
    holding: watch::Sender<usize>,
) {
    // The end of what was read before, for a subscription that comes in two parts.
    let mut tail = Vec::new();
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        tail.extend_from_slice(&bytes[..length]);
        let has_subscription = tail
            .windows(SUBSCRIPTION.len())
            .any(|part| part == SUBSCRIPTION);
        tail.drain(..tail.len().saturating_sub(SUBSCRIPTION.len() - 1));
        let passes = |held: &Held| match held {
            Held::Nothing => true,
            Held::Subscriptions => !has_subscription,
            Held::Everything => false,
        };
        if !passes(&held.borrow_and_update()) {
            holding.send_modify(|holding| *holding += 1);
            let released = held.wait_for(passes).await.is_ok();
            holding.send_modify(|holding| *holding -= 1);
            if !released {
                return;
            }
        }
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}
