//! Clusters of real processes for tests: started, killed, and looked into from outside.

pub mod cluster;
pub mod faults;
pub mod http;
pub mod load;
pub mod local;
pub mod power;
pub mod proxy;
pub mod release;
pub mod worker;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// The folder of the built binaries: that of the test, or its parent.
fn binaries() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the test itself")?;
    let folder = own.ancestors().skip(1).take(3).find(|folder| folder.join("ag").exists());
    folder.map(ToOwned::to_owned).context("the binary ag is not beside the tests: build it first")
}

/// The binary of this name, or the one that AG_BIN names for `ag`.
pub fn binary(name: &str) -> Result<PathBuf> {
    match std::env::var_os("AG_BIN").filter(|_| name == "ag") {
        Some(path) => Ok(path.into()),
        None => Ok(binaries()?.join(name)),
    }
}

/// Asks again until there is an answer, up to a deadline.
pub async fn until<T, F>(what: &str, patience: Duration, mut ask: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        let last = ask().await;
        if let Ok(Some(answer)) = last {
            return Ok(answer);
        }
        if tokio::time::Instant::now() > deadline {
            match last {
                Err(error) => return Err(error.context(format!("{what}: not within {} s", patience.as_secs()))),
                Ok(_) => bail!("{what}: not within {} s", patience.as_secs()),
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether the tests that take minutes are asked for (`./dev test --long`).
pub fn is_long() -> bool {
    std::env::var_os("AG_LONG").is_some_and(|value| value != "0")
}
