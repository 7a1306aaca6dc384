//! Real Redis servers: one server ([`Redis`]), a master with sentinels ([`Sentinels`]), and a cluster ([`Cluster`]), each
//! with its own ports and directory, and nothing written to disk.
//!
//! A test sends commands by [`Redis::ask`], always in plain text and with its own user, whatever passwords and
//! certificates the service under test uses.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use tempfile::TempDir;

use super::{clock::Clock, eventually, holds, ports::free_port, process::Process};

mod cluster;
mod resp;
mod sentinels;

pub use cluster::{Cluster, slot};
pub use resp::{Connection, Reply, read};
pub use sentinels::Sentinels;

/// The user and the password of tests.
const TESTER: &str = "tester";

/// Settings of the service under test, by name.
pub type Env = Vec<(&'static str, String)>;

/// A running redis-server, killed on drop.
pub struct Redis {
    pub port: u16,
    args: Vec<String>,
    process: Option<Process>,
    dir: TempDir,
    starts: AtomicU32,
    clock: Clock,
}

impl Redis {
    /// A server with default settings.
    pub fn single() -> Self {
        Self::with(&[])
    }

    /// A server with more arguments.
    pub fn with(args: &[&str]) -> Self {
        let mut redis = Self::prepared(args);
        redis.start();
        redis
    }

    /// A server that is not started yet; its port is known.
    pub fn prepared(args: &[&str]) -> Self {
        let dir = directory("redis");
        let port = free_port();
        let fixed =
            ["--save", "", "--appendonly", "no", "--databases", "512", "--repl-diskless-sync-delay", "0"];
        let tester = ["--user", TESTER, "on", ">tester", "~*", "&*", "+@all"];
        let own = [
            ("--port", port.to_string()),
            ("--bind", "127.0.0.1".to_owned()),
            ("--dir", dir.path().display().to_string()),
            ("--unixsocket", dir.path().join("redis.sock").display().to_string()),
        ];
        let own = own.iter().flat_map(|(name, value)| [*name, value.as_str()]);
        let args = own.chain(fixed).chain(tester).chain(args.iter().copied()).map(str::to_owned).collect();
        Self { port, args, process: None, dir, starts: AtomicU32::new(0), clock: Clock::current() }
    }

    /// Starts it, always on the same port, and waits until it replies.
    pub fn start(&mut self) {
        self.launch();
        self.wait_until_ready();
    }

    /// Starts it without waiting.
    pub fn launch(&mut self) {
        assert!(self.process.is_none(), "the server on port {} is already running", self.port);
        let mut command = Command::new(program());
        command.args(&self.args).current_dir(self.dir.path());
        self.clock.apply(&mut command);
        let start = self.starts.fetch_add(1, Ordering::Relaxed);
        self.process = Some(Process::start(command, &self.dir.path().join(format!("log-{start}"))));
    }

    pub fn wait_until_ready(&mut self) {
        eventually("redis-server replies", || {
            if let Some(status) = self.process.as_mut().and_then(Process::exited) {
                panic!("redis-server ended with {status}:\n{}", self.log());
            }
            let answer = self.try_ask(&["PING"])?;
            holds(answer == Reply::Text("PONG".to_owned()), || answer.to_string())
        });
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// SIGSTOP: connections stay open without replies.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        self.process.as_ref().expect("the server runs").signal(name);
    }

    /// Runs a command.
    pub fn ask(&self, words: &[&str]) -> Reply {
        self.try_ask(words).unwrap_or_else(|error| {
            panic!("{words:?} to Redis on port {}: {error}\n{}", self.port, self.log())
        })
    }

    /// Runs a command on a server that may be down.
    pub fn try_ask(&self, words: &[&str]) -> Result<Reply, String> {
        ask(self.port, words)
    }

    /// A new connection.
    pub fn connect(&self) -> Connection {
        open(self.port).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// The counter of a key; 0 if it is missing.
    pub fn counter(&self, key: &str) -> i64 {
        self.ask(&["GET", key]).word().map_or(0, |word| word.parse().expect("a counter is a number"))
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys = self.ask(&["KEYS", "*"]).words();
        keys.sort();
        keys
    }

    /// The number of successful calls of a command since the start; probes fail on purpose.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.ask(&["INFO", "commandstats"]).to_string();
        let prefix = format!("cmdstat_{command}:");
        let Some(stats) = stats.lines().find_map(|line| line.strip_prefix(&prefix)) else { return 0 };
        let number = |name: &str| -> u64 {
            let number =
                stats.split(',').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name));
            number.and_then(|(_, number)| number.trim().parse().ok()).expect("Redis 7 has this number")
        };
        number("calls") - number("failed_calls")
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// The settings to use it.
    pub fn env(&self) -> Env {
        tcp(&self.address())
    }

    /// Its log since the last start.
    pub fn log(&self) -> String {
        self.process.as_ref().map_or_else(|| "(not running)".to_owned(), |process| process.log().to_string())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // This also kills a frozen process.
        self.kill();
    }
}

/// `$TOLLGATE_TEST_REDIS`, another server that speaks Redis' protocol, or the system's Redis.
fn program() -> OsString {
    env::var_os("TOLLGATE_TEST_REDIS").unwrap_or_else(|| "redis-server".into())
}

/// The settings to use one server at this address or URL.
pub fn tcp(url: &str) -> Env {
    vec![
        ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
        ("REDIS_TYPE", "SINGLE".to_owned()),
        ("REDIS_URL", url.to_owned()),
    ]
}

/// Runs a command on the server with this port.
fn ask(port: u16, words: &[&str]) -> Result<Reply, String> {
    open(port)?.ask(words).map_err(|error| format!("port {port}: {error}"))
}

fn open(port: u16) -> Result<Connection, String> {
    let with_port = |error: std::io::Error| format!("port {port}: {error}");
    let mut connection = Connection::open(port).map_err(with_port)?;
    connection.ask(&["AUTH", TESTER, TESTER]).map_err(with_port)?;
    Ok(connection)
}

fn directory(name: &str) -> TempDir {
    let prefix = format!("tollgate-{name}-");
    tempfile::Builder::new().prefix(&prefix).tempdir().expect("a directory can be made")
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
