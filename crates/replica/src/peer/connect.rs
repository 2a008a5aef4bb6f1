//! Connections to other replicas. They are made when they are first used, and made again when they break.

use std::collections::BTreeMap;
use std::io;

use ag_auth::PeerTls;
use ag_proto::peer_v1::peer_service_client::PeerServiceClient;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::stream::PeerStream;
use crate::limits;

/// A client of one replica's peer port.
pub(crate) type PeerClient = PeerServiceClient<Channel>;

/// Makes connections to other replicas.
#[derive(Debug)]
pub(crate) struct Connector {
    tls: Option<PeerTls>,
    /// Connections for everything that the consensus does not do itself, by peer address.
    shared: Mutex<BTreeMap<String, PeerClient>>,
}

impl Connector {
    pub fn new(tls: Option<PeerTls>) -> Self {
        Self { tls, shared: Mutex::default() }
    }

    /// The connection to `peer_addr` that all requests of clients and operators share.
    pub fn shared(&self, peer_addr: &str) -> PeerClient {
        let mut shared = self.shared.lock();
        // Addresses are those of members and of candidates for it, so there are few; an old one costs nothing but its
        // row.
        let addr = peer_addr.to_owned();
        shared.entry(addr.clone()).or_insert_with(|| self.own(move || addr.clone())).clone()
    }

    /// A connection of the caller's own, so that nothing else queues before it, to where `peer_addr` says whenever it
    /// is made anew.
    pub fn own(&self, peer_addr: impl Fn() -> String + Send + Sync + 'static) -> PeerClient {
        let tls = self.tls.clone();
        let connect = move |_: Uri| {
            let (addr, tls) = (peer_addr(), tls.clone());
            async move {
                let stream = tokio::time::timeout(limits::CONNECT_TIMEOUT, dial(&addr, tls.as_ref())).await;
                stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(TokioIo::new)
            }
        };
        // The address itself goes to `dial`: not every one that a replica may have is an authority of a URI.
        let channel = Endpoint::from_static("http://peer.ag")
            .http2_keep_alive_interval(limits::KEEPALIVE_INTERVAL)
            .keep_alive_timeout(limits::KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(16 << 20)
            .connect_with_connector_lazy(tower::service_fn(connect));
        PeerClient::new(channel)
            .max_decoding_message_size(limits::PEER_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::PEER_MESSAGE_BYTES_MAX)
    }
}

async fn dial(addr: &str, tls: Option<&PeerTls>) -> io::Result<PeerStream> {
    let stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    match tls {
        None => Ok(PeerStream::Plain(stream)),
        Some(tls) => Ok(PeerStream::Dialled(Box::new(tls.connect(host_of(addr), stream).await?))),
    }
}

/// The host of `host:port`.
fn host_of(addr: &str) -> &str {
    addr.rsplit_once(':').map_or(addr, |(host, _)| host)
}

/// Whether a call failed before anything of it was sent.
pub(crate) fn was_not_sent(status: &tonic::Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}
