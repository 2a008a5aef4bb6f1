//! The client port: the methods of `agwp.v1` as gRPC and as HTTP/JSON, OpenAPI, health, reflection and metrics.
//!
//! A call goes one way, whichever form it came in: authenticate, take a place, authorise, run. What must be applied
//! runs on the leader; another replica passes the request's bytes on, once. What only reads runs on any replica, after
//! a read barrier.

mod failure;
mod front;
mod grpc;
mod handlers;
mod http_form;
pub mod json;
pub mod limits;
mod method;
mod metrics;
mod openapi;
mod router;
mod server;
mod service;

pub use failure::{DOMAIN, Failure};
pub use http_form::{Route, Segment, routes};
pub use method::Method;
pub use openapi::document as openapi_document;
pub use server::{ApiConfig, ApiServer};
