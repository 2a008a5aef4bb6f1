//! Snapshots: checkpoints of the state, complete and durable before anyone relies on them.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use ag_core::digest::Digest;
use ag_wire::storage::{decode_message, encode_message, stored};

use crate::error::StoreError;
use crate::folder::{DataFolder, remove_folder, sync_folder, write_atomic};
use crate::frame;
use crate::rocks::{RocksState, applied_row, mark_of};
use crate::table::AppliedMark;

const MANIFEST: &str = "SNAPSHOT";
const CURRENT: &str = "CURRENT";
const FILES_MAX: usize = 100_000;

/// The snapshots and the generations of the state of one data folder.
#[derive(Clone, Debug)]
pub struct Snapshots {
    state: PathBuf,
    snapshots: PathBuf,
}

/// A checkpoint that was taken, and is not a snapshot yet.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    mark: AppliedMark,
    state_hash: Digest,
    cluster_version: u32,
}

/// A snapshot: a folder of files that do not change.
#[derive(Clone, Debug)]
pub struct Snapshot {
    folder: PathBuf,
    manifest: stored::SnapshotManifest,
}

impl Snapshots {
    /// Those of this data folder. Removes what a crash left half done.
    pub fn open(folder: &DataFolder) -> Result<Self, StoreError> {
        let snapshots = Self { state: folder.state(), snapshots: folder.snapshots() };
        for path in [&snapshots.state, &snapshots.snapshots] {
            fs::create_dir_all(path).map_err(StoreError::file("make", path))?;
        }
        let current = snapshots.generation()?;
        for path in children(&snapshots.state)? {
            let name = name_of(&path);
            if name.starts_with("gen-") && current.as_deref() != Some(name.as_str()) {
                remove_folder(&path)?;
            }
        }
        for path in children(&snapshots.snapshots)? {
            if !name_of(&path).starts_with("snap-") {
                remove_folder(&path)?;
            }
        }
        Ok(snapshots)
    }

    /// The name of the generation that counts; `None`: none yet.
    fn generation(&self) -> Result<Option<String>, StoreError> {
        let path = self.state.join(CURRENT);
        match fs::read_to_string(&path) {
            Ok(text) => match text.trim() {
                name if name.strip_prefix("gen-").is_some_and(|number| number.parse::<u64>().is_ok()) => {
                    Ok(Some(name.to_owned()))
                }
                other => Err(StoreError::Corrupt {
                    table: "state/CURRENT",
                    what: format!("it names no generation: {other:?}"),
                }),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::file("read", &path)(error)),
        }
    }

    /// Opens the state, and makes the first generation if there is none.
    pub fn open_state(&self) -> Result<RocksState, StoreError> {
        match self.generation()? {
            Some(name) if self.state.join(&name).is_dir() => RocksState::open(&self.state.join(name)),
            Some(name) => Err(StoreError::Corrupt { table: "state", what: format!("{name} is missing") }),
            None => {
                let path = self.state.join("gen-1");
                let state = RocksState::open(&path)?;
                write_atomic(&self.state.join(CURRENT), b"gen-1\n")?;
                Ok(state)
            }
        }
    }

    /// Takes a checkpoint of the state, between two commits. Quick; [`Snapshots::finish`] does the rest.
    pub fn begin(
        &self,
        state: &RocksState,
        mark: AppliedMark,
        state_hash: Digest,
        cluster_version: u32,
    ) -> Result<Checkpoint, StoreError> {
        let folder = self.snapshots.join("tmp-checkpoint");
        remove_folder(&folder)?;
        state.checkpoint(&folder)?;
        Ok(Checkpoint { folder, mark, state_hash, cluster_version })
    }

