//! Who calls, and what they may do: bearer tokens, roles, and the certificates of both ports.
//!
//! A bearer token is known to the service by its SHA-256 only. That is safe because tokens are random, not chosen
//! ([`BearerToken::generate`] draws 256 bits); a token made by hand must hold as much. No token ever appears in an
//! error, a log line or a `Debug` output of this crate.

mod authenticator;
mod bearer;
pub mod certs;
mod pem;
mod principals;
mod role;
mod tls;

pub use authenticator::{ANONYMOUS, AuthError, Authenticator, Caller, Reload};
pub use bearer::{BearerHash, BearerToken, BearerTokenError};
pub use principals::{MAX_FILE_BYTES, MAX_HASHES, MAX_PRINCIPALS, PrincipalEntry, Principals, PrincipalsError, SYSTEM};
pub use role::{Permission, Role, Roles, permits};
pub use tls::{ClientTlsStream, PeerTls, ServerTls, ServerTlsStream, TlsError};
