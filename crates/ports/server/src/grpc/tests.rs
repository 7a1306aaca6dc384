//! A whole connection over a pipe, with a store that responds when the test allows it.

use std::{
    cell::Cell,
    fs,
    io::{self},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use budget::Budget;
use http2::{Config, write_field};
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex},
    runtime::Builder,
    sync::{Semaphore, watch},
    task::{LocalSet, spawn_local, yield_now},
    time::timeout,
};

use super::{
    Parts,
    activity::GrpcActivity,
    calls::Calls,
    driver::{self, Lifetime},
};
use crate::{
    connections::{ConnectionLimits, Registry},
    socket::Socket,
    wire::DecisionRpc,
};
use clock::{ManualClock, Time};
use counters::{Batch, Count, KeepHolds, Operate, Report, Store, StoreFuture};
use limiter::{Bounds, Limiter, Policy, handles};
use memory::MemoryStore;
use metrics::{CallerLeft, Port, Stats, StatsOptions};
use net::edges::Edges;
use proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::RateLimitRequest,
};
use rlqs::Quotas;
use rules::CompileOptions;
use rules_source::{RulesDir, Source};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 100}}]\n";

/// Counts in memory, one request per permit.
struct Gated {
    counters: MemoryStore,
    gate: Arc<Semaphore>,
}

impl Count for Gated {
    fn apply<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        let gate = self.gate.clone();
        Box::pin(async move {
            gate.acquire().await.unwrap().forget();
            self.counters.apply(batch, now).await
        })
    }
}

impl KeepHolds for Gated {}

impl Operate for Gated {
    fn reset<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        self.counters.reset(batch, now)
    }
}

impl Report for Gated {}

fn limiter(store: Arc<dyn Store>, stats: &Arc<Stats>) -> Limiter {
    let policy = Policy { bounds: Bounds { descriptors: 10, entries: 10 }, ..Policy::default() };
    let counters = stats.clone();
    let source =
        Arc::new(Source::new(CompileOptions::default(), move |rules| handles(rules, &counters, Vec::new())));
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(root.path().join("config/rules.yaml"), RULES).unwrap();
    let directory = RulesDir::new(root.path(), "", "config", false);
    let now = Time::from_seconds(7200);
    source.reload(&directory, now);
    Limiter::new(policy, source, store, None, stats.clone(), Arc::new(ManualClock::at(now)))
}

/// The client end of a connection that is served.
struct Client {
    io: DuplexStream,
    gate: Arc<Semaphore>,
    stats: Arc<Stats>,
    /// The number of reads from the connection.
    reads: Arc<AtomicUsize>,
    /// Turns true when the connection has ended.
    ended: Rc<Cell<bool>>,
    received: Vec<u8>,
}

const NO_LIFETIME: Lifetime =
    Lifetime { age: None, grace: None, keepalive_interval: None, keepalive_timeout: Duration::from_secs(60) };

impl Client {
    /// Connects and exchanges SETTINGS.
    async fn connect(lifetime: Lifetime) -> Self {
        Self::connect_and_maybe_reset(lifetime, false).await
    }

