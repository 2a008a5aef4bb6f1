//! Claims, as the calls on them name them: never without the claim's number by accident.

use ag_proto::v1;

use crate::answer::Answer;
use crate::call::Client;
use crate::error::ClientError;

/// A claim that this caller holds. Its number, the fencing token, goes with every call on it, so that no call of an
/// older claim is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    job_id: String,
    worker: String,
    fencing_token: u64,
}

impl Claim {
    /// The claim in the answer of a claim call that `worker` made: its number is the job's `attempts`. `None` if `job`
    /// was never claimed.
    pub fn of(job: &v1::Job, worker: &str) -> Option<Self> {
        let fencing_token = u64::from(job.attempts);
        (fencing_token > 0).then(|| Self { job_id: job.job_id.clone(), worker: worker.to_owned(), fencing_token })
    }

    /// A claim by its holder's name alone, as before fencing tokens: a call of an older claim under the same name is
    /// taken for one of the newest. Queues that require fencing tokens refuse its calls.
    pub fn unfenced(job_id: &str, worker: &str) -> Self {
        Self { job_id: job_id.to_owned(), worker: worker.to_owned(), fencing_token: 0 }
    }

    /// The claimed job.
    pub fn job_id(&self) -> &str {
        &self.job_id
    }

    /// The label under which it was claimed.
    pub fn worker(&self) -> &str {
        &self.worker
    }

    /// The claim's number; 0 if it is [unfenced](Self::unfenced).
    pub fn fencing_token(&self) -> u64 {
        self.fencing_token
    }

    /// The entry of a heartbeat: `request` about this claim.
    pub fn heartbeat(&self, request: v1::HeartbeatJobRequest) -> v1::HeartbeatJobRequest {
        let (job_id, worker, fencing_token) = self.parts();
        v1::HeartbeatJobRequest { job_id, worker, fencing_token, ..request }
    }

    /// The entry of a completion: `request` about this claim.
    pub fn completion(&self, request: v1::CompleteJobRequest) -> v1::CompleteJobRequest {
        let (job_id, worker, fencing_token) = self.parts();
        v1::CompleteJobRequest { job_id, worker, fencing_token, ..request }
    }

    fn parts(&self) -> (String, String, u64) {
        (self.job_id.clone(), self.worker.clone(), self.fencing_token)
    }
}

/// Claims. `job_id`, `worker` and `fencing_token` of the requests are those of the claim, whatever they were.
impl Client {
    /// Extends the lease of a claim, and stores progress.
    pub async fn heartbeat_job(
        &self,
        claim: &Claim,
        request: v1::HeartbeatJobRequest,
    ) -> Result<Answer<v1::HeartbeatJobResponse>, ClientError> {
        self.raw().heartbeat_job(claim.heartbeat(request)).await
    }

    /// Extends the leases of up to 1,000 claims, each with its own status in the answer.
    pub async fn heartbeat_jobs(
        &self,
        heartbeats: impl IntoIterator<Item = (Claim, v1::HeartbeatJobRequest)>,
    ) -> Result<Answer<v1::HeartbeatJobsResponse>, ClientError> {
        let heartbeats = heartbeats.into_iter().map(|(claim, request)| claim.heartbeat(request)).collect();
        self.raw().heartbeat_jobs(v1::HeartbeatJobsRequest { heartbeats }).await
    }

    /// Completes a claimed job.
    pub async fn complete_job(
        &self,
        claim: &Claim,
        request: v1::CompleteJobRequest,
    ) -> Result<Answer<v1::Job>, ClientError> {
        self.raw().complete_job(claim.completion(request)).await
    }

    /// Completes up to 1,000 claimed jobs, each with its own status in the answer. `request_id` is the batch's; empty:
    /// a new one.
    pub async fn complete_jobs(
        &self,
        completions: impl IntoIterator<Item = (Claim, v1::CompleteJobRequest)>,
        request_id: &str,
    ) -> Result<Answer<v1::CompleteJobsResponse>, ClientError> {
        let completions = completions.into_iter().map(|(claim, request)| claim.completion(request)).collect();
        let request_id = request_id.to_owned();
        self.raw().complete_jobs(v1::CompleteJobsRequest { completions, request_id }).await
    }

    /// Reports that a claim failed.
    pub async fn fail_job(&self, claim: &Claim, request: v1::FailJobRequest) -> Result<Answer<v1::Job>, ClientError> {
        let (job_id, worker, fencing_token) = claim.parts();
        self.raw().fail_job(v1::FailJobRequest { job_id, worker, fencing_token, ..request }).await
    }

    /// Gives a claim back unused.
    pub async fn release_job(&self, claim: &Claim) -> Result<Answer<v1::Job>, ClientError> {
        let (job_id, worker, fencing_token) = claim.parts();
        self.raw().release_job(v1::ReleaseJobRequest { job_id, worker, fencing_token }).await
    }

    /// The calls on claims as plain messages, for tools that pass on what they were given.
    pub fn raw(&self) -> Raw<'_> {
        Raw(self)
    }
}

/// Calls on claims that are sent as they are, also without a fencing token. See [`Client::raw`].
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a>(pub(crate) &'a Client);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claims_number_is_in_every_entry_whatever_the_request_says() {
        let job = v1::Job { job_id: "j1".into(), attempts: 7, ..Default::default() };
        let claim = Claim::of(&job, "w").unwrap();
        let beat =
            claim.heartbeat(v1::HeartbeatJobRequest { job_id: "j2".into(), fencing_token: 3, ..Default::default() });
        assert_eq!((beat.job_id.as_str(), beat.worker.as_str(), beat.fencing_token), ("j1", "w", 7));
        let done = claim.completion(v1::CompleteJobRequest { worker: "other".into(), ..Default::default() });
        assert_eq!((done.job_id.as_str(), done.worker.as_str(), done.fencing_token), ("j1", "w", 7));
        assert_eq!(Claim::of(&v1::Job::default(), "w"), None);
        assert_eq!(Claim::unfenced("j1", "w").fencing_token(), 0);
    }
}
