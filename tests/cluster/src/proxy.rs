//! A way to a replica that can be cut: what is on its way then stays there until it is mended.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Listens at one address for each replica, and passes on what comes. Ends when it is dropped.
pub struct Proxy {
    cut: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Passes from each first address on to the second one.
    pub async fn start(ways: &[(SocketAddr, SocketAddr)]) -> Result<Self> {
        let (cut, is_cut) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for (from, to) in ways.iter().copied() {
            let listener = TcpListener::bind(from).await.with_context(|| format!("cannot listen on {from}"))?;
            let is_cut = is_cut.clone();
            tasks.spawn(async move {
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    connections.spawn(connection(stream, to, is_cut.clone()));
                }
            });
        }
        Ok(Self { cut, _tasks: tasks })
    }

    /// From now on nothing gets through, in either direction, and no connection is made or broken.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// What was held up gets through, and everything after it.
    pub fn mend(&self) {
        self.cut.send_replace(false);
    }
}

async fn connection(near: TcpStream, to: SocketAddr, mut is_cut: watch::Receiver<bool>) {
    if is_cut.wait_for(|cut| !cut).await.is_err() {
        return;
    }
    let Ok(far) = TcpStream::connect(to).await else { return };
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    tokio::join!(pass(near_in, far_out, is_cut.clone()), pass(far_in, near_out, is_cut));
}

async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut is_cut: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if is_cut.wait_for(|cut| !cut).await.is_err() || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
