//! A real server with a clock that stands still, and a simulated one.

use std::{
    env, fmt, fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use simulated_redis::{Config, ConnectionId, Server};
use tempfile::TempDir;

/// 2027-01-15.
const START: u64 = 1_800_000_000_000_000;

/// The directories of the library on Debian, by architecture.
const LIBRARIES: [&str; 3] =
    ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib/faketime"];

#[derive(Clone, PartialEq, PartialOrd, Debug)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Text(Vec<u8>),
    Nil,
    List(Vec<Reply>),
}

pub(crate) struct Real {
    pub(crate) port: u16,
    process: Child,
    stream: TcpStream,
    received: Vec<u8>,
    dir: TempDir,
    now: u64,
}

impl Real {
    /// Starts a server in a directory with these files. With a `nodes.conf` it is a node of a cluster.
    pub(crate) fn start(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("cannot create a directory");
        for (name, text) in files {
            fs::write(dir.path().join(name), text).expect("cannot write a file");
        }
        // A node of which the others are unreachable is in order until the timeout.
        let cluster: &[&str] = match files {
            [] => &[],
            _ => &[
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                "1000000",
                "--cluster-require-full-coverage",
                "no",
            ],
        };
        write_clock(dir.path(), START);
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("no free port").port();
        let mut library = LIBRARIES.iter().map(|place| format!("{place}/libfaketimeMT.so.1"));
        let library = library.find(|path| Path::new(path).exists());
        let library =
            library.unwrap_or_else(|| panic!("no libfaketimeMT.so.1 in {LIBRARIES:?}: run `tests/run`"));
        let program = env::var_os("TOLLGATE_TEST_REDIS").unwrap_or_else(|| "redis-server".into());
        let process = Command::new(program)
            .args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string(), "--dir"])
            .arg(dir.path())
            .args(cluster)
            // Redis' allocator reads a clock before the library is ready. The system's allocator, if found first, replaces it.
            .env("LD_PRELOAD", library + ":libc.so.6")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1")
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_FMT", "%s")
            .env("FAKETIME_TIMESTAMP_FILE", dir.path().join("clock"))
            .stdout(Stdio::null())
            .spawn()
            .expect("cannot start redis-server: run `tests/run`, which installs it");
        let connect = || {
            thread::sleep(Duration::from_millis(20));
            TcpStream::connect(("127.0.0.1", port)).ok()
        };
        let stream = (0..500).find_map(|_| connect()).expect("redis-server does not listen after 10 s");
        stream.set_nodelay(true).expect("the socket is open");
        let mut real = Self { port, process, stream, received: Vec::new(), dir, now: 0 };
        real.read_clock();
        if !cluster.is_empty() {
            real.wait_for_cluster();
        }
        real
    }

    /// A node serves keys two seconds after its start.
    fn wait_for_cluster(&mut self) {
        let is_ready = |real: &mut Self| {
            let Reply::Text(info) = real.ask(&[b"CLUSTER", b"INFO"]) else { panic!("INFO is a text") };
            info.starts_with(b"cluster_state:ok")
        };
        for _ in 0..1000 {
            if is_ready(self) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
            self.move_clock(20_000);
        }
        panic!("the cluster is not ready after 20 s");
    }

    /// The time in microseconds, as the server reads it.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn move_clock(&mut self, by: i64) {
        write_clock(self.dir.path(), self.now.saturating_add_signed(by).max(START));
        self.read_clock();
    }

    fn read_clock(&mut self) {
        let Reply::List(parts) = self.ask(&[b"TIME"]) else { panic!("TIME is a list") };
        let number = |part: &Reply| match part {
            Reply::Text(text) => String::from_utf8_lossy(text).parse::<u64>().expect("a number"),
            other => panic!("expected a number, got {other}"),
        };
        self.now = number(&parts[0]) * 1_000_000 + number(&parts[1]);
    }

    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> Reply {
        self.stream.write_all(&encoded(words)).expect("cannot write to redis-server");
        loop {
            if let Some((reply, read)) = parse(&self.received) {
                self.received.drain(..read);
                return reply;
            }
            let mut bytes = [0; 4096];
            let read = self.stream.read(&mut bytes).expect("cannot read from redis-server");
            assert!(read > 0, "redis-server closed the connection");
            self.received.extend_from_slice(&bytes[..read]);
        }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let id = self.process.id();
        let _ = self.process.kill();
        let _ = self.process.wait();
        // The library leaves two files for each killed program.
        for name in [format!("sem.faketime_sem_{id}"), format!("faketime_shm_{id}")] {
            let _ = fs::remove_file(Path::new("/dev/shm").join(name));
        }
    }
}

/// Replaces the file atomically. The time stands still between two moves.
fn write_clock(dir: &Path, now: u64) {
    let part = dir.join("clock.part");
    fs::write(&part, format!("{}.{:06}\n", now / 1_000_000, now % 1_000_000))
        .expect("cannot write the clock");
    fs::rename(&part, dir.join("clock")).expect("cannot replace the clock");
}

pub(crate) struct Simulated {
    pub(crate) server: Server,
    connection: ConnectionId,
}

impl Simulated {
    pub(crate) fn start() -> Self {
        let mut server = Server::new(Config::default());
        let connection = server.connect();
        Self { server, connection }
    }

    pub(crate) fn ask(&mut self, now: u64, words: &[&[u8]]) -> Reply {
        let (bytes, mut out) = (encoded(words), Vec::new());
        // In two parts, so that commands are split everywhere.
        let (one, other) = bytes.split_at(bytes.len() * usize::from(bytes[bytes.len() / 2]) / 256);
        self.server.receive(now, self.connection, one, &mut out);
        assert!(out.is_empty(), "a part of a command has a reply");
        self.server.receive(now, self.connection, other, &mut out);
        let (reply, read) = parse(&out).expect("the reply is whole");
        assert_eq!(read, out.len(), "one reply to one command");
        reply
    }
}

fn encoded(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn parse(bytes: &[u8]) -> Option<(Reply, usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (kind, text, mut at) = (bytes[0], String::from_utf8_lossy(&bytes[1..end]).into_owned(), end + 2);
    let number = || text.parse::<i64>().expect("a number");
    let reply = match kind {
        b'+' => Reply::Status(text),
        b'-' => Reply::Error(text),
        b':' => Reply::Integer(number()),
        b'$' | b'*' if number() < 0 => Reply::Nil,
        b'$' => {
            let length = usize::try_from(number()).expect("it is positive");
            let text = bytes.get(at..at + length)?.to_vec();
            at += length + 2;
            bytes.get(..at)?;
            Reply::Text(text)
        }
        b'*' => {
            let mut all = Vec::new();
            for _ in 0..number() {
                let (one, read) = parse(&bytes[at..])?;
                all.push(one);
                at += read;
            }
            Reply::List(all)
        }
        other => panic!("unknown type {other}"),
    };
    Some((reply, at))
}

impl Reply {
    pub(crate) fn sorted(&self) -> Self {
        let mut sorted = self.clone();
        if let Self::List(all) = &mut sorted {
            all.sort_by(|one, other| one.partial_cmp(other).expect("replies have no floats"));
        }
        sorted
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Integer(number) => write!(f, ":{number}"),
            Self::Text(text) => write!(f, "\"{}\"", text.escape_ascii()),
            Self::Nil => f.write_str("nil"),
            Self::List(all) => {
                f.write_str("[")?;
                all.iter().try_for_each(|one| write!(f, "{one} "))?;
                f.write_str("]")
            }
        }
    }
}
