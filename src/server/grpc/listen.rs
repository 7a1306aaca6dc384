//! Listeners for gRPC and HTTP: a TCP port or a unix socket.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, TcpListener as StdTcpListener},
    os::unix::{fs::FileTypeExt, net::UnixListener as StdUnixListener, net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::{TcpListener, UnixListener};

/// The length of the accept queue; the kernel may allow less.
const BACKLOG: i32 = 4096;

pub enum Listener {
    Tcp(TcpListener),
    /// A unix socket, whose file is removed on drop.
    Unix(UnixListener, PathBuf),
}

pub(super) enum Connection {
    Tcp(std::net::TcpStream),
    Unix(StdUnixStream),
}

impl Connection {
    /// The address of the peer; `None` for a unix socket.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().map(|peer| peer.ip()).ok(),
            Self::Unix(_) => None,
        }
    }

    pub(super) fn peer(&self) -> String {
        match self {
            Self::Tcp(stream) => {
                stream.peer_addr().map_or_else(|_| "unknown".into(), |peer| peer.to_string())
            }
            Self::Unix(_) => "unix socket".into(),
        }
    }
}

impl Listener {
    /// Wraps a bound TCP socket.
    ///
    /// # Errors
    /// If the socket cannot be registered with the runtime.
    pub fn tcp(listener: StdTcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Self::Tcp)
    }

    /// Binds a unix socket. Replaces the socket file of a process that no longer listens.
    ///
    /// # Errors
    /// If the path is in use or cannot be bound.
    pub fn unix(path: &Path) -> io::Result<Self> {
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "the file exists and is not a socket",
                ));
            }
            if StdUnixStream::connect(path).is_ok() {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another process is listening on the socket",
                ));
            }
            fs::remove_file(path)?;
        }
        let listener = StdUnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(UnixListener::from_std(listener)?, path.to_owned()))
    }

    pub(super) async fn accept(&self) -> io::Result<Connection> {
        match self {
            Self::Tcp(listener) => {
                let stream = listener.accept().await?.0.into_std()?;
                stream.set_nodelay(true)?;
                Ok(Connection::Tcp(stream))
            }
            Self::Unix(listener, _) => listener.accept().await?.0.into_std().map(Connection::Unix),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// Binds a TCP port. `[::]` accepts IPv4 as well, as it does in Go.
///
/// # Errors
/// If the address is in use or not an address of this host.
pub fn bind_tcp(address: SocketAddr) -> io::Result<StdTcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
