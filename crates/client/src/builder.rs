//! How a client is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig};

use crate::call::{Client, Shared};
use crate::pool::Pool;
use crate::{ADDRS_MAX, DEADLINE_DEFAULT, TRY_TIMEOUT_DEFAULT};

/// Why a client cannot be made. Never repeats a bearer token.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No address.
    #[error("no address of a replica is given")]
    NoAddr,
    /// Too many addresses.
    #[error("more than {ADDRS_MAX} addresses are given")]
    TooManyAddrs,
    /// A bad address.
    #[error("{addr:?} is not an address such as host:7400, http://host:7400 or https://host:7400")]
    Addr {
        /// The address.
        addr: String,
    },
    /// `http` and `https` together.
    #[error("addresses with http:// and with https:// are given together")]
    MixedSchemes,
    /// A CA without TLS.
    #[error("a CA is given, but an address says http://")]
    CaWithoutTls,
    /// TLS without a CA.
    #[error("https:// needs the CA that signed the replicas' certificates")]
    TlsWithoutCa,
    /// The CA cannot be used.
    #[error("the CA cannot be used")]
    Ca(#[source] tonic::transport::Error),
    /// The bearer token has characters that a header does not take, or is empty.
    #[error("the bearer token is empty, or has characters that a header does not take")]
    BearerToken,
    /// A time of 0.
    #[error("{what} must be longer than 0")]
    Zero {
        /// Which.
        what: &'static str,
    },
}

/// How a client is made.
#[derive(Clone, Default)]
pub struct ClientBuilder {
    addrs: Vec<String>,
    bearer_token: Option<String>,
    ca_pem: Option<Vec<u8>>,
    deadline: Option<Duration>,
    try_timeout: Option<Duration>,
    stay: bool,
}

impl ClientBuilder {
    /// Adds addresses, with commas between them, each `host:port`, `http://host:port` or `https://host:port`. Without a
    /// scheme it is https if a CA is given, else http.
    pub fn addrs(mut self, addrs: &str) -> Self {
        self.addrs.extend(addrs.split(',').map(str::trim).filter(|addr| !addr.is_empty()).map(str::to_owned));
        self
    }

    /// Shows this token on every call.
    pub fn bearer_token(mut self, bearer_token: impl Into<String>) -> Self {
        self.bearer_token = Some(bearer_token.into());
        self
    }

    /// Trusts certificates of this authority, in PEM, and no other.
    pub fn ca_pem(mut self, ca_pem: impl Into<Vec<u8>>) -> Self {
        self.ca_pem = Some(ca_pem.into());
        self
    }

    /// How long a call may take, all its tries together. Default [`DEADLINE_DEFAULT`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How long one try may take before another replica is asked. Default [`TRY_TIMEOUT_DEFAULT`].
    pub fn try_timeout(mut self, try_timeout: Duration) -> Self {
        self.try_timeout = Some(try_timeout);
        self
    }

    /// Asks only the given addresses, in their order, and follows no hint to the leader: for looking at one replica.
    pub fn stay(mut self) -> Self {
        self.stay = true;
        self
    }

    /// Makes the client. Connects to nothing: the first call does.
    pub fn build(self) -> Result<Client, ConfigError> {
        let deadline = self.deadline.unwrap_or(DEADLINE_DEFAULT);
        let try_timeout = self.try_timeout.unwrap_or(TRY_TIMEOUT_DEFAULT);
        for (what, time) in [("deadline", deadline), ("try_timeout", try_timeout)] {
            if time.is_zero() {
                return Err(ConfigError::Zero { what });
            }
        }
        let (secure, addrs) = split_schemes(&self.addrs, self.ca_pem.is_some())?;
        let tls = match (secure, self.ca_pem) {
            (false, None) => None,
            (false, Some(_)) => return Err(ConfigError::CaWithoutTls),
            (true, None) => return Err(ConfigError::TlsWithoutCa),
            (true, Some(pem)) => Some(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))),
        };
        let authorization = self.bearer_token.as_deref().map(authorization).transpose()?;
        let pool = Pool::new(addrs, tls)?;
        Ok(Client {
            shared: Arc::new(Shared { pool, authorization, follow_leader: !self.stay }),
            deadline,
            try_timeout,
        })
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("addrs", &self.addrs).finish_non_exhaustive()
    }
}

