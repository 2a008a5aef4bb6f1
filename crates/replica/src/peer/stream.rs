//! A connection between replicas, with or without TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use ag_auth::{ClientTlsStream, ServerTlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// A connection between replicas.
pub(crate) enum PeerStream {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS, from this side.
    Dialled(Box<ClientTlsStream<TcpStream>>),
    /// With TLS, from the other side.
    Accepted(Box<ServerTlsStream<TcpStream>>),
}

/// A connection that breaks when this replica stops, whatever is still on its way.
pub(crate) struct UntilStopped {
    stream: PeerStream,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl UntilStopped {
    /// `stream`, until `stop`.
    pub fn new(stream: PeerStream, stop: CancellationToken) -> Self {
        Self { stream, stopped: Box::pin(stop.cancelled_owned()) }
    }
}

impl Connected for UntilStopped {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for PeerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Dialled(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Accepted(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Dialled(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Accepted(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Dialled(stream) => Pin::new(stream).poll_flush(cx),
            Self::Accepted(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Dialled(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Accepted(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl AsyncRead for UntilStopped {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            Poll::Pending => Pin::new(&mut self.stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for UntilStopped {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
