//! Snapshots of the state: folders of files, with a description that checks them all.

mod checkpoint;
pub(crate) mod install;
mod list;
mod publish;
mod receive;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ag_wire::storage::{SnapshotFile, SnapshotMeta, decode_snapshot_meta, encode_snapshot_meta};
use ag_wire::version::DATA_FORMAT;
use bytes::Bytes;

use crate::seal::{Table, seal, unseal};
use crate::{StoreError, files};

pub use checkpoint::Checkpoint;
pub use list::Snapshots;
pub use receive::SnapshotReceiver;

/// The file that describes all others.
const META_FILE: &str = "META";
/// Most files of a snapshot.
const FILES_MAX: usize = 100_000;

/// A snapshot on disk. Cheap to clone. When a newer one has replaced it, its files go with the last clone.
#[derive(Clone, Debug)]
pub struct Snapshot {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    meta: SnapshotMeta,
    is_replaced: AtomicBool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_replaced.load(Ordering::Acquire) {
            files::discard(&self.folder);
        }
    }
}

impl Snapshot {
    fn new(folder: PathBuf, meta: SnapshotMeta) -> Self {
        Self { inner: Arc::new(Inner { folder, meta, is_replaced: AtomicBool::new(false) }) }
    }

    fn read_back(folder: PathBuf) -> Result<Self, StoreError> {
        let path = folder.join(META_FILE);
        let bytes = std::fs::read(&path).map_err(StoreError::file("read", &path))?;
        Ok(Self::new(folder, decode_description(&bytes)?))
    }

    /// What it holds.
    pub fn meta(&self) -> &SnapshotMeta {
        &self.inner.meta
    }

    /// The description to send to another replica before the files, see [`Snapshots::receive`].
    pub fn description(&self) -> Bytes {
        encode_description(&self.inner.meta).into()
    }

    /// How many bytes its files have together.
    pub fn bytes(&self) -> u64 {
        self.inner.meta.files.iter().map(|file| file.bytes).sum()
    }

    /// A reader of one of its files, which fails at the end if the file is not what it was.
    pub fn read(&self, file: &SnapshotFile) -> Result<SnapshotReader, StoreError> {
        let path = self.path(file);
        let opened = File::open(&path).map_err(StoreError::file("open", &path))?;
        Ok(SnapshotReader { file: opened, expected: file.clone(), bytes: 0, crc32: crc32fast::Hasher::new() })
    }

    /// Reads all files, and compares them with the description.
    pub fn verify(&self) -> Result<(), StoreError> {
        for file in &self.inner.meta.files {
            let measured = files::measure(&self.path(file))?;
            check_measured(file, measured)?;
        }
        Ok(())
    }

    fn path(&self, file: &SnapshotFile) -> PathBuf {
        self.inner.folder.join(&file.name)
    }

    fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// Its files go with the last clone.
    fn set_replaced(&self) {
        self.inner.is_replaced.store(true, Ordering::Release);
    }
}

/// Reads one file of a snapshot.
#[derive(Debug)]
pub struct SnapshotReader {
    file: File,
    expected: SnapshotFile,
    bytes: u64,
    crc32: crc32fast::Hasher,
}

impl Read for SnapshotReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.crc32.update(&buffer[..count]);
        self.bytes += count as u64;
        let is_end = count == 0 && !buffer.is_empty();
        if is_end && (self.bytes, self.crc32.clone().finalize()) != (self.expected.bytes, self.expected.crc32) {
            return Err(std::io::Error::other(damaged(&self.expected)));
        }
        Ok(count)
    }
}

fn check_measured(file: &SnapshotFile, measured: (u64, u32)) -> Result<(), StoreError> {
    if measured == (file.bytes, file.crc32) { Ok(()) } else { Err(damaged(file)) }
}

fn damaged(file: &SnapshotFile) -> StoreError {
    StoreError::corrupt(format!("snapshot file {}", file.name), "its length or its checksum does not hold")
}

/// That what another replica sent is damaged.
fn refused(error: StoreError) -> StoreError {
    match error {
        StoreError::Corrupt { what, why } => StoreError::SnapshotRefused { why: format!("{what}: {why}") },
        other => other,
    }
}

fn encode_description(meta: &SnapshotMeta) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_snapshot_meta(meta, &mut bytes);
    seal(Table::SnapshotMeta, META_FILE.as_bytes(), &mut bytes);
    bytes
}

/// The description in these bytes, which another replica may have sent.
fn decode_description(bytes: &[u8]) -> Result<SnapshotMeta, StoreError> {
    let refused = |why: String| StoreError::SnapshotRefused { why };
    let value = unseal(Table::SnapshotMeta, META_FILE.as_bytes(), bytes)?;
    let meta = decode_snapshot_meta(value).map_err(StoreError::decode("the snapshot's description"))?;
    if meta.data_format != DATA_FORMAT {
        let found = meta.data_format;
        return Err(refused(format!("it has format {found}, but this release reads {DATA_FORMAT}")));
    }
    if meta.files.len() > FILES_MAX {
        return Err(refused(format!("it has more than {FILES_MAX} files")));
    }
    for (at, file) in meta.files.iter().enumerate() {
        if !is_plain_name(&file.name) {
            return Err(refused(format!("a file of it has the name {:?}", file.name)));
        }
        if at > 0 && meta.files[at - 1].name >= file.name {
            return Err(refused("its files are not in the order of their names".into()));
        }
    }
    Ok(meta)
}

/// Whether a name cannot lead out of the folder, or to the description.
fn is_plain_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=128).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.') && name != META_FILE
}
