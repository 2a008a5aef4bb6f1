//! The state hashes after the last applied entries, so that replicas can be compared at an index that they share.

use std::collections::VecDeque;

use ag_core::digest::Digest;

/// State hashes by index, of consecutive entries.
#[derive(Debug, Default)]
pub(crate) struct StateHashes {
    last_index: u64,
    hashes: VecDeque<Digest>,
}

impl StateHashes {
    /// The hash after the entry at `log_index`. Anything but the next index starts afresh.
    pub fn push(&mut self, log_index: u64, state_hash: Digest, kept: usize) {
        if self.hashes.is_empty() || log_index != self.last_index + 1 {
            self.hashes.clear();
        }
        self.last_index = log_index;
        self.hashes.push_back(state_hash);
        while self.hashes.len() > kept {
            self.hashes.pop_front();
        }
    }

    /// The hash after the entry at `log_index`, if it is still, or already, known.
    pub fn at(&self, log_index: u64) -> Option<Digest> {
        let back = self.last_index.checked_sub(log_index)?;
        let place = self.hashes.len().checked_sub(usize::try_from(back).ok()?.checked_add(1)?)?;
        self.hashes.get(place).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hashes_are_known_by_index_and_older_ones_forgotten() {
        let mut hashes = StateHashes::default();
        assert_eq!(hashes.at(0), None);
        for log_index in 10..=20 {
            hashes.push(log_index, Digest([log_index as u8; 32]), 5);
        }
        assert_eq!(hashes.at(20), Some(Digest([20; 32])));
        assert_eq!(hashes.at(16), Some(Digest([16; 32])));
        assert_eq!(hashes.at(15), None);
        assert_eq!(hashes.at(21), None);
        hashes.push(40, Digest([40; 32]), 5);
        assert_eq!((hashes.at(20), hashes.at(40)), (None, Some(Digest([40; 32]))));
    }
}
