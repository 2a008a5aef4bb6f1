//! The claims that this worker holds, and until when it may believe so.
//!
//! A claim's deadline is counted from BEFORE the call that began or extended it was sent, on `CLOCK_BOOTTIME`, and ends
//! a margin before the lease does. The service starts the lease later than that, when it applies the call, and never
//! ends one early. So whenever the deadline has not passed, the claim cannot have gone to anyone else.
//!
//! A thread of its own looks after the deadlines, so that nothing that holds up the asynchronous tasks holds up a kill.
//!
//! Invariant: an entry's process group is set only while its leader has not been reaped, so that a signal to the group
//! never reaches a stranger who got the same number.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ag_client::Claim;
use tokio::sync::{Notify, watch};

use crate::os::{self, Signal};
use crate::progress::ProgressFile;

/// How often the deadlines are looked at while a claim is held. Timers stand still while the machine is suspended, so a
/// long one would wake too late after a resume.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The time that is kept free before the end of a lease: for the kill itself, and for clocks that run at unequal rates.
pub(crate) fn margin(lease: Duration) -> Duration {
    (lease / 10).clamp(Duration::from_millis(20), Duration::from_secs(2))
}

/// A lease, as counted on this side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// Time since boot, from before the call was sent.
    pub sent_at: Duration,
    /// Its length.
    pub lease: Duration,
}

impl Grant {
    fn deadline(self) -> Duration {
        self.sent_at + self.lease.saturating_sub(margin(self.lease))
    }

    fn next_beat(self) -> Duration {
        self.sent_at + self.lease / 3
    }
}

/// What a claim's task is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Held,
    /// The job is to be cancelled.
    Cancel,
    /// The claim is lost, and its command is killed.
    Lost(String),
}

struct Entry {
    claim: Claim,
    deadline: Duration,
    next_beat: Duration,
    group: Option<i32>,
    /// The end is being reported: a refused heartbeat may only mean that the report was taken.
    finishing: bool,
    progress: ProgressFile,
    news: watch::Sender<News>,
}

impl Entry {
    fn is_lost(&self) -> bool {
        matches!(*self.news.borrow(), News::Lost(_))
    }

    fn lose(&mut self, reason: &str) {
        if let Some(group) = self.group {
            os::signal_group(group, Signal::Kill);
        }
        self.news.send_if_modified(|news| match news {
            News::Held | News::Cancel => {
                *news = News::Lost(reason.into());
                true
            }
            News::Lost(_) => false,
        });
    }

    /// Looks at the clock. Whether the claim is still held.
    fn check(&mut self, now: Duration) -> bool {
        if !self.is_lost() && now >= self.deadline {
            self.lose("its lease could not be extended in time");
        }
        !self.is_lost()
    }
}

/// A claim whose heartbeat is due.
pub(crate) struct Due {
    pub slot: u64,
    pub claim: Claim,
    pub progress: Vec<u8>,
}

#[derive(Default)]
struct Entries {
    next_slot: u64,
    by_slot: BTreeMap<u64, Entry>,
}

/// All claims of this worker.
pub(crate) struct LeaseTable {
    entries: Mutex<Entries>,
    /// For the thread: there is a claim, or the table is about to go.
    filled: Condvar,
    /// For the heartbeat task: a claim has come.
    pub registered: Notify,
}

/// One held claim; taken out of the table when it is dropped.
pub(crate) struct Slot {
    table: Arc<LeaseTable>,
    pub number: u64,
    pub news: watch::Receiver<News>,
}

impl LeaseTable {
    /// An empty table with its thread, which ends soon after the table does.
    pub fn start() -> std::io::Result<Arc<Self>> {
        let table = Arc::new(Self { entries: Mutex::default(), filled: Condvar::new(), registered: Notify::new() });
        let weak = Arc::downgrade(&table);
        std::thread::Builder::new().name("ag-lease-watch".into()).spawn(move || look_after(&weak))?;
        Ok(table)
    }

    /// Takes in a claim.
    pub fn register(self: &Arc<Self>, claim: Claim, grant: Grant, progress: ProgressFile) -> Slot {
        let (news, receiver) = watch::channel(News::Held);
        let mut entries = self.lock();
        let number = entries.next_slot;
        entries.next_slot += 1;
        let (deadline, next_beat) = (grant.deadline(), grant.next_beat());
        let entry = Entry { claim, deadline, next_beat, group: None, finishing: false, progress, news };
        entries.by_slot.insert(number, entry);
        drop(entries);
        self.filled.notify_all();
        self.registered.notify_one();
        Slot { table: Arc::clone(self), number, news: receiver }
    }

