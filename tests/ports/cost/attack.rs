//! Runs connection scripts: sends their bytes as fast as the socket accepts them, or at a fixed rate.
//!
//! The bytes are computed once, and repeated with new numbers of streams and new keys, so that the generator costs less
//! than the service.

use std::{
    fs,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Builder,
    task::LocalSet,
    time::{sleep, timeout},
};

/// What each connection of an attack does.
#[derive(Clone)]
pub(super) struct Script {
    pub(super) name: String,
    pub(super) connections: usize,
    /// Sent once.
    pub(super) opening: Vec<u8>,
    /// Sent repeatedly after it.
    pub(super) round: Round,
    /// The number of rounds, after which the connection ends.
    pub(super) rounds: usize,
    pub(super) reader: Reader,
    pub(super) end: End,
}

/// Bytes that are sent repeatedly.
#[derive(Clone, Default)]
pub(super) struct Round {
    pub(super) bytes: Vec<u8>,
    /// The places of numbers of streams; each round opens new streams.
    pub(super) ids: Vec<usize>,
    /// The streams that a round opens, and those that were opened before the first.
    pub(super) streams: u32,
    pub(super) before: u32,
    /// The path of calls whose fields are in the table.
    pub(super) indexed: Option<&'static str>,
    /// The places of eight digits that are new each time.
    pub(super) keys: Vec<usize>,
}

/// How a connection reads what it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    All,
    Never,
    /// A byte per second.
    Slow,
    /// 64 KB at a time, with pauses.
    Late,
}

impl Reader {
    pub(super) const ALL: &'static [Self] = &[Self::All, Self::Never, Self::Slow, Self::Late];
}

/// What a connection does after its rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Ends its side, waits for the other one, and is opened again.
    Close,
    /// Is reset, and opened again.
    Reset,
    /// Stays open, without sending more.
    Stay,
}

impl End {
    pub(super) const ALL: &'static [Self] = &[Self::Close, Self::Reset, Self::Stay];
}

/// Running connections; they are closed by [`stop`](Self::stop).
pub(super) struct Attack {
    port: u16,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// What the connections have done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// Those that the service has not read at the end do not count.
    pub(super) bytes: u64,
    pub(super) connections: u64,
}

#[derive(Default)]
struct Shared {
    /// Nothing more is sent.
    silent: AtomicBool,
    stopped: AtomicBool,
    bytes: AtomicU64,
    connections: AtomicU64,
    keys: AtomicU32,
}

/// Bytes of one write.
const CHUNK: usize = 64 * 1024;

/// The time for the service to read what was sent, and to end its side of a connection.
const PATIENCE: Duration = Duration::from_secs(1);

impl Attack {
    /// Connects to a port of 127.0.0.1, and sends at most `rate` bytes per second.
    pub(super) fn start(port: u16, script: &Script, rate: Option<u32>) -> Self {
        let shared = Arc::<Shared>::default();
        let (script, in_thread) = (script.clone(), shared.clone());
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("cannot make a runtime");
            LocalSet::new().block_on(&runtime, run(port, Rc::new(script), rate, in_thread));
        });
        Self { port, shared, thread }
    }

    /// Sends nothing more, and ends all connections when the service has read what was sent.
    pub(super) fn stop(self) -> Sent {
        self.shared.silent.store(true, Relaxed);
        let end = Instant::now() + PATIENCE;
        while unread(self.port) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        let unread = unread(self.port);
        self.shared.stopped.store(true, Relaxed);
        self.thread.join().expect("the attack panicked");
        let bytes = self.shared.bytes.load(Relaxed).saturating_sub(unread);
        Sent { bytes, connections: self.shared.connections.load(Relaxed) }
    }
}

/// The bytes in the sockets of both sides that the service has not read.
fn unread(port: u16) -> u64 {
    let table = fs::read_to_string("/proc/net/tcp").expect("cannot read /proc/net/tcp");
    let port = format!(":{port:04X}");
    // A line is `sl local_address rem_address st tx_queue:rx_queue …`, in hexadecimal digits.
    let queued = table.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (local, remote, (sent, received)) =
            (fields.get(1)?, fields.get(2)?, fields.get(4)?.split_once(':')?);
        let queue = if local.ends_with(&port) { received } else { sent };
        (local.ends_with(&port) || remote.ends_with(&port)).then(|| u64::from_str_radix(queue, 16).ok())?
    });
    queued.sum()
}

