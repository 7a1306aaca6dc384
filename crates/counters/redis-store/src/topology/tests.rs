//! Scripted sentinels and clusters, whose replies change.

mod fake;

use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};

use super::*;
use crate::settings::{CredentialSource, Credentials};
use fake::{FakeNode, halves, master};
use net::{HostPort, Secret, authority::Authority, tls::ClientTls};

const SOON: Duration = Duration::from_secs(10);

pub(super) fn pool(servers: RedisServers) -> RedisPool {
    RedisPool {
        servers,
        credentials: None,
        database: 0,
        tls: None,
        connections: 1,
        timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
        pipeline_window: Duration::ZERO,
        max_queued: 1,
    }
}

pub(super) fn sentinels(of: &[&HostPort], password: Option<&str>) -> RedisPool {
    let credentials = password.map(|password| {
        CredentialSource::Fixed(Credentials { user: None, password: Secret(password.to_owned()) })
    });
    let sentinels = of.iter().map(|address| (*address).clone()).collect();
    pool(RedisServers::Sentinel { master: "mymaster".to_owned(), sentinels, credentials })
}

fn watched(pool: &RedisPool) -> Topology {
    let edges = Edges::system();
    let made =
        Dialer::new(pool, &edges).and_then(|dialer| Topology::new(pool, &dialer, &Arc::default(), &edges));
    let topology = made.map_err(|errors| errors.join("\n")).unwrap();
    topology.watch();
    topology
}

/// Waits until the servers are these.
async fn becomes(topology: &Topology, servers: &str) {
    let changed = topology.changed();
    let wait = async {
        loop {
            let next = changed.notified();
            if topology.servers().to_string() == servers {
                return;
            }
            next.await;
        }
    };
    let seen = timeout(SOON, wait).await;
    assert!(seen.is_ok(), "expected {servers}, got {}", topology.servers());
}

async fn closed_port() -> HostPort {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    HostPort { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() }
}

#[tokio::test]
async fn a_single_server_is_known_at_once_and_owns_every_key() {
    let address = ServerAddress::Unix("/run/redis.sock".into());
    let topology = watched(&pool(RedisServers::Single(address.clone())));
    topology.watch();
    topology.request_refresh();
    let servers = topology.servers();
    assert_eq!(servers.masters, [address]);
    assert_eq!(servers.owner(b"any"), Some(0));
}

#[tokio::test]
async fn the_first_sentinel_that_knows_the_master_decides() {
    let (ignorant, knowing) = (FakeNode::new(None, None).await, FakeNode::new(None, None).await);
    ignorant.set_reply("*-1\r\n".to_owned());
    knowing.set_reply(master(6379));
    let down = closed_port().await;
    let topology = watched(&sentinels(&[&down, &ignorant.address, &knowing.address], None));
    assert_eq!(topology.servers().owner(b"any"), None, "no sentinel was queried yet");
    becomes(&topology, "10.0.0.1:6379").await;
    assert_eq!(topology.servers().owner(b"any"), Some(0));
    assert_eq!(ignorant.queries(), 1);

    // The next poll is at the interval.
    let changed = topology.changed();
    let next = changed.notified();
    knowing.set_reply(master(6380));
    becomes(&topology, "10.0.0.1:6380").await;
    assert_eq!(next.now_or_never(), Some(()));
    assert_eq!(ignorant.queries(), 1, "the sentinel that replied last is queried first");
}

#[tokio::test]
async fn a_refresh_queries_the_next_sentinel_at_once() {
    let (stale, fresh) = (FakeNode::new(None, None).await, FakeNode::new(None, None).await);
    stale.set_reply(master(6379));
    fresh.set_reply(master(6380));
    let topology = watched(&sentinels(&[&stale.address, &fresh.address], None));
    becomes(&topology, "10.0.0.1:6379").await;
    topology.request_refresh();
    becomes(&topology, "10.0.0.1:6380").await;
}

#[tokio::test]
async fn many_refresh_requests_cause_few_queries() {
    let node = FakeNode::new(None, None).await;
    node.set_reply(master(6379));
    let topology = watched(&sentinels(&[&node.address], None));
    becomes(&topology, "10.0.0.1:6379").await;
    let (begun, before) = (Instant::now(), node.queries());
    while begun.elapsed() < Duration::from_millis(350) {
        for _ in 0..1000 {
            topology.request_refresh();
        }
        sleep(Duration::from_millis(5)).await;
    }
    let queries = node.queries() - before;
    let most = usize::try_from(begun.elapsed().as_millis() / 100).unwrap() + 1;
    assert!((1..=most).contains(&queries), "{queries} queries in {:?}", begun.elapsed());
}