    /// Makes a snapshot of a checkpoint: durable, with the checksums of its files. Keeps the one before, and drops older ones.
    pub fn finish(&self, checkpoint: Checkpoint) -> Result<Snapshot, StoreError> {
        let mut files = Vec::new();
        for path in children(&checkpoint.folder)? {
            File::open(&path).and_then(|file| file.sync_all()).map_err(StoreError::file("sync", &path))?;
            let (bytes, crc) = checksum(&path)?;
            files.push(stored::SnapshotFile { name: name_of(&path), bytes, crc });
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let manifest = stored::SnapshotManifest {
            applied: Some(applied_row(&checkpoint.mark)),
            state_hash: checkpoint.state_hash.0.to_vec().into(),
            cluster_version: checkpoint.cluster_version,
            files,
        };
        self.seal(&checkpoint.folder, manifest)
    }

    /// Writes the manifest, gives the folder its name, and drops older snapshots.
    fn seal(&self, folder: &Path, manifest: stored::SnapshotManifest) -> Result<Snapshot, StoreError> {
        write_atomic(&folder.join(MANIFEST), &frame::seal(MANIFEST.as_bytes(), &encode_message(&manifest)))?;
        let log_index = manifest.applied.as_ref().and_then(|row| row.applied.as_ref()).map_or(0, |at| at.log_index);
        let target = self.snapshots.join(format!("snap-{log_index:020}"));
        remove_folder(&target)?;
        fs::rename(folder, &target).map_err(StoreError::file("rename to", &target))?;
        sync_folder(&self.snapshots)?;
        // The one before stays: it may just be on its way to another replica.
        let mut older: Vec<_> = children(&self.snapshots)?;
        older.retain(|path| name_of(path).starts_with("snap-") && *path < target);
        older.sort();
        older.pop();
        older.iter().try_for_each(|path| remove_folder(path))?;
        Ok(Snapshot { folder: target, manifest })
    }

    /// The newest snapshot. Its manifest is checked here, its files when they are read.
    pub fn newest(&self) -> Result<Option<Snapshot>, StoreError> {
        let snapshots = children(&self.snapshots)?.into_iter().filter(|path| name_of(path).starts_with("snap-"));
        let Some(folder) = snapshots.max() else { return Ok(None) };
        let path = folder.join(MANIFEST);
        let sealed = fs::read(&path).map_err(StoreError::file("read", &path))?;
        let manifest = frame::open(MANIFEST, MANIFEST.as_bytes(), &sealed)?;
        let manifest = decode_message(manifest).map_err(StoreError::decode(MANIFEST))?;
        Ok(Some(Snapshot { folder, manifest }))
    }

    /// Begins to receive a snapshot with this manifest.
    pub fn receive(&self, manifest: &[u8]) -> Result<SnapshotReceiver, StoreError> {
        let manifest: stored::SnapshotManifest = decode_message(manifest).map_err(StoreError::decode(MANIFEST))?;
        if manifest.files.len() > FILES_MAX {
            return Err(StoreError::Snapshot(format!("it has more than {FILES_MAX} files")));
        }
        for file in &manifest.files {
            let plain = file.name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
            if !plain || file.name.is_empty() || file.name.starts_with('.') || file.name == MANIFEST {
                return Err(StoreError::Snapshot(format!("it has a file named {:?}", file.name)));
            }
        }
        let folder = self.snapshots.join("tmp-received");
        remove_folder(&folder)?;
        fs::create_dir_all(&folder).map_err(StoreError::file("make", &folder))?;
        Ok(SnapshotReceiver { snapshots: self.clone(), folder, manifest, next: 0, open: None })
    }

    /// Makes a snapshot the state. After a crash there is the old state or the new one.
    pub fn install(&self, snapshot: &Snapshot) -> Result<RocksState, StoreError> {
        snapshot.verify()?;
        let number = self.generation()?.and_then(|name| name.strip_prefix("gen-")?.parse::<u64>().ok()).unwrap_or(0);
        let name = format!("gen-{}", number + 1);
        let folder = self.state.join(&name);
        remove_folder(&folder)?;
        fs::create_dir_all(&folder).map_err(StoreError::file("make", &folder))?;
        for file in &snapshot.manifest.files {
            let (from, to) = (snapshot.folder.join(&file.name), folder.join(&file.name));
            // RocksDB never changes a table file, but goes on writing to the others.
            if file.name.ends_with(".sst") {
                fs::hard_link(&from, &to).map_err(StoreError::file("link", &to))?;
            } else {
                fs::copy(&from, &to).map_err(StoreError::file("copy to", &to))?;
                File::open(&to).and_then(|file| file.sync_all()).map_err(StoreError::file("sync", &to))?;
            }
        }
        sync_folder(&folder)?;
        sync_folder(&self.state)?;
        let state = RocksState::open(&folder)?;
        write_atomic(&self.state.join(CURRENT), format!("{name}\n").as_bytes())?;
        Ok(state)
    }

    /// Removes the generations that no longer count. Whoever still reads one keeps its open files.
    pub fn drop_old_generations(&self) -> Result<(), StoreError> {
        let current = self.generation()?;
        for path in children(&self.state)? {
            let name = name_of(&path);
            if name.starts_with("gen-") && current.as_deref() != Some(name.as_str()) {
                remove_folder(&path)?;
            }
        }
        Ok(())
    }
}

impl Snapshot {
    /// Up to where it has applied the log.
    pub fn mark(&self) -> AppliedMark {
        self.manifest.applied.clone().map(mark_of).unwrap_or_default()
    }

