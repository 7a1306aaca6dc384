//! The listeners of all ports, a TCP port or a unix socket, and their accept loop.

use std::{
    fmt, fs, io,
    net::{IpAddr, SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream},
    os::unix::{
        fs::FileTypeExt, fs::MetadataExt, net::UnixListener as StdUnixListener,
        net::UnixStream as StdUnixStream,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
    time::{sleep, timeout},
};
use tracing::warn;

/// The length of the accept queue; the kernel may allow less.
const BACKLOG: i32 = 4096;

/// The pause after a failed accept: without file descriptors the next one would fail at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// When a port stops, it accepts connections from the backlog until none arrives for this long: a client whose `connect`
/// has succeeded receives a response or a GOAWAY instead of a reset.
const BACKLOG_QUIET: Duration = Duration::from_millis(5);

/// The limit of that time, since clients that reconnect at once could fill the backlog forever.
const BACKLOG_TIMEOUT: Duration = Duration::from_millis(100);

pub enum Listener {
    Tcp(TcpListener),
    /// The file comes first, so that it is removed before the socket is closed.
    Unix(SocketFile, UnixListener),
}

/// The file of a unix socket of this process. It is removed on drop, unless another process has replaced it.
pub struct SocketFile {
    pub path: PathBuf,
    /// The device and the inode. The open socket keeps the inode, so no other file has its number.
    made: (u64, u64),
}

impl SocketFile {
    fn made(path: &Path) -> io::Result<(u64, u64)> {
        fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::made(&self.path).is_ok_and(|found| found == self.made) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// An accepted socket, which no runtime knows yet: it may be served by another thread.
pub(super) struct Accepted {
    pub(super) socket: AcceptedSocket,
    pub(super) peer: Peer,
}

pub(super) enum AcceptedSocket {
    Tcp(StdTcpStream),
    Unix(StdUnixStream),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    Address(SocketAddr),
    /// A process of this machine, and its user if the system reports it.
    Unix(Option<u32>),
}

impl Peer {
    /// `None` for a unix socket.
    pub(super) fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Unix(Some(user)) => write!(f, "uid {user}"),
            Self::Unix(None) => f.write_str("unix socket"),
        }
    }
}

/// Accepts the connections of a port until `stop` turns true, and then those in its backlog.
pub(super) struct AcceptLoop<'a> {
    listener: &'a Listener,
    /// `a gRPC connection`, in log lines.
    what: &'static str,
    stop: watch::Receiver<bool>,
    stopped: Option<Instant>,
}

impl<'a> AcceptLoop<'a> {
    pub(super) fn new(listener: &'a Listener, what: &'static str, stop: watch::Receiver<bool>) -> Self {
        Self { listener, what, stop, stopped: None }
    }

    /// The next connection; `None` when the port has stopped and its backlog is empty. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Accepted> {
        while self.stopped.is_none() {
            let accepted = tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => {
                    self.stopped = Some(Instant::now());
                    break;
                }
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok(accepted) => return Some(accepted),
                Err(error) => {
                    warn!(%error, "failed to accept {}", self.what);
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        if self.stopped?.elapsed() >= BACKLOG_TIMEOUT {
            return None;
        }
        timeout(BACKLOG_QUIET, self.listener.accept()).await.ok()?.ok()
    }
}

impl Listener {
    pub fn tcp(listener: StdTcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Self::Tcp)
    }

    /// Binds a unix socket. Replaces the socket file of a process that no longer listens.
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
        let file = SocketFile { path: path.to_owned(), made: SocketFile::made(path)? };
        Ok(Self::Unix(file, UnixListener::from_std(listener)?))
    }

    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let socket = AcceptedSocket::Tcp(stream.into_std()?);
                Ok(Accepted { socket, peer: Peer::Address(address) })
            }
            Self::Unix(_, listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer::Unix(stream.peer_cred().ok().map(|peer| peer.uid()));
                Ok(Accepted { socket: AcceptedSocket::Unix(stream.into_std()?), peer })
            }
        }
    }
}

/// Binds a TCP port. `[::]` accepts IPv4 as well, as it does in Go.
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
