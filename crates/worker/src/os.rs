//! What the standard library does not offer: the clock that counts through a suspend, process groups, and children that
//! die with this process. The only unsafe code of this crate.

#![allow(unsafe_code, reason = "system calls without a safe wrapper in the standard library")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

/// A signal that is sent to a process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// Time since the machine was started, suspended time included.
///
/// `CLOCK_MONOTONIC`, and with it `Instant`, stands still while the machine is suspended. The cluster's lease time goes
/// on meanwhile, so a lease counted on it would seem to last longer than it does. `CLOCK_BOOTTIME` counts through.
pub(crate) fn boottime() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to write to.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    assert_eq!(result, 0, "Linux has had CLOCK_BOOTTIME since 2.6.39");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sends a signal to all of a process group. A group that is gone is no error: that is what the signal was for.
pub(crate) fn signal_group(group: i32, signal: Signal) {
    assert!(group > 1, "a group of 0 or 1 would mean this process's own, or everything");
    let signal = match signal {
        Signal::Terminate => libc::SIGTERM,
        Signal::Kill => libc::SIGKILL,
    };
    // SAFETY: `kill` takes any numbers and touches no memory.
    unsafe { libc::kill(-group, signal) };
}

/// Makes the child of `command` the leader of its own session and process group, and has the kernel kill it when the
/// thread that starts it ends. That thread must therefore stay until the child has ended.
pub(crate) fn detach(command: &mut Command) {
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: the closure runs between fork and exec, and makes only system calls that are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::setsid() < 0 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the line above took effect.
            if libc::getppid() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

/// Makes the child of `command` the leader of its own session, and deaf to the signals that end this process.
pub(crate) fn keep_apart(command: &mut Command) {
    // SAFETY: as in `detach`.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_IGN);
            }
            Ok(())
        });
    }
}

/// Waits until the child `pid` has ended, and leaves it to be reaped: until then its number, and that of its group,
/// belong to nobody else.
pub(crate) fn wait_until_ended(pid: u32) -> io::Result<()> {
    loop {
        // SAFETY: all zeros is a valid siginfo_t, and `info` is valid for the call to write to.
        let result = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boottime_goes_on() {
        let before = boottime();
        std::thread::park_timeout(Duration::from_millis(5));
        assert!(boottime() > before);
    }

    #[test]
    fn an_ended_child_keeps_its_number_until_it_is_reaped() {
        let mut child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        wait_until_ended(child.id()).unwrap();
        wait_until_ended(child.id()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(3));
        assert!(wait_until_ended(child.id()).is_err());
    }
}
