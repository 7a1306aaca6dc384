//! One master, one replica, and three sentinels that monitor them.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{Env, Redis, TESTER, ask, directory, eventually, free_port, holds, program, write};
use crate::{clock::Clock, process::Process};

/// The name of the master.
const MASTER: &str = "counters";

/// Running servers and sentinels, killed on drop.
pub struct Sentinels {
    /// The master and the replica at the start.
    pub servers: [Redis; 2],
    /// The sentinels with their ports.
    watchers: Vec<(u16, Process)>,
    _dir: TempDir,
}

impl Sentinels {
    /// Starts sentinels without a password.
    pub fn start() -> Self {
        Self::with(&[], None)
    }

    /// Starts servers with more arguments, and sentinels with a password.
    pub fn with(args: &[&str], password: Option<&str>) -> Self {
        let replicas = ["--masteruser", TESTER, "--masterauth", TESTER];
        let args: Vec<_> = args.iter().copied().chain(replicas).collect();
        let master = Redis::with(&args);
        let port = master.port.to_string();
        let replica = Redis::with(&[&args[..], &["--replicaof", "127.0.0.1", &port]].concat());
        let dir = directory("sentinels");
        let ports: Vec<_> = (0..3).map(|_| free_port()).collect();
        let watchers = (0..3).map(|index| {
            let path = dir.path().join(format!("{index}.conf"));
            write(&path, &config(index, &ports, [&master, &replica], password));
            let mut command = Command::new(program());
            command.arg(path).arg("--sentinel").current_dir(dir.path());
            Clock::current().apply(&mut command);
            (ports[index], Process::start(command, &dir.path().join(format!("{index}.log"))))
        });
        let started = Self { watchers: watchers.collect(), servers: [master, replica], _dir: dir };
        started.wait_until_ready();
        started
    }

    /// The settings to use it.
    pub fn env(&self) -> Env {
        let sentinels = self.watchers.iter().map(|(port, _)| format!(",127.0.0.1:{port}"));
        vec![
            ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
            ("REDIS_TYPE", "SENTINEL".to_owned()),
            ("REDIS_URL", MASTER.to_owned() + &sentinels.collect::<String>()),
        ]
    }

    /// Runs a command on each sentinel.
    pub fn ask_each(&self, words: &[&str]) {
        for (port, process) in &self.watchers {
            ask(*port, words).unwrap_or_else(|error| panic!("{error}\n{}", process.log()));
        }
    }

    /// The current master of the sentinels.
    pub fn master(&self) -> &Redis {
        let port = eventually("a sentinel knows the master", || self.master_port());
        self.servers.iter().find(|server| server.port == port).expect("the master is one of ours")
    }

    /// Kills the master and waits until the replica has taken its place. Returns how long that took.
    pub fn fail_over(&mut self) -> Duration {
        let port = self.master().port;
        let old = self.servers.iter_mut().find(|server| server.port == port).expect("it was just found");
        let start = Instant::now();
        old.kill();
        eventually("the replica is the master", || {
            let now = self.master_port()?;
            holds(now != port, || format!("the sentinels still name {now}"))?;
            let role = ask(now, &["ROLE"])?;
            holds(role.word().as_deref() == Some("master"), || role.to_string())
        });
        start.elapsed()
    }

    fn master_port(&self) -> Result<u16, String> {
        let (port, _) = self.watchers.first().expect("there are three");
        let address = ask(*port, &["SENTINEL", "get-master-addr-by-name", MASTER])?.words();
        address.get(1).and_then(|port| port.parse().ok()).ok_or_else(|| format!("{address:?}"))
    }

    fn wait_until_ready(&self) {
        let role = |server: &Redis| server.ask(&["ROLE"]).words();
        eventually("the replica follows", || {
            let role = role(&self.servers[1]);
            holds(role.get(3).is_some_and(|state| state == "connected"), || format!("{role:?}"))
        });
        for (port, process) in &self.watchers {
            eventually("the sentinels agree", || {
                let quorum = ask(*port, &["SENTINEL", "CKQUORUM", MASTER])?.to_string();
                holds(quorum.starts_with("OK 3"), || format!("{quorum}\n{}", process.log()))
            });
        }
    }
}

/// The configuration that a sentinel writes after some time, so that nothing has to be discovered.
fn config(index: usize, ports: &[u16], [master, replica]: [&Redis; 2], password: Option<&str>) -> String {
    let id = |index: usize| format!("{index:040x}");
    let mut lines = vec![
        format!("port {}", ports[index]),
        "bind 127.0.0.1".to_owned(),
        format!("user {TESTER} on >{TESTER} ~* &* +@all"),
        format!("sentinel myid {}", id(index)),
        format!("sentinel monitor {MASTER} 127.0.0.1 {} 2", master.port),
        format!("sentinel down-after-milliseconds {MASTER} 500"),
        format!("sentinel failover-timeout {MASTER} 2000"),
        format!("sentinel auth-user {MASTER} {TESTER}"),
        format!("sentinel auth-pass {MASTER} {TESTER}"),
        format!("sentinel known-replica {MASTER} 127.0.0.1 {}", replica.port),
    ];
    let others = ports.iter().enumerate().filter(|(other, _)| *other != index);
    lines.extend(
        others
            .map(|(other, port)| format!("sentinel known-sentinel {MASTER} 127.0.0.1 {port} {}", id(other))),
    );
    if let Some(password) = password {
        lines.push(format!("requirepass {password}"));
        lines.push(format!("sentinel sentinel-pass {password}"));
    }
    lines.join("\n") + "\n"
}