fn split_schemes(addrs: &[String], has_ca: bool) -> Result<(bool, Vec<String>), ConfigError> {
    if addrs.is_empty() {
        return Err(ConfigError::NoAddr);
    }
    if addrs.len() > ADDRS_MAX {
        return Err(ConfigError::TooManyAddrs);
    }
    let mut secure = None;
    let mut bare = Vec::with_capacity(addrs.len());
    for addr in addrs {
        let (says, rest) = match addr.split_once("://") {
            Some(("http", rest)) => (Some(false), rest),
            Some(("https", rest)) => (Some(true), rest),
            Some(_) => return Err(ConfigError::Addr { addr: addr.clone() }),
            None => (None, addr.as_str()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let has_port =
            rest.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !has_port || rest.contains(['/', '@', '?', '#']) || rest.contains(char::is_whitespace) {
            return Err(ConfigError::Addr { addr: addr.clone() });
        }
        if says.is_some() && secure.is_some() && says != secure {
            return Err(ConfigError::MixedSchemes);
        }
        secure = secure.or(says);
        if !bare.iter().any(|known| known == rest) {
            bare.push(rest.to_owned());
        }
    }
    Ok((secure.unwrap_or(has_ca), bare))
}

fn authorization(bearer_token: &str) -> Result<MetadataValue<Ascii>, ConfigError> {
    if bearer_token.is_empty() || !bearer_token.chars().all(|c| c.is_ascii_graphic()) {
        return Err(ConfigError::BearerToken);
    }
    // The error of the parser is dropped: it might repeat the secret.
    let value: Result<MetadataValue<Ascii>, _> = format!("Bearer {bearer_token}").parse();
    let mut value = value.map_err(|_| ConfigError::BearerToken)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(addrs: &str, has_ca: bool) -> Result<(bool, Vec<String>), ConfigError> {
        split_schemes(&ClientBuilder::default().addrs(addrs).addrs, has_ca)
    }

    #[test]
    fn addresses_come_with_or_without_a_scheme_and_once_each() {
        assert_eq!(split("a:1, b:2,a:1,", false).unwrap(), (false, vec!["a:1".into(), "b:2".into()]));
        assert_eq!(split("a:1", true).unwrap(), (true, vec!["a:1".into()]));
        assert_eq!(split("https://a:1/,b:2", false).unwrap(), (true, vec!["a:1".into(), "b:2".into()]));
        assert_eq!(split("http://[::1]:1", false).unwrap(), (false, vec!["[::1]:1".into()]));
    }

    #[test]
    fn bad_addresses_are_named() {
        for addr in ["a", "a:", ":1", "a:65536", "ftp://a:1", "a:1/path", "http://u@a:1", "a b:1", "http://"] {
            let error = split(addr, false).unwrap_err();
            assert!(matches!(&error, ConfigError::Addr { .. }), "{addr}: {error}");
            assert!(error.to_string().contains(addr), "{error}");
        }
        assert!(matches!(split(" , ", false), Err(ConfigError::NoAddr)));
        assert!(matches!(split("http://a:1,https://b:1", false), Err(ConfigError::MixedSchemes)));
        let many: Vec<String> = (0..=ADDRS_MAX).map(|n| format!("h:{}", n + 1)).collect();
        assert!(matches!(split(&many.join(","), false), Err(ConfigError::TooManyAddrs)));
        assert!(split(&many[1..].join(","), false).is_ok());
    }

    #[test]
    fn a_client_is_not_made_of_what_does_not_go_together() {
        let builder = || Client::builder().addrs("http://a:1");
        assert!(matches!(builder().ca_pem("x").build(), Err(ConfigError::CaWithoutTls)));
        assert!(matches!(Client::builder().addrs("https://a:1").build(), Err(ConfigError::TlsWithoutCa)));
        assert!(matches!(builder().deadline(Duration::ZERO).build(), Err(ConfigError::Zero { what: "deadline" })));
        assert!(matches!(builder().try_timeout(Duration::ZERO).build(), Err(ConfigError::Zero { .. })));
        for secret in ["", "se same", "ses\name", "sesam\u{e9}"] {
            let error = builder().bearer_token(secret).build().unwrap_err();
            assert!(matches!(error, ConfigError::BearerToken));
            assert!(!format!("{error} {error:?}").contains("ses"), "{error:?}");
        }
        let builder = builder().bearer_token("opensesame");
        let client = builder.clone().build().unwrap();
        assert!(!format!("{builder:?} {client:?}").contains("sesame"));
    }
}
