//! Numbers for operators, in the Prometheus text format.

use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ag_core::rejection::Rejection;
use ag_replica::Replica;
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::failure::Verb;
use crate::limits::METRICS_QUEUES_MAX;
use crate::method::Method;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: &'static str,
    form: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    verb: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    queue: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerLabels {
    replica_id: u64,
}

/// Counters of this process, and gauges that are read off the replica when they are asked for.
pub struct Metrics {
    registry: Registry,
    calls: Family<CallLabels, Counter>,
    seconds: Family<MethodLabels, Histogram, fn() -> Histogram>,
    refusals: Family<RefusalLabels, Counter>,
    queues: Family<QueueLabels, Gauge<u64, AtomicU64>>,
    lag: Family<PeerLabels, Gauge<u64, AtomicU64>>,
    gauges: Vec<(&'static str, Gauge<u64, AtomicU64>)>,
}

const GAUGES: [(&str, &str); 16] = [
    ("ag_replica_is_leader", "1 if this replica leads, as far as it knows"),
    ("ag_replica_is_ready", "1 if this replica may serve"),
    ("ag_replica_id", "The id of this replica; 0 outside a cluster"),
    ("ag_raft_term", "The current term"),
    ("ag_raft_leader_id", "The leader's replica id; 0 while there is none"),
    ("ag_raft_last_log_index", "The last index of the log"),
    ("ag_raft_committed_index", "The last committed index"),
    ("ag_raft_applied_index", "The last applied index"),
    ("ag_raft_snapshot_index", "The last index of the newest snapshot"),
    ("ag_cluster_version", "The cluster version"),
    ("ag_jobs", "Jobs, finished ones included"),
    ("ag_claims_held", "Claims whose lease has not run out"),
    ("ag_claims_waiting", "Claims that wait for jobs on this replica"),
    ("ag_commands_queued", "Commands that wait to be proposed"),
    ("ag_replies_kept", "Answers that are kept for calls with a request id"),
    ("process_resident_memory_bytes", "Resident memory of the process"),
];

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let calls = Family::default();
        registry.register("ag_calls", "Calls by method, form and code", calls.clone());
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_5, 2.0, 18));
        let seconds = Family::new_with_constructor(histogram);
        registry.register("ag_call_seconds", "How long calls took; claims wait for jobs", seconds.clone());
        let refusals = Family::default();
        registry.register("ag_refusals", "Refusals by the state machine, by verb and reason", refusals.clone());
        let queues = Family::default();
        registry.register("ag_queue_jobs", "Jobs by queue and state", queues.clone());
        let lag = Family::default();
        registry.register("ag_raft_lag_entries", "Entries by which a replica is behind the leader", lag.clone());
        let build = Family::<BuildLabels, Gauge<u64, AtomicU64>>::default();
        build.get_or_create(&BuildLabels { release: ag_wire::version::RELEASE }).set(1);
        registry.register("ag_build_info", "This release", build);
        let gauges = GAUGES.map(|(name, help)| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            (name, gauge)
        });
        Self { registry, calls, seconds, refusals, queues, lag, gauges: gauges.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    release: &'static str,
}

impl Metrics {
    /// A call was answered.
    pub fn called(&self, method: Method, form: &'static str, code: &'static str, took: Duration) {
        self.calls.get_or_create(&CallLabels { method: method.name(), form, code }).inc();
        self.seconds.get_or_create(&MethodLabels { method: method.name() }).observe(took.as_secs_f64());
    }

    /// The state machine refused.
    pub fn refused(&self, verb: Verb, rejection: &Rejection) {
        self.refusals.get_or_create(&RefusalLabels { verb: verb.name(), reason: rejection.reason() }).inc();
    }

    /// All numbers as text.
    pub fn text(&self, replica: &Replica) -> String {
        self.read(replica);
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            let _ = writeln!(text, "# cannot be encoded");
        }
        text
    }

    fn read(&self, replica: &Replica) {
        let metrics = replica.metrics();
        let (queues, jobs, held, replies, cluster_version) = replica.read(|state| {
            let names = state.queues_after(None).take(METRICS_QUEUES_MAX);
            let queues: Vec<_> = names.filter_map(|name| Some((name.to_string(), state.queue(name)?.1))).collect();
            let meta = state.meta();
            (queues, state.job_count(), state.held_claim_count(), state.reply_count(), meta.cluster_version)
        });
        let values = [
            u64::from(metrics.is_leader),
            u64::from(replica.is_ready()),
            metrics.replica_id.map_or(0, |replica_id| replica_id.0),
            metrics.term,
            metrics.leader.map_or(0, |leader| leader.0),
            metrics.last_log_index.unwrap_or(0),
            metrics.committed_index.unwrap_or(0),
            metrics.applied_index.unwrap_or(0),
            metrics.snapshot_index.unwrap_or(0),
            cluster_version.into(),
            jobs as u64,
            held as u64,
            metrics.waiting_claims as u64,
            metrics.queued_commands as u64,
            replies as u64,
            resident_bytes().unwrap_or(0),
        ];
        for ((_, gauge), value) in self.gauges.iter().zip(values) {
            gauge.set(value);
        }
        self.lag.clear();
        for (replica_id, lag) in metrics.lag {
            self.lag.get_or_create(&PeerLabels { replica_id: replica_id.0 }).set(lag);
        }
        self.queues.clear();
        for (queue, counts) in queues {
            let states = [
                ("scheduled", counts.scheduled),
                ("ready", counts.ready),
                ("claimed", counts.claimed),
                ("lapsed", counts.lapsed),
                ("completed", counts.completed),
                ("dead", counts.dead),
                ("cancelled", counts.cancelled),
            ];
            for (state, count) in states {
                self.queues.get_or_create(&QueueLabels { queue: queue.clone(), state }).set(count);
            }
        }
    }
}

/// Resident memory, where the system tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}
