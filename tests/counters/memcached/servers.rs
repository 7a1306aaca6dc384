//! Several servers: keys have the owners that they have in the Go service; and servers of an SRV record.

use std::{
    net::UdpSocket,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use clock::{Clock, SystemClock};
use counters::{Batch, Count, CounterId, Operate, Report};
use limit::{Hits, Limit, Unit};
use memcached::{
    MemcachedStore, NameServers,
    settings::{Memcached as Settings, MemcachedServers},
};

use proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;

use support::{eventually, holds};

use super::{Code, Memcached, code, counter, request, setup, with_rules};

/// The checksum that the Go service's client distributes keys by, computed bit by bit.
fn checksum(text: &str) -> u32 {
    let bits = |sum: u32, _| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
    !text.bytes().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(byte), bits))
}

#[test]
fn each_key_is_on_the_server_of_the_go_service() {
    let servers = [(); 3].map(|()| Memcached::single());
    let addresses = servers.each_ref().map(Memcached::address).join(",");
    let server = with_rules(setup(&addresses)).start_healthy();
    let client = server.client();
    let mut used = [0; 3];
    for value in 0..40 {
        let value = format!("v{value}");
        assert_eq!(code(&client, "five", &value), (Code::Ok, 4));
        let key = counter("five", &value);
        let place = checksum(&key) as usize % 3;
        used[place] += 1;
        let held = servers.each_ref().map(|server| server.counter(&key));
        assert_eq!((held[place], held.iter().sum::<i64>()), (1, 1), "{key}");
    }
    assert!(used.iter().all(|count| *count > 0), "{used:?}");
}

#[test]
fn a_lost_server_loses_only_its_own_keys() {
    let mut servers = [(); 2].map(|()| Memcached::single());
    let addresses = servers.each_ref().map(Memcached::address).join(",");
    let server = with_rules(setup(&addresses)).env("STORE_FAILURE_POLICY", "deny").start_healthy();
    let client = server.client();
    servers[0].kill();
    for value in 0..20 {
        let value = format!("v{value}");
        let expected =
            if checksum(&counter("many", &value)).is_multiple_of(2) { Code::OverLimit } else { Code::Ok };
        assert_eq!(code(&client, "many", &value).0, expected, "{value}");
    }
    eventually("it is unready", || holds(!server.is_healthy(), || server.process.log()));
}

#[test]
fn what_the_other_server_decides_stays() {
    for (policy, is_silent) in [("allow", false), ("local", false), ("allow", true), ("local", true)] {
        let mut servers = [(); 2].map(|()| Memcached::single());
        let addresses = servers.each_ref().map(Memcached::address).join(",");
        let server = with_rules(setup(&addresses)).env("STORE_FAILURE_POLICY", policy).start_healthy();
        let client = server.client();
        let on = |rule, place: usize| {
            let mut values = (0..).map(|value| format!("v{value}"));
            values.find(|value| checksum(&counter(rule, value)) as usize % 2 == place).unwrap()
        };
        let (full, lost) = (on("five", 1), on("many", 0));
        for left in [4, 3, 2, 1, 0] {
            assert_eq!(code(&client, "five", &full), (Code::Ok, left));
        }
        if is_silent {
            servers[0].freeze();
        } else {
            servers[0].kill();
        }
        for _ in 0..10 {
            let answer = client.ask(request("d", &[&[("many", &lost)], &[("five", &full)]])).unwrap();
            let codes = answer.statuses.iter().map(DescriptorStatus::code);
            assert_eq!(codes.collect::<Vec<_>>(), [Code::Ok, Code::OverLimit], "{policy}");
            assert_eq!(answer.overall_code(), Code::OverLimit, "{policy}");
        }
        assert_eq!(servers[1].counter(&counter("five", &full)), 15, "{policy}: it counts as ever");
    }
}

#[test]
fn a_unix_socket_may_be_a_server() {
    let memcached = Memcached::with(&["-s", "memcached.sock"]);
    let path = memcached.socket().display().to_string();
    let client = with_rules(setup(&path)).start_healthy();
    assert_eq!(code(&client.client(), "five", "v"), (Code::Ok, 4));
}

/// A name server that lists these ports of 127.0.0.1, in their order.
struct NameServer {
    ports: Arc<Mutex<Vec<u16>>>,
    name_servers: NameServers,
}

