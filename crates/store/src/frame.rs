//! Values with a CRC.

use crate::error::StoreError;

const CRC_BYTES: usize = 4;

/// CRC-32 of `key` and `value`, then `value`. With the key in it, a value that ended up under another key is found.
pub(crate) fn seal(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(CRC_BYTES + value.len());
    sealed.extend_from_slice(&crc(key, value).to_le_bytes());
    sealed.extend_from_slice(value);
    sealed
}

/// The value that was sealed under this key.
pub(crate) fn open<'a>(table: &'static str, key: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], StoreError> {
    let corrupt = || StoreError::Corrupt { table, what: format!("the value of key {key:02x?} fails its checksum") };
    let (stored, value) = sealed.split_first_chunk::<CRC_BYTES>().ok_or_else(corrupt)?;
    if u32::from_le_bytes(*stored) == crc(key, value) { Ok(value) } else { Err(corrupt()) }
}

fn crc(key: &[u8], value: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&(key.len() as u32).to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    hasher.finalize()
}
