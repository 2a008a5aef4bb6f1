//! The checksum of a stored value, over where it lies and what it is.
//!
//! A sealed value is its bytes and 4 more: CRC-32 (IEEE), little-endian, over the number of its table (1 byte), its
//! key, and its bytes. A value that turns up under another key does not have its checksum.

use crate::StoreError;

/// What a value is checked as. Numbers are fixed for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Table {
    Meta = 1,
    Jobs = 2,
    Blobs = 3,
    Queues = 4,
    Replies = 5,
    Answers = 6,
    Members = 7,
    Audit = 8,
    Attestations = 9,
    LogMeta = 32,
    LogEntries = 33,
    SnapshotMeta = 48,
    MemorySnapshot = 49,
}

impl Table {
    /// Its name, which is also that of its column family.
    pub fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Jobs => "jobs",
            Self::Blobs => "blobs",
            Self::Queues => "queues",
            Self::Replies => "replies",
            Self::Answers => "answers",
            Self::Members => "members",
            Self::Audit => "audit",
            Self::Attestations => "attestations",
            Self::LogMeta => "log_meta",
            Self::LogEntries => "log_entries",
            Self::SnapshotMeta => "snapshot_meta",
            Self::MemorySnapshot => "memory_snapshot",
        }
    }

    /// A row of it, for people to read.
    pub fn row(self, key: &[u8]) -> String {
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("row {key} of table {}", self.name())
    }
}

/// Appends the checksum, and gives it.
pub fn seal(table: Table, key: &[u8], value: &mut Vec<u8>) -> u32 {
    let crc32 = checksum(table, key, value);
    value.extend_from_slice(&crc32.to_le_bytes());
    crc32
}

/// The checksum of a sealed value, as it stands there; 0 if it is too short to have one.
pub fn checksum_of(sealed: &[u8]) -> u32 {
    sealed.last_chunk::<4>().map_or(0, |crc32| u32::from_le_bytes(*crc32))
}

/// The value without its checksum, if that holds.
pub fn unseal<'a>(table: Table, key: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], StoreError> {
    match sealed.split_last_chunk::<4>() {
        Some((value, crc32)) if u32::from_le_bytes(*crc32) == checksum(table, key, value) => Ok(value),
        _ => Err(StoreError::corrupt(table.row(key), "its checksum does not hold")),
    }
}

fn checksum(table: Table, key: &[u8], value: &[u8]) -> u32 {
    let mut crc32 = crc32fast::Hasher::new();
    crc32.update(&[table as u8]);
    crc32.update(key);
    crc32.update(value);
    crc32.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sealed_form_is_as_it_was() {
        let mut value = b"value".to_vec();
        let crc32 = seal(Table::Jobs, b"key", &mut value);
        // CRC-32 (IEEE) of 0x02, "key", "value".
        assert_eq!(crc32, 0x6b88_10a7);
        assert_eq!(value, [&b"value"[..], &crc32.to_le_bytes()].concat());
        assert_eq!(checksum_of(&value), crc32);
        assert_eq!(unseal(Table::Jobs, b"key", &value).unwrap(), b"value");
    }

    #[test]
    fn a_value_of_another_row_or_table_is_found() {
        let mut value = b"value".to_vec();
        seal(Table::Jobs, b"key", &mut value);
        assert!(unseal(Table::Jobs, b"kez", &value).unwrap_err().is_corruption());
        assert!(unseal(Table::Queues, b"key", &value).is_err());
        for length in 0..value.len() {
            assert!(unseal(Table::Jobs, b"key", &value[..length]).is_err());
        }
    }
}
