//! What a completion attests: an in-toto Statement v1 in a DSSE envelope, without signatures.

use ag_client::v1;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// The media type of the stored envelope.
pub const ATTESTATION_TYPE: &str = "application/vnd.dsse.envelope.v1+json";
/// The type of the statement within.
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
const PREDICATE_TYPE: &str = "urn:agwp:predicate:command-run:v1";

/// The facts of a run that ended well.
pub(crate) struct Facts<'a> {
    pub job: &'a v1::Job,
    pub label: &'a str,
    pub command: &'a str,
    pub result: &'a [u8],
    /// Milliseconds since 1970, on this machine's clock.
    pub started_ms: u64,
    pub finished_ms: u64,
}

/// The envelope. Its subject is the result of this claim of the job; the times are this machine's own.
pub(crate) fn envelope(facts: &Facts<'_>) -> Vec<u8> {
    let job = facts.job;
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{
            "name": format!("agwp:job/{}/claim/{}", job.job_id, job.attempts),
            "digest": {"sha256": sha256(facts.result)},
        }],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "jobId": job.job_id,
            "queue": job.queue,
            "claimNumber": job.attempts,
            "claimedBy": job.claimed_by,
            "worker": facts.label,
            "command": ["sh", "-c", facts.command],
            "exitCode": 0,
            "payload": {"sha256": sha256(&job.payload)},
            "startedAtMs": facts.started_ms,
            "finishedAtMs": facts.finished_ms,
            "release": env!("CARGO_PKG_VERSION"),
        },
    });
    let envelope = json!({
        "payloadType": PAYLOAD_TYPE,
        "payload": STANDARD.encode(statement.to_string()),
        "signatures": [],
    });
    envelope.to_string().into_bytes()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_envelope_holds_a_statement_about_this_claim() {
        let job = v1::Job { job_id: "j1".into(), attempts: 3, payload: b"in".to_vec(), ..Default::default() };
        let facts = Facts { job: &job, label: "w", command: "cat", result: b"abc", started_ms: 1, finished_ms: 2 };
        let envelope: serde_json::Value = serde_json::from_slice(&envelope(&facts)).unwrap();
        assert_eq!(envelope["payloadType"], PAYLOAD_TYPE);
        assert_eq!(envelope["signatures"], json!([]));
        let statement = STANDARD.decode(envelope["payload"].as_str().unwrap()).unwrap();
        let statement: serde_json::Value = serde_json::from_slice(&statement).unwrap();
        assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
        assert_eq!(statement["subject"][0]["name"], "agwp:job/j1/claim/3");
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(statement["subject"][0]["digest"]["sha256"], abc);
        assert_eq!(statement["predicate"]["command"], json!(["sh", "-c", "cat"]));
        assert_eq!(statement["predicate"]["exitCode"], 0);
    }
}
