//! A replica with its client port, and a small HTTP client.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ag_api::{ApiConfig, ApiServer};
use ag_auth::Authenticator;
use ag_core::command::Actor;
use ag_core::name::Addr;
use ag_replica::{Replica, ReplicaConfig, Timings};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub struct Server {
    pub addr: SocketAddr,
    pub replica: Replica,
    _server: ApiServer,
    _folder: TempDir,
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn reason(&self) -> String {
        self.json()["details"][0]["reason"].as_str().unwrap_or_default().to_owned()
    }

    /// The field that an error names.
    pub fn field(&self) -> String {
        self.json()["details"][0]["metadata"]["field"].as_str().unwrap_or_default().to_owned()
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let prefix = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(&prefix)).map(ToOwned::to_owned)
    }
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(Authenticator::open()).await
    }

    pub async fn start_with(authenticator: Authenticator) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let replica = Replica::start(ReplicaConfig {
            data_dir: folder.path().to_owned(),
            addr: Addr::parse("addr", "127.0.0.1:1").unwrap(),
            peer_addr: Addr::parse("addr", "127.0.0.1:2").unwrap(),
            peer_listen: any,
            peer_tls: None,
            timings: Timings::default(),
            fsync: true,
        });
        let replica = replica.await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        replica.init_cluster(Actor::System, Vec::new(), deadline).await.unwrap();
        replica.read_barrier(deadline).await.unwrap();
        let config = ApiConfig { listen: any, tls: None, authenticator };
        let server = ApiServer::start(config, replica.clone()).await.unwrap();
        Self { addr: server.local_addr(), replica, _server: server, _folder: folder }
    }

    /// A hash of everything that is replicated.
    pub fn state_hash(&self) -> String {
        self.replica.read(|state| format!("{:?}", state.meta().rows))
    }

    pub async fn send(&self, head: &str, body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        let request = format!("{head}host: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(request.as_bytes()).await.unwrap();
        // A server that has refused a large body may close before it has read all of it.
        let _ = stream.write_all(body).await;
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut bytes)).await;
        let _ = read.expect("an answer in time");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub async fn post(&self, path: &str, body: &str) -> Answer {
        self.send(&format!("POST {path} HTTP/1.1\r\ncontent-type: application/json\r\n"), body.as_bytes()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\n"), b"").await
    }
}
