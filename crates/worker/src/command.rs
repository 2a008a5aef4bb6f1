//! One run of the command.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::oneshot;

use crate::keeper::Keeper;
use crate::lease::Slot;
use crate::os::{self, Signal};

/// Largest result, in bytes; a command that writes more has failed.
pub(crate) const RESULT_BYTES_MAX: usize = 1 << 20;
/// How much of the end of standard error is kept for the reason of a failure.
const STDERR_TAIL_BYTES: usize = 4 << 10;
/// How long output may stay open after the command has ended, by a process that left its group.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(2);

/// What is run, and with what.
pub(crate) struct Run {
    pub command: String,
    pub directory: Option<PathBuf>,
    pub environment: Vec<(&'static str, String)>,
    pub payload: Vec<u8>,
}

/// How the command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What it wrote to standard output.
    pub result: Vec<u8>,
    /// What `result` is worth.
    pub verdict: Verdict,
    /// The end of what it wrote to standard error.
    pub stderr_tail: String,
}

/// How the command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// With this exit code.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// It wrote too much, and was killed.
    TooMuchOutput,
    /// It ended, but something that it started kept its standard output open.
    OutputLeftOpen,
    /// It could not be started, waited for, or read from.
    Broken(String),
}

/// A running command.
pub(crate) struct Running {
    pub process_group: i32,
    pub ended: oneshot::Receiver<Ended>,
}

struct Started {
    process_group: i32,
    stdin: std::process::ChildStdin,
    stdout: std::process::ChildStdout,
    stderr: std::process::ChildStderr,
    exit: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// Starts the command under the claim of `slot`. From then on the loss of the claim kills it.
pub(crate) async fn start(run: Run, slot: Arc<Slot>, keeper: Arc<Keeper>) -> io::Result<Running> {
    let (send, receive) = oneshot::channel();
    let mut command = Command::new("sh");
    command.arg("-c").arg(&run.command).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The worker's own credentials are none of the command's business.
    command.env_remove("AG_BEARER_TOKEN").envs(run.environment);
    if let Some(directory) = run.directory {
        command.current_dir(directory);
    }
    os::detach(&mut command);
    let watched = Arc::clone(&slot);
    // A thread for each run: the kernel kills the command when the thread that started it ends, and this one stays.
    let thread = std::thread::Builder::new().name("ag-command".into());
    thread.spawn(move || supervise(command, &watched, &keeper, send))?;
    let lost = || io::Error::other("the thread that starts the command is gone");
    let started = receive.await.map_err(|_| lost())??;
    let process_group = started.process_group;
    let (send, ended) = oneshot::channel();
    let stdin = ChildStdin::from_std(started.stdin)?;
    let stdout = ChildStdout::from_std(started.stdout)?;
    let stderr = ChildStderr::from_std(started.stderr)?;
    tokio::spawn(feed(stdin, run.payload));
    tokio::spawn(async move {
        // Nobody waits for the end any more once the claim's task is gone.
        let _ = send.send(follow(stdout, stderr, started.exit, &slot).await);
    });
    Ok(Running { process_group, ended })
}

fn supervise(mut command: Command, slot: &Slot, keeper: &Keeper, send: oneshot::Sender<io::Result<Started>>) {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return drop(send.send(Err(error))),
    };
    let group = child.id() as i32;
    keeper.begun(group);
    slot.set_group(group);
    let (tell_exit, exit) = oneshot::channel();
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { unreachable!("all three are set to be piped") };
    let unheard = send.send(Ok(Started { process_group: group, stdin, stdout, stderr, exit })).is_err();
    if unheard {
        slot.signal(Signal::Kill);
    }
    let waited = os::wait_until_ended(child.id());
    // In this order: while the ended child is not reaped, its group's number is nobody else's.
    slot.clear_group();
    keeper.ended(group);
    let status = waited.and_then(|()| child.wait());
    // Nobody waits for the end any more once the claim's task is gone.
    let _ = tell_exit.send(status);
}

/// A command need not read its payload: that it closes its input is no failure.
async fn feed(mut stdin: ChildStdin, payload: Vec<u8>) {
    if let Err(error) = stdin.write_all(&payload).await
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        tracing::warn!(%error, "cannot write the payload to the command");
    }
}

