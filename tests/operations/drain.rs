//! Graceful shutdown: SIGTERM under load loses no request.

use std::{
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::HeaderMap;
use socket2::SockRef;
use tokio::{runtime::Builder, sync::oneshot, task::JoinHandle, time::sleep};

use support::{
    PATIENCE,
    client::request,
    eventually, holds,
    load::Load,
    memcached::Memcached,
    raw::{Exchange, RawClient, framed},
    redis::Redis,
    server::{Server, Setup, pass_on_tonic},
};

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

#[test]
fn drains_and_health_are_the_same_on_tonic() {
    pass_on_tonic(&["drain::", "health::"], 10);
}

#[test]
fn sigterm_under_load_loses_no_request() {
    for delay in ["0s", "300ms"] {
        let mut ending = Setup::new().rules("d.yaml", RULES).env("SHUTDOWN_DELAY", delay).start();
        let staying = Server::start(RULES);
        let load = Load::start(&[ending.ports.grpc, staying.ports.grpc], 8, &request("d", &[&[("k", "v")]]));
        load.wait_for(500);

        ending.process.signal("TERM");
        let status = ending.process.wait(PATIENCE).expect("it exits under load");
        assert!(status.success(), "{status}");
        load.wait_for(500);

        let outcome = load.stop();
        outcome.assert_nothing_lost();
        assert!(
            outcome.connections >= 16,
            "every client went on to the other replica: {}",
            outcome.connections
        );
    }
}

#[test]
fn every_signal_that_ends_a_process_drains() {
    for name in ["INT", "HUP", "QUIT", "ALRM", "USR1", "USR2"] {
        let mut server = Server::start(RULES);
        server.process.signal(name);
        let status = server.process.wait(PATIENCE).expect("it exits");
        assert!(status.success(), "{name}: {status}");
    }
}

/// A request without its message yet, on its own connection; its head has arrived.
pub(crate) async fn begun(server: &Server) -> (oneshot::Sender<Bytes>, JoinHandle<Exchange>) {
    let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
    let (send, body) = oneshot::channel();
    let mut first = client.clone();
    let asking = tokio::spawn(async move { first.exchange(body, &HeaderMap::new()).await });
    tokio::task::yield_now().await;
    // The response to a later request shows that everything before it has arrived.
    let later = client.exchange(framed(&request("d", &[&[("k", "v")]])), &HeaderMap::new()).await;
    assert!(matches!(later, Exchange::Answered(_)), "{later:?}");
    (send, asking)
}

/// Sends the message and waits for the response.
async fn is_answered(send: oneshot::Sender<Bytes>, asking: JoinHandle<Exchange>) {
    send.send(framed(&request("d", &[&[("k", "v")]]))).unwrap();
    match asking.await.unwrap() {
        Exchange::Answered(status) => assert_eq!(status.code, 0, "{status:?}"),
        lost => panic!("{lost:?}"),
    }
}

#[test]
fn a_request_that_is_open_at_sigterm_completes() {
    let mut server = Server::start(RULES);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (send, asking) = begun(&server).await;
        server.process.signal("TERM");
        sleep(Duration::from_millis(300)).await;
        assert!(server.process.exited().is_none(), "it waits for the request");

        is_answered(send, asking).await;
    });
    assert!(server.process.wait(PATIENCE).expect("it ends").success());
}

#[test]
fn a_request_that_never_ends_does_not_prevent_the_shutdown() {
    let mut server = Setup::new().rules("d.yaml", RULES).env("SHUTDOWN_TIMEOUT", "1s").start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (_never_sent, asking) = begun(&server).await;
        let signaled = Instant::now();
        server.process.signal("TERM");
        let ended = asking.await.unwrap();
        assert!(matches!(ended, Exchange::Failed(_)), "{ended:?}");
        assert!(
            signaled.elapsed() >= Duration::from_millis(900),
            "it was given its time: {:?}",
            signaled.elapsed()
        );
    });
    assert!(server.process.wait(PATIENCE).is_some(), "it exits after its deadline");
}

/// Four workers that share one connection to Redis.
fn sharing(redis: &Redis) -> Setup {
    let setup = Setup::new().rules("d.yaml", RULES).redis(&redis.env());
    setup.env("GRPC_WORKERS", "4").env("REDIS_POOL_SIZE", "1")
}

#[test]
fn a_connection_to_redis_stays_open_until_its_last_worker_has_drained() {
    let redis = Redis::single();
    let mut server = sharing(&redis).start_healthy();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // One connection for each worker, each with a request without its message yet.
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(begun(&server).await);
        }
        server.process.signal("TERM");
        for (send, asking) in open {
            // The worker of the previous request has drained, whichever it is.
            sleep(Duration::from_millis(300)).await;
            is_answered(send, asking).await;
        }
    });
    assert!(server.process.wait(PATIENCE).expect("it ends").success());
}

#[test]
fn sigterm_under_load_loses_no_request_that_counts_in_redis_or_memcached() {
    let (redis, memcached) = (Redis::single(), Memcached::single());
    let in_memcached = || memcached.setup().rules("d.yaml", RULES).env("GRPC_WORKERS", "4");
    for setup in [&|| sharing(&redis), &in_memcached as &dyn Fn() -> Setup] {
        let mut ending = setup().start_healthy();
        let staying = setup().start_healthy();
        let load = Load::start(&[ending.ports.grpc, staying.ports.grpc], 8, &request("d", &[&[("k", "v")]]));
        load.wait_for(2000);
        ending.process.signal("TERM");
        let status = ending.process.wait(PATIENCE).expect("it exits under load");
        assert!(status.success(), "{status}");
        load.wait_for(500);
        load.stop().assert_nothing_lost();
    }
}

#[test]
fn clients_that_reconnect_without_pause_do_not_delay_the_shutdown() {
    const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
    let mut server = Setup::new().rules("d.yaml", RULES).env("SHUTDOWN_TIMEOUT", "2s").start();
    let staying = Server::start(RULES);
    let ports = [server.ports.grpc, staying.ports.grpc];
    let load = Load::start(&ports, 4, &request("d", &[&[("k", "v")]]));
    load.wait_for(500);
    let storms = [Storm::at(ports[0]), Storm::at(ports[0])];
    eventually("the storm is there", || {
        holds(storms.iter().all(|storm| storm.connections() > 100), || "not yet".to_owned())
    });
    let begun = Instant::now();
    server.process.signal("TERM");
    let ended = server.process.wait(PATIENCE);
    let took = begun.elapsed();
    drop(storms);
    assert!(ended.expect("it exits while clients reconnect").success());
    assert!(took < SHUTDOWN_TIMEOUT + PATIENCE / 12, "the end took {took:?}");
    load.wait_for(500);
    load.stop().assert_nothing_lost();
}

/// A client that reconnects in a loop and sends nothing, until it is dropped.
struct Storm {
    stop: Arc<AtomicBool>,
    connections: Arc<AtomicU64>,
}

impl Storm {
    fn at(port: u16) -> Self {
        let storm = Self { stop: Arc::default(), connections: Arc::default() };
        let (stop, connections) = (Arc::clone(&storm.stop), Arc::clone(&storm.connections));
        thread::spawn(move || {
            // The last one stays open: the drain must not wait for it beyond the deadline.
            let mut kept = None;
            while !stop.load(Ordering::Relaxed) {
                if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                    // Closed by a reset, so that it leaves no port in TIME_WAIT.
                    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
                    connections.fetch_add(1, Ordering::Relaxed);
                    kept = Some(stream);
                } else {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            drop(kept);
        });
        storm
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
