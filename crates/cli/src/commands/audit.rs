//! `ag audit` and `ag attestation`.

use ag_client::{Client, v1};
use ag_core::audit::{AuditHead, AuditRecord, verify_chain};
use ag_core::digest::Digest;
use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Subcommand};

use crate::connect::Connect;
use crate::output;
use crate::progress::Progress;

/// The audit log.
#[derive(Subcommand, Clone, Debug)]
pub enum Audit {
    /// List records.
    List(List),
    /// Show the newest record's number and hash, as SEQUENCE:HASH.
    Head,
    /// Fetch the whole chain and compute it anew. With an earlier head, a tail that was cut off is found as well.
    Verify {
        /// A head that was seen earlier, SEQUENCE:HASH.
        #[arg(long, value_name = "SEQUENCE:HASH")]
        head: Option<String>,
    },
}

/// See [`Audit::List`].
#[derive(Args, Clone, Debug)]
pub struct List {
    /// Only records after this one.
    #[arg(long, default_value_t = 0)]
    after: u64,
    /// At most this many.
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// As JSON, one message with all of them.
    #[arg(long)]
    json: bool,
}

/// Attestations.
#[derive(Subcommand, Clone, Debug)]
pub enum Attestation {
    /// Print the bytes of an attestation.
    Get {
        /// Its SHA-256, in lowercase hex.
        digest: String,
    },
}

impl Attestation {
    /// Runs the command.
    pub async fn run(self, connect: &Connect) -> Result<()> {
        match self {
            Self::Get { digest } => {
                use std::io::Write as _;
                let request = v1::GetAttestationRequest { digest: digest.clone() };
                let found = connect.client()?.get_attestation(request).await?.value;
                ensure!(Digest::of(&found.attestation).to_string() == digest, "the bytes do not have this digest");
                Ok(std::io::stdout().lock().write_all(&found.attestation)?)
            }
        }
    }
}

impl Audit {
    /// Runs the command.
    pub async fn run(self, connect: &Connect) -> Result<()> {
        let client = connect.client()?;
        match self {
            Self::List(list) => list.run(&client).await,
            Self::Head => {
                let head = client.get_audit_head(v1::GetAuditHeadRequest::default()).await?.value;
                output::line(&format!("{}:{}", head.sequence, head.hash))
            }
            Self::Verify { head } => verify(&client, head.as_deref()).await,
        }
    }
}

async fn page(client: &Client, after: u64, page_size: i32) -> Result<Vec<v1::AuditRecord>> {
    let request = v1::ListAuditRecordsRequest { after, page_size: Some(page_size), stale: false };
    Ok(client.list_audit_records(request).await?.value.records)
}

impl List {
    async fn run(self, client: &Client) -> Result<()> {
        let mut records: Vec<v1::AuditRecord> = Vec::new();
        while records.len() < self.limit {
            let after = records.last().map_or(self.after, |record| record.sequence);
            let page_size = i32::try_from((self.limit - records.len()).min(1_000)).unwrap_or(1_000);
            let page = page(client, after, page_size).await?;
            if page.is_empty() {
                break;
            }
            records.extend(page);
        }
        if self.json {
            return output::json("agwp.v1.ListAuditRecordsResponse", &v1::ListAuditRecordsResponse { records });
        }
        let row = |record: &v1::AuditRecord| {
            let place = format!("{}/{}", record.term, record.log_index);
            let attempts = if record.attempts == 0 { String::new() } else { record.attempts.to_string() };
            let (actor, verb, outcome) = (record.actor.clone(), record.verb.clone(), record.outcome.clone());
            vec![
                record.sequence.to_string(),
                place,
                actor,
                verb,
                outcome,
                record.job_id.clone(),
                attempts,
                record.worker.clone(),
            ]
        };
        let titles = ["SEQUENCE", "APPLIED", "ACTOR", "VERB", "OUTCOME", "JOB", "ATTEMPTS", "WORKER"];
        output::table(&titles, &records.iter().map(row).collect::<Vec<_>>())
    }
}

async fn verify(client: &Client, earlier: Option<&str>) -> Result<()> {
    let earlier = earlier.map(parse_head).transpose()?;
    let served = client.get_audit_head(v1::GetAuditHeadRequest::default()).await?.value;
    let mut head = AuditHead::default();
    let mut met = earlier.is_none_or(|earlier| earlier.sequence == 0);
    let progress = Progress::start("verifying");
    loop {
        let records = page(client, head.sequence, 1_000).await?;
        if records.is_empty() {
            break;
        }
        for record in &records {
            head = verify_record(head, record)?;
            if let Some(earlier) = earlier.filter(|earlier| earlier.sequence == head.sequence) {
                ensure!(earlier.hash == head.hash, "record {}: the chain runs beside the earlier head", head.sequence);
                met = true;
            }
        }
        progress.say(format!("verified {} of {} records", head.sequence, served.sequence));
    }
    drop(progress);
    ensure!(met, "the chain ends at record {}, before the earlier head: its tail was cut off", head.sequence);
    ensure!(
        head.sequence >= served.sequence,
        "the chain ends at record {}, its head is {}",
        head.sequence,
        served.sequence
    );
    if head.sequence == served.sequence {
        ensure!(head.hash.to_string() == served.hash, "the chain does not end in its head");
    }
    output::line(&format!("{} records verified; head {}:{}", head.sequence, head.sequence, head.hash))
}

/// One more record, from its canonical bytes.
fn verify_record(head: AuditHead, served: &v1::AuditRecord) -> Result<AuditHead> {
    let record = AuditRecord::from_canonical(head.hash, &served.canonical)
        .with_context(|| format!("record {}: not an audit record", served.sequence))?;
    let next = verify_chain(head, [&record])?;
    if record.hash.to_string() != served.hash || record.sequence != served.sequence {
        bail!("record {}: its hash does not follow from its content and the record before", served.sequence);
    }
    Ok(next)
}

fn parse_head(text: &str) -> Result<AuditHead> {
    let parsed = text
        .split_once(':')
        .and_then(|(sequence, hash)| Some(AuditHead { sequence: sequence.parse().ok()?, hash: Digest::parse(hash)? }));
    parsed.ok_or_else(|| crate::exit::Exit::usage("head: must be SEQUENCE:HASH, as `ag audit head` prints it"))
}
