//! The peer port.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ag_auth::PeerTls;
use ag_proto::peer_v1::peer_service_server::PeerServiceServer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use super::service::PeerHandler;
use super::stream::{PeerStream, UntilStopped};
use crate::error::ReplicaError;
use crate::limits;

/// How long to wait after a connection could not be taken, since the cause is likely a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Opens the port.
pub(crate) async fn bind(listen: SocketAddr) -> Result<TcpListener, ReplicaError> {
    let opened = TcpListener::bind(listen).await;
    opened.map_err(|source| ReplicaError::Listen { listen, source: Arc::new(source) })
}

/// When the port closes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closing {
    /// No connections or calls are taken any more; calls on their way go on.
    pub drain: CancellationToken,
    /// All connections break.
    pub stop: CancellationToken,
}

/// Serves peers until it is drained or stopped.
pub(crate) async fn serve(listener: TcpListener, tls: Option<PeerTls>, handler: PeerHandler, closing: Closing) {
    let Closing { drain, stop } = closing;
    let (taken, streams) = mpsc::channel(64);
    tokio::spawn(accept(listener, tls, taken, drain.clone()));
    let broken = stop.clone();
    let streams = ReceiverStream::new(streams).map(move |stream| UntilStopped::new(stream, broken.clone()));
    let service = PeerServiceServer::new(handler)
        .max_decoding_message_size(limits::PEER_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(limits::PEER_MESSAGE_BYTES_MAX);
    let served = Server::builder()
        .max_concurrent_streams(limits::PEER_STREAMS_MAX)
        .http2_keepalive_interval(Some(limits::KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(limits::KEEPALIVE_TIMEOUT))
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
        .add_service(service)
        .serve_with_incoming_shutdown(streams.map(Ok::<_, Infallible>), drain.cancelled_owned());
    tokio::select! {
        () = stop.cancelled() => {}
        result = served => {
            if let Err(error) = result {
                tracing::error!(%error, "the peer port has stopped");
            }
        }
    }
}

async fn accept(listener: TcpListener, tls: Option<PeerTls>, taken: mpsc::Sender<PeerStream>, stop: CancellationToken) {
    let handshakes = Arc::new(Semaphore::new(limits::PEER_HANDSHAKES_MAX));
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection on the peer port");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let Ok(permit) = Arc::clone(&handshakes).try_acquire_owned() else { continue };
        let (tls, taken) = (tls.clone(), taken.clone());
        tokio::spawn(async move {
            let _permit = permit;
            if let Ok(Some(stream)) = tokio::time::timeout(limits::CONNECT_TIMEOUT, shake_hands(stream, tls)).await {
                // Nobody takes it any more while the port is closed.
                let _ = taken.send(stream).await;
            }
        });
    }
}

async fn shake_hands(stream: TcpStream, tls: Option<PeerTls>) -> Option<PeerStream> {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection on the peer port was gone at once");
        return None;
    }
    let Some(tls) = tls else { return Some(PeerStream::Plain(stream)) };
    match tls.acceptor().accept(stream).await {
        Ok(stream) => Some(PeerStream::Accepted(Box::new(stream))),
        Err(error) => {
            tracing::warn!(%error, "a caller on the peer port was refused: its certificate does not do");
            None
        }
    }
}
