//! How commands reach a cluster.

use std::path::PathBuf;
use std::time::Duration;

use ag_client::Client;
use anyhow::{Context as _, Result};
use clap::Args;

use crate::exit::Exit;

/// Where the cluster is, and who asks.
#[derive(Args, Clone, Debug)]
pub struct Connect {
    /// Addresses of replicas, any of them: `host:port`, or `https://host:port`, separated by commas.
    #[arg(long, env = "AG_ADDR", default_value = "127.0.0.1:7400", global = true)]
    pub addr: String,
    /// A file that holds the bearer token. Without it, the environment's AG_BEARER_TOKEN is used.
    #[arg(long, global = true, value_name = "FILE")]
    pub bearer_token_file: Option<PathBuf>,
    /// The certificate of the authority that signed the replicas' client-port certificates (PEM).
    #[arg(long, env = "AG_CA", global = true, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// How long a call may take.
    #[arg(long, default_value = "30s", value_parser = duration, global = true)]
    pub timeout: Duration,
}

impl Connect {
    /// A client.
    pub fn client(&self) -> Result<Client> {
        let mut builder = Client::builder().addrs(&self.addr).deadline(self.timeout);
        if let Some(path) = &self.ca {
            let pem = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            builder = builder.ca_pem(pem);
        }
        if let Some(bearer_token) = self.bearer_token()? {
            builder = builder.bearer_token(bearer_token);
        }
        builder.build().map_err(|error| Exit::usage(error.to_string()))
    }

    fn bearer_token(&self) -> Result<Option<String>> {
        if let Some(path) = &self.bearer_token_file {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            return Ok(Some(text.trim().to_owned()));
        }
        Ok(std::env::var("AG_BEARER_TOKEN").ok().filter(|text| !text.is_empty()))
    }
}

/// Parses `250ms`, `30s`, `5m`, `2h`, `7d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let count: u64 = digits.parse().map_err(|_| "must be a whole number and a unit, as in 30s".to_owned())?;
    let millis = match &text[digits.len()..] {
        "ms" => Some(count),
        "s" => count.checked_mul(1_000),
        "m" => count.checked_mul(60_000),
        "h" => count.checked_mul(3_600_000),
        "d" => count.checked_mul(86_400_000),
        _ => return Err("must have the unit ms, s, m, h or d".into()),
    };
    millis.map(Duration::from_millis).ok_or_else(|| "is too long".into())
}

/// A duration as messages carry it.
pub fn proto(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7_200)));
        for bad in ["", "5", "s", "-5s", "5x", "1.5s", "99999999999999999999s", "18446744073709551615d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
