//! `ag cluster`.

use std::path::PathBuf;
use std::time::Duration;

use ag_client::v1;
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};

use crate::connect::{Connect, duration};
use crate::exit::Exit;
use crate::output;
use crate::progress::Progress;

/// The cluster: its replicas, its leader, its version.
#[derive(Subcommand, Clone, Debug)]
pub enum Cluster {
    /// Make a new cluster of empty replicas: the one that is asked, and those that are named.
    Init {
        /// Peer addresses of the other replicas, `host:port`, separated by commas.
        #[arg(long, value_delimiter = ',')]
        peers: Vec<String>,
    },
    /// Show the cluster.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add an empty replica.
    Add {
        /// Its peer address, `host:port`.
        #[arg(long)]
        peer_addr: String,
        /// Only as a learner, that never votes.
        #[arg(long)]
        learner: bool,
    },
    /// Remove a replica. Its id is never used again.
    Remove {
        /// Its id.
        #[arg(long)]
        replica_id: u64,
    },
    /// Make another voter the leader.
    TransferLeader {
        /// The voter; without it, the one that is furthest ahead.
        #[arg(long, default_value_t = 0)]
        replica_id: u64,
    },
    /// Raise the cluster version, or hold it where it is.
    Version(Version),
    /// Make certificates: an authority for the peer port, one for the client port, and both certificates for each
    /// replica.
    Certs(Certs),
}

/// See [`Cluster::Version`].
#[derive(Args, Clone, Debug)]
pub struct Version {
    /// Raise it to this.
    #[arg(long, default_value_t = 0)]
    raise_to: u32,
    /// Hold it: it is not raised by itself until this is taken back.
    #[arg(long, conflicts_with = "release_hold")]
    hold: bool,
    /// Let it be raised by itself again.
    #[arg(long)]
    release_hold: bool,
}

/// See [`Cluster::Certs`].
#[derive(Args, Clone, Debug)]
pub struct Certs {
    /// The folder for the files.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A replica: a name for its files, `=`, and the hosts under which it is reached, separated by commas; may be given
    /// several times.
    #[arg(long = "replica", value_name = "NAME=HOST,…", required = true)]
    replicas: Vec<String>,
    /// How long the certificates are good.
    #[arg(long, value_parser = duration, default_value = "825d")]
    valid_for: Duration,
}

impl Cluster {
    /// Runs the command.
    pub async fn run(self, connect: &Connect) -> Result<()> {
        if let Self::Certs(certs) = self {
            return certs.run();
        }
        let client = connect.client()?;
        let progress = Progress::start(match &self {
            Self::Add { .. } => "the replica catches up",
            Self::Init { .. } => "the cluster is being made",
            _ => "waiting for the cluster",
        });
        let cluster = match self {
            Self::Init { peers } => client.init_cluster(v1::InitClusterRequest { peer_addrs: peers }).await?,
            Self::Status { json: true } => {
                let cluster = client.get_cluster(v1::GetClusterRequest {}).await?.value;
                drop(progress);
                return output::json("agwp.v1.Cluster", &cluster);
            }
            Self::Status { json: false } => client.get_cluster(v1::GetClusterRequest {}).await?,
            Self::Add { peer_addr, learner } => {
                client.add_replica(v1::AddReplicaRequest { peer_addr, learner }).await?
            }
            Self::Remove { replica_id } => client.remove_replica(v1::RemoveReplicaRequest { replica_id }).await?,
            Self::TransferLeader { replica_id } => {
                client.transfer_leadership(v1::TransferLeadershipRequest { replica_id }).await?
            }
            Self::Version(version) => {
                let hold = match (version.hold, version.release_hold) {
                    (true, _) => Some(true),
                    (false, true) => Some(false),
                    (false, false) => None,
                };
                let request = v1::SetClusterVersionRequest { version: version.raise_to, hold };
                if request.version == 0 && request.hold.is_none() {
                    client.get_cluster(v1::GetClusterRequest {}).await?
                } else {
                    client.set_cluster_version(request).await?
                }
            }
            Self::Certs(_) => return Ok(()),
        };
        drop(progress);
        show(&cluster.value)
    }
}

fn show(cluster: &v1::Cluster) -> Result<()> {
    if cluster.cluster_id.is_empty() {
        return output::line("this replica is in no cluster yet");
    }
    let held = if cluster.version_held { " (held)" } else { "" };
    let leader = cluster.leader.map_or("none".into(), |leader| leader.to_string());
    output::line(&format!(
        "cluster {}  version {}{held}  leader {leader}  term {}",
        cluster.cluster_id, cluster.cluster_version, cluster.term
    ))?;
    let row = |replica: &v1::Replica| {
        let applied = replica.applied_index.map_or("no answer".into(), |index| index.to_string());
        let hash = match replica.state_hash.get(..16) {
            Some(start) => format!("{start}… at {}", replica.state_hash_index),
            None => String::new(),
        };
        let versions = format!("{}–{}", replica.min_version, replica.max_version);
        let role = replica.role().as_str_name().to_lowercase();
        vec![replica.id.to_string(), replica.addr.clone(), role, replica.release.clone(), versions, applied, hash]
    };
    let titles = ["ID", "ADDRESS", "ROLE", "RELEASE", "VERSIONS", "APPLIED", "STATE HASH"];
    output::table(&titles, &cluster.replicas.iter().map(row).collect::<Vec<_>>())
}

impl Certs {
    fn run(self) -> Result<()> {
        let mut replicas = Vec::new();
        for text in &self.replicas {
            let (name, hosts) = text
                .split_once('=')
                .ok_or_else(|| Exit::usage("replica: must be NAME=HOST, and more hosts after commas"))?;
            let hosts = hosts.split(',').map(ToOwned::to_owned).collect();
            replicas.push(ag_auth::certs::ReplicaCerts { name: name.to_owned(), hosts });
        }
        let files =
            ag_auth::certs::make(&self.out, &replicas, self.valid_for).context("cannot make the certificates")?;
        files.iter().try_for_each(|path| output::line(&path.display().to_string()))
    }
}
