//! A state table in memory, for tests and simulations. It keeps the same encoded rows as the one on disk.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ag_core::audit::AuditRecord;
use ag_core::change::{Answer, BlobKind, Change, ReplyKey};
use ag_core::digest::Digest;
use ag_core::name::{AttestationType, JobId};
use ag_core::{Meta, State};

use crate::error::StoreError;
use crate::rocks::{Row, Table, decode_attestation, decode_mark, encode_mark, load_rows, rows_of};
use crate::table::{AppliedMark, LoadProgress, StateReader, StateTable};

type Rows = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// Rows in memory. A clone is a snapshot.
#[derive(Debug, Default)]
pub struct MemoryState {
    rows: Mutex<Rows>,
}

impl Clone for MemoryState {
    fn clone(&self) -> Self {
        Self { rows: Mutex::new(self.rows().clone()) }
    }
}

impl MemoryState {
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, table: Table, key: &[u8]) -> Option<Vec<u8>> {
        self.rows().get(&(table, key.to_vec())).cloned()
    }
}

impl StateReader for MemoryState {
    fn blob(&self, job_id: JobId, kind: BlobKind) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.get(Table::Blobs, &crate::rocks::blob_key(job_id, kind)))
    }

    fn attestation(&self, digest: &Digest) -> Result<Option<(AttestationType, Vec<u8>)>, StoreError> {
        self.get(Table::Attestations, &digest.0).map(|value| decode_attestation(&value)).transpose()
    }

    fn answer(&self, reply_key: ReplyKey) -> Result<Option<Answer>, StoreError> {
        let value = self.get(Table::Answers, &reply_key.0);
        value.map(|value| ag_wire::storage::decode_answer(&value).map_err(StoreError::decode("answers"))).transpose()
    }

    fn audit_after(&self, after: u64, records_max: usize, bytes_max: usize) -> Result<Vec<AuditRecord>, StoreError> {
        let rows = self.rows();
        let start = (Table::Audit, after.saturating_add(1).to_be_bytes().to_vec());
        let mut bytes = 0;
        let mut records = Vec::new();
        for ((table, _), value) in rows.range(start..) {
            if *table != Table::Audit || records.len() >= records_max || bytes >= bytes_max {
                break;
            }
            bytes += value.len();
            records.push(ag_wire::storage::decode_audit(value).map_err(StoreError::decode("audit"))?);
        }
        Ok(records)
    }
}

impl StateTable for MemoryState {
    fn commit(&self, changes: &[Change], meta: &Meta, mark: &AppliedMark) -> Result<(), StoreError> {
        let mut rows = self.rows();
        for change in changes {
            rows_of(change, &mut |row| match row {
                Row::Put(table, key, value) => _ = rows.insert((table, key.to_vec()), value.to_vec()),
                Row::Delete(table, key) => _ = rows.remove(&(table, key.to_vec())),
            });
        }
        rows.insert((Table::Meta, b"meta".to_vec()), ag_wire::storage::encode_meta(meta));
        rows.insert((Table::Meta, b"mark".to_vec()), encode_mark(mark));
        Ok(())
    }

    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<(State, AppliedMark), StoreError> {
        let rows = self.rows();
        let mark = match rows.get(&(Table::Meta, b"mark".to_vec())) {
            Some(value) => decode_mark(value)?,
            None => AppliedMark::default(),
        };
        let meta = rows.get(&(Table::Meta, b"meta".to_vec()));
        let meta =
            meta.map(|value| ag_wire::storage::decode_meta(value).map_err(StoreError::decode("meta"))).transpose()?;
        let state = load_rows(meta, progress, |table, row| {
            rows.iter().filter(|((in_table, _), _)| *in_table == table).try_for_each(|(_, value)| row(value))
        })?;
        Ok((state, mark))
    }
}
