//! The file through which a command tells how far it is.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Largest progress that the service takes, in bytes.
pub(crate) const PROGRESS_BYTES_MAX: usize = 64 << 10;

/// A private directory for the progress files of this worker; removed with this value.
pub(crate) struct ProgressDir(PathBuf);

impl ProgressDir {
    /// Makes one below the system's directory for temporary files.
    pub fn make() -> io::Result<Self> {
        let name = format!("ag-worker-{}-{:016x}", std::process::id(), rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file of one claim. It does not exist until the command writes it.
    pub fn file(&self, job_id: &str, claim_number: u32) -> ProgressFile {
        // A job id from the service is no path, but is not trusted to be none either.
        let name: String = job_id.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
        ProgressFile { path: self.0.join(format!("{name}-{claim_number}")), sent: Vec::new(), taken: Vec::new() }
    }
}

impl Drop for ProgressDir {
    fn drop(&mut self) {
        // The keeper may have been faster.
        if let Err(error) = std::fs::remove_dir_all(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %self.0.display(), "cannot remove the directory of the progress files");
        }
    }
}

/// The progress file of one claim; removed with this value.
pub(crate) struct ProgressFile {
    path: PathBuf,
    sent: Vec<u8>,
    taken: Vec<u8>,
}

impl ProgressFile {
    /// Where the command writes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the service does not have yet; empty when there is nothing new, or nothing that can be sent.
    pub fn news(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let read =
            File::open(&self.path).and_then(|file| file.take(PROGRESS_BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
        if let Err(error) = &read
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot read the progress file");
        }
        if bytes.len() > PROGRESS_BYTES_MAX {
            tracing::warn!(path = %self.path.display(), "the progress file is larger than {PROGRESS_BYTES_MAX} bytes");
            bytes.clear();
        }
        if read.is_err() || bytes == self.taken {
            bytes.clear();
        }
        self.sent.clone_from(&bytes);
        bytes
    }

    /// The service has taken what was sent last.
    pub fn taken(&mut self) {
        if !self.sent.is_empty() {
            self.taken = std::mem::take(&mut self.sent);
        }
    }
}

impl Drop for ProgressFile {
    fn drop(&mut self) {
        // Gone already, or never written: both are as they should be. The directory goes in the end anyway.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_sent_when_it_is_new_and_again_until_it_is_taken() {
        let dir = ProgressDir::make().unwrap();
        let mut file = dir.file("../j1", 2);
        assert_eq!(file.path().parent(), Some(dir.0.as_path()), "an odd job id leads to no other place");
        assert!(file.news().is_empty());
        std::fs::write(file.path(), "10 %").unwrap();
        assert_eq!(file.news(), b"10 %");
        assert_eq!(file.news(), b"10 %", "not taken yet");
        file.taken();
        assert!(file.news().is_empty());
        std::fs::write(file.path(), vec![b'x'; PROGRESS_BYTES_MAX]).unwrap();
        assert_eq!(file.news().len(), PROGRESS_BYTES_MAX);
        std::fs::write(file.path(), vec![b'x'; PROGRESS_BYTES_MAX + 1]).unwrap();
        assert!(file.news().is_empty(), "too large to be sent");
        let (path, root) = (file.path().to_owned(), dir.0.clone());
        drop(file);
        assert!(!path.exists());
        drop(dir);
        assert!(!root.exists());
    }
}
