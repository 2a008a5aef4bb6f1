//! The hash of the whole replicated state, kept up to date row by row.

use crate::digest::Digest;

/// The sum, modulo 2^256, of the SHA-256 digests of all rows. A sum does not depend on the order of its parts, so a row
/// that changes costs two digests, however many rows there are, and a state that was loaded row by row has the same
/// sum as the one that grew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSum(pub [u64; 4]);

impl RowSum {
    /// Adds a row.
    pub fn add(&mut self, row: &[u8]) {
        let mut carry = 0;
        for (limb, part) in self.0.iter_mut().zip(limbs(row)) {
            let sum = u128::from(*limb) + u128::from(part) + carry;
            *limb = sum as u64;
            carry = sum >> 64;
        }
    }

    /// Takes a row away.
    pub fn remove(&mut self, row: &[u8]) {
        let mut borrow = 0;
        for (limb, part) in self.0.iter_mut().zip(limbs(row)) {
            let difference = i128::from(*limb) - i128::from(part) - borrow;
            borrow = i128::from(difference < 0);
            *limb = (difference + (borrow << 64)) as u64;
        }
    }

    /// The sum as 32 bytes.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (chunk, limb) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&limb.to_be_bytes());
        }
        bytes
    }

    /// The sum that [`RowSum::to_bytes`] wrote.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(words(bytes))
    }
}

fn limbs(row: &[u8]) -> [u64; 4] {
    words(Digest::of(row).0)
}

fn words(bytes: [u8; 32]) -> [u64; 4] {
    let mut limbs = [0; 4];
    for (limb, chunk) in limbs.iter_mut().zip(bytes.chunks_exact(8)) {
        *limb = u64::from_be_bytes(chunk.try_into().expect("a chunk of 8 has 8 bytes"));
    }
    limbs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_added_and_removed_leaves_the_sum_as_it_was() {
        let mut sum = RowSum::default();
        for row in 0..200_u32 {
            sum.add(&row.to_be_bytes());
        }
        let before = sum;
        for row in 1_000..1_200_u32 {
            sum.add(&row.to_be_bytes());
        }
        assert_ne!(sum, before);
        for row in (1_000..1_200_u32).rev() {
            sum.remove(&row.to_be_bytes());
        }
        assert_eq!(sum, before);
        for row in (0..200_u32).rev() {
            sum.remove(&row.to_be_bytes());
        }
        assert_eq!(sum, RowSum::default());
    }

    #[test]
    fn a_carry_runs_through_all_limbs() {
        let mut sum = RowSum([u64::MAX; 4]);
        let before = sum;
        sum.add(b"x");
        sum.remove(b"x");
        assert_eq!(sum, before);
        assert_eq!(RowSum::from_bytes(before.to_bytes()), before);
    }
}
