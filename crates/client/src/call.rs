//! One call: tries, deadline, leader.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::answer::{self, Answer};
use crate::builder::ClientBuilder;
use crate::error::{ClientError, Fate};
use crate::pool::{Pool, Target};
use crate::retry::{self, Repeat};

/// Longest time that `grpc-timeout` and timers take without trouble; a longer deadline is cut to it.
const TIME_MAX: Duration = Duration::from_secs(7 * 86_400);

/// By how much a timer may be early.
const TIMER_SLACK: Duration = Duration::from_millis(5);

/// A client of a cluster. Clones are cheap, and share connections and the knowledge of who leads.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) deadline: Duration,
    pub(crate) try_timeout: Duration,
}

pub(crate) struct Shared {
    pub pool: Pool,
    pub authorization: Option<MetadataValue<Ascii>>,
    pub follow_leader: bool,
}

impl Shared {
    /// An answer named `leader`. Whether the next try goes there.
    fn hint(&self, leader: &str) -> bool {
        self.follow_leader && self.pool.hint(leader)
    }
}

/// What the tries of a call go by.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    pub method: &'static str,
    pub repeat: Repeat,
    /// Comes on top of the deadline and of the timeout of each try.
    pub wait: Duration,
}

impl Client {
    /// How a client is made.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The same client, with another time for a call as a whole.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// The same client, with another time for one try.
    pub fn with_try_timeout(&self, try_timeout: Duration) -> Self {
        Self { try_timeout, ..self.clone() }
    }

    /// Sends what `make` gives until it is answered, by `rules`. `make` is told how long the call has taken so far.
    pub(crate) async fn call<Q, A, F>(
        &self,
        rules: Rules,
        make: impl Fn(Duration) -> Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<Answer<A>, ClientError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let start = Instant::now();
        let total = self.deadline.saturating_add(rules.wait).min(TIME_MAX);
        let pool = &self.shared.pool;
        let (mut tries, mut failed_in_a_row) = (0, 0);
        loop {
            tries += 1;
            let left = total.saturating_sub(start.elapsed());
            let limit = match rules.repeat {
                Repeat::Freely => self.try_timeout.saturating_add(rules.wait).min(left),
                // There will be no second try after a timeout, so the first one gets all the time there is.
                Repeat::IfNotProposed => left,
            };
            let target = pool.target();
            let result = self.attempt(rules.method, &target, limit, make(start.elapsed()), &send).await;
            let (error, hinted) = match result {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let left = total.saturating_sub(start.elapsed());
            if !rules.repeat.after(&error) || left.is_zero() {
                return Err(error.after_tries(tries));
            }
            failed_in_a_row += 1;
            // Other addresses first, at once; a pause only when all of them have failed or the service asks for one.
            let count = pool.len() as u32;
            let pause = match (error.retry_after(), failed_in_a_row % count == 0) {
                (None, false) => Duration::ZERO,
                // A leader was named that has not been asked yet in this round.
                (None, true) if hinted && failed_in_a_row <= count => Duration::ZERO,
                (asked, _) => retry::pause(failed_in_a_row / count, asked),
            };
            if pause >= left {
                return Err(error.after_tries(tries));
            }
            tracing::debug!(%error, ?pause, "a try failed");
            tokio::time::sleep(pause).await;
        }
    }

    /// One try. With an error comes whether it named a leader that is asked next.
    async fn attempt<Q, A, F>(
        &self,
        method: &'static str,
        target: &Target,
        limit: Duration,
        message: Q,
        send: &impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<Answer<A>, (ClientError, bool)>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let pool = &self.shared.pool;
        let (addr, start) = (&target.addr, Instant::now());
        let unreachable = |error| {
            pool.failed(addr);
            (error, false)
        };
        let channel = match tokio::time::timeout(limit, pool.channel(target)).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(source)) => return Err(unreachable(ClientError::connect(method, addr, source))),
            Err(_) => return Err(unreachable(ClientError::timed_out(method, addr, Fate::NotProposed))),
        };
        let limit = limit.saturating_sub(start.elapsed());
        let mut request = Request::new(message);
        request.set_timeout(limit);
        if let Some(authorization) = &self.shared.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        let status = match tokio::time::timeout(limit, send(channel, request)).await {
            Err(_) => return Err(unreachable(ClientError::timed_out(method, addr, Fate::Unknown))),
            Ok(Ok(response)) => {
                if let Some(leader) = answer::leader(response.metadata()) {
                    self.shared.hint(leader);
                }
                let applied = answer::applied(response.metadata());
                return Ok(Answer { value: response.into_inner(), applied });
            }
            Ok(Err(status)) => status,
        };
        // tonic's own timers, on either side, may be the first to notice that the time is over, and say `cancelled`.
        if status.code() == Code::Cancelled && start.elapsed() + TIMER_SLACK >= limit {
            return Err(unreachable(ClientError::timed_out(method, addr, Fate::Unknown)));
        }
        let error = ClientError::status(method, addr, &status);
        if std::error::Error::source(&status).is_some() {
            return Err(unreachable(error));
        }
        let hinted = answer::leader(status.metadata()).is_some_and(|leader| leader != addr && self.shared.hint(leader));
        // The busy leader is still the one to ask, after a pause.
        if !hinted && error.fate() != Fate::Final && error.code() != Code::ResourceExhausted {
            pool.pass_on(addr);
        }
        Err((error, hinted))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = self.shared.pool.target().addr;
        f.debug_struct("Client").field("next", &next).field("deadline", &self.deadline).finish_non_exhaustive()
    }
}
