//! Calls with a request id: the first answer is kept, and given again.

use super::Decision;
use crate::canonical::{self, Writer};
use crate::change::{Answer, Change, Reply, ReplyKey};
use crate::command::{Actor, ClaimJobs, Complete, Context, Enqueue};
use crate::digest::Digest;
use crate::limits;
use crate::name::RequestId;
use crate::outcome::Replayed;
use crate::rejection::Rejection;
use crate::state::State;

/// Whether a call was answered before.
pub(crate) enum Recall {
    /// It was.
    Replayed(Replayed),
    /// It was not. With `Some`, its answer is to be remembered.
    New(Option<Call>),
}

/// A call with a request id.
pub(crate) struct Call {
    reply_key: ReplyKey,
    content: [u8; 16],
}

/// See [`Recall`]. The error is a refusal because of the request id.
pub(crate) fn recall_enqueue(state: &State, actor: &Actor, enqueue: &Enqueue) -> Result<Recall, Rejection> {
    recall(state, actor, enqueue.request_id.as_ref(), || vec![canonical::enqueue(enqueue)])
}

/// See [`recall_enqueue`].
pub(crate) fn recall_claim(state: &State, actor: &Actor, claim: &ClaimJobs) -> Result<Recall, Rejection> {
    recall(state, actor, claim.request_id.as_ref(), || vec![canonical::claim(claim)])
}

/// See [`recall_enqueue`]. The first call may have been applied below the fence's cluster version, without its token.
pub(crate) fn recall_complete(state: &State, actor: &Actor, complete: &Complete) -> Result<Recall, Rejection> {
    let recalled = recall(state, actor, complete.request_id.as_ref(), || match complete.fencing_token {
        None => vec![canonical::complete(complete)],
        Some(_) => {
            let unfenced = Complete { fencing_token: None, ..complete.clone() };
            vec![canonical::complete(complete), canonical::complete(&unfenced)]
        }
    });
    recalled.map(|recall| match recall {
        Recall::Replayed(replayed) => {
            let fenced = complete.fencing_token.is_some() && replayed.fenced;
            Recall::Replayed(Replayed { fenced, ..replayed })
        }
        new @ Recall::New(_) => new,
    })
}

fn recall(
    state: &State,
    actor: &Actor,
    request_id: Option<&RequestId>,
    contents: impl FnOnce() -> Vec<Vec<u8>>,
) -> Result<Recall, Rejection> {
    let Some(request_id) = request_id else { return Ok(Recall::New(None)) };
    let reply_key = ReplyKey(first_half(&caller_and_request(actor, request_id)));
    // What is asked, and in what other words it may have been asked before.
    let contents: Vec<_> = contents().iter().map(|content| first_half(content)).collect();
    let content = contents.first().copied().unwrap_or_default();
    match state.replies.get(&reply_key) {
        Some(reply) if !contents.contains(&reply.content) => Err(Rejection::RequestIdReused),
        Some(reply) => {
            let Reply { applied_at, content: before, .. } = *reply;
            Ok(Recall::Replayed(Replayed { reply_key, applied_at, fenced: before == content }))
        }
        None => room_for_one_more(state.replies.len()).map(|()| Recall::New(Some(Call { reply_key, content }))),
    }
}

/// Whether one more reply may be kept beside this many.
fn room_for_one_more(replies: usize) -> Result<(), Rejection> {
    if replies < limits::REPLIES_MAX {
        return Ok(());
    }
    Err(Rejection::TooManyReplies { max: limits::REPLIES_MAX as u64 })
}

fn caller_and_request(actor: &Actor, request_id: &RequestId) -> Vec<u8> {
    let mut w = Writer::of("call");
    match actor {
        Actor::System => {}
        Actor::Principal(principal) => w.always(1, principal.as_str().as_bytes()),
    }
    w.always(2, request_id.as_str().as_bytes());
    w.bytes
}

fn first_half(bytes: &[u8]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&Digest::of(bytes).0[..16]);
    half
}

/// Remembers the first answer to a call.
pub(crate) fn remember(state: &State, context: Context, call: Call, answer: Answer) -> Decision<()> {
    let reply = Reply {
        reply_key: call.reply_key,
        content: call.content,
        applied_at: context,
        answered_at: state.meta().lease_now,
        reply_number: state.meta().reply_number + 1,
    };
    Decision { value: (), changes: vec![Change::PutReply { reply, answer }], event: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the count alone: ten million replies would take gigabytes.
    #[test]
    fn the_last_reply_that_fits_is_kept_and_the_next_call_is_refused() {
        assert_eq!(room_for_one_more(limits::REPLIES_MAX - 1), Ok(()));
        let refused = Err(Rejection::TooManyReplies { max: 10_000_000 });
        assert_eq!(room_for_one_more(limits::REPLIES_MAX), refused);
        assert_eq!(room_for_one_more(limits::REPLIES_MAX + 1), refused);
    }
}
