//! What is said on the way, and the table at the end.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use ag_client::{Client, v1};
use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::audit::{self, Tally};
use crate::cluster::SameHash;
use crate::input::{Found, Input};
use crate::scene::Scenes;

/// Says something, with the time since the start.
pub fn say(start: Instant, text: &str) {
    let clear = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    eprintln!("{clear}{:6.1} s  {text}", start.elapsed().as_secs_f64());
}

/// How far the jobs are: one line that changes on a terminal, a line every two seconds elsewhere.
pub struct Progress {
    start: Instant,
    jobs: usize,
    shown_at: Option<Instant>,
}

impl Progress {
    pub fn new(start: Instant, jobs: usize) -> Self {
        Self { start, jobs, shown_at: None }
    }

    pub fn show(&mut self, counts: &v1::QueueCounts) {
        let text = self.text(counts);
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K{:6.1} s  {text}", self.start.elapsed().as_secs_f64());
        } else if self.shown_at.is_none_or(|at| at.elapsed() >= Duration::from_secs(2)) {
            self.shown_at = Some(Instant::now());
            say(self.start, &text);
        }
    }

    pub fn end(&self, counts: &v1::QueueCounts) {
        say(self.start, &self.text(counts));
    }

    fn text(&self, counts: &v1::QueueCounts) -> String {
        let v1::QueueCounts { completed, claimed, lapsed, .. } = counts;
        let done = (*completed as usize * 30 / self.jobs.max(1)).min(30);
        let bar = format!("{}{}", "#".repeat(done), ".".repeat(30 - done));
        format!("[{bar}] {completed} of {} done, {claimed} claimed, {lapsed} of them lapsed", self.jobs)
    }
}

/// The leader's death.
pub struct Failover {
    pub killed: u64,
    pub successor: u64,
    /// The terms of the two.
    pub terms: (u64, u64),
    pub gap: Duration,
    pub done_before: u64,
    pub done_after: u64,
}

/// Everything that was found.
pub struct Findings {
    unit: &'static str,
    jobs: usize,
    pub failover: Option<Failover>,
    pub work_took: Duration,
    pub took: Duration,
    pub scenes: Scenes,
    pub hashes: SameHash,
    once: usize,
    unfinished: Vec<String>,
    /// Completions whose attestation names an older claim than the record.
    stale_by_attestation: u64,
    without_attestation: u64,
    found: Found,
    changed: Vec<String>,
    claims: u64,
    attestation: Option<String>,
}

impl Findings {
    pub fn new(input: &Input, jobs: usize) -> Self {
        Self {
            unit: input.unit,
            jobs,
            failover: None,
            work_took: Duration::ZERO,
            took: Duration::ZERO,
            scenes: Scenes::default(),
            hashes: SameHash { log_index: 0, state_hash: String::new(), replicas: Vec::new() },
            once: 0,
            unfinished: Vec::new(),
            stale_by_attestation: 0,
            without_attestation: 0,
            found: Found::default(),
            changed: Vec::new(),
            claims: 0,
            attestation: None,
        }
    }

    /// Reads every job with its result and attestation, and holds them against the audit log.
    pub async fn read_results(&mut self, client: &Client, job_ids: &[String], tally: &Tally) -> Result<()> {
        for job_id in job_ids {
            let request = v1::GetJobRequest { job_id: job_id.clone(), stale: false };
            let job = client.get_job(request).await.context("cannot read a job")?.value;
            let name = job.labels.get("input").cloned().unwrap_or_default();
            self.claims += tally.claims.get(job_id).copied().unwrap_or(0);
            let completions = tally.completions.get(job_id).copied().unwrap_or(0);
            if job.state() != v1::JobState::Completed || completions != 1 {
                self.unfinished.push(format!("{name} ({:?}, completed {completions} times)", job.state()));
                continue;
            }
            self.once += 1;
            let found = Found::parse(&job.result).with_context(|| format!("the result of {name} is not readable"))?;
            self.found.good += found.good;
            self.found.changed += found.changed;
            self.found.missing += found.missing;
            if found.changed > 0 {
                self.changed.push(name);
            }
            self.read_attestation(client, &job).await?;
        }
        Ok(())
    }

    async fn read_attestation(&mut self, client: &Client, job: &v1::Job) -> Result<()> {
        if job.attestation_digest.is_empty() {
            self.without_attestation += 1;
            return Ok(());
        }
        let request = v1::GetAttestationRequest { digest: job.attestation_digest.clone() };
        let stored = client.get_attestation(request).await.context("cannot read an attestation")?.value;
        let digest = audit::hex(&Sha256::digest(&stored.attestation));
        ensure!(digest == job.attestation_digest, "the attestation of {} is not the one of its digest", job.job_id);
        let envelope: serde_json::Value =
            serde_json::from_slice(&stored.attestation).context("an attestation is no JSON")?;
        let statement = STANDARD.decode(envelope["payload"].as_str().unwrap_or_default())?;
        let statement: serde_json::Value = serde_json::from_slice(&statement).context("a statement is no JSON")?;
        let claim_number = statement["predicate"]["claimNumber"].as_u64();
        self.stale_by_attestation += u64::from(claim_number != Some(job.attempts.into()));
        let result_digest = statement["subject"][0]["digest"]["sha256"].as_str();
        let good = result_digest == Some(audit::hex(&Sha256::digest(&job.result)).as_str());
        ensure!(good, "the attestation of {} is about another result", job.job_id);
        if self.attestation.is_none() {
            let pretty = serde_json::to_string_pretty(&statement)?;
            self.attestation = Some(format!("{} ({})\n{pretty}", stored.digest, stored.attestation_type));
        }
        Ok(())
    }

