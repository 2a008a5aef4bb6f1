//! The replicas' addresses, the connections to them, and which one is asked next.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use crate::ADDRS_MAX;
use crate::builder::ConfigError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pings find connections whose other end is gone without a word, such as behind a cut cable or a stopped process.
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// For how long a hint to an address that could not be reached is not followed again.
const AVOID_FOR: Duration = Duration::from_secs(5);

pub(crate) struct Pool {
    tls: Option<ClientTlsConfig>,
    members: Mutex<Members>,
}

struct Members {
    list: Vec<Member>,
    /// Invariant: less than the length of `list`, which is never empty.
    current: usize,
}

struct Member {
    addr: String,
    endpoint: Endpoint,
    channel: Option<Channel>,
    avoid_until: Option<Instant>,
    /// Learned from an answer, not given by the user.
    learned: bool,
}

/// Where the next try goes.
pub(crate) struct Target {
    pub addr: String,
    endpoint: Endpoint,
    channel: Option<Channel>,
}

impl Pool {
    pub fn new(addrs: Vec<String>, tls: Option<ClientTlsConfig>) -> Result<Self, ConfigError> {
        let mut list = Vec::with_capacity(addrs.len());
        for addr in addrs {
            list.push(Member {
                endpoint: endpoint(&addr, tls.as_ref())?,
                addr,
                channel: None,
                avoid_until: None,
                learned: false,
            });
        }
        Ok(Self { tls, members: Mutex::new(Members { list, current: 0 }) })
    }

    /// How many addresses there are.
    pub fn len(&self) -> usize {
        self.lock().list.len()
    }

    /// The address to try now.
    pub fn target(&self) -> Target {
        let members = self.lock();
        let member = &members.list[members.current];
        Target { addr: member.addr.clone(), endpoint: member.endpoint.clone(), channel: member.channel.clone() }
    }

    /// A connection to `target`, made now if there is none. Gives up after 2 s.
    pub async fn channel(&self, target: &Target) -> Result<Channel, tonic::transport::Error> {
        if let Some(channel) = &target.channel {
            return Ok(channel.clone());
        }
        let channel = target.endpoint.connect().await?;
        let mut members = self.lock();
        if let Some(member) = members.list.iter_mut().find(|member| member.addr == target.addr) {
            member.channel = Some(channel.clone());
            member.avoid_until = None;
        }
        Ok(channel)
    }

    /// `addr` did not answer: drops its connection and moves on to the next address, unless another call has already.
    pub fn failed(&self, addr: &str) {
        let mut members = self.lock();
        let length = members.list.len();
        if let Some(position) = members.list.iter().position(|member| member.addr == addr) {
            members.list[position].channel = None;
            members.list[position].avoid_until = Some(Instant::now() + AVOID_FOR);
            if members.current == position {
                members.current = (position + 1) % length;
            }
        }
    }

    /// `addr` answered, but could not serve: moves on to the next address, and keeps its connection.
    pub fn pass_on(&self, addr: &str) {
        let mut members = self.lock();
        let length = members.list.len();
        if members.list[members.current].addr == addr {
            members.current = (members.current + 1) % length;
        }
    }

    /// An answer named `leader`. Whether the next try goes there.
    pub fn hint(&self, leader: &str) -> bool {
        let mut members = self.lock();
        if let Some(position) = members.list.iter().position(|member| member.addr == leader) {
            if members.list[position].avoid_until.is_some_and(|until| Instant::now() < until) {
                return false;
            }
            members.current = position;
            return true;
        }
        // A replica that was added after this client was made. What cannot be an address is left alone.
        let Ok(endpoint) = endpoint(leader, self.tls.as_ref()) else { return false };
        let member = Member { addr: leader.into(), endpoint, channel: None, avoid_until: None, learned: true };
        if members.list.len() < ADDRS_MAX {
            members.list.push(member);
            members.current = members.list.len() - 1;
            return true;
        }
        // Full: the new one takes the place of one that was learned earlier; those of the user stay.
        let Some(position) = members.list.iter().position(|member| member.learned) else { return false };
        members.list[position] = member;
        members.current = position;
        true
    }

    // Poisoned only by a panic while it was held; every holder leaves `list` non-empty and `current` within it.
    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn endpoint(addr: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint, ConfigError> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{addr}"));
    let endpoint = endpoint.map_err(|_| ConfigError::Addr { addr: addr.into() })?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(false)
        .tcp_nodelay(true);
    match tls {
        Some(tls) => endpoint.tls_config(tls.clone()).map_err(ConfigError::Ca),
        None => Ok(endpoint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: usize) -> Pool {
        Pool::new((1..=count).map(|n| format!("127.0.0.1:{n}")).collect(), None).unwrap()
    }

    #[tokio::test]
    async fn a_failed_address_is_left_once_however_many_calls_report_it() {
        let pool = pool(3);
        pool.failed("127.0.0.1:1");
        pool.failed("127.0.0.1:1");
        assert_eq!(pool.target().addr, "127.0.0.1:2");
        pool.pass_on("127.0.0.1:1");
        assert_eq!(pool.target().addr, "127.0.0.1:2");
        pool.pass_on("127.0.0.1:2");
        pool.failed("127.0.0.1:3");
        assert_eq!(pool.target().addr, "127.0.0.1:1");
    }

    #[tokio::test]
    async fn hints_are_followed_unless_they_lead_to_what_just_failed() {
        let pool = pool(2);
        assert!(pool.hint("127.0.0.1:2"));
        assert_eq!(pool.target().addr, "127.0.0.1:2");
        assert!(pool.hint("127.0.0.1:99"), "a replica that was added later");
        assert_eq!(pool.target().addr, "127.0.0.1:99");
        pool.failed("127.0.0.1:99");
        assert!(!pool.hint("127.0.0.1:99"));
        assert!(!pool.hint("no address at all"));
        assert_eq!(pool.target().addr, "127.0.0.1:1");
    }

    #[tokio::test]
    async fn learned_addresses_are_bounded_and_never_replace_given_ones() {
        let given = pool(ADDRS_MAX);
        assert!(!given.hint("127.0.0.1:9999"));
        let some = pool(2);
        for n in 0..200 {
            assert!(some.hint(&format!("127.0.0.1:{}", 1000 + n)));
        }
        assert_eq!(some.len(), ADDRS_MAX);
        assert!(some.hint("127.0.0.1:1") && some.hint("127.0.0.1:2"));
        assert_eq!(some.len(), ADDRS_MAX);
    }
}
