//! Files that survive a power cut.

use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};

use crate::StoreError;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Makes the names in a folder durable.
pub fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|handle| handle.sync_all()).map_err(StoreError::file("sync", folder))
}

/// Makes a folder, with all above it, and their names durable.
pub fn make_folder(folder: &Path) -> Result<(), StoreError> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_folder(parent)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => made.map_err(StoreError::file("create", folder))?,
    }
    sync_folder(parent)
}

/// Writes a file so that after a crash there is the old one or the new one, whole.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    let written = path.with_file_name(name);
    let mut handle = File::create(&written).map_err(StoreError::file("create", &written))?;
    handle.write_all(bytes).map_err(StoreError::file("write", &written))?;
    handle.sync_all().map_err(StoreError::file("sync", &written))?;
    rename(&written, path)
}

/// Renames within one folder, durably.
pub fn rename(from: &Path, to: &Path) -> Result<(), StoreError> {
    fs::rename(from, to).map_err(StoreError::file("rename", from))?;
    sync_folder(to.parent().unwrap_or(Path::new(".")))
}

/// Removes a folder and all in it; it need not exist.
pub fn remove_folder(folder: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(StoreError::file("remove", folder)),
    }
}

/// The names in a folder, in order; a name that is no UTF-8 is an error.
pub fn names(folder: &Path) -> Result<Vec<String>, StoreError> {
    let list = || -> std::io::Result<Vec<String>> {
        let mut names = Vec::new();
        for found in fs::read_dir(folder)? {
            let name = found?.file_name().into_string();
            names.push(name.map_err(|_| std::io::Error::other("a file name is no UTF-8"))?);
        }
        names.sort();
        Ok(names)
    };
    list().map_err(StoreError::file("list", folder))
}

/// How many bytes a file has, and their CRC-32.
pub fn measure(path: &Path) -> Result<(u64, u32), StoreError> {
    pass(path, |_| Ok(()))
}

/// Copies a file, durably, and gives how many bytes it has and their CRC-32.
pub fn copy(from: &Path, to: &Path) -> Result<(u64, u32), StoreError> {
    let mut target = File::create_new(to).map_err(StoreError::file("create", to))?;
    let measured = pass(from, |part| target.write_all(part).map_err(StoreError::file("write", to)))?;
    target.sync_all().map_err(StoreError::file("sync", to))?;
    Ok(measured)
}

fn pass(path: &Path, mut each: impl FnMut(&[u8]) -> Result<(), StoreError>) -> Result<(u64, u32), StoreError> {
    let mut source = File::open(path).map_err(StoreError::file("open", path))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut crc32 = crc32fast::Hasher::new();
    let mut bytes = 0;
    loop {
        let count = source.read(&mut buffer).map_err(StoreError::file("read", path))?;
        if count == 0 {
            return Ok((bytes, crc32.finalize()));
        }
        each(&buffer[..count])?;
        crc32.update(&buffer[..count]);
        bytes += count as u64;
    }
}

/// Removes a folder when it is dropped, unless it is kept. For work that is not finished.
#[derive(Debug)]
pub struct Scratch {
    folder: Option<PathBuf>,
}

impl Scratch {
    /// Makes an empty folder.
    pub fn make(folder: PathBuf) -> Result<Self, StoreError> {
        let scratch = Self::reserve(folder)?;
        fs::create_dir(scratch.path()).map_err(StoreError::file("create", scratch.path()))?;
        Ok(scratch)
    }

    /// Makes sure that the folder does not exist yet, and leaves making it to another.
    pub fn reserve(folder: PathBuf) -> Result<Self, StoreError> {
        remove_folder(&folder)?;
        Ok(Self { folder: Some(folder) })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.as_deref().unwrap_or(Path::new(""))
    }

    /// The work is finished: gives the folder, under its new name in the same parent folder.
    pub fn keep_as(mut self, path: &Path) -> Result<(), StoreError> {
        rename(self.path(), path)?;
        self.folder = None;
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            discard(folder);
        }
    }
}

/// Removes a folder that is of no use any more. If that fails, the next start does it.
pub fn discard(folder: &Path) {
    if let Err(error) = remove_folder(folder) {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(folder = %folder.display(), error, "left over until the next start");
    }
}
