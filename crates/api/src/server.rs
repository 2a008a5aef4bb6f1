//! The client port: gRPC and HTTP/JSON on one listener, with every limit set.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ag_auth::{Authenticator, ServerTls};
use ag_replica::Replica;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::front::Front;
use crate::limits;
use crate::metrics::Metrics;
use crate::router;

/// What a server is told when it starts.
pub struct ApiConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// TLS for clients; `None`: none.
    pub tls: Option<ServerTls>,
    /// Who may call.
    pub authenticator: Authenticator,
}

/// The client port of a replica, open until it is shut down.
pub struct ApiServer {
    local_addr: SocketAddr,
    draining: CancellationToken,
    stop: CancellationToken,
    accepting: tokio::task::JoinHandle<GracefulShutdown>,
}

impl ApiServer {
    /// Opens the client port.
    pub async fn start(config: ApiConfig, replica: Replica) -> io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let local_addr = listener.local_addr()?;
        let (draining, stop) = (CancellationToken::new(), CancellationToken::new());
        let metrics = Arc::new(Metrics::default());
        let authenticator = Arc::new(config.authenticator);
        let front = Arc::new(Front::new(replica, authenticator, metrics, draining.clone()));
        let router = router::router(front, draining.clone()).await;
        let accepting = tokio::spawn(accept(listener, config.tls, router, stop.clone()));
        Ok(Self { local_addr, draining, stop, accepting })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Says that this replica is not ready any more, ends long polls, takes no new connections, and waits for calls
    /// that run, until `deadline`.
    pub async fn shutdown(self, deadline: Instant) {
        self.draining.cancel();
        self.stop.cancel();
        let Ok(graceful) = self.accepting.await else { return };
        if tokio::time::timeout_at(deadline.into(), graceful.shutdown()).await.is_err() {
            tracing::warn!("calls were still running at the end of the shutdown");
        }
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<ServerTls>,
    router: Router,
    stop: CancellationToken,
) -> GracefulShutdown {
    let graceful = GracefulShutdown::new();
    let connections = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
    let handshakes = Arc::new(Semaphore::new(limits::HANDSHAKES_MAX));
    let tls = tls.map(Arc::new);
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return graceful,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Such as too many open files: nothing that trying again at once would help.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let Ok(place) = Arc::clone(&connections).try_acquire_owned() else {
            tracing::warn!(limit = limits::CONNECTIONS_MAX, "too many connections: one was closed");
            continue;
        };
        let watcher = graceful.watcher();
        let (router, tls, handshakes) = (router.clone(), tls.clone(), Arc::clone(&handshakes));
        tokio::spawn(async move {
            let _place = place;
            serve(stream, tls, handshakes, router, watcher).await;
        });
    }
}

async fn serve(
    stream: TcpStream,
    tls: Option<Arc<ServerTls>>,
    handshakes: Arc<Semaphore>,
    router: Router,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let _ = stream.set_nodelay(true);
    let builder = builder();
    let service = TowerToHyperService::new(router);
    let outcome = match tls {
        None => watcher.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned()).await,
        Some(tls) => {
            let Ok(place) = handshakes.acquire().await else { return };
            let handshake = tokio::time::timeout(limits::HANDSHAKE_TIMEOUT, tls.acceptor().accept(stream)).await;
            drop(place);
            match handshake {
                Ok(Ok(stream)) => {
                    watcher.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned()).await
                }
                Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => return tracing::debug!("a TLS handshake took too long"),
            }
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits::HEADER_TIMEOUT).max_headers(64);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits::STREAMS_MAX)
        .max_header_list_size(limits::HEADER_LIST_BYTES_MAX)
        .max_pending_accept_reset_streams(limits::PENDING_RESETS_MAX)
        .keep_alive_interval(limits::KEEPALIVE_INTERVAL)
        .keep_alive_timeout(limits::KEEPALIVE_TIMEOUT);
    builder
}