async fn run(port: u16, script: Rc<Script>, rate: Option<u32>, shared: Arc<Shared>) {
    let connections = u32::try_from(script.connections).expect("few connections");
    let pause = rate.map(|rate| Duration::from_secs(1) * connections * 64 / (rate / 1024));
    for _ in 0..connections {
        tokio::task::spawn_local(repeat(port, script.clone(), pause, shared.clone()));
    }
    while !shared.stopped.load(Relaxed) {
        sleep(Duration::from_millis(5)).await;
    }
}

/// Opens a connection again and again.
async fn repeat(port: u16, script: Rc<Script>, pause: Option<Duration>, shared: Arc<Shared>) {
    while !shared.silent.load(Relaxed) {
        let Ok(stream) = TcpStream::connect(("127.0.0.1", port)).await else {
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        shared.connections.fetch_add(1, Relaxed);
        if script.end == End::Reset {
            // Also when the attack stops.
            stream.set_zero_linger().expect("cannot set SO_LINGER");
        }
        let (mut from, mut to) = stream.into_split();
        let reader = script.reader;
        let mut reading = tokio::task::spawn_local(async move { read(&mut from, reader).await });
        // A connection that the service has closed needs no more bytes.
        let complete = tokio::select! {
            sent = send(&mut to, &script, pause, &shared) => sent,
            () = async { (&mut reading).await.unwrap_or_default() } => false,
        };
        match script.end {
            End::Stay if complete => sleep(Duration::MAX).await,
            End::Close if complete => {
                drop(to);
                let _ = timeout(PATIENCE, &mut reading).await;
            }
            _ => {}
        }
        reading.abort();
    }
}

/// Reads until the service closes its side.
async fn read(from: &mut OwnedReadHalf, reader: Reader) {
    let mut buffer = vec![0; if reader == Reader::Slow { 1 } else { CHUNK }];
    if reader == Reader::Never {
        sleep(Duration::MAX).await;
    }
    while matches!(from.read(&mut buffer).await, Ok(1..)) {
        match reader {
            Reader::Slow => sleep(Duration::from_secs(1)).await,
            Reader::Late => sleep(Duration::from_millis(5)).await,
            Reader::All | Reader::Never => {}
        }
    }
}

/// Sends all rounds; false if the connection ends before that.
async fn send(to: &mut OwnedWriteHalf, script: &Script, pause: Option<Duration>, shared: &Shared) -> bool {
    if !send_all(to, &script.opening, pause, shared).await {
        return false;
    }
    let mut round = script.round.clone();
    for number in 0..script.rounds {
        if number > 0 {
            round.advance();
        }
        round.invent(shared);
        if !send_all(to, &round.bytes, pause, shared).await {
            return false;
        }
    }
    true
}

async fn send_all(to: &mut OwnedWriteHalf, bytes: &[u8], pause: Option<Duration>, shared: &Shared) -> bool {
    for mut chunk in bytes.chunks(CHUNK) {
        let begun = Instant::now();
        let part = u32::try_from(chunk.len()).expect("a chunk is short");
        while !chunk.is_empty() {
            if shared.silent.load(Relaxed) {
                sleep(Duration::MAX).await;
            }
            let Ok(count) = to.write(chunk).await else { return false };
            shared.bytes.fetch_add(count as u64, Relaxed);
            chunk = &chunk[count..];
        }
        match pause {
            Some(pause) => sleep((pause * part / 65_536).saturating_sub(begun.elapsed())).await,
            None => tokio::task::yield_now().await,
        }
    }
    true
}

impl Round {
    /// Replaces the numbers of streams by new ones.
    pub(super) fn advance(&mut self) {
        for place in &self.ids {
            let number = self.bytes[*place..].first_chunk_mut().expect("a frame has a stream");
            *number = (u32::from_be_bytes(*number) + 2 * self.streams).to_be_bytes();
        }
    }

    /// Replaces the keys by new ones.
    fn invent(&mut self, shared: &Shared) {
        for place in &self.keys {
            let mut rest = shared.keys.fetch_add(1, Relaxed);
            for digit in &mut self.bytes[*place..*place + 8] {
                *digit = b"0123456789abcdef"[(rest % 16) as usize];
                rest /= 16;
            }
        }
    }
}
