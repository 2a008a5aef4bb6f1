//! Between the consensus' types and our messages. What a peer sends is checked here, never trusted.

use std::collections::{BTreeMap, BTreeSet};

use ag_proto::peer_v1 as peer;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, TransferLeaderRequest};
use openraft::raft::{VoteRequest, VoteResponse};
use openraft::{BasicNode, EntryPayload};

use super::{Entry, EntryBytes, LeaderId, LogId, Membership, TypeConfig, Vote};

/// A message that no replica of this protocol sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message between replicas lacks {0}")]
pub(crate) struct Malformed(pub &'static str);

type Result<T> = std::result::Result<T, Malformed>;

pub(crate) fn log_id(log_id: &LogId) -> peer::LogId {
    peer::LogId { term: log_id.leader_id.term, leader_id: log_id.leader_id.node_id, log_index: log_id.index }
}

pub(crate) fn parse_log_id(message: &peer::LogId) -> LogId {
    LogId::new(LeaderId { term: message.term, node_id: message.leader_id }, message.log_index)
}

fn maybe(log_id_: &Option<LogId>) -> Option<peer::LogId> {
    log_id_.as_ref().map(log_id)
}

fn parse_maybe(message: &Option<peer::LogId>) -> Option<LogId> {
    message.as_ref().map(parse_log_id)
}

pub(crate) fn vote(vote: &Vote) -> peer::Vote {
    peer::Vote { term: vote.leader_id.term, leader_id: vote.leader_id.node_id, committed: vote.committed }
}

pub(crate) fn parse_vote(message: &Option<peer::Vote>) -> Result<Vote> {
    let message = message.as_ref().ok_or(Malformed("its vote"))?;
    Ok(Vote { leader_id: LeaderId { term: message.term, node_id: message.leader_id }, committed: message.committed })
}

pub(crate) fn membership(membership: &Membership) -> peer::Membership {
    let voters = |set: &BTreeSet<u64>| peer::VoterSet { replica_ids: set.iter().copied().collect() };
    let members = membership.nodes();
    peer::Membership {
        voter_sets: membership.get_joint_config().iter().map(voters).collect(),
        members: members
            .map(|(replica_id, node)| peer::MemberAddr { replica_id: *replica_id, peer_addr: node.addr.clone() })
            .collect(),
    }
}

pub(crate) fn parse_membership(message: &peer::Membership) -> Result<Membership> {
    let sets = message.voter_sets.iter().map(|set| set.replica_ids.iter().copied().collect()).collect();
    let members: BTreeMap<u64, BasicNode> =
        message.members.iter().map(|member| (member.replica_id, BasicNode::new(&member.peer_addr))).collect();
    Membership::new(sets, members).map_err(|_| Malformed("the address of a voter, or voters"))
}

fn entry(entry: Entry) -> peer::LogEntry {
    let payload = match entry.payload {
        EntryPayload::Blank => None,
        EntryPayload::Normal(EntryBytes(bytes)) => Some(peer::log_entry::Payload::Commands(bytes)),
        EntryPayload::Membership(body) => Some(peer::log_entry::Payload::Membership(membership(&body))),
    };
    peer::LogEntry { log_id: Some(log_id(&entry.log_id)), payload }
}

fn parse_entry(message: peer::LogEntry) -> Result<Entry> {
    let log_id = parse_maybe(&message.log_id).ok_or(Malformed("an entry's place"))?;
    let payload = match message.payload {
        None => EntryPayload::Blank,
        Some(peer::log_entry::Payload::Commands(bytes)) => EntryPayload::Normal(EntryBytes(bytes)),
        Some(peer::log_entry::Payload::Membership(body)) => EntryPayload::Membership(parse_membership(&body)?),
    };
    Ok(Entry { log_id, payload })
}

pub(crate) fn append_request(request: AppendEntriesRequest<TypeConfig>) -> peer::AppendRequest {
    peer::AppendRequest {
        vote: Some(vote(&request.vote)),
        previous: maybe(&request.prev_log_id),
        leader_commit: maybe(&request.leader_commit),
        entries: request.entries.into_iter().map(entry).collect(),
        shard: 0,
    }
}

/// Entries that do not follow one another would be written over each other: they are refused.
pub(crate) fn parse_append_request(message: peer::AppendRequest) -> Result<AppendEntriesRequest<TypeConfig>> {
    let request = AppendEntriesRequest::<TypeConfig> {
        vote: parse_vote(&message.vote)?,
        prev_log_id: parse_maybe(&message.previous),
        leader_commit: parse_maybe(&message.leader_commit),
        entries: message.entries.into_iter().map(parse_entry).collect::<Result<Vec<_>>>()?,
    };
    let first = request.prev_log_id.as_ref().map_or(0, |log_id| log_id.index + 1);
    for (expected, entry) in (first..).zip(&request.entries) {
        if entry.log_id.index != expected {
            return Err(Malformed("an entry between two others"));
        }
    }
    Ok(request)
}

pub(crate) fn append_response(response: AppendEntriesResponse<TypeConfig>) -> peer::AppendResponse {
    use peer::append_response::Outcome;
    let outcome = match response {
        AppendEntriesResponse::Success => Outcome::Appended(peer::Appended { last: None }),
        AppendEntriesResponse::PartialSuccess(last) => Outcome::PartlyAppended(peer::Appended { last: maybe(&last) }),
        AppendEntriesResponse::Conflict => Outcome::Conflict(peer::LogId::default()),
        AppendEntriesResponse::HigherVote(higher) => Outcome::HigherVote(vote(&higher)),
    };
    peer::AppendResponse { outcome: Some(outcome) }
}

pub(crate) fn parse_append_response(message: &peer::AppendResponse) -> Result<AppendEntriesResponse<TypeConfig>> {
    use peer::append_response::Outcome;
    match message.outcome.as_ref().ok_or(Malformed("how an append went"))? {
        Outcome::Appended(_) => Ok(AppendEntriesResponse::Success),
        Outcome::PartlyAppended(appended) => Ok(AppendEntriesResponse::PartialSuccess(parse_maybe(&appended.last))),
        Outcome::Conflict(_) => Ok(AppendEntriesResponse::Conflict),
        Outcome::HigherVote(higher) => Ok(AppendEntriesResponse::HigherVote(parse_vote(&Some(*higher))?)),
    }
}

/// How one append of a stream went.
pub(crate) type StreamResult = std::result::Result<Option<LogId>, StreamAppendError<TypeConfig>>;

pub(crate) fn stream_response(result: StreamResult) -> peer::AppendResponse {
    use peer::append_response::Outcome;
    let outcome = match result {
        Ok(last) => Outcome::Appended(peer::Appended { last: maybe(&last) }),
        Err(StreamAppendError::Conflict(at)) => Outcome::Conflict(log_id(&at)),
        Err(StreamAppendError::HigherVote(higher)) => Outcome::HigherVote(vote(&higher)),
    };
    peer::AppendResponse { outcome: Some(outcome) }
}

pub(crate) fn parse_stream_response(message: &peer::AppendResponse) -> Result<StreamResult> {
    use peer::append_response::Outcome;
    match message.outcome.as_ref().ok_or(Malformed("how an append went"))? {
        Outcome::Appended(appended) | Outcome::PartlyAppended(appended) => Ok(Ok(parse_maybe(&appended.last))),
        Outcome::Conflict(at) => Ok(Err(StreamAppendError::Conflict(parse_log_id(at)))),
        Outcome::HigherVote(higher) => Ok(Err(StreamAppendError::HigherVote(parse_vote(&Some(*higher))?))),
    }
}

pub(crate) fn vote_request(request: &VoteRequest<TypeConfig>) -> peer::VoteRequest {
    peer::VoteRequest {
        vote: Some(vote(&request.vote)),
        last: maybe(&request.last_log_id),
        leadership_transfer: request.leadership_transfer,
        shard: 0,
    }
}

pub(crate) fn parse_vote_request(message: &peer::VoteRequest) -> Result<VoteRequest<TypeConfig>> {
    let mut request = VoteRequest::new(parse_vote(&message.vote)?, parse_maybe(&message.last));
    request.leadership_transfer = message.leadership_transfer;
    Ok(request)
}

pub(crate) fn vote_response(response: &VoteResponse<TypeConfig>) -> peer::VoteResponse {
    peer::VoteResponse {
        vote: Some(vote(&response.vote)),
        granted: response.vote_granted,
        last: maybe(&response.last_log_id),
    }
}

pub(crate) fn parse_vote_response(message: &peer::VoteResponse) -> Result<VoteResponse<TypeConfig>> {
    Ok(VoteResponse::new(parse_vote(&message.vote)?, parse_maybe(&message.last), message.granted))
}

pub(crate) fn transfer_request(request: &TransferLeaderRequest<TypeConfig>) -> peer::TransferLeaderRequest {
    peer::TransferLeaderRequest {
        from_leader: Some(vote(request.from_leader())),
        to_replica_id: *request.to_node_id(),
        last: request.last_log_id().map(log_id),
        shard: 0,
    }
}

pub(crate) fn parse_transfer_request(
    message: &peer::TransferLeaderRequest,
) -> Result<TransferLeaderRequest<TypeConfig>> {
    let from_leader = parse_vote(&message.from_leader)?;
    Ok(TransferLeaderRequest::new(from_leader, message.to_replica_id, parse_maybe(&message.last)))
}
