//! A cluster of replicas in one process, over loopback and real files.

#![allow(dead_code, missing_docs)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use std::time::{Duration, Instant};

use ag_core::command::{Actor, ClaimJobs, Command, Enqueue, NewJob, Operation, Start};
use ag_core::name::{Addr, PrincipalName, QueueName, RequestId, WorkerLabel};
use ag_core::outcome::Outcome;
use ag_replica::{Answered, ProposeError, Replica, ReplicaConfig, ReplicaError, Timings};
use tempfile::TempDir;

pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// One replica and its data, running or not.
pub struct Seat {
    pub folder: TempDir,
    pub port: u16,
    pub replica: Option<Replica>,
    pub timings: Timings,
    pub peer_tls: Option<ag_auth::PeerTls>,
}

impl Seat {
    pub fn empty() -> Self {
        let timings = Timings {
            heartbeat: Duration::from_millis(150),
            election_min: Duration::from_millis(600),
            election_max: Duration::from_millis(1_200),
            ..Timings::default()
        };
        Self { folder: tempfile::tempdir().unwrap(), port: free_port(), replica: None, timings, peer_tls: None }
    }

    pub fn peer_addr(&self) -> Addr {
        Addr::parse("peer_addr", &format!("127.0.0.1:{}", self.port)).unwrap()
    }

    pub fn config(&self) -> ReplicaConfig {
        ReplicaConfig {
            data_dir: self.folder.path().to_owned(),
            addr: Addr::parse("addr", &format!("127.0.0.1:{}", self.port + 1)).unwrap(),
            peer_addr: self.peer_addr(),
            peer_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)),
            peer_tls: self.peer_tls.clone(),
            timings: self.timings.clone(),
            fsync: true,
        }
    }

    pub async fn start(&mut self) -> &Replica {
        let replica = self.try_start().await.unwrap();
        self.replica.insert(replica)
    }

    /// Starts, as soon as what ran here before has let go of the data directory and the port.
    pub async fn try_start(&self) -> Result<Replica, ReplicaError> {
        let deadline = deadline();
        loop {
            match Replica::start(self.config()).await {
                Err(ReplicaError::Listen { .. }) if Instant::now() < deadline => {}
                Err(ReplicaError::Store { source, .. })
                    if matches!(*source, ag_store::StoreError::Locked { .. }) && Instant::now() < deadline => {}
                other => return other,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it without handing anything over.
    pub async fn kill(&mut self) {
        if let Some(replica) = self.replica.take() {
            replica.shutdown(Instant::now()).await;
        }
    }

    pub fn get(&self) -> &Replica {
        self.replica.as_ref().unwrap()
    }
}

/// A port that is free now, out of a hundred that are this process's own among tests that run at the same time.
/// Below the range
/// that the system hands out by itself, so that no connection takes it while a replica is down.
fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 200) as u16 * 100;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 100;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

pub struct Cluster {
    pub seats: Vec<Seat>,
}

impl Cluster {
    pub async fn of(count: usize) -> Self {
        Self::with(count, |_| {}).await
    }

    pub async fn with(count: usize, prepare: impl Fn(&mut Seat)) -> Self {
        start_logging();
        let mut seats: Vec<Seat> = (0..count).map(|_| Seat::empty()).collect();
        for seat in &mut seats {
            prepare(seat);
            seat.start().await;
        }
        let peers = seats[1..].iter().map(Seat::peer_addr).collect();
        seats[0].get().init_cluster(admin(), peers, deadline()).await.unwrap();
        Self { seats }
    }

    pub fn running(&self) -> impl Iterator<Item = &Replica> {
        self.seats.iter().filter_map(|seat| seat.replica.as_ref())
    }

    /// The leader that answers, by its place.
    pub async fn leader(&self) -> usize {
        let deadline = deadline();
        loop {
            for (at, seat) in self.seats.iter().enumerate() {
                let Some(replica) = &seat.replica else { continue };
                let until = Instant::now() + Duration::from_millis(500);
                if replica.is_leader() && replica.read_barrier(until).await.is_ok() && replica.is_leader() {
                    return at;
                }
            }
            assert!(Instant::now() < deadline, "no leader");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Proposes at whichever replica leads, until it is answered. The command must bear repetition.
    pub async fn propose(&self, operation: Operation) -> Answered {
        let deadline = deadline();
        loop {
            let leader = self.leader().await;
            let command = Command { actor: admin(), operation: operation.clone() };
            match self.seats[leader].get().propose(command, Instant::now() + Duration::from_secs(5)).await {
                Ok(answered) => return answered,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }

    /// All that run have applied what the leader has, and have the same state.
    pub async fn agree(&self) {
        let deadline = deadline();
        loop {
            let leader = self.leader().await;
            let expected = self.seats[leader].get().read(|state| state.state_hash());
            let mut others = self.running().map(|replica| replica.read(|state| state.state_hash()));
            if others.all(|hash| hash == expected) {
                return;
            }
            assert!(Instant::now() < deadline, "the replicas do not agree");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = deadline();
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "off".into());
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

pub fn admin() -> Actor {
    Actor::Principal(PrincipalName::parse("principal", "tester").unwrap())
}

pub fn queue(name: &str) -> QueueName {
    QueueName::parse("queue", name).unwrap()
}

pub fn request_id(text: &str) -> Option<RequestId> {
    Some(RequestId::parse("request_id", text).unwrap())
}

pub fn new_job(name: &str, payload: &[u8]) -> NewJob {
    NewJob {
        queue: queue(name),
        payload: payload.to_vec(),
        priority: 0,
        start: Start::Now,
        max_attempts: None,
        lease_ms: None,
        dedupe_key: None,
        labels: BTreeMap::new(),
    }
}

pub fn enqueue(name: &str, count: usize) -> Operation {
    Operation::Enqueue(Enqueue { jobs: vec![new_job(name, b"work"); count], request_id: None })
}

pub fn claim_of(name: &str, worker: &str) -> ClaimJobs {
    ClaimJobs {
        queues: vec![queue(name)],
        worker: WorkerLabel::parse("worker", worker).unwrap(),
        lease_ms: None,
        jobs_max: 1,
        request_id: None,
    }
}

pub fn claimed(answer: &Result<Answered, ProposeError>) -> usize {
    match answer {
        Ok(Answered { outcome: Outcome::Claimed(jobs), .. }) => jobs.len(),
        other => panic!("no claim: {other:?}"),
    }
}

pub fn empty_folder(path: &Path) {
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => std::fs::remove_dir_all(entry.path()).unwrap(),
            false => std::fs::remove_file(entry.path()).unwrap(),
        }
    }
}
