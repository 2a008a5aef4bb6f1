//! The newest entries, kept in memory: each entry is read once to be replicated and once to be applied, right after it
//! was appended, and need not be read from disk for it.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Entry, Payload};

/// What an entry takes up beside its payload, about.
const ENTRY_BYTES: usize = 96;

/// The newest entries, with consecutive indexes.
#[derive(Debug, Default)]
pub(crate) struct LogCache {
    entries: VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
}

impl LogCache {
    /// Keeps about `bytes_max` bytes, and always the newest entry.
    pub fn new(bytes_max: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// One more entry at the end.
    pub fn push(&mut self, entry: Entry) {
        if self.entries.back().is_some_and(|last| last.log_id.index + 1 != entry.log_id.index) {
            self.clear();
        }
        self.bytes += bytes_of(&entry);
        self.entries.push_back(entry);
        while self.bytes > self.bytes_max && self.entries.len() > 1 {
            self.pop_front();
        }
    }

    /// Forgets all entries from `start` on.
    pub fn truncate_from(&mut self, start: u64) {
        while self.entries.back().is_some_and(|last| last.log_id.index >= start) {
            if let Some(entry) = self.entries.pop_back() {
                self.bytes -= bytes_of(&entry);
            }
        }
    }

    /// Forgets all entries before `end`.
    pub fn purge_before(&mut self, end: u64) {
        while self.entries.front().is_some_and(|first| first.log_id.index < end) {
            self.pop_front();
        }
    }

    /// The entries of `range` up to `bytes_max`, but at least one. `None`: not all of what was asked for is here.
    pub fn read(&self, range: Range<u64>, bytes_max: usize) -> Option<Vec<Entry>> {
        let first = self.entries.front()?.log_id.index;
        if range.start < first || range.start >= first + self.entries.len() as u64 {
            return None;
        }
        let skipped = usize::try_from(range.start - first).ok()?;
        let mut bytes = 0;
        let mut entries = Vec::new();
        for entry in self.entries.iter().skip(skipped).take_while(|entry| entry.log_id.index < range.end) {
            bytes += bytes_of(entry);
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Some(entries)
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    fn pop_front(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= bytes_of(&entry);
        }
    }
}

/// About how many bytes an entry takes up.
pub(crate) fn bytes_of(entry: &Entry) -> usize {
    match &entry.payload {
        Payload::Blank => ENTRY_BYTES,
        Payload::Normal(commands) => ENTRY_BYTES + commands.0.len(),
        Payload::Membership(membership) => ENTRY_BYTES + 64 * membership.nodes().count(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EntryBytes, LeaderId, LogId};
    use super::*;

    fn entry(log_index: u64, bytes: usize) -> Entry {
        let log_id = LogId::new(LeaderId { term: 1, node_id: 1 }, log_index);
        Entry { log_id, payload: Payload::Normal(EntryBytes(vec![0; bytes].into())) }
    }

    fn indexes(entries: Option<Vec<Entry>>) -> Option<Vec<u64>> {
        entries.map(|entries| entries.iter().map(|entry| entry.log_id.index).collect())
    }

    #[test]
    fn the_newest_entries_stay_within_the_bound() {
        let mut cache = LogCache::new(3 * (ENTRY_BYTES + 100));
        (1..=5).for_each(|log_index| cache.push(entry(log_index, 100)));
        assert_eq!(indexes(cache.read(3..6, usize::MAX)), Some(vec![3, 4, 5]));
        assert_eq!(cache.read(2..6, usize::MAX), None);
        cache.push(entry(6, 10_000));
        assert_eq!(indexes(cache.read(6..7, usize::MAX)), Some(vec![6]));
        assert_eq!(cache.entries.len(), 1);
    }

    #[test]
    fn a_read_gives_at_least_one_entry_and_no_more_than_the_bound() {
        let mut cache = LogCache::new(usize::MAX);
        (1..=5).for_each(|log_index| cache.push(entry(log_index, 100)));
        assert_eq!(indexes(cache.read(2..6, 2 * (ENTRY_BYTES + 100))), Some(vec![2, 3]));
        assert_eq!(indexes(cache.read(2..6, 1)), Some(vec![2]));
        assert_eq!(indexes(cache.read(2..4, usize::MAX)), Some(vec![2, 3]));
    }

    #[test]
    fn truncated_and_purged_entries_are_gone() {
        let mut cache = LogCache::new(usize::MAX);
        (1..=6).for_each(|log_index| cache.push(entry(log_index, 1)));
        cache.truncate_from(5);
        cache.purge_before(3);
        assert_eq!(indexes(cache.read(3..9, usize::MAX)), Some(vec![3, 4]));
        assert_eq!(cache.read(2..9, usize::MAX), None);
        assert_eq!(cache.read(5..9, usize::MAX), None);
        cache.truncate_from(0);
        assert_eq!(cache.bytes, 0);
    }

    #[test]
    fn a_gap_starts_afresh() {
        let mut cache = LogCache::new(usize::MAX);
        cache.push(entry(1, 1));
        cache.push(entry(9, 1));
        assert_eq!(cache.read(1..2, usize::MAX), None);
        assert_eq!(indexes(cache.read(9..10, usize::MAX)), Some(vec![9]));
    }
}