    /// The claims whose heartbeats are due within `ahead`, and when the next one after these is. Lost ones are left
    /// out.
    pub fn due(&self, ahead: Duration) -> (Vec<Due>, Option<Duration>) {
        let now = os::boottime();
        let mut entries = self.lock();
        let (mut due, mut next) = (Vec::new(), None::<Duration>);
        for (slot, entry) in &mut entries.by_slot {
            if !entry.check(now) {
                continue;
            }
            if entry.next_beat <= now + ahead {
                due.push(Due { slot: *slot, claim: entry.claim.clone(), progress: entry.progress.news() });
            } else {
                let wait = entry.next_beat.saturating_sub(now);
                next = Some(next.map_or(wait, |next| next.min(wait)));
            }
        }
        (due, next)
    }

    /// A heartbeat was accepted.
    pub fn extended(&self, slot: u64, grant: Grant, cancel_requested: bool) {
        let mut entries = self.lock();
        let Some(entry) = entries.by_slot.get_mut(&slot) else { return };
        // The old deadline first: if it has passed, the command may already be dead.
        if !entry.check(os::boottime()) {
            return;
        }
        entry.deadline = entry.deadline.max(grant.deadline());
        entry.next_beat = grant.next_beat();
        entry.progress.taken();
        if cancel_requested {
            entry.news.send_if_modified(|news| match news {
                News::Held => {
                    *news = News::Cancel;
                    true
                }
                News::Cancel | News::Lost(_) => false,
            });
        }
    }

    /// A heartbeat was refused: the claim is gone.
    pub fn refused(&self, slot: u64, reason: &str) {
        let mut entries = self.lock();
        if let Some(entry) = entries.by_slot.get_mut(&slot).filter(|entry| !entry.finishing) {
            entry.lose(&format!("its heartbeat was refused: {reason}"));
        }
    }

    /// A heartbeat got no answer: the next one is due after `pause`.
    pub fn unanswered(&self, slot: u64, pause: Duration) {
        if let Some(entry) = self.lock().by_slot.get_mut(&slot) {
            entry.next_beat = os::boottime() + pause;
        }
    }

    // Poisoned only by a panic while it was held; each holder leaves every entry whole.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LeaseTable {
    fn drop(&mut self) {
        self.filled.notify_all();
    }
}

impl Slot {
    /// The claim's command runs in this group. If the claim is lost, the group is killed at once.
    pub fn set_group(&self, group: i32) {
        let mut entries = self.table.lock();
        if let Some(entry) = entries.by_slot.get_mut(&self.number) {
            entry.group = Some(group);
            if entry.is_lost() || !entry.check(os::boottime()) {
                os::signal_group(group, Signal::Kill);
            }
        }
    }

    /// The leader of the group has ended, and has not been reaped yet: kills what is left of the group, and forgets it.
    pub fn clear_group(&self) {
        self.signal(Signal::Kill);
        if let Some(entry) = self.table.lock().by_slot.get_mut(&self.number) {
            entry.group = None;
        }
    }

    /// Sends a signal to the claim's group, if it has one.
    pub fn signal(&self, signal: Signal) {
        let entries = self.table.lock();
        if let Some(group) = entries.by_slot.get(&self.number).and_then(|entry| entry.group) {
            os::signal_group(group, signal);
        }
    }

    /// From now on the claim's end is being reported.
    pub fn finishing(&self) {
        if let Some(entry) = self.table.lock().by_slot.get_mut(&self.number) {
            entry.finishing = true;
        }
    }

