//! Heartbeats of all claims together, in as few calls as will do.

use std::sync::Arc;
use std::time::Duration;

use ag_client::{Client, Code, v1};

use crate::convert;
use crate::fence;
use crate::lease::{Due, Grant, LeaseTable};
use crate::os;

/// Most entries of one call.
const ENTRIES_MAX: usize = 1_000;
/// Most bytes of progress in one call; well below what the service takes.
const PROGRESS_BYTES_MAX: usize = 2 << 20;

/// Sends heartbeats, each at a third of its lease, until the task is aborted.
pub(crate) async fn beat(client: Client, lease: Duration, table: Arc<LeaseTable>) {
    // A call may take until the next would be due; a replica that does not answer costs half of that at most.
    let client = client.with_deadline(lease / 3).with_try_timeout((lease / 6).min(Duration::from_secs(5)));
    loop {
        let registered = table.registered.notified();
        let (due, next) = table.due(lease / 12);
        if due.is_empty() {
            // Even without a claim due, not longer than this: timers stand still during a suspend.
            let wait = next.unwrap_or(lease / 3).min(Duration::from_secs(1));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = registered => {}
            }
            continue;
        }
        for batch in batches(due) {
            send(&client, lease, &table, batch).await;
        }
    }
}

fn batches(due: Vec<Due>) -> Vec<Vec<Due>> {
    let (mut batches, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    for entry in due {
        if batch.len() == ENTRIES_MAX || bytes + entry.progress.len() > PROGRESS_BYTES_MAX {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += entry.progress.len();
        batch.push(entry);
    }
    batches.push(batch);
    batches
}

async fn send(client: &Client, lease: Duration, table: &LeaseTable, mut batch: Vec<Due>) {
    let heartbeats = batch.iter_mut().map(|due| {
        let (lease, progress) = (convert::duration(lease), std::mem::take(&mut due.progress));
        (due.claim.clone(), v1::HeartbeatJobRequest { lease, progress, ..Default::default() })
    });
    let sent_at = os::boottime();
    let answer = client.heartbeat_jobs(heartbeats).await;
    let pause = (lease / 20).min(Duration::from_secs(1));
    let results = match answer {
        Ok(answer) if answer.value.results.len() == batch.len() => answer.value.results,
        Ok(answer) => {
            let (entries, results) = (batch.len(), answer.value.results.len());
            tracing::error!(entries, results, "the service answered another number of heartbeats than were sent");
            return batch.iter().for_each(|due| table.unanswered(due.slot, pause));
        }
        Err(error) => {
            let claims = batch.len();
            tracing::warn!(%error, claims, "heartbeats got no answer; the commands run on while their leases do");
            return batch.iter().for_each(|due| table.unanswered(due.slot, pause));
        }
    };
    for (due, result) in batch.iter().zip(results) {
        let status = result.status.unwrap_or_default();
        match (Code::from(status.code), result.heartbeat) {
            (Code::Ok, Some(heartbeat)) => {
                fence::told(heartbeat.fenced);
                let lease = heartbeat.lease.as_ref().and_then(convert::from_duration).unwrap_or(lease);
                table.extended(due.slot, Grant { sent_at, lease }, heartbeat.cancel_requested);
            }
            (Code::NotFound | Code::FailedPrecondition, _) => table.refused(due.slot, &status.reason),
            (code, _) => {
                tracing::warn!(job_id = due.claim.job_id(), ?code, status.message, "a heartbeat was not taken");
                table.unanswered(due.slot, pause);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ag_client::Claim;

    use super::*;

    #[test]
    fn batches_keep_both_bounds_and_the_order() {
        let due = |slot, bytes| Due { slot, claim: Claim::unfenced("j1", "w"), progress: vec![0; bytes] };
        let sizes = |due: Vec<Due>| batches(due).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes((0..1_000).map(|slot| due(slot, 0)).collect()), [1_000]);
        assert_eq!(sizes((0..1_001).map(|slot| due(slot, 0)).collect()), [1_000, 1]);
        assert_eq!(sizes((0..33).map(|slot| due(slot, 64 << 10)).collect()), [32, 1]);
        let order: Vec<u64> = batches((0..2_500).map(|slot| due(slot, 0)).collect()).concat_slots();
        assert!(order.is_sorted() && order.len() == 2_500);
    }

    trait ConcatSlots {
        fn concat_slots(self) -> Vec<u64>;
    }

    impl ConcatSlots for Vec<Vec<Due>> {
        fn concat_slots(self) -> Vec<u64> {
            self.into_iter().flatten().map(|due| due.slot).collect()
        }
    }
}
