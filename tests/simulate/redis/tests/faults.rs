//! The faults of a simulated server, which its comparison with a real one does not cover.
#![expect(clippy::expect_used, reason = "tests fail by it")]

use simulated_redis::{Address, Cluster, Config, ConnectionId, Eviction, Role, Server, cluster::slot};

const NOW: u64 = 1_800_000_000_000_000;
const SECOND: u64 = 1_000_000;

struct Client {
    server: Server,
    connection: ConnectionId,
}

impl Client {
    fn new() -> Self {
        Self::of(Server::new(Config { seed: 7, ..Config::default() }))
    }

    fn of(mut server: Server) -> Self {
        let connection = server.connect();
        Self { server, connection }
    }

    fn ask_at(&mut self, now: u64, line: &str) -> String {
        let mut out = Vec::new();
        self.server.receive(now, self.connection, format!("{line}\r\n").as_bytes(), &mut out);
        String::from_utf8(out).expect("the reply is a text").replace("\r\n", " ").trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.ask_at(NOW, line)
    }
}

#[test]
fn messages_reach_the_other_subscribers_and_no_closed_connection() {
    let mut client = Client::new();
    let [one, other] = [(); 2].map(|()| client.server.connect());
    for id in [one, other] {
        client.server.receive(NOW, id, b"SUBSCRIBE changes\r\n", &mut Vec::new());
    }
    client.server.disconnect(other);
    assert_eq!(client.ask("PUBLISH changes text"), ":1");
    assert_eq!(client.ask("PUBLISH others text"), ":0");
    let message = b"*3\r\n$7\r\nmessage\r\n$7\r\nchanges\r\n$4\r\ntext\r\n".to_vec();
    assert_eq!(client.server.take_pushes(), [(one, message)]);
    assert_eq!(client.server.take_pushes(), []);
}

#[test]
fn a_login_is_required_and_a_protocol_error_closes_the_connection() {
    let config = Config { login: Some(("ann".to_owned(), "secret".to_owned())), seed: 0 };
    let mut client = Client::of(Server::new(config));
    assert!(client.ask("GET k").starts_with("-NOAUTH "));
    assert!(client.ask("AUTH ann wrong").starts_with("-WRONGPASS "));
    assert_eq!(client.ask("AUTH ann secret"), "+OK");
    assert_eq!(client.ask("GET k"), "$-1");
    assert!(client.ask("*1\r\n:1").starts_with("-ERR Protocol error"));
    assert!(!client.server.is_open(client.connection));
    assert_eq!(client.ask("GET k"), "");
}

#[test]
fn a_restart_closes_connections_and_forgets_scripts_and_keys() {
    let mut client = Client::new();
    let loaded = client.ask("SCRIPT LOAD 'x'");
    assert!(loaded.starts_with("-ERR Error compiling script"), "{loaded}");
    let sha = client.ask("SCRIPT LOAD return").split(' ').nth(1).expect("a hash").to_owned();
    client.ask("SET k 1 EX 100");
    let snapshot = client.server.snapshot();
    client.ask("INCRBY k 1");
    assert_eq!(client.ask(&format!("EVALSHA {sha} 0")), "$-1");

    client.server.restart_from(&snapshot);
    assert!(!client.server.is_open(client.connection));
    let mut client = Client::of(client.server);
    assert!(client.ask(&format!("EVALSHA {sha} 0")).starts_with("-NOSCRIPT "));
    assert_eq!(client.ask("GET k"), "$1 1");
    client.server.restart_from(&snapshot);
    let mut client = Client::of(client.server);
    assert_eq!(client.ask_at(NOW + 101 * SECOND, "GET k"), "$-1", "it has expired meanwhile");
    client.server.restart_empty();
    assert_eq!(Client::of(client.server).ask("DBSIZE"), ":0");
}

#[test]
fn a_bound_on_keys_refuses_or_evicts() {
    let mut client = Client::new();
    client.server.bound_keys(10, Eviction::None);
    for number in 0..11 {
        assert_eq!(client.ask(&format!("SET k{number} 1")), "+OK");
    }
    assert!(client.ask("INCRBY k0 1").starts_with("-OOM "));
    assert_eq!(client.ask("GET k0"), "$1 1", "reads are answered");
    assert_eq!(client.ask("DEL k0"), ":1");
    assert_eq!(client.ask("INCRBY k1 1"), ":2");

    let evicting = |eviction| {
        let mut client = Client::new();
        client.server.bound_keys(10, eviction);
        for number in 0..200 {
            assert_eq!(client.ask(&format!("SET k{number} 1 EX {}", 1000 - number)), "+OK");
        }
        assert_eq!((client.server.keys(), client.server.evicted()), (11, 189));
        client.ask("KEYS *")
    };
    assert_eq!(evicting(Eviction::Random), evicting(Eviction::Random), "the seed decides");
    assert_ne!(evicting(Eviction::Random), evicting(Eviction::FirstToExpire));

    let mut client = Client::new();
    client.server.bound_keys(1, Eviction::FirstToExpire);
    client.ask("SET one 1");
    client.ask("SET other 1");
    assert!(client.ask("SET third 1").starts_with("-OOM "), "no key expires");
}

