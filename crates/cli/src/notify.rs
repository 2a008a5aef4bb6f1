//! Telling a supervisor that the program serves: the protocol of systemd's `Type=notify`, which `ag local` speaks too.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable that names the supervisor's socket.
pub const SOCKET: &str = "NOTIFY_SOCKET";
const READY: &[u8] = b"READY=1";

/// Says that the program serves, if there is a supervisor that wants to know.
pub fn ready() {
    if let Err(error) = send(READY) {
        tracing::warn!(%error, "cannot tell the supervisor");
    }
}

fn send(message: &[u8]) -> io::Result<()> {
    let Some(name) = std::env::var_os(SOCKET) else { return Ok(()) };
    let addr = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &addr).map(drop)
}

/// The supervisor's side, for one child.
pub struct Supervisor {
    socket: UnixDatagram,
    name: String,
}

impl Supervisor {
    /// Makes a socket. It has no file: its name goes with it.
    pub fn listen() -> io::Result<Self> {
        let name = format!("ag-{}-{}", std::process::id(), ag_client::new_request_id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, name: format!("@{name}") })
    }

    /// What the child must find in [`SOCKET`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the child has said that it serves, since the last time it was asked. Does not wait.
    pub fn is_ready(&self) -> io::Result<bool> {
        let mut message = [0; 64];
        match self.socket.recv(&mut message) {
            Ok(length) => Ok(message[..length].starts_with(READY)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}
