//! Where gRPC connections come in: a TCP port or a unix socket.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, TcpListener as StdTcpListener},
    os::unix::{fs::FileTypeExt, net::UnixListener as StdUnixListener, net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::{TcpListener, UnixListener};

/// Connections that wait to be accepted; the kernel may allow fewer.
const BACKLOG: i32 = 4096;

/// A bound address.
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A unix socket, whose file is removed in the end.
    Unix(UnixListener, PathBuf),
}

/// A connection on its way to the core that will serve it.
pub(super) enum Connection {
    Tcp(std::net::TcpStream),
    Unix(StdUnixStream),
}

impl Connection {
    /// The address of its peer; a unix socket's peer has none.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().map(|peer| peer.ip()).ok(),
            Self::Unix(_) => None,
        }
    }

    /// Who is at its other end, for people.
    pub(super) fn peer(&self) -> String {
        match self {
            Self::Tcp(stream) => match stream.peer_addr() {
                Ok(address) => address.to_string(),
                Err(_) => "gone".to_owned(),
            },
            Self::Unix(_) => "the unix socket".to_owned(),
        }
    }
}

impl Listener {
    /// Takes over a bound TCP socket.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    pub fn tcp(listener: StdTcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Self::Tcp)
    }

    /// Binds a unix socket. The file of a service that has ended is taken over; that of one which still
    /// listens is not.
    ///
    /// # Errors
    /// When the path is taken or cannot be bound.
    pub fn unix(path: &Path) -> io::Result<Self> {
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "a file that is no socket is there",
                ));
            }
            if StdUnixStream::connect(path).is_ok() {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
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
            // A file that is gone already is as good.
            let _ = fs::remove_file(path);
        }
    }
}

/// Binds a TCP port. `[::]` takes IPv4 as well, as it does in Go.
///
/// # Errors
/// When the address is taken or not of this machine.
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
