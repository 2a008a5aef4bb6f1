//! The HTTP form, by as little as it takes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(30);

/// An answer: its status and its JSON, `null` if it has none.
#[derive(Debug)]
pub struct Answer {
    /// Such as 200.
    pub status: u16,
    /// The body.
    pub json: Value,
}

impl Answer {
    /// The reason of a refusal.
    pub fn reason(&self) -> &str {
        self.json["details"][0]["reason"].as_str().unwrap_or_default()
    }
}

/// Sends a request and hangs up without waiting for its answer: what a caller sees whose answer got lost.
pub async fn send_and_hang_up(addr: &str, path: &str, body: &Value) -> Result<()> {
    send(addr, "POST", path, &body.to_string()).await.map(drop)
}

/// Posts JSON.
pub async fn post(addr: &str, path: &str, body: &Value) -> Result<Answer> {
    answer(send(addr, "POST", path, &body.to_string()).await?).await
}

/// Gets a path.
pub async fn get(addr: &str, path: &str) -> Result<Answer> {
    answer(send(addr, "GET", path, "").await?).await
}

async fn send(addr: &str, verb: &str, path: &str, body: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(addr).await.with_context(|| format!("cannot connect to {addr}"))?;
    let length = body.len();
    let head = format!("{verb} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\ncontent-length: {length}\r\n");
    let content_type = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    stream.write_all(format!("{head}{content_type}\r\n{body}").as_bytes()).await.context("cannot send")?;
    Ok(stream)
}

async fn answer(mut stream: TcpStream) -> Result<Answer> {
    let mut text = String::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text));
    read.await.context("no answer in time")?.context("cannot read the answer")?;
    let (head, body) = text.split_once("\r\n\r\n").context("no head")?;
    let status = head.split(' ').nth(1).context("no status")?.parse().context("the status is no number")?;
    Ok(Answer { status, json: serde_json::from_str(body).unwrap_or(Value::Null) })
}
