//! Real memcached servers, each with its own port and directory, and the services that use them.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use tempfile::TempDir;

use super::{clock::Clock, eventually, ports::free_port, process::Process, server::Setup};

/// A running memcached, killed on drop.
pub struct Memcached {
    pub port: u16,
    args: Vec<String>,
    process: Option<Process>,
    dir: TempDir,
    clock: Clock,
}

impl Memcached {
    /// A server with default settings.
    pub fn single() -> Self {
        Self::with(&[])
    }

    /// A server with more arguments.
    pub fn with(args: &[&str]) -> Self {
        let mut memcached = Self::prepared(args);
        memcached.start();
        memcached
    }

    /// A server that is not started yet; its port is known.
    pub fn prepared(args: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("tollgate-memcached-").tempdir();
        let port = free_port();
        // memcached requires a user when it runs as root.
        let fixed =
            ["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "2", "-m", "64", "-p", &port.to_string()]
                .map(str::to_owned);
        let args = fixed.into_iter().chain(args.iter().map(|arg| (*arg).to_owned())).collect();
        Self {
            port,
            args,
            process: None,
            dir: dir.expect("a directory can be made"),
            clock: Clock::current(),
        }
    }

    /// Starts it, always on the same port, and waits until it listens.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "the server on port {} runs already", self.port);
        let mut command = Command::new("memcached");
        command.args(&self.args).current_dir(self.dir.path());
        self.clock.apply(&mut command);
        self.process = Some(Process::start(command, &self.dir.path().join("log")));
        eventually("memcached listens", || {
            let process = self.process.as_mut().expect("it was started");
            if let Some(status) = process.exited() {
                panic!("memcached ended with {status}:\n{}", process.log());
            }
            let listens =
                TcpStream::connect(("127.0.0.1", self.port)).map(drop).map_err(|error| error.to_string());
            if self.socket().exists() { Ok(()) } else { listens }
        });
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// SIGSTOP: connections stay open without replies.
    pub fn freeze(&self) {
        self.process.as_ref().expect("the server runs").signal("STOP");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.process.as_ref().expect("the server runs").signal("CONT");
    }

    /// The reply to a command, up to its last line.
    pub fn ask(&self, text: &str) -> String {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("memcached takes connections");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out can be set");
        let mut stream = BufReader::new(stream);
        write!(stream.get_mut(), "{text}\r\n").expect("memcached can be asked");
        let mut answer = String::new();
        loop {
            let before = answer.len();
            stream.read_line(&mut answer).expect("memcached answers");
            let line = &answer[before..];
            let continues = ["VALUE ", "STAT ", "ITEM "].iter().any(|begin| line.starts_with(begin))
                || answer.starts_with("VALUE ") && line != "END\r\n";
            if !continues {
                return answer;
            }
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<String> {
        self.ask(&format!("get {key}")).lines().nth(1).map(str::to_owned)
    }

    /// The counter of a key; 0 if it is missing.
    pub fn counter(&self, key: &str) -> i64 {
        self.get(key).map_or(0, |value| value.trim_end().parse().expect("a counter is a number"))
    }

    /// Seconds until a key expires.
    pub fn expires_in(&self, key: &str) -> Option<i64> {
        let reply = self.ask(&format!("mg {key} t"));
        reply
            .trim_end()
            .strip_prefix("HD t")
            .map(|seconds| seconds.parse().expect("it is a number of seconds"))
    }

    /// A value of `stats`.
    pub fn stat(&self, name: &str) -> u64 {
        let stats = self.ask("stats");
        let prefix = format!("STAT {name} ");
        let found = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        found.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {stats}"))
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The path for `-s`, relative to the working directory.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("memcached.sock")
    }

    /// Services that use it, and are unhealthy without it.
    pub fn setup(&self) -> Setup {
        setup(&self.address())
    }
}

/// Services that use these servers, and are unhealthy without one of them.
///
/// Timeouts are long enough for a busy machine; tests about time unset `MEMCACHE_TIMEOUT`.
pub fn setup(servers: &str) -> Setup {
    let fixed = [
        ("BACKEND_TYPE", "memcache"),
        ("MEMCACHE_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
        ("MEMCACHE_TIMEOUT", "20s"),
        ("MEMCACHE_CONNECT_TIMEOUT", "5s"),
        ("MEMCACHE_HOST_PORT", servers),
    ];
    fixed.iter().fold(Setup::new(), |setup, (name, value)| setup.env(name, value))
}
