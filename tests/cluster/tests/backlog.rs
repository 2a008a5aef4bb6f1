//! Many waiting jobs make no claim slower.

use std::process::{Command, Stdio};

use ag_cluster_tests::{binary, is_long};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Kind H. Claims from a queue with many jobs take no longer than from one with few: two queues of one cluster,
/// measured in turn, medians over the rounds. With `AG_LONG=1` it is a million jobs on three replicas.
#[test]
fn a_claim_takes_no_longer_with_many_jobs_waiting() -> Result<()> {
    measure(&[])
}

/// T47. Nor with many whose time has not come.
#[test]
fn a_claim_takes_no_longer_with_many_delayed_jobs() -> Result<()> {
    measure(&["--delayed"])
}

fn measure(more: &[&str]) -> Result<()> {
    let (replicas, large, claims) = if is_long() { ("3", 1_000_000, "1000") } else { ("1", 50_000, "300") };
    let mut bench = Command::new(binary("ag")?);
    bench.args(["bench", "--replicas", replicas, "--json", "backlog", "--rounds", "7", "--claims", claims]);
    bench.args(["--large", &large.to_string()]).args(more).stdin(Stdio::null());
    let output = bench.output().context("cannot run ag")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).context("the report is no JSON")?;
    let number = |name: &str| report[name].as_f64().with_context(|| format!("no {name} in {report}"));
    let memory = &report["conditions"]["leader_memory_bytes_with_both"];
    let (small_ms, large_ms, ratio) = (number("p99_small_ms")?, number("p99_large_ms")?, number("ratio")?);
    println!("claim p99 {small_ms:.2} ms with 1,000 waiting, {large_ms:.2} ms with {large}: ratio {ratio:.2}");
    println!("memory of the leader: {:.0} MiB", memory.as_f64().context("no memory")? / f64::from(1 << 20));
    ensure!(report["large"] == large, "another backlog was measured: {report}");
    ensure!(ratio <= 1.5, "claims from the larger queue take {ratio:.2} times as long: {report}");
    Ok(())
}
