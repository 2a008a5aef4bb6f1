//! TLS of the two ports. The peer port and the client port have authorities of their own, so that no certificate of the
//! one side is good for the other.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::pem;

/// A TLS stream of the side that dialled.
pub type ClientTlsStream<S> = tokio_rustls::client::TlsStream<S>;
/// A TLS stream of the side that was dialled.
pub type ServerTlsStream<S> = tokio_rustls::server::TlsStream<S>;

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Why certificates or keys are not taken. Nothing of a key is repeated.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read the {what} file {}", path.display())]
    Read {
        /// What it is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no certificate.
    #[error("the {what} holds no PEM certificate")]
    NoCertificate {
        /// What it is for.
        what: &'static str,
    },
    /// There is no private key.
    #[error("the {what} holds no PEM private key")]
    NoKey {
        /// What it is for.
        what: &'static str,
    },
    /// They do not go together, or are of a kind that is not taken.
    #[error("the {what} cannot be used")]
    Config {
        /// What it is for.
        what: &'static str,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The certificates of the other side cannot be checked with this authority.
    #[error("the peer CA cannot be used")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// TLS between replicas, where both sides show a certificate of the peer authority. Cheap to clone.
#[derive(Clone)]
pub struct PeerTls {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl PeerTls {
    /// From PEM texts: the peer authority's certificates, this replica's chain, its key. The replica's certificate must
    /// be good for serving and for dialling, and bear the host of its advertised peer address.
    pub fn new(ca_pem: &[u8], cert_pem: &[u8], key_pem: &[u8]) -> Result<Self, TlsError> {
        let roots = Arc::new(pem::roots("peer CA", ca_pem)?);
        let what = "peer certificate and key";
        let chain = pem::certificates("peer certificate", cert_pem)?;
        let fail = |source| TlsError::Config { what, source };

        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider());
        let verifier = verifier.build().map_err(TlsError::Verifier)?;
        let server =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(fail)?;
        let server = server.with_client_cert_verifier(verifier);
        let mut server = server.with_single_cert(chain.clone(), pem::key("peer key", key_pem)?).map_err(fail)?;
        server.alpn_protocols = vec![HTTP2.to_vec()];

        let client =
            ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(fail)?;
        let client = client.with_root_certificates(roots);
        let mut client = client.with_client_auth_cert(chain, pem::key("peer key", key_pem)?).map_err(fail)?;
        client.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(Self { server: Arc::new(server), client: Arc::new(client) })
    }

    /// The same from files.
    pub fn from_files(ca: &Path, cert: &Path, key: &Path) -> Result<Self, TlsError> {
        Self::new(&read("peer CA", ca)?, &read("peer certificate", cert)?, &read("peer key", key)?)
    }

    /// Takes TLS connections of other replicas. A caller without a certificate of the peer authority fails.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.server))
    }

    /// Makes a connection to the replica at `host` (without its port) a TLS connection. It must show a certificate of
    /// the peer authority that bears this host.
    pub async fn connect<S>(&self, host: &str, stream: S) -> io::Result<ClientTlsStream<S>>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(bare.to_owned());
        let name =
            name.map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?} is no host name")))?;
        TlsConnector::from(Arc::clone(&self.client)).connect(name, stream).await
    }
}

impl fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerTls(hidden)")
    }
}

/// TLS of the client port, for gRPC and HTTP alike. Cheap to clone.
#[derive(Clone)]
pub struct ServerTls {
    server: Arc<ServerConfig>,
}

impl ServerTls {
    /// From PEM texts: the chain that is shown to clients, and its key.
    pub fn new(cert_pem: &[u8], key_pem: &[u8]) -> Result<Self, TlsError> {
        let what = "server certificate and key";
        let fail = |source| TlsError::Config { what, source };
        let chain = pem::certificates("server certificate", cert_pem)?;
        let server =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(fail)?;
        let server = server.with_no_client_auth();
        let mut server = server.with_single_cert(chain, pem::key("server key", key_pem)?).map_err(fail)?;
        server.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        Ok(Self { server: Arc::new(server) })
    }

    /// The same from files.
    pub fn from_files(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        Self::new(&read("server certificate", cert)?, &read("server key", key)?)
    }

    /// Takes TLS connections of clients.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.server))
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls(hidden)")
    }
}

/// Named at each use: a default of the whole process would depend on what else is linked in.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { what, path: path.into(), source })
}
