//! Measures what an attack costs: CPU time, memory, and the wait of honest clients.

use std::{
    fmt,
    io::{self, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use super::{
    attack::{Attack, Script, Sent},
    grammar,
};
use crate::support::server::Server;

/// The costs of an attack.
pub(super) struct Cost {
    pub(super) sent: Sent,
    pub(super) took: Duration,
    pub(super) cpu: Duration,
    /// Memory above that of the idle service, in KiB.
    pub(super) most_kib: u64,
    pub(super) after_kib: u64,
    /// Those of each honest client.
    pub(super) waits: Vec<Waits>,
}

/// The waits of an honest client.
pub(super) struct Waits {
    pub(super) name: &'static str,
    /// Sorted.
    times: Vec<Duration>,
}

/// An honest client: a name, and a function that sends a request and waits for the response.
pub(super) type Client = (&'static str, Box<dyn FnMut() -> io::Result<()> + Send>);

/// The time between two requests of an honest client.
const INTERVAL: Duration = Duration::from_millis(10);

/// A client that waits longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time within which memory returns.
const RETURNED: Duration = Duration::from_secs(10);

/// Memory that is returned, as far as this is concerned.
pub(super) const KEPT_KIB: u64 = 32 * 1024;

/// Runs a script against a port of `server` for `time`, beside honest clients.
pub(super) fn measure(
    server: &Server,
    port: u16,
    script: &Script,
    rate: Option<u32>,
    time: Duration,
    clients: Vec<Client>,
) -> Cost {
    let process = &server.process;
    process.reset_peak();
    let (idle, begun, cpu) = (process.resident_kib(), Instant::now(), process.cpu_time());
    let stop = AtomicBool::new(false);
    let (sent, waits) = thread::scope(|scope| {
        let clients: Vec<_> =
            clients.into_iter().map(|client| scope.spawn(|| wait_repeatedly(client, &stop))).collect();
        let attack = Attack::start(port, script, rate);
        thread::sleep(time);
        let sent = attack.stop();
        stop.store(true, Relaxed);
        (sent, clients.into_iter().map(|client| client.join().expect("a client panicked")).collect())
    });
    let took = begun.elapsed();
    // The service may still process what it received.
    let mut last = process.cpu_time();
    while begun.elapsed() < took + RETURNED {
        thread::sleep(Duration::from_millis(200));
        let now = process.cpu_time();
        if now < std::mem::replace(&mut last, now) + Duration::from_millis(20) {
            break;
        }
    }
    let cpu = process.cpu_time().saturating_sub(cpu);
    let most_kib = process.peak_kib().saturating_sub(idle);
    let mut after_kib = process.resident_kib().saturating_sub(idle);
    while after_kib > KEPT_KIB && begun.elapsed() < took + RETURNED {
        thread::sleep(Duration::from_millis(100));
        after_kib = process.resident_kib().saturating_sub(idle);
    }
    Cost { sent, took, cpu, most_kib, after_kib, waits }
}

/// Sends requests at regular times until it is stopped. A request that is late because the one before it waited has
/// waited since its time.
fn wait_repeatedly((name, mut ask): Client, stop: &AtomicBool) -> Waits {
    let (mut times, mut due) = (Vec::new(), Instant::now());
    while !stop.load(Relaxed) {
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread::sleep(left);
            due = Instant::now();
        }
        if let Err(error) = ask() {
            println!("{name}: {error}");
            times.push(PATIENCE);
            break;
        }
        times.push(due.elapsed());
        due += INTERVAL;
    }
    times.sort_unstable();
    Waits { name, times }
}

/// The honest clients of the gRPC port: one sends PING frames, and one calls `ShouldRateLimit`.
pub(super) fn grpc_clients(port: u16) -> Vec<Client> {
    let ping = b"\0\0\x08\x06\0\0\0\0\0honestly".to_vec();
    let (opening, mut call) = grammar::honest();
    let mut pinging = Honest::open(port, &opening);
    let mut asking = Honest::open(port, &opening);
    // The opening has a call too.
    let mut stream = 3;
    vec![
        ("PING", Box::new(move || pinging.exchange(&ping, (6, 1, 0)))),
        (
            "request",
            Box::new(move || {
                // The HEADERS frame with the status.
                asking.exchange(&call.bytes, (1, 5, stream))?;
                call.advance();
                stream += 2;
                Ok(())
            }),
        ),
    ]
}

/// A connection that sends something and waits for a frame.
struct Honest {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Honest {
    fn open(port: u16, opening: &[u8]) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("cannot connect");
        stream.set_nodelay(true).expect("cannot set TCP_NODELAY");
        stream.set_read_timeout(Some(PATIENCE)).expect("cannot set a timeout");
        stream.write_all(opening).expect("cannot write");
        Self { stream, received: Vec::new() }
    }

    /// Sends bytes, and waits for the frame of this type, flags and stream.
    fn exchange(&mut self, bytes: &[u8], response: (u8, u8, u32)) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        loop {
            while let Some((head, rest)) = self.received.split_first_chunk::<9>() {
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                if rest.len() < length {
                    break;
                }
                let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                let seen = (head[3], head[4], stream);
                self.received.drain(..9 + length);
                if seen == response {
                    return Ok(());
                }
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.received.extend_from_slice(&buffer[..count]),
            }
        }
    }
}

impl Waits {
    pub(super) fn quantile(&self, percent: usize) -> Duration {
        let place = (self.times.len() * percent).div_ceil(100).saturating_sub(1);
        self.times.get(place).copied().unwrap_or_default()
    }
}

impl Cost {
    /// CPU time for a byte that was sent.
    pub(super) fn nanos_per_byte(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e9 / as_float(self.sent.bytes.max(1))
    }

    pub(super) fn wait(&self, name: &str, percent: usize) -> Duration {
        let waits = self.waits.iter().find(|waits| waits.name == name);
        waits.map(|waits| waits.quantile(percent)).unwrap_or_default()
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |percent| self.quantile(percent).as_secs_f64() * 1e3;
        write!(f, "{:.1} / {:.1} / {:.0}", millis(50), millis(99), millis(100))
    }
}

pub(super) fn as_float(number: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "the numbers of a measurement are below 2⁵³")]
    let float = number as f64;
    float
}