#[tokio::test]
async fn the_last_master_stays_while_no_sentinel_answers() {
    let node = FakeNode::new(None, None).await;
    node.set_reply(master(6379));
    let topology = watched(&sentinels(&[&node.address], None));
    becomes(&topology, "10.0.0.1:6379").await;
    node.set_reply(None);
    let before = node.queries();
    topology.request_refresh();
    while node.queries() < before + 2 {
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(topology.servers().to_string(), "10.0.0.1:6379");
    node.set_reply(master(6380));
    becomes(&topology, "10.0.0.1:6380").await;
}

#[tokio::test]
async fn polling_ends_with_the_last_clone() {
    let node = FakeNode::new(None, None).await;
    node.set_reply(master(6379));
    let topology = watched(&sentinels(&[&node.address], None));
    let other = topology.clone();
    becomes(&topology, "10.0.0.1:6379").await;
    drop(topology);
    node.set_reply(master(6380));
    becomes(&other, "10.0.0.1:6380").await;
    drop(other);
    sleep(Duration::from_millis(20)).await;
    let before = node.queries();
    sleep(Duration::from_millis(1300)).await;
    assert_eq!(node.queries(), before);
}

#[tokio::test]
async fn sentinels_have_their_own_password() {
    let node = FakeNode::new(Some("sesame"), None).await;
    node.set_reply(master(6379));
    let locked_out = watched(&sentinels(&[&node.address], Some("wrong")));
    let unknown = watched(&sentinels(&[&node.address], None));
    becomes(&watched(&sentinels(&[&node.address], Some("sesame"))), "10.0.0.1:6379").await;
    for topology in [locked_out, unknown] {
        assert_eq!(topology.servers().to_string(), "unknown");
    }
}

#[tokio::test]
async fn sentinels_are_queried_over_tls() {
    let authority = Authority::new("ours");
    let ca = Some(authority.ca());
    let (ip, elsewhere) = (authority.server("127.0.0.1", true), authority.server("redis.example", false));
    let identity = Some(authority.identity("client"));
    for (config, tls) in [
        (ip, ClientTls { ca: ca.clone(), trust_system: false, identity, skip_hostname: false }),
        (elsewhere, ClientTls { ca, skip_hostname: true, ..ClientTls::default() }),
    ] {
        let node = FakeNode::new(None, Some(config)).await;
        node.set_reply(master(6379));
        let pool = RedisPool { tls: Some(tls), ..sentinels(&[&node.address], None) };
        becomes(&watched(&pool), "10.0.0.1:6379").await;
    }
}

#[test]
fn bad_certificates_are_reported() {
    let tls = ClientTls { ca: Some("/nowhere/ca.pem".into()), ..ClientTls::default() };
    let nowhere = HostPort { host: "a".to_owned(), port: 1 };
    let pool = RedisPool { tls: Some(tls), ..sentinels(&[&nowhere], None) };
    let made = Dialer::of_sentinels(&pool, None, &Edges::system());
    assert!(made.err().unwrap()[0].contains("/nowhere/ca.pem"));
}

#[tokio::test]
async fn a_cluster_is_followed_after_its_seeds_are_gone() {
    let (seed, one, other) =
        (FakeNode::new(None, None).await, FakeNode::new(None, None).await, FakeNode::new(None, None).await);
    seed.set_reply(halves(8192, &one.address, &other.address));
    let down = closed_port().await;
    let topology = watched(&pool(RedisServers::Cluster { seeds: vec![down, seed.address.clone()] }));
    assert_eq!(topology.servers().owner(b"foo"), None);
    let mut both = [one.address.to_string(), other.address.to_string()];
    both.sort();
    becomes(&topology, &both.join(", ")).await;
    let owner = |key: &str| {
        let servers = topology.servers();
        servers.masters[servers.owner(key.as_bytes()).unwrap()].to_string()
    };
    // Their slots are 866 and 12182.
    assert_eq!([owner("hello"), owner("foo")], [one.address.to_string(), other.address.to_string()]);

    seed.set_reply(None);
    for member in [&one, &other] {
        member.set_reply(halves(100, &one.address, &other.address));
    }
    let changed = topology.changed();
    let next = changed.notified();
    topology.request_refresh();
    timeout(SOON, next).await.unwrap();
    assert_eq!(owner("hello"), other.address.to_string());
}