impl NameServer {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let name_servers = NameServers {
            addresses: vec![socket.local_addr().unwrap()],
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_millis(500),
            attempts: 1,
        };
        let ports = Arc::new(Mutex::new(Vec::<u16>::new()));
        let listed = ports.clone();
        // It ends with the process.
        thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&answer(&buffer[..length], &listed.lock().unwrap()), from);
            }
        });
        Self { ports, name_servers }
    }

    fn list(&self, servers: &[&Memcached]) {
        *self.ports.lock().unwrap() = servers.iter().map(|server| server.port).collect();
    }
}

/// The question, and a record for each port.
fn answer(question: &[u8], ports: &[u16]) -> Vec<u8> {
    let mut message = question.to_vec();
    message[2] |= 0x80;
    message[7] = u8::try_from(ports.len()).unwrap();
    for port in ports {
        let name = b"\x03127\x010\x010\x011\0";
        message.extend_from_slice(b"\xc0\x0c\0\x21\0\x01\0\0\0\0\0\x11\0\0\0\0");
        message.extend_from_slice(&port.to_be_bytes());
        message.extend_from_slice(name);
    }
    message
}

fn store(name_server: &NameServer, refresh: Option<Duration>) -> MemcachedStore {
    let name = "_memcache._tcp.cache.test".to_owned();
    let second = Duration::from_secs(1);
    let settings = Settings {
        servers: MemcachedServers::Srv { name, refresh },
        tls: None,
        timeout: 20 * second,
        connect_timeout: 5 * second,
        max_queued: 100,
        unhealthy_without: false,
    };
    let store = MemcachedStore::new(&settings, 0, 1, &net::edges::Edges::system()).unwrap();
    let name_servers = name_server.name_servers.clone();
    store.watch(move || name_servers.clone());
    store.start_worker();
    store
}

/// Counts one hit on a key.
async fn count(store: &MemcachedStore, key: &str) -> Result<u64, String> {
    let limit = Limit::plain(5, Unit::Year);
    let mut batch = Batch::default();
    batch.keys().push_str(key);
    batch.push([CounterId::of_name(key); 2], 0..key.len(), &limit, 0, Hits::Take(1));
    let counted = store.apply(&mut batch, SystemClock.now()).await;
    counted.map_err(|error| error.to_string())?;
    Ok(batch.checks()[0].verdict.count)
}

async fn eventually_counts(store: &MemcachedStore, keeper: &Memcached, key: &str) {
    for _ in 0..2000 {
        let before = keeper.counter(key);
        if count(store, key).await.is_ok() && keeper.counter(key) > before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{key} is never counted on port {}", keeper.port);
}

#[tokio::test]
async fn servers_of_an_srv_record_are_used_and_followed() {
    let [one, other] = [(); 2].map(|()| Memcached::single());
    let name_server = NameServer::start();
    let store = store(&name_server, Some(Duration::from_millis(100)));
    assert!(count(&store, "k").await.unwrap_err().contains("MEMCACHE_SRV"), "none is known yet");
    assert!(!store.is_reachable());
    name_server.list(&[&one]);
    eventually_counts(&store, &one, "k").await;
    assert!(store.is_reachable());
    name_server.list(&[&other]);
    eventually_counts(&store, &other, "k").await;

    // They are sorted by their text, whatever their order in the record.
    name_server.list(&[&other, &one]);
    let mut sorted = [&one, &other];
    sorted.sort_by_key(|server| server.address());
    for value in 0..10 {
        let key = format!("d_k_{value}_0");
        eventually_counts(&store, sorted[checksum(&key) as usize % 2], &key).await;
    }
    // Without records, the last servers stay in use.
    name_server.list(&[]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    count(&store, "k").await.unwrap();
}

#[tokio::test]
async fn without_a_refresh_the_first_servers_stay() {
    let [one, other] = [(); 2].map(|()| Memcached::single());
    let name_server = NameServer::start();
    name_server.list(&[&one]);
    let store = store(&name_server, None);
    eventually_counts(&store, &one, "k").await;
    name_server.list(&[&other]);
    tokio::time::sleep(Duration::from_millis(600)).await;
    count(&store, "k").await.unwrap();
    assert_eq!(other.counter("k"), 0);
}