    /// Prints the table. Whether everything was as it should be.
    pub fn print(&self, tally: &Tally) -> bool {
        if let Some(attestation) = &self.attestation {
            println!("\nThe attestation of one job, {attestation}\n");
        }
        let mut table = Table::default();
        self.work_rows(&mut table);
        self.failure_rows(&mut table, tally);
        self.state_rows(&mut table, tally);
        table.print();
        table.bad == 0
    }

    fn work_rows(&self, table: &mut Table) {
        let unit = self.unit;
        table.check(&format!("jobs, one for each {unit}"), self.jobs, self.jobs > 0);
        table.check("completed exactly once", self.once, self.once == self.jobs);
        for unfinished in &self.unfinished {
            table.check("  not", unfinished, false);
        }
        table.check("claims of these jobs", self.claims, self.claims >= self.jobs as u64);
        table.row("files as recorded", self.found.good);
        table.row("files changed since", format!("{} {}", self.found.changed, in_some(&self.changed, unit)));
        table.row("files not there", self.found.missing);
        table.row("time for all jobs", seconds(self.work_took));
    }

    fn failure_rows(&self, table: &mut Table, tally: &Tally) {
        if let Some(failover) = &self.failover {
            let Failover { killed, successor, terms, gap, done_before, done_after } = failover;
            let text = format!("replica {killed} at {done_before} done; then replica {successor} was elected");
            table.check("leader killed with -9", text, terms.1 > terms.0);
            table.check("  answered again after", format!("{} ms", gap.as_millis()), *gap < Duration::from_secs(5));
            table.check("  nothing lost", format!("{done_after} done"), done_after >= done_before);
        }
        let reports = self.scenes.reports_of_stopped_worker;
        table.check("reports of a worker that was stopped past its lease", reports, reports == 0);
        table.row("claims that took over a lapsed one", tally.taken_over);
        table.check("stale calls refused, under another name", self.scenes.refused, self.scenes.refused == 3);
        for ((verb, reason), count) in &tally.refused {
            table.row(&format!("  in the audit log, {verb} {reason}"), count);
        }
        let fenced_off = self.scenes.fenced_off;
        table.check("stale calls refused, under the same name", fenced_off, fenced_off == 4);
        let (calls, completions) = (self.scenes.stale_calls, self.scenes.stale_completions);
        table.check("stale heartbeats, fails and releases accepted", calls, calls == 0);
        table.check("stale completions accepted", completions, completions == 0);
        let stale = self.stale_by_attestation;
        table.check("validation jobs completed by an older claim", stale, stale == 0);
    }

    fn state_rows(&self, table: &mut Table, tally: &Tally) {
        let all = self.without_attestation == 0;
        table.check("completions without attestation", self.without_attestation, all);
        table.row("audit records, chain checked", tally.records);
        let SameHash { log_index, state_hash, replicas } = &self.hashes;
        let ids: Vec<String> = replicas.iter().map(u64::to_string).collect();
        let text =
            format!("{}… on replicas {} at index {log_index}", &state_hash[..16.min(state_hash.len())], ids.join(", "));
        table.check("same state hash", text, replicas.len() == 3);
        table.check("time in all", seconds(self.took), self.took < Duration::from_secs(180));
    }
}

fn in_some(names: &[String], unit: &str) -> String {
    match names {
        [] => String::new(),
        names => format!("in {} {unit}s, such as {}", names.len(), names[0]),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Rows of what was found, some of which had to be so.
#[derive(Default)]
struct Table {
    rows: Vec<(String, String, &'static str)>,
    bad: usize,
}

impl Table {
    fn row(&mut self, name: &str, value: impl ToString) {
        self.rows.push((name.into(), value.to_string().trim().into(), ""));
    }

    fn check(&mut self, name: &str, value: impl ToString, good: bool) {
        self.bad += usize::from(!good);
        self.rows.push((name.into(), value.to_string(), if good { "ok" } else { "BAD" }));
    }

    fn print(&self) {
        let width = self.rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
        for (name, value, verdict) in &self.rows {
            println!("{verdict:>3}  {name:width$}  {value}");
        }
        if self.bad > 0 {
            println!("\n{} rows are not as they should be.", self.bad);
        }
    }
}
