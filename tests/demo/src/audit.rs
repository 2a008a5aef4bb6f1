//! What the audit log says happened.

use std::collections::BTreeMap;

use ag_client::{Client, v1};
use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

/// Counts over the whole audit log, whose chain was checked on the way.
#[derive(Default)]
pub struct Tally {
    pub records: u64,
    pub head: String,
    /// Accepted claims by job.
    pub claims: BTreeMap<String, u64>,
    /// Accepted completions by job.
    pub completions: BTreeMap<String, u64>,
    /// Claims that took over a job whose lease had run out.
    pub taken_over: u64,
    /// Refused calls, by verb and reason.
    pub refused: BTreeMap<(String, String), u64>,
}

impl Tally {
    /// Reads the audit log from its beginning to its end.
    pub async fn read(client: &Client) -> Result<Self> {
        let mut tally = Self { head: "0".repeat(64), ..Self::default() };
        loop {
            let request = v1::ListAuditRecordsRequest { after: tally.records, page_size: Some(1_000), stale: false };
            let page = client.list_audit_records(request).await.context("cannot read the audit log")?.value;
            if page.records.is_empty() {
                break;
            }
            for record in &page.records {
                tally.take(record)?;
            }
        }
        let head = client.get_audit_head(v1::GetAuditHeadRequest { stale: false }).await;
        let head = head.context("cannot read the head of the audit log")?.value;
        ensure!(head.sequence >= tally.records, "the audit log ends before what was read of it");
        Ok(tally)
    }

    fn take(&mut self, record: &v1::AuditRecord) -> Result<()> {
        let sequence = record.sequence;
        ensure!(sequence == self.records + 1, "audit record {} follows record {}", sequence, self.records);
        ensure!(record.previous_hash == self.head, "audit record {sequence} does not follow from the one before");
        ensure!(
            chain_hash(&self.head, &record.canonical)? == record.hash,
            "the hash of audit record {sequence} is wrong"
        );
        (self.records, self.head) = (sequence, record.hash.clone());
        match (record.verb.as_str(), record.outcome.as_str()) {
            ("claim", "done") => {
                *self.claims.entry(record.job_id.clone()).or_default() += 1;
                self.taken_over += u64::from(record.details.contains_key("taken_over_from"));
            }
            ("complete", "done") => *self.completions.entry(record.job_id.clone()).or_default() += 1,
            (_, "done") => {}
            (verb, reason) => *self.refused.entry((verb.into(), reason.into())).or_default() += 1,
        }
        Ok(())
    }
}

/// SHA-256 over the previous hash and the canonical bytes.
fn chain_hash(previous: &str, canonical: &[u8]) -> Result<String> {
    let digits = previous.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes = digits.map(|pair| pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()));
    let bytes = bytes.collect::<Option<Vec<u8>>>().context("a hash that is not hex")?;
    Ok(hex(&Sha256::new().chain_update(bytes).chain_update(canonical).finalize()))
}

/// Lowercase hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sequence: u64, previous: &str, verb: &str, outcome: &str) -> v1::AuditRecord {
        let canonical = format!("{sequence} {verb} {outcome}").into_bytes();
        let hash = chain_hash(previous, &canonical).unwrap();
        let (verb, outcome) = (verb.into(), outcome.into());
        let previous_hash = previous.into();
        v1::AuditRecord {
            sequence,
            hash,
            previous_hash,
            canonical,
            verb,
            outcome,
            job_id: "j1".into(),
            ..Default::default()
        }
    }

    #[test]
    fn records_are_counted_and_a_broken_chain_is_an_error() {
        let zeros = "0".repeat(64);
        let one = record(1, &zeros, "claim", "done");
        let two = record(2, &one.hash, "complete", "CLAIM_LOST");
        let three = record(3, &two.hash, "complete", "done");
        let tally = || Tally { head: zeros.clone(), ..Tally::default() };

        let mut whole = tally();
        for record in [&one, &two, &three] {
            whole.take(record).unwrap();
        }
        assert_eq!((whole.records, whole.claims["j1"], whole.completions["j1"]), (3, 1, 1));
        assert_eq!(whole.refused[&("complete".to_owned(), "CLAIM_LOST".to_owned())], 1);

        let mut gap = tally();
        gap.take(&one).unwrap();
        assert!(gap.take(&three).is_err(), "a record is missing");

        let mut changed = one.clone();
        changed.canonical.push(b'!');
        assert!(tally().take(&changed).is_err(), "a record was changed");
    }
}