    async fn connect_and_maybe_reset(lifetime: Lifetime, reset: bool) -> Self {
        let stats = Arc::new(Stats::new(StatsOptions { max_series: 10, ..StatsOptions::default() }));
        let gate = Arc::new(Semaphore::new(0));
        let store = Arc::new(Gated { counters: MemoryStore::new(100), gate: gate.clone() });
        let budget = Budget::new(1 << 20);
        let limiter = Arc::new(limiter(store, &stats));
        let quotas = rlqs::Settings {
            ttl_seconds: 2,
            max_buckets: 100,
            max_buckets_of_stream: 10,
            max_bytes: 1 << 20,
        };
        let parts = Parts {
            quotas: Quotas::new(limiter.clone(), Edges::system(), quotas),
            limiter,
            stats: stats.clone(),
            health: Arc::default(),
            tls: None,
            tracer: None,
            inflight: budget.clone(),
        };
        let calls = Calls {
            health: parts.health.changes(),
            parts,
            max_request_bytes: 1 << 20,
            receive_timeout: Duration::from_secs(5),
            streaming: Budget::new(100),
            buffers: Cell::default(),
        };
        let limits = ConnectionLimits {
            connections: 1,
            per_address: 1,
            patience: Duration::ZERO,
            idle_closed_per_second: 1,
            names: ["TOTAL", "PER_ADDRESS"],
        };
        let registry = Registry::new(Port::Grpc, limits, stats.clone(), Instant::now());
        let handle = registry.admit(None, Instant::now()).unwrap();
        let activity = Arc::new(GrpcActivity::new(handle, Arc::default(), stats.clone()));
        let config = Config { max_streams: 100, budget };
        let (io, served) = duplex(1 << 16);
        let reads = Arc::new(AtomicUsize::new(0));
        let served = Counted { io: served, reads: reads.clone(), reset };
        let ended = Rc::new(Cell::new(false));
        let end = ended.clone();
        spawn_local(async move {
            let (_drain, drained) = watch::channel(false);
            driver::serve(served, Rc::new(calls), config, lifetime, drained, activity).await;
            end.set(true);
        });
        let mut client = Self { io, gate, stats, reads, ended, received: Vec::new() };
        client.io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        client.send(4, 0, 0, &[]).await;
        client
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend_from_slice(&[kind, flags]);
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        self.io.write_all(&frame).await.unwrap();
    }

    async fn ask(&mut self, stream: u32) {
        self.ask_within(stream, None, "d").await;
    }

    async fn ask_within(&mut self, stream: u32, timeout: Option<&[u8]>, domain: &str) {
        let mut block = vec![0x83, 0x86];
        write_field(&mut block, b":path", DecisionRpc::ShouldRateLimit.name().as_bytes());
        write_field(&mut block, b"content-type", b"application/grpc");
        if let Some(timeout) = timeout {
            write_field(&mut block, b"grpc-timeout", timeout);
        }
        let entry = Entry { key: "k".into(), value: "v".into() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        let request =
            RateLimitRequest { domain: domain.into(), descriptors: vec![descriptor], hits_addend: 1 };
        let message = request.encode_to_vec();
        let mut framed = vec![0];
        framed.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        framed.extend_from_slice(&message);
        self.send(1, 4, stream, &block).await;
        self.send(0, 1, stream, &framed).await;
    }

    /// Receives until a frame of this kind arrives on this stream, and returns its flags.
    async fn receive(&mut self, kind: u8, stream: u32) -> u8 {
        let receiving = async {
            loop {
                while let Some((head, rest)) = self.received.split_first_chunk::<9>() {
                    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                    let (got, flags) = (head[3], head[4]);
                    let on = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                    if rest.len() < length {
                        break;
                    }
                    self.received.drain(..9 + length);
                    if (got, on) == (kind, stream) {
                        return flags;
                    }
                }
                assert!(self.io.read_buf(&mut self.received).await.unwrap() > 0, "closed");
            }
        };
        timeout(Duration::from_secs(20), receiving)
            .await
            .unwrap_or_else(|_| panic!("no frame of kind {kind} on stream {stream}"))
    }

    /// Returns when everything that was sent is handled.
    async fn settle(&mut self) {
        self.send(6, 0, 0, b"settled?").await;
        self.receive(6, 0).await;
    }
}

/// Counts reads.
struct Counted {
    io: DuplexStream,
    reads: Arc<AtomicUsize>,
    reset: bool,
}

impl Socket for Counted {
    fn is_reset(&self) -> bool {
        self.reset
    }

