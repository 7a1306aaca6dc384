//! A proxy between the service and a server, which a test can slow down, blackhole or close.

use std::{
    io,
    net::TcpListener as StdListener,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Builder,
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

/// The behaviour of the proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Bytes are delayed by this time, in each direction.
    Open(Duration),
    /// Connections are accepted, and all bytes are dropped. A connection with dropped bytes stays dead when the proxy is
    /// open again.
    BlackHole,
    /// Connections are closed, including new ones.
    Cut,
}

impl Way {
    /// Bytes are forwarded.
    pub const CLEAR: Self = Self::Open(Duration::ZERO);
}

/// A proxy for a port of 127.0.0.1; stops when dropped.
pub struct Proxy {
    pub port: u16,
    to: Arc<AtomicU16>,
    way: Option<watch::Sender<Way>>,
    worker: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy that forwards.
    pub fn to(port: u16) -> Self {
        let listener = StdListener::bind(("127.0.0.1", 0)).expect("cannot bind a port");
        let own = listener.local_addr().expect("the listener has no address").port();
        listener.set_nonblocking(true).expect("cannot make the listener non-blocking");
        let (way, seen) = watch::channel(Way::CLEAR);
        let to = Arc::new(AtomicU16::new(port));
        let target = to.clone();
        let worker = thread::spawn(move || {
            let runtime =
                Builder::new_current_thread().enable_all().build().expect("cannot create a runtime");
            let _ = runtime.block_on(serve(listener, &target, seen));
        });
        Self { port: own, to, way: Some(way), worker: Some(worker) }
    }

    /// Changes the behaviour for later bytes.
    pub fn set(&self, way: Way) {
        self.way.as_ref().expect("it is taken by drop only").send_replace(way);
    }

    /// Forwards new connections to another port. Open ones stay.
    pub fn turn_to(&self, port: u16) {
        self.to.store(port, Relaxed);
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.way = None;
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

/// Accepts connections until the sender is dropped.
async fn serve(listener: StdListener, to: &AtomicU16, mut way: watch::Receiver<Way>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let client = tokio::select! {
            client = listener.accept() => client?.0,
            changed = way.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return Ok(()),
            },
        };
        let (way, port) = (way.clone(), to.load(Relaxed));
        tokio::spawn(async move {
            let mut ending = way.clone();
            tokio::select! {
                _ = joined(client, port, way) => {}
                _ = ending.wait_for(|way| *way == Way::Cut) => {}
            }
        });
    }
}

/// Forwards the bytes of a connection in both directions. Closes both ends when one ends.
async fn joined(client: TcpStream, port: u16, way: watch::Receiver<Way>) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        end = carry(from_client, to_server, way.clone()) => end,
        end = carry(from_server, to_client, way) => end,
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, way: watch::Receiver<Way>) -> io::Result<()> {
    // The bytes in flight, bounded only by what a test sends within a delay.
    let (sender, mut under_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let deliver = async move {
        while let Some((due, bytes)) = under_way.recv().await {
            sleep_until(due).await;
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    let take = async move {
        let mut buffer = vec![0; 64 * 1024];
        let mut dead = false;
        loop {
            let count = from.read(&mut buffer).await?;
            let now = *way.borrow();
            match now {
                _ if count == 0 => return Ok(()),
                Way::Open(latency) if !dead => {
                    let _ = sender.send((Instant::now() + latency, buffer[..count].to_vec()));
                }
                _ => dead = true,
            }
        }
    };
    let (taken, delivered) = tokio::join!(take, deliver);
    taken.and(delivered)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        thread,
        time::{Duration, Instant},
    };

    use super::{Proxy, Way};

    /// An echo server.
    fn echo() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
            }
        });
        port
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        stream
    }

    fn comes_back(stream: &mut TcpStream) -> std::io::Result<Duration> {
        let start = Instant::now();
        stream.write_all(b"ping")?;
        stream.read_exact(&mut [0; 4])?;
        Ok(start.elapsed())
    }

    #[test]
    fn delays_drops_closes_and_forwards_again() {
        let proxy = Proxy::to(echo());
        let (mut busy, mut idle) = (connect(&proxy), connect(&proxy));
        comes_back(&mut busy).unwrap();
        comes_back(&mut idle).unwrap();

        proxy.set(Way::Open(Duration::from_millis(30)));
        assert!(comes_back(&mut busy).unwrap() >= Duration::from_millis(60));

        proxy.set(Way::BlackHole);
        assert!(comes_back(&mut busy).is_err());
        assert!(comes_back(&mut connect(&proxy)).is_err(), "accepted, and dead");
        proxy.set(Way::CLEAR);
        assert!(comes_back(&mut busy).is_err(), "its bytes were dropped");
        comes_back(&mut idle).unwrap();

        proxy.set(Way::Cut);
        idle.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let end = idle.read(&mut [0; 4]);
        assert!(
            matches!(end, Ok(0)) || end.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
        );
        proxy.set(Way::CLEAR);
        comes_back(&mut connect(&proxy)).unwrap();
    }
}
