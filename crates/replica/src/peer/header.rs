//! Who speaks to whom, in the metadata of each call between replicas: so that no call of another cluster, to a replica
//! that has been replaced, or from a release that cannot take part, is ever heard.

use ag_core::name::{ClusterId, ReplicaId};
use tonic::metadata::{AsciiMetadataKey, MetadataMap};
use tonic::{Request, Status};

use crate::identity::Identity;

const CLUSTER: &str = "ag-peer-cluster";
const FROM: &str = "ag-peer-from";
const TO: &str = "ag-peer-to";
const VERSIONS: &str = "ag-peer-versions";

/// Both sides of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    /// This replica.
    pub from: Identity,
    /// The replica that is meant.
    pub to: ReplicaId,
}

impl Header {
    /// A request with this header.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let (min, max) = (ag_wire::version::CLUSTER_VERSION_MIN, ag_wire::version::CLUSTER_VERSION_MAX);
        let values = [
            (CLUSTER, self.from.cluster_id.to_string()),
            (FROM, self.from.replica_id.to_string()),
            (TO, self.to.to_string()),
            (VERSIONS, format!("{min}-{max}")),
        ];
        for (key, value) in values {
            let value = value.parse().expect("hex digits, decimal digits and `-` are good metadata");
            request.metadata_mut().insert(AsciiMetadataKey::from_static(key), value);
        }
        request
    }
}

/// Refuses a call that is not meant for this replica, or comes from one that cannot take part at `cluster_version`.
/// Gives the caller's id.
pub(crate) fn check(metadata: &MetadataMap, here: Identity, cluster_version: u32) -> Result<ReplicaId, Status> {
    let cluster_id = text(metadata, CLUSTER)?;
    if cluster_id != here.cluster_id.to_string() {
        return Err(refusal(format!("this replica belongs to the cluster {}, not to {cluster_id}", here.cluster_id)));
    }
    let to = number(metadata, TO)?;
    if to != here.replica_id.0 {
        return Err(refusal(format!("this is replica {}, not {to}", here.replica_id)));
    }
    let from = ReplicaId(number(metadata, FROM)?);
    let versions = text(metadata, VERSIONS)?;
    let range = versions.split_once('-').and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
    let Some((min, max)): Option<(u32, u32)> = range else { return Err(malformed(VERSIONS)) };
    if !(min..=max).contains(&cluster_version) {
        return Err(refusal(format!(
            "the cluster is at version {cluster_version}, and replica {from} supports {min} to {max}: install another \
             release there"
        )));
    }
    Ok(from)
}

/// The cluster id of the bytes that a message carries.
pub(crate) fn cluster_id(bytes: &[u8]) -> Option<ClusterId> {
    bytes.try_into().ok().map(ClusterId)
}

fn text<'a>(metadata: &'a MetadataMap, key: &'static str) -> Result<&'a str, Status> {
    metadata.get(key).and_then(|value| value.to_str().ok()).ok_or_else(|| malformed(key))
}

fn number(metadata: &MetadataMap, key: &'static str) -> Result<u64, Status> {
    text(metadata, key)?.parse().map_err(|_| malformed(key))
}

fn malformed(key: &str) -> Status {
    refusal(format!("the metadata `{key}` is missing or malformed"))
}

fn refusal(message: String) -> Status {
    Status::failed_precondition(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Identity = Identity { cluster_id: ClusterId([7; 16]), replica_id: ReplicaId(2) };

    fn call(cluster: u8, to: u64) -> MetadataMap {
        let from = Identity { cluster_id: ClusterId([cluster; 16]), replica_id: ReplicaId(1) };
        Header { from, to: ReplicaId(to) }.request(()).metadata().clone()
    }

    #[test]
    fn a_call_for_this_replica_is_heard() {
        assert_eq!(check(&call(7, 2), HERE, 1).unwrap(), ReplicaId(1));
    }

    #[test]
    fn a_call_of_another_cluster_to_another_replica_or_from_another_version_is_refused() {
        let wrong = [check(&call(8, 2), HERE, 1), check(&call(7, 3), HERE, 1), check(&call(7, 2), HERE, 9)];
        for (result, part) in wrong.into_iter().zip(["cluster", "this is replica 2", "version 9"]) {
            let status = result.unwrap_err();
            assert_eq!(status.code(), tonic::Code::FailedPrecondition);
            assert!(status.message().contains(part), "{status}");
        }
    }

    #[test]
    fn a_call_without_metadata_is_refused() {
        assert!(check(&MetadataMap::new(), HERE, 1).is_err());
    }
}