    /// For how long the claim is still held, by the clock as it is now; or how it was lost.
    pub fn remaining(&self) -> Result<Duration, String> {
        let now = os::boottime();
        let mut entries = self.table.lock();
        let Some(entry) = entries.by_slot.get_mut(&self.number) else { return Err("it is not held".into()) };
        entry.check(now);
        match &*entry.news.borrow() {
            News::Lost(reason) => Err(reason.clone()),
            News::Held | News::Cancel => Ok(entry.deadline.saturating_sub(now)),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(entry) = self.table.lock().by_slot.remove(&self.number)
            && let Some(group) = entry.group
        {
            // The claim's task was dropped in the middle: its command must not go on without a claim.
            os::signal_group(group, Signal::Kill);
        }
    }
}

fn look_after(table: &Weak<LeaseTable>) {
    while let Some(table) = table.upgrade() {
        let now = os::boottime();
        let mut entries = table.lock();
        let mut wait = LOOK_EVERY;
        for entry in entries.by_slot.values_mut() {
            if entry.check(now) {
                wait = wait.min(entry.deadline.saturating_sub(now));
            }
        }
        // With a bound also on an empty table: this handle must be given up now and then, so that the table can go.
        if entries.by_slot.is_empty() {
            wait = Duration::from_millis(500);
        }
        let waited = table.filled.wait_timeout(entries, wait.max(Duration::from_millis(1)));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::Command;

    use super::*;
    use crate::progress::ProgressDir;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn held(table: &Arc<LeaseTable>, dir: &ProgressDir, sent_at: Duration, lease: Duration) -> Slot {
        table.register(Claim::unfenced("j1", "w"), Grant { sent_at, lease }, dir.file("j1", 1))
    }

    #[test]
    fn a_deadline_is_before_the_end_of_the_lease_by_a_bounded_margin() {
        for (lease, expected) in [(100, 20), (500, 50), (10_000, 1_000), (86_400_000, 2_000)] {
            assert_eq!(margin(ms(lease)), ms(expected));
            let grant = Grant { sent_at: ms(7), lease: ms(lease) };
            assert_eq!(grant.deadline(), ms(7 + lease - expected));
            assert!(grant.next_beat() < grant.deadline());
        }
    }

    #[test]
    fn a_claim_that_was_asked_for_too_long_ago_is_lost_from_the_start() {
        let (table, dir) = (LeaseTable::start().unwrap(), ProgressDir::make().unwrap());
        let slot = held(&table, &dir, os::boottime().saturating_sub(ms(1_000)), ms(1_000));
        assert!(slot.remaining().is_err());
        assert!(table.due(ms(10_000)).0.is_empty(), "no heartbeat is sent for it");
    }

    #[test]
    fn an_extension_counts_from_before_it_was_sent_and_never_shortens() {
        let (table, dir) = (LeaseTable::start().unwrap(), ProgressDir::make().unwrap());
        let now = os::boottime();
        let slot = held(&table, &dir, now, ms(10_000));
        table.extended(slot.number, Grant { sent_at: now, lease: ms(1_000) }, false);
        assert!(slot.remaining().unwrap() > ms(8_000));
        table.extended(slot.number, Grant { sent_at: now, lease: ms(20_000) }, false);
        let remaining = slot.remaining().unwrap();
        assert!(remaining > ms(17_000) && remaining <= ms(18_000), "{remaining:?}");
    }

    #[test]
    fn an_extension_that_arrives_after_the_deadline_brings_no_claim_back() {
        let (table, dir) = (LeaseTable::start().unwrap(), ProgressDir::make().unwrap());
        let now = os::boottime();
        let slot = held(&table, &dir, now.saturating_sub(ms(1_000)), ms(1_000));
        table.extended(slot.number, Grant { sent_at: now, lease: ms(60_000) }, false);
        assert!(slot.remaining().is_err());
    }

    #[test]
    fn a_refusal_while_the_end_is_being_reported_is_no_loss() {
        let (table, dir) = (LeaseTable::start().unwrap(), ProgressDir::make().unwrap());
        let slot = held(&table, &dir, os::boottime(), ms(60_000));
        slot.finishing();
        table.refused(slot.number, "ALREADY_COMPLETED");
        assert!(slot.remaining().is_ok());
    }

    #[test]
    fn only_what_is_due_is_given_with_the_time_until_the_next() {
        let (table, dir) = (LeaseTable::start().unwrap(), ProgressDir::make().unwrap());
        let now = os::boottime();
        let soon = held(&table, &dir, now, ms(3_000));
        let _late = held(&table, &dir, now, ms(300_000));
        let (due, next) = table.due(ms(1_000));
        assert_eq!(due.iter().map(|due| due.slot).collect::<Vec<_>>(), [soon.number]);
        assert!(next.is_some_and(|next| next > ms(90_000) && next <= ms(100_000)), "{next:?}");
        table.unanswered(soon.number, ms(5_000));
        assert!(table.due(ms(1_000)).0.is_empty());
    }

    #[test]
    fn the_group_of_a_lost_or_dropped_claim_is_killed() {
        let (table, dir) = (LeaseTable::start().unwrap(), ProgressDir::make().unwrap());
        let start = || Command::new("sleep").arg("300").process_group(0).spawn().unwrap();
        let killed = |mut child: std::process::Child| child.wait().unwrap().signal() == Some(libc::SIGKILL);

        let (child, refused) = (start(), held(&table, &dir, os::boottime(), ms(60_000)));
        refused.set_group(child.id() as i32);
        table.refused(refused.number, "CLAIM_LOST");
        assert!(killed(child));

        let (child, dropped) = (start(), held(&table, &dir, os::boottime(), ms(60_000)));
        dropped.set_group(child.id() as i32);
        drop(dropped);
        assert!(killed(child));

        let (child, late) = (start(), held(&table, &dir, os::boottime().saturating_sub(ms(60_000)), ms(60_000)));
        late.set_group(child.id() as i32);
        assert!(killed(child), "a command that starts under a claim that is lost already");

        let (child, expires) = (start(), held(&table, &dir, os::boottime(), ms(300)));
        expires.set_group(child.id() as i32);
        assert!(killed(child), "nobody but the thread looks at the clock here");
        assert!(expires.remaining().is_err());
    }
}