/// Writes reach a replica late, and the last ones never.
#[test]
fn a_failover_loses_the_writes_that_the_replica_lacks() {
    let (mut master, mut replica) = (Client::new(), Client::new());
    master.ask("SET before 1");
    master.server.log_writes();
    replica.server.copy(&master.server);
    let of = Address { host: "10.0.0.1".to_owned(), port: 6379 };
    replica.server.set_role(Role::Replica { of });
    master.ask("INCRBY k 5");
    master.ask("INCRBY k x");
    master.ask("EVAL redis.call('EXPIRE',KEYS[1],'9')return(redis.call('INCRBY',KEYS[1],'2')) 1 k");
    let written = master.server.take_writes();
    assert_eq!(written.len(), 3, "a command that fails is no write");
    master.ask("INCRBY k 100");

    for write in &written {
        replica.server.apply(write);
    }
    assert!(replica.ask("INCRBY k 1").starts_with("-READONLY "));
    assert_eq!(replica.ask("MGET before k"), "*2 $1 1 $1 7");
    assert_eq!(replica.ask_at(NOW + SECOND, "PTTL k"), ":8000", "counted from the time of the write");
    assert!(replica.ask("ROLE").starts_with("*5 $5 slave $8 10.0.0.1 :6379 "));

    replica.server.set_role(Role::Master);
    assert_eq!(replica.ask("INCRBY k 1"), ":8", "not 108");
    assert!(replica.ask("ROLE").starts_with("*3 $6 master "));
}

/// As `redis-cli --cluster reshard` does it.
#[test]
fn a_slot_moves_key_by_key() {
    let address = |port| Address { host: "10.0.0.1".to_owned(), port };
    let nodes = [address(1), address(2)];
    let [mut from, mut to] = [0, 1].map(|myself| {
        let mut client = Client::new();
        client.server.set_cluster(Some(Cluster::even(&nodes, myself)));
        client
    });
    let moving = slot(b"{bar}");
    assert_eq!(moving, 5061);
    for number in 0..3 {
        assert_eq!(from.ask(&format!("SET {{bar}}{number} {number}")), "+OK");
    }
    assert_eq!(to.ask("GET {bar}0"), "-MOVED 5061 10.0.0.1:1");
    to.server.cluster(|cluster| cluster.import(moving, 0));
    from.server.cluster(|cluster| cluster.migrate(moving, 1));
    to.server.put_keys(from.server.take_keys(moving, 2));
    assert_eq!(from.ask("DBSIZE"), ":1");
    assert_eq!(from.ask("GET {bar}new"), "-ASK 5061 10.0.0.1:2");
    assert_eq!(to.ask("GET {bar}new"), "-MOVED 5061 10.0.0.1:1");
    assert_eq!(to.ask("ASKING"), "+OK");
    assert_eq!(to.ask("GET {bar}new"), "$-1");
    assert_eq!(to.ask("GET {bar}new"), "-MOVED 5061 10.0.0.1:1", "for one command");
    assert!(from.ask("MGET {bar}0 {bar}1 {bar}2").starts_with("-TRYAGAIN "));

    to.server.put_keys(from.server.take_keys(moving, usize::MAX));
    for client in [&mut from, &mut to] {
        client.server.cluster(|cluster| cluster.set_owner(moving, Some(1)));
    }
    assert_eq!(from.ask("GET {bar}0"), "-MOVED 5061 10.0.0.1:2");
    assert_eq!(to.ask("MGET {bar}0 {bar}1 {bar}2"), "*3 $1 0 $1 1 $1 2");
    from.server.cluster(|cluster| cluster.replace(1, address(3)));
    assert_eq!(from.ask("GET {bar}0"), "-MOVED 5061 10.0.0.1:3", "a replica has taken its place");
}

#[test]
fn a_sentinel_knows_the_master() {
    let mut client = Client::new();
    let master = Address { host: "10.0.0.1".to_owned(), port: 6379 };
    client.server.set_role(Role::Sentinel { masters: [("mymaster".to_owned(), master)].into() });
    assert_eq!(client.ask("SENTINEL get-master-addr-by-name mymaster"), "*2 $8 10.0.0.1 $4 6379");
    assert_eq!(client.ask("SENTINEL get-master-addr-by-name other"), "$-1");
    assert!(client.ask("GET k").starts_with("-ERR unknown command"));
}