async fn follow(
    stdout: ChildStdout,
    stderr: ChildStderr,
    exit: oneshot::Receiver<io::Result<ExitStatus>>,
    slot: &Slot,
) -> Ended {
    let mut result = tokio::spawn(read_result(stdout));
    let mut tail = tokio::spawn(read_tail(stderr));
    let mut early = None;
    let mut exit = std::pin::pin!(exit);
    let status = tokio::select! {
        status = &mut exit => status,
        read = &mut result => {
            let read = read.unwrap_or_else(|error| Err(io::Error::other(error)));
            // Too much, or broken: the rest is of no use. Closed early: it may well go on without output.
            if !matches!(&read, Ok(Some(_))) {
                slot.signal(Signal::Kill);
            }
            early = Some(read);
            exit.await
        }
    };
    let status = status.unwrap_or_else(|_| Err(io::Error::other("the thread that waits for the command is gone")));
    let read = match early {
        Some(read) => Ok(read),
        None => tokio::time::timeout(OUTPUT_PATIENCE, &mut result).await.map(|read| match read {
            Ok(read) => read,
            Err(error) => Err(io::Error::other(error)),
        }),
    };
    result.abort();
    let stderr_tail = match tokio::time::timeout(OUTPUT_PATIENCE, &mut tail).await {
        Ok(Ok(tail)) => tail,
        Ok(Err(_)) | Err(_) => String::new(),
    };
    tail.abort();
    let (result, verdict) = match (status, read) {
        (Err(error), _) => (Vec::new(), Verdict::Broken(format!("cannot wait for the command: {error}"))),
        (_, Ok(Err(error))) => (Vec::new(), Verdict::Broken(format!("cannot read the command's output: {error}"))),
        (_, Ok(Ok(None))) => (Vec::new(), Verdict::TooMuchOutput),
        (Ok(status), Err(_)) if status.success() => (Vec::new(), Verdict::OutputLeftOpen),
        (Ok(status), Err(_)) => (Vec::new(), of_status(status)),
        (Ok(status), Ok(Ok(Some(result)))) => (result, of_status(status)),
    };
    Ended { result, verdict, stderr_tail }
}

fn of_status(status: ExitStatus) -> Verdict {
    match (status.code(), status.signal()) {
        (Some(code), _) => Verdict::Exit(code),
        (None, Some(signal)) => Verdict::Signal(signal),
        (None, None) => Verdict::Broken("the command neither exited nor was killed".into()),
    }
}

/// `None`: it is more than [`RESULT_BYTES_MAX`].
async fn read_result(stdout: impl AsyncRead + Unpin) -> io::Result<Option<Vec<u8>>> {
    let mut result = Vec::new();
    stdout.take(RESULT_BYTES_MAX as u64 + 1).read_to_end(&mut result).await?;
    Ok((result.len() <= RESULT_BYTES_MAX).then_some(result))
}

/// The last [`STDERR_TAIL_BYTES`]; whatever stands before is read and dropped, so that the command is not held up.
async fn read_tail(mut stderr: impl AsyncRead + Unpin) -> String {
    let (mut tail, mut chunk) = (Vec::new(), vec![0; STDERR_TAIL_BYTES]);
    // A read that fails ends the tail; it is for people only.
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        tail.extend_from_slice(&chunk[..count]);
        tail.drain(..tail.len().saturating_sub(STDERR_TAIL_BYTES));
    }
    String::from_utf8_lossy(&tail).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_result_is_taken_at_its_bound_and_refused_beyond() {
        let most = vec![b'x'; RESULT_BYTES_MAX];
        assert_eq!(read_result(most.as_slice()).await.unwrap().map(|result| result.len()), Some(RESULT_BYTES_MAX));
        let more = vec![b'x'; RESULT_BYTES_MAX + 1];
        assert_eq!(read_result(more.as_slice()).await.unwrap(), None);
    }

    #[tokio::test]
    async fn the_tail_is_the_end_of_what_was_written() {
        let text = "x".repeat(STDERR_TAIL_BYTES * 3) + "the end\n";
        let tail = read_tail(text.as_bytes()).await;
        assert!(tail.ends_with("xthe end") && tail.len() < STDERR_TAIL_BYTES, "{}", tail.len());
        assert_eq!(read_tail(&b"\xff ok\n"[..]).await, "\u{fffd} ok");
    }
}
