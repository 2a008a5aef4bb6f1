//! The state's tables in memory, for simulations and tests. The rows are the same bytes as on disk.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use ag_core::audit::{AuditHead, AuditRecord};
use ag_core::change::{Answer, BlobKind, Change, ReplyKey};
use ag_core::digest::Digest;
use ag_core::name::{AttestationType, JobId};
use ag_core::{Meta, State};
use ag_wire::storage::{AppliedMark, SnapshotMeta, decode_snapshot_meta, encode_snapshot_meta};
use ag_wire::version::DATA_FORMAT;
use bytes::Bytes;
use parking_lot::RwLock;

use super::rows::{self, Rows, Sink, TABLES, Visit};
use super::{LoadProgress, StateReader, StateTable, load};
use crate::StoreError;
use crate::seal::{Table, seal, unseal};

type RowMap = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// A state table that is gone with its process. Clones share their rows.
#[derive(Clone, Debug, Default)]
pub struct MemoryState {
    rows: Arc<RwLock<RowMap>>,
}

/// A copy of a state table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySnapshot {
    /// What it holds. There are no files.
    pub meta: SnapshotMeta,
    /// All of it, to be sent.
    pub bytes: Bytes,
}

impl MemoryState {
    /// A copy of what is stored now.
    pub fn snapshot(&self) -> Result<MemorySnapshot, StoreError> {
        let rows = self.rows.read();
        let (meta, mark) = rows::single_values(&*rows)?;
        let cluster_version = meta.cluster_version;
        let meta = SnapshotMeta { mark, cluster_version, data_format: DATA_FORMAT, files: Vec::new() };
        let mut head = Vec::new();
        encode_snapshot_meta(&meta, &mut head);
        let mut bytes = Vec::new();
        put_part(&mut bytes, &head);
        for ((table, key), value) in &*rows {
            bytes.push(*table as u8);
            put_part(&mut bytes, key);
            put_part(&mut bytes, value);
        }
        seal(Table::MemorySnapshot, &[], &mut bytes);
        Ok(MemorySnapshot { meta, bytes: bytes.into() })
    }

    /// A table with the contents of a snapshot, which are checked.
    pub fn from_snapshot(bytes: &[u8]) -> Result<(Self, MemorySnapshot), StoreError> {
        let refused = || StoreError::SnapshotRefused { why: "it is cut off".into() };
        let mut rest = unseal(Table::MemorySnapshot, &[], bytes)?;
        let head = take_part(&mut rest).ok_or_else(refused)?;
        let meta = decode_snapshot_meta(head).map_err(StoreError::decode("the snapshot's description"))?;
        let mut rows = RowMap::new();
        while let Some((number, after)) = rest.split_first() {
            rest = after;
            let table = TABLES.into_iter().find(|table| *table as u8 == *number);
            let table = table.ok_or_else(|| StoreError::SnapshotRefused { why: "it has an unknown table".into() })?;
            let key = take_part(&mut rest).ok_or_else(refused)?.to_vec();
            rows.insert((table, key), take_part(&mut rest).ok_or_else(refused)?.to_vec());
        }
        let state = Self { rows: Arc::new(RwLock::new(rows)) };
        Ok((state, MemorySnapshot { meta, bytes: Bytes::copy_from_slice(bytes) }))
    }

    /// Changes one stored byte: a test's way to damage a row. `false`: there is no such row.
    pub fn damage(&self, row_number: usize, byte: usize) -> bool {
        let mut rows = self.rows.write();
        let Some(value) = rows.values_mut().nth(row_number) else {
            return false;
        };
        let at = byte % value.len();
        value[at] ^= 1;
        true
    }

    fn head(&self) -> Result<AuditHead, StoreError> {
        rows::single_values(&*self.rows.read()).map(|(meta, _)| meta.audit_head)
    }
}

fn put_part(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u32).to_be_bytes());
    bytes.extend_from_slice(part);
}

fn take_part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let (part, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *rest = after;
    Some(part)
}

impl StateTable for MemoryState {
    fn commit(&self, changes: &[Change], meta: &Meta, mark: &AppliedMark) -> Result<(), StoreError> {
        rows::apply(changes, meta, mark, &mut Vec::new(), &mut *self.rows.write());
        Ok(())
    }

    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<(State, AppliedMark), StoreError> {
        load(&*self.rows.read(), progress)
    }

    fn reader(&self) -> Arc<dyn StateReader> {
        Arc::new(self.clone())
    }
}

impl StateReader for MemoryState {
    fn blob(&self, job_id: JobId, kind: BlobKind) -> Result<Option<Vec<u8>>, StoreError> {
        rows::blob(&*self.rows.read(), job_id, kind)
    }

    fn attestation(&self, digest: &Digest) -> Result<Option<(AttestationType, Vec<u8>)>, StoreError> {
        rows::attestation(&*self.rows.read(), digest)
    }

    fn answer(&self, reply_key: ReplyKey) -> Result<Option<Answer>, StoreError> {
        rows::answer(&*self.rows.read(), reply_key)
    }

    fn audit_after(&self, sequence: u64, records_max: usize, bytes_max: usize) -> Result<Vec<AuditRecord>, StoreError> {
        let head = self.head()?;
        rows::audit_after(&*self.rows.read(), head, sequence, records_max, bytes_max)
    }
}

impl Sink for RowMap {
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.insert((table, key.to_vec()), value.to_vec());
    }

    fn delete(&mut self, table: Table, key: &[u8]) {
        self.remove(&(table, key.to_vec()));
    }
}

impl Rows for RowMap {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(BTreeMap::get(self, &(table, key.to_vec())).cloned())
    }

    fn scan(&self, table: Table, start: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        for ((found, key), value) in self.range((table, start.to_vec())..) {
            if *found != table || visit(key, value)? == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn count(&self, table: Table) -> u64 {
        self.keys().filter(|(found, _)| *found == table).count() as u64
    }
}
