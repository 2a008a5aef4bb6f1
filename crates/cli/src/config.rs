//! The configuration of one replica: a TOML file, each key of which can also come from the environment.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::exit::Exit;

/// The configuration of `ag serve`. The variable of a key is `AG_` and the key in capitals.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeConfig {
    /// The data folder.
    pub data: Option<PathBuf>,
    /// Where clients are listened for.
    pub listen: Option<String>,
    /// Where other replicas are listened for.
    pub peer_listen: Option<String>,
    /// Where clients reach this replica, `host:port`; by default `listen`.
    pub advertise: Option<String>,
    /// Where other replicas reach this replica; by default `peer_listen`.
    pub peer_advertise: Option<String>,
    /// The principals file.
    pub principals: Option<PathBuf>,
    /// The client port's certificate chain, PEM.
    pub server_cert: Option<PathBuf>,
    /// Its key.
    pub server_key: Option<PathBuf>,
    /// The authority of the peer port's certificates, PEM.
    pub peer_ca: Option<PathBuf>,
    /// The peer port's certificate chain.
    pub peer_cert: Option<PathBuf>,
    /// Its key.
    pub peer_key: Option<PathBuf>,
    /// Take callers from the network without credentials. In words: `"yes, anyone on the network may do anything"`.
    pub open_to_the_network: Option<String>,
    /// Threads that run tasks; by default one on small machines, else half of the cores.
    pub threads: Option<usize>,
    /// `"off"` loses acknowledged jobs at a power cut; only for showing that it does.
    pub fsync: Option<String>,
    /// After how many entries a snapshot is taken.
    pub snapshot_entries: Option<u64>,
    /// How many entries that are in a snapshot stay in the log.
    pub kept_entries: Option<u64>,
    /// The lowest time without a leader before an election, in milliseconds. The heartbeat is a quarter of it.
    pub election_ms: Option<u64>,
}

/// The variables that tell who and where a replica is, and who may call it.
pub const IDENTITY_KEYS: [&str; 12] = [
    "AG_DATA",
    "AG_LISTEN",
    "AG_PEER_LISTEN",
    "AG_ADVERTISE",
    "AG_PEER_ADVERTISE",
    "AG_PRINCIPALS",
    "AG_SERVER_CERT",
    "AG_SERVER_KEY",
    "AG_PEER_CA",
    "AG_PEER_CERT",
    "AG_PEER_KEY",
    "AG_OPEN_TO_THE_NETWORK",
];

/// What must be written to open a replica to the network without credentials.
pub const OPEN_WORDS: &str = "yes, anyone on the network may do anything";

