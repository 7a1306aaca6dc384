//! What stands between the service and a server: a way that a test can make long, dead, or cut.

use std::{
    io,
    net::TcpListener as StdListener,
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

/// How the way is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Bytes arrive so much later, in each direction.
    Open(Duration),
    /// Connections are taken and kept, and every byte is lost. A connection that has lost bytes stays dead
    /// when the way is open again.
    BlackHole,
    /// Connections are closed, also those that are opened anew.
    Cut,
}

impl Way {
    /// Nothing is in the way.
    pub(crate) const CLEAR: Self = Self::Open(Duration::ZERO);
}

/// A way to a port of 127.0.0.1. It ends when this is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    way: Option<watch::Sender<Way>>,
    worker: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A clear way.
    pub(crate) fn to(port: u16) -> Self {
        let listener = StdListener::bind(("127.0.0.1", 0)).expect("a port can be had");
        let own = listener.local_addr().expect("a listener has an address").port();
        listener.set_nonblocking(true).expect("a listener can be made non-blocking");
        let (way, seen) = watch::channel(Way::CLEAR);
        let worker = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
            let _ = runtime.block_on(serve(listener, port, seen));
        });
        Self { port: own, way: Some(way), worker: Some(worker) }
    }

    /// Changes the way, for what comes from now on.
    pub(crate) fn set(&self, way: Way) {
        self.way.as_ref().expect("only dropping takes it").send_replace(way);
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> String {
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

/// Takes connections until nobody can change the way any more.
async fn serve(listener: StdListener, port: u16, mut way: watch::Receiver<Way>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let client = tokio::select! {
            client = listener.accept() => client?.0,
            changed = way.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return Ok(()),
            },
        };
        let way = way.clone();
        tokio::spawn(async move {
            let mut ending = way.clone();
            tokio::select! {
                _ = joined(client, port, way) => {}
                _ = ending.wait_for(|way| *way == Way::Cut) => {}
            }
        });
    }
}

/// Carries the bytes of one connection both ways. Both ends are closed when either ends.
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
    // What is under way; it is bounded only by what a test sends within a latency.
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

    /// A server that sends back what it gets.
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
    fn the_way_is_long_dead_cut_and_clear_again() {
        let proxy = Proxy::to(echo());
        let (mut busy, mut idle) = (connect(&proxy), connect(&proxy));
        comes_back(&mut busy).unwrap();
        comes_back(&mut idle).unwrap();

        proxy.set(Way::Open(Duration::from_millis(30)));
        assert!(comes_back(&mut busy).unwrap() >= Duration::from_millis(60));

        proxy.set(Way::BlackHole);
        assert!(comes_back(&mut busy).is_err());
        assert!(comes_back(&mut connect(&proxy)).is_err(), "taken, and dead");
        proxy.set(Way::CLEAR);
        assert!(comes_back(&mut busy).is_err(), "it has lost bytes");
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