    fn discard_unsent(&self) {}
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.reads.fetch_add(1, Relaxed);
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// The key of a decided call is reused, even while its response is blocked by the window of the connection.
#[test]
fn a_reset_of_a_blocked_response_cancels_no_other_call() {
    run(async {
        let mut client = Client::connect(NO_LIFETIME).await;
        // No response fits a window.
        client.send(4, 0, 0, &[0, 4, 0, 0, 0, 0]).await;
        client.ask(1).await;
        client.gate.add_permits(1);
        assert_eq!(client.receive(1, 1).await, 4, "the head of the response");
        // The second call has the key of the first.
        client.ask(3).await;
        client.settle().await;
        client.send(3, 0, 1, &[0, 0, 0, 8]).await;
        client.settle().await;
        client.gate.add_permits(1);
        client.receive(1, 3).await;
        client.send(8, 0, 3, &[0, 0, 1, 0]).await;
        client.receive(0, 3).await;
        assert_eq!(client.receive(1, 3).await, 5, "its trailers");
    });
}

#[test]
fn a_connection_that_was_reset_is_not_read() {
    run(async {
        let client = Client::connect_and_maybe_reset(NO_LIFETIME, true).await;
        let ended = async {
            while !client.ended.get() {
                yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), ended).await.unwrap();
        assert_eq!(client.reads.load(Relaxed), 0);
    });
}

#[test]
fn a_lingering_connection_does_not_spin() {
    let keepalive_interval = Some(Duration::from_millis(20));
    let age = Some(Duration::from_millis(300));
    for lifetime in [Lifetime { keepalive_interval, ..NO_LIFETIME }, Lifetime { age, ..NO_LIFETIME }] {
        run(async {
            let mut client = Client::connect(lifetime).await;
            client.settle().await;
            // The peer sends a GOAWAY and does not close its side.
            client.send(7, 0, 0, &[0; 8]).await;
            let mut rest = Vec::new();
            timeout(Duration::from_secs(20), client.io.read_to_end(&mut rest)).await.unwrap().unwrap();
            let (reads, begun) = (client.reads.load(Relaxed), Instant::now());
            while !client.ended.get() {
                assert!(begun.elapsed() < Duration::from_secs(20), "it never closes");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert!(begun.elapsed() > Duration::from_millis(500), "it waits for the peer to close");
            let reads = client.reads.load(Relaxed) - reads;
            assert!(reads < 20, "{lifetime:?}: {reads} reads");
        });
    }
}

#[test]
fn answers_after_the_callers_deadline_and_resets_after_the_answer_are_counted() {
    run(async {
        let mut client = Client::connect(NO_LIFETIME).await;
        let stats = client.stats.clone();
        let counts = || {
            let service = stats.service();
            (service.late_responses.get(), service.callers_left(CallerLeft::Sent).get())
        };
        let timeouts = || [Some(&b"1n"[..]), Some(b"1H"), None, Some(b"1n")];
        // Those without a domain are refused at once, the others wait for the store.
        for (first, domain, late) in [(1, "", 2), (9, "d", 4)] {
            let streams = || (first..).step_by(2);
            for (stream, timeout) in streams().zip(timeouts()) {
                client.ask_within(stream, timeout, domain).await;
            }
            client.gate.add_permits(4);
            for stream in streams().take(4) {
                client.receive(1, stream).await;
            }
            client.settle().await;
            assert_eq!(counts(), (late, 0), "{domain:?}");
        }
        client.send(3, 0, 9, &[0, 0, 0, 2]).await;
        client.settle().await;
        assert_eq!(counts(), (4, 1));
    });
}

#[test]
fn calls_complete_in_any_order_and_a_cancelled_one_is_dropped() {
    run(async {
        let mut client = Client::connect(NO_LIFETIME).await;
        for stream in [1, 3, 5] {
            client.ask(stream).await;
        }
        client.settle().await;
        client.send(3, 0, 3, &[0, 0, 0, 8]).await;
        client.settle().await;
        client.gate.add_permits(2);
        for stream in [1, 5] {
            client.receive(0, stream).await;
        }
        client.ask(7).await;
        client.gate.add_permits(1);
        client.receive(0, 7).await;
    });
}