    /// The manifest, to be sent before the files.
    pub fn manifest(&self) -> Vec<u8> {
        encode_message(&self.manifest)
    }

    /// The cluster version of its state.
    pub fn cluster_version(&self) -> u32 {
        self.manifest.cluster_version
    }

    /// The hash of its state.
    pub fn state_hash(&self) -> &[u8] {
        &self.manifest.state_hash
    }

    /// Paths and sizes of its files, in the order of the manifest.
    pub fn files(&self) -> impl Iterator<Item = (PathBuf, u64)> {
        self.manifest.files.iter().map(|file| (self.folder.join(&file.name), file.bytes))
    }

    /// Whether every file is what it was.
    pub fn verify(&self) -> Result<(), StoreError> {
        for file in &self.manifest.files {
            if checksum(&self.folder.join(&file.name))? != (file.bytes, file.crc) {
                let what = format!("file {} fails its checksum", file.name);
                return Err(StoreError::Corrupt { table: "snapshot", what });
            }
        }
        Ok(())
    }
}

/// A snapshot that comes in: its files one after the other, each from its beginning to its end.
#[derive(Debug)]
pub struct SnapshotReceiver {
    snapshots: Snapshots,
    folder: PathBuf,
    manifest: stored::SnapshotManifest,
    next: usize,
    open: Option<(File, u64)>,
}

impl SnapshotReceiver {
    /// The next bytes of the stream: all files, one after the other, in the order of the manifest.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let Some(expected) = self.manifest.files.get(self.next) else {
                return Err(StoreError::Snapshot("it is longer than its manifest says".into()));
            };
            let path = self.folder.join(&expected.name);
            let (mut file, missing) = match self.open.take() {
                Some(open) => open,
                None => (File::create_new(&path).map_err(StoreError::file("make", &path))?, expected.bytes),
            };
            let part = bytes.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
            file.write_all(&bytes[..part]).map_err(StoreError::file("write", &path))?;
            bytes = &bytes[part..];
            let missing = missing - part as u64;
            if missing == 0 {
                file.sync_all().map_err(StoreError::file("sync", &path))?;
                self.next += 1;
            } else {
                self.open = Some((file, missing));
            }
        }
        Ok(())
    }

    /// The snapshot, once all bytes are in: verified and durable.
    pub fn finish(mut self) -> Result<Snapshot, StoreError> {
        while let (Some(file), None) = (self.manifest.files.get(self.next), &self.open) {
            if file.bytes > 0 {
                break;
            }
            let path = self.folder.join(&file.name);
            File::create_new(&path).map_err(StoreError::file("make", &path))?;
            self.next += 1;
        }
        if self.next < self.manifest.files.len() {
            return Err(StoreError::Snapshot("it ends before its last file".into()));
        }
        let received = Snapshot { folder: self.folder.clone(), manifest: self.manifest.clone() };
        received.verify()?;
        sync_folder(&self.folder)?;
        self.snapshots.seal(&self.folder, self.manifest)
    }
}

fn children(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = fs::read_dir(folder).map_err(StoreError::file("list", folder))?;
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(StoreError::file("list", folder))).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Size and CRC-32 of a file.
fn checksum(path: &Path) -> Result<(u64, u32), StoreError> {
    let mut file = File::open(path).map_err(StoreError::file("open", path))?;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer).map_err(StoreError::file("read", path))? {
            0 => return Ok((bytes, hasher.finalize())),
            count => {
                hasher.update(&buffer[..count]);
                bytes += count as u64;
            }
        }
    }
}