impl ServeConfig {
    /// Reads the file, if there is one, and the environment over it.
    pub fn read(path: Option<&Path>) -> Result<Self> {
        let mut config = match path {
            None => Self::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| Exit::usage(format!("cannot read {}: {error}", path.display())))?;
                toml::from_str(&text).map_err(|error| Exit::usage(format!("{}: {error}", path.display())))?
            }
        };
        config.overlay(|key| std::env::var(key).ok())?;
        if let Some(folder) = path.and_then(Path::parent) {
            config.anchor(folder);
        }
        Ok(config)
    }

    /// Relative paths of a file are relative to its folder. The data folder is relative to the working directory.
    fn anchor(&mut self, folder: &Path) {
        let files = [
            &mut self.principals,
            &mut self.server_cert,
            &mut self.server_key,
            &mut self.peer_ca,
            &mut self.peer_cert,
            &mut self.peer_key,
        ];
        for path in files.into_iter().flatten() {
            if path.is_relative() {
                *path = folder.join(&*path);
            }
        }
    }

    fn overlay(&mut self, variable: impl Fn(&str) -> Option<String>) -> Result<()> {
        let texts = [
            ("AG_LISTEN", &mut self.listen),
            ("AG_PEER_LISTEN", &mut self.peer_listen),
            ("AG_ADVERTISE", &mut self.advertise),
            ("AG_PEER_ADVERTISE", &mut self.peer_advertise),
            ("AG_OPEN_TO_THE_NETWORK", &mut self.open_to_the_network),
            ("AG_FSYNC", &mut self.fsync),
        ];
        for (key, slot) in texts {
            if let Some(value) = variable(key) {
                *slot = Some(value);
            }
        }
        let paths = [
            ("AG_DATA", &mut self.data),
            ("AG_PRINCIPALS", &mut self.principals),
            ("AG_SERVER_CERT", &mut self.server_cert),
            ("AG_SERVER_KEY", &mut self.server_key),
            ("AG_PEER_CA", &mut self.peer_ca),
            ("AG_PEER_CERT", &mut self.peer_cert),
            ("AG_PEER_KEY", &mut self.peer_key),
        ];
        for (key, slot) in paths {
            if let Some(value) = variable(key) {
                *slot = Some(std::path::absolute(value)?);
            }
        }
        let number = |key: &str| -> Result<Option<u64>> {
            let Some(value) = variable(key) else { return Ok(None) };
            value.parse().map(Some).map_err(|_| Exit::usage(format!("{key}: must be a whole number")))
        };
        self.threads = number("AG_THREADS")?.map(|count| count as usize).or(self.threads);
        self.snapshot_entries = number("AG_SNAPSHOT_ENTRIES")?.or(self.snapshot_entries);
        self.kept_entries = number("AG_KEPT_ENTRIES")?.or(self.kept_entries);
        self.election_ms = number("AG_ELECTION_MS")?.or(self.election_ms);
        Ok(())
    }

    /// The data folder.
    pub fn data(&self) -> Result<&Path> {
        self.data.as_deref().ok_or_else(|| Exit::usage("data: the data folder must be given (or AG_DATA)"))
    }

    /// The two addresses, checked: beyond loopback only with credentials, or with the words.
    pub fn addresses(&self) -> Result<(SocketAddr, SocketAddr)> {
        let parse = |key: &str, text: Option<&str>, default: &str| -> Result<SocketAddr> {
            let text = text.unwrap_or(default);
            text.parse().map_err(|_| Exit::usage(format!("{key}: must be an IP address and a port, is {text:?}")))
        };
        let listen = parse("listen", self.listen.as_deref(), "127.0.0.1:7400")?;
        let default_peer = SocketAddr::new(listen.ip(), listen.port().saturating_add(1_000)).to_string();
        let peer_listen = parse("peer_listen", self.peer_listen.as_deref(), &default_peer)?;
        self.check_exposure(listen, peer_listen)?;
        Ok((listen, peer_listen))
    }

    fn check_exposure(&self, listen: SocketAddr, peer_listen: SocketAddr) -> Result<()> {
        match self.open_to_the_network.as_deref() {
            Some(OPEN_WORDS) => return Ok(()),
            None => {}
            Some(_) => return Err(Exit::usage(format!("open_to_the_network: must be the words {OPEN_WORDS:?}"))),
        }
        let how = format!("or say in words that you want this: open_to_the_network = {OPEN_WORDS:?}");
        if !listen.ip().is_loopback() && self.principals.is_none() {
            let why = "listening beyond loopback without credentials lets anyone on the network do anything";
            return Err(Exit::usage(format!("listen: {why}. Give a principals file (principals = …), {how}")));
        }
        if !listen.ip().is_loopback() && self.server_cert.is_none() {
            let why = "listening beyond loopback without TLS shows bearer tokens to the network";
            return Err(Exit::usage(format!("listen: {why}. Give server_cert and server_key, {how}")));
        }
        if !peer_listen.ip().is_loopback() && self.peer_ca.is_none() {
            let why = "a peer port beyond loopback without mTLS lets anyone on the network rewrite the log";
            return Err(Exit::usage(format!("peer_listen: {why}. Give peer_ca, peer_cert and peer_key, {how}")));
        }
        Ok(())
    }

    /// TLS between replicas.
    pub fn peer_tls(&self) -> Result<Option<ag_auth::PeerTls>> {
        match (&self.peer_ca, &self.peer_cert, &self.peer_key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => {
                ag_auth::PeerTls::from_files(ca, cert, key).map(Some).context("cannot set TLS of the peer port up")
            }
            _ => Err(Exit::usage("peer_ca, peer_cert, peer_key: all three or none")),
        }
    }

    /// TLS for clients.
    pub fn server_tls(&self) -> Result<Option<ag_auth::ServerTls>> {
        match (&self.server_cert, &self.server_key) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => {
                ag_auth::ServerTls::from_files(cert, key).map(Some).context("cannot set TLS of the client port up")
            }
            _ => Err(Exit::usage("server_cert, server_key: both or none")),
        }
    }

    /// Whether the log is synced.
    pub fn fsync(&self) -> Result<bool> {
        match self.fsync.as_deref() {
            None | Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(other) => Err(Exit::usage(format!("fsync: must be \"on\" or \"off\", is {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> ServeConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn beyond_loopback_only_with_credentials_or_the_words() {
        let refused = |text: &str| config(text).addresses().unwrap_err().to_string();
        assert!(refused("listen = '0.0.0.0:7400'\npeer_listen = '127.0.0.1:1'").contains("without credentials"));
        let with_principals = "listen = '0.0.0.0:7400'\npeer_listen = '127.0.0.1:1'\nprincipals = 'p'";
        assert!(refused(with_principals).contains("without TLS"));
        assert!(refused("peer_listen = '10.0.0.1:8400'").contains("without mTLS"));
        assert!(refused("open_to_the_network = 'yes'").contains("must be the words"));
        let open = format!("listen = '0.0.0.0:7400'\nopen_to_the_network = '{OPEN_WORDS}'");
        assert!(config(&open).addresses().is_ok());
        assert!(config("").addresses().is_ok());
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = toml::from_str::<ServeConfig>("lisen = 'x'").unwrap_err().to_string();
        assert!(error.contains("lisen"), "{error}");
    }

    #[test]
    fn the_environment_goes_over_the_file() {
        let mut read = config("listen = '127.0.0.1:1'\nthreads = 3");
        let value = |key: &str| match key {
            "AG_LISTEN" => Some("127.0.0.1:2".to_owned()),
            "AG_THREADS" => Some("4".to_owned()),
            _ => None,
        };
        read.overlay(value).unwrap();
        assert_eq!((read.listen.as_deref(), read.threads), (Some("127.0.0.1:2"), Some(4)));
        assert!(read.overlay(|key| (key == "AG_THREADS").then(|| "x".into())).is_err());
    }
}
