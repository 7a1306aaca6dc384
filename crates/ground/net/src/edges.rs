//! What a process takes from its machine: time, chance, connections and tasks.
//!
//! The store is given an [`Edges`] and asks nothing else, so that a simulation of many replicas can pass its own.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use clock::{
    Clock, SystemClock,
    timer::{Random, Sleep, Timer},
};
use pin_project_lite::pin_project;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream, lookup_host},
    runtime::Handle,
};

/// Idle time before the first keepalive probe: network address translators drop idle connections after minutes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Edges {
    pub clock: Arc<dyn Clock>,
    pub timer: Arc<dyn Timer>,
    pub random: Arc<dyn Random>,
    pub dial: Arc<dyn Dial>,
    pub spawn: Arc<dyn Spawn>,
}

impl Edges {
    /// Those of this machine, with tokio's timers and tasks.
    pub fn system() -> Self {
        let machine = Arc::new(Machine);
        Self {
            clock: Arc::new(SystemClock),
            timer: machine.clone(),
            random: machine.clone(),
            dial: machine.clone(),
            spawn: machine,
        }
    }

    /// Starts a task on the runtime of the calling thread.
    #[expect(clippy::expect_used, reason = "asserts what every caller requires")]
    pub fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        let here = self.spawn.here().expect("a task is started within a runtime");
        here(Box::pin(task));
    }
}

pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// Bytes to and from a server, before or after TLS.
pub type Transport = Box<dyn Socket>;

type Pending<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

pub trait Dial: Send + Sync {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> Pending<'a, Vec<SocketAddr>>;

    fn connect(&self, to: SocketAddr) -> Pending<'_, Transport>;

    fn connect_unix<'a>(&'a self, to: &'a Path) -> Pending<'a, Transport>;
}

pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts tasks on one runtime.
pub type Spawner = Arc<dyn Fn(Task) + Send + Sync>;

pub trait Spawn: Send + Sync {
    /// The runtime of the calling thread; `None` if it has none.
    fn here(&self) -> Option<Spawner>;
}

struct Machine;

impl Timer for Machine {
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(TokioSleep { sleep: tokio::time::sleep_until(at.into()) })
    }
}

pin_project! {
    struct TokioSleep {
        #[pin]
        sleep: tokio::time::Sleep,
    }
}

impl Future for TokioSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.project().sleep.poll(context)
    }
}

impl Sleep for TokioSleep {
    fn reset(self: Pin<&mut Self>, at: Instant) {
        self.project().sleep.reset(at.into());
    }
}

impl Random for Machine {
    fn number(&self) -> u64 {
        fastrand::u64(..)
    }
}

impl Dial for Machine {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> Pending<'a, Vec<SocketAddr>> {
        Box::pin(async move { Ok(lookup_host((host, port)).await?.collect()) })
    }

    fn connect(&self, to: SocketAddr) -> Pending<'_, Transport> {
        Box::pin(async move {
            let socket = TcpStream::connect(to).await?;
            socket.set_nodelay(true)?;
            let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
            SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
            Ok(Box::new(socket) as Transport)
        })
    }

    fn connect_unix<'a>(&'a self, to: &'a Path) -> Pending<'a, Transport> {
        Box::pin(async move { Ok(Box::new(UnixStream::connect(to).await?) as Transport) })
    }
}

impl Spawn for Machine {
    fn here(&self) -> Option<Spawner> {
        let handle = Handle::try_current().ok()?;
        Some(Arc::new(move |task| drop(handle.spawn(task))))
    }
}
