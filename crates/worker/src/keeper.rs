//! Kills the commands of a worker that died.
//!
//! The kernel kills a command's shell when the worker ends, but not what the shell has started. So a small shell of its
//! own is told every process group that begins and ends. When its standard input closes, because the worker is gone in
//! whatever way, it kills the groups that are left, and removes the worker's folder for progress files.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::os;

const SCRIPT: &str = "groups=' '
while read -r sign group; do
  case $sign in
    +) groups=\"$groups$group \" ;;
    -) groups=\"${groups%% $group *} ${groups#* $group }\" ;;
  esac
done
for group in $groups; do kill -KILL \"-$group\" 2>/dev/null; done
rm -rf -- \"$1\"
exit 0";

pub(crate) struct Keeper {
    child: Child,
    told: Mutex<Option<ChildStdin>>,
}

impl Keeper {
    /// Starts it, in a session of its own, so that a signal to the worker's group leaves it alone. In the end it
    /// removes `folder`.
    pub fn start(folder: &Path) -> std::io::Result<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "ag-worker-keeper"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.env_remove("AG_BEARER_TOKEN");
        os::keep_apart(&mut command);
        let mut child = command.spawn()?;
        let told = Mutex::new(child.stdin.take());
        Ok(Self { child, told })
    }

    /// A group has begun.
    pub fn begun(&self, group: i32) {
        self.tell('+', group);
    }

    /// The leader of a group has ended, and what was left of it was killed. It has not been reaped yet.
    pub fn ended(&self, group: i32) {
        self.tell('-', group);
    }

    fn tell(&self, sign: char, group: i32) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let written = told.as_mut().map(|told| told.write_all(format!("{sign} {group}\n").as_bytes()));
        if let Some(Err(error)) = written {
            tracing::warn!(%error, "the process that kills this worker's commands should it die is gone");
            *told = None;
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "cannot wait for the process that would have killed this worker's commands");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};

    use super::*;

    fn sleeper() -> Child {
        // The sleep is a child of the shell: it must go as well.
        Command::new("sh").args(["-c", "sleep 1000 & wait"]).process_group(0).spawn().unwrap()
    }

    #[test]
    fn it_kills_the_groups_that_are_left_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let (folder, other) = (parent.path().join("a folder"), parent.path().join("other"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::create_dir(&other).unwrap();
        let keeper = Keeper::start(&folder).unwrap();
        let mut children: Vec<Child> = (0..4).map(|_| sleeper()).collect();
        for child in &children {
            keeper.begun(child.id() as i32);
        }
        keeper.ended(children[1].id() as i32);
        keeper.ended(children[3].id() as i32);
        drop(keeper);
        for killed in [0, 2] {
            assert_eq!(children[killed].wait().unwrap().signal(), Some(libc::SIGKILL));
        }
        assert!(!folder.exists() && other.exists());
        for spared in [1, 3] {
            assert!(children[spared].try_wait().unwrap().is_none());
            os::signal_group(children[spared].id() as i32, os::Signal::Kill);
            children[spared].wait().unwrap();
        }
    }
}
