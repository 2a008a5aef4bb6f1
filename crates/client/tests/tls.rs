//! The client against a service with TLS, with certificates as `ag cluster certs` makes them.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use ag_auth::certs::{self, ReplicaCerts};
use ag_client::{Client, ClientError, v1};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

struct Answers;

#[tonic::async_trait]
impl support::Script for Answers {
    async fn get_job(&self, _: Request<v1::GetJobRequest>) -> Result<Response<v1::Job>, Status> {
        Ok(Response::new(v1::Job { job_id: "j1".into(), ..Default::default() }))
    }
}

fn make(dir: &Path, host: &str) {
    let replica = ReplicaCerts { name: "r1".into(), hosts: vec![host.into()] };
    certs::make(dir, &[replica], certs::VALID_DEFAULT).unwrap();
}

async fn call(addr: &str, ca_dir: &Path) -> Result<String, ClientError> {
    let ca = std::fs::read(ca_dir.join("client-ca.crt")).unwrap();
    let builder = Client::builder().addrs(addr).ca_pem(ca).deadline(std::time::Duration::from_secs(2));
    let answer = builder.build().unwrap().get_job(v1::GetJobRequest::default()).await;
    answer.map(|answer| answer.value.job_id)
}

#[tokio::test]
async fn the_authority_and_the_name_are_checked() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make(here.path(), "localhost");
    make(there.path(), "localhost");
    let read = |name: &str| std::fs::read(here.path().join(name)).unwrap();
    let identity = Identity::from_pem(read("r1-server.crt"), read("r1-server.key"));
    let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut server = server;
    tokio::spawn(server.add_service(support::service(Answers)).serve_with_incoming(TcpIncoming::from(listener)));

    assert_eq!(call(&format!("localhost:{port}"), here.path()).await.unwrap(), "j1");
    let error = call(&format!("localhost:{port}"), there.path()).await.unwrap_err();
    assert!(error.is_not_proposed(), "another authority: {error}");
    let error = call(&format!("127.0.0.1:{port}"), here.path()).await.unwrap_err();
    assert!(error.is_not_proposed(), "another name: {error}");
    let plain =
        Client::builder().addrs(&format!("http://localhost:{port}")).deadline(std::time::Duration::from_secs(2));
    assert!(plain.build().unwrap().get_job(v1::GetJobRequest::default()).await.is_err(), "without TLS");
}
