//! Telling the cluster how a claim ended. Nothing is sent once the claim may be lost, and no call outlasts the claim.

use std::time::Duration;

use ag_client::{Answer, Claim, Client, ClientError, Code, v1};

use crate::convert;
use crate::fence;
use crate::lease::Slot;

/// Longest time for one call, after which it is sent again if that is safe.
const CALL_MAX: Duration = Duration::from_secs(10);
/// Longest reason that the service takes, in bytes.
const REASON_BYTES_MAX: usize = 16 << 10;

/// What became of a report.
pub(crate) enum Taken {
    /// The service took it.
    Yes,
    /// The claim is not this worker's any more.
    Lost(String),
    /// Nobody knows.
    Unknown(String),
}

/// Completes the job; repeated with its one request id for as long as the claim is held.
pub(crate) async fn complete(
    client: &Client,
    slot: &Slot,
    claim: &Claim,
    mut request: v1::CompleteJobRequest,
) -> Taken {
    request.request_id = ag_client::new_request_id();
    let send = |client: Client| {
        let request = request.clone();
        async move { client.complete_job(claim, request).await }
    };
    until_taken(client, slot, true, send).await
}

/// Reports a failure. A report that may have been taken is not sent again: where nothing is fenced, the job may by then
/// be claimed anew under the same label, and the second report would end that claim.
pub(crate) async fn fail(client: &Client, slot: &Slot, claim: &Claim, request: v1::FailJobRequest) -> Taken {
    let send = |client: Client| {
        let mut request = request.clone();
        request.reason = cut(&request.reason);
        async move { client.fail_job(claim, request).await }
    };
    until_taken(client, slot, false, send).await
}

/// Gives the claim back.
pub(crate) async fn release(client: &Client, slot: &Slot, claim: &Claim) -> Taken {
    let send = |client: Client| async move { client.release_job(claim).await };
    until_taken(client, slot, true, send).await
}

async fn until_taken<F>(client: &Client, slot: &Slot, repeat_unknown: bool, send: impl Fn(Client) -> F) -> Taken
where
    F: Future<Output = Result<Answer<v1::Job>, ClientError>>,
{
    slot.finishing();
    let mut sent_before = None;
    loop {
        let remaining = match slot.remaining() {
            Ok(remaining) => remaining,
            // The clock has decided. What was sent before may still have been taken.
            Err(reason) => return sent_before.map_or(Taken::Lost(reason), Taken::Unknown),
        };
        let client = client.with_deadline(remaining.clamp(Duration::from_millis(1), CALL_MAX));
        let error = match send(client).await {
            Ok(answer) => {
                fence::told(answer.value.fenced);
                return Taken::Yes;
            }
            Err(error) => error,
        };
        match error.code() {
            Code::NotFound | Code::FailedPrecondition => {
                return Taken::Lost(format!("its report was refused: {error}"));
            }
            _ if error.is_unknown() && !repeat_unknown => return Taken::Unknown(error.to_string()),
            _ if error.is_unknown() => sent_before = Some(error.to_string()),
            _ if error.is_not_proposed() || error.code() == Code::ResourceExhausted => {}
            _ => return Taken::Unknown(format!("its report was not taken: {error}")),
        }
        tracing::warn!(%error, "a claim's end could not be reported; trying again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Cuts a reason to what the service takes, at a character's end.
fn cut(reason: &str) -> String {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}

/// A failure report of this claim.
pub(crate) fn failure(job: &v1::Job, reason: &str, backoff: Duration) -> v1::FailJobRequest {
    let charged = job.attempts.saturating_sub(job.releases).max(1);
    let pause = backoff.saturating_mul(1 << (charged - 1).min(20)).min(backoff.max(Duration::from_secs(300)));
    v1::FailJobRequest {
        reason: reason.into(),
        retry_after: convert::duration(pause).filter(|_| !pause.is_zero()),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = "x".repeat(REASON_BYTES_MAX - 1) + "é";
        assert_eq!(cut(&long), "x".repeat(REASON_BYTES_MAX - 1));
        let fits = "x".repeat(REASON_BYTES_MAX - 2) + "é";
        assert_eq!(cut(&fits), fits);
    }

    #[test]
    fn retries_are_put_off_twice_as_long_each_time_up_to_a_bound() {
        let pause = |attempts, releases, backoff| {
            let job = v1::Job { attempts, releases, ..Default::default() };
            failure(&job, "", backoff).retry_after.map(|pause| pause.seconds)
        };
        let second = Duration::from_secs(1);
        assert_eq!([1, 2, 3, 9].map(|attempts| pause(attempts, 0, second)), [1, 2, 4, 256].map(Some));
        assert_eq!([10, 1_000_000].map(|attempts| pause(attempts, 0, second)), [300, 300].map(Some));
        assert_eq!(pause(5, 4, second), Some(1), "claims that were given back do not count");
        assert_eq!(pause(5, 0, Duration::ZERO), None);
        assert_eq!(pause(5, 0, Duration::from_secs(3_600)), Some(3_600), "a longer one is kept as it is");
    }
}
