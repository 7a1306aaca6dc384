//! A real Redis on its own socket, and scripts that read the time from two keys instead of the clock.

use std::{
    collections::HashMap,
    env,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    failure::Failure,
    pipeline::{Learned, RedisPipeline},
    resp::{self, Reply},
    script::{COUNTERS, HOLD, LEASE, LOGS, RESET, RETURN_HITS, SETTLE, STATES, UNITS},
};
use clock::Time;
use wire::Pipeline;

/// A redis-server, killed on drop.
pub(super) struct Redis {
    process: Child,
    stream: UnixStream,
    incoming: Vec<u8>,
    /// For each script's hash, the hash of its version that reads the time from two keys.
    timed: HashMap<String, String>,
    dir: TempDir,
}

impl Redis {
    pub(super) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("redis.sock");
        let program = env::var_os("TOLLGATE_TEST_REDIS").unwrap_or_else(|| "redis-server".into());
        let process = Command::new(program)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&path)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server can be started");
        let connect = || UnixStream::connect(&path).inspect_err(|_| sleep(Duration::from_millis(10))).ok();
        let stream = (0..1000).find_map(|_| connect()).expect("redis-server listens");
        let mut redis = Self { process, stream, incoming: Vec::new(), timed: HashMap::new(), dir };
        let all = [&COUNTERS, &STATES, &LOGS, &UNITS, &HOLD, &SETTLE, &RESET, &LEASE, &RETURN_HITS];
        for script in all {
            let own = "call('TIME')";
            assert!(script.source.matches(own).count() <= 1);
            let text = script.source.replace(own, "{ call('GET', 'second'), call('GET', 'micros') }");
            let timed = redis.load(&text);
            redis.timed.insert(script.hash().to_owned(), timed);
        }
        redis
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    fn load(&mut self, text: &str) -> String {
        let Reply::Text(hash) = self.command(&["SCRIPT", "LOAD", text]) else { panic!("{text}") };
        String::from_utf8(hash).unwrap()
    }

    pub(super) fn command<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Reply {
        let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
        let mut bytes = Vec::new();
        resp::write_command(&mut bytes, &words);
        self.stream.write_all(&bytes).unwrap();
        self.reply()
    }

    fn reply(&mut self) -> Reply {
        loop {
            if let Some((reply, length)) = resp::read(&self.incoming).unwrap() {
                self.incoming.drain(..length);
                return reply;
            }
            let mut part = [0; 4096];
            let length = self.stream.read(&mut part).unwrap();
            assert!(length > 0, "redis-server is gone");
            self.incoming.extend(&part[..length]);
        }
    }

    /// Calls a script at this time, with a command that calls it by its hash.
    pub(super) fn call(&mut self, command: &[u8], now: Time) -> Reply {
        let (second, micros) = (now.seconds().to_string(), (now.micros() % 1_000_000).to_string());
        self.command(&["MSET", "second", &second, "micros", &micros]);
        let Ok(Some((Reply::List(words), _))) = resp::read(command) else { panic!("{command:?}") };
        let words: Vec<Vec<u8>> = words
            .into_iter()
            .map(|word| {
                let Reply::Text(word) = word else { panic!("{word:?}") };
                let timed = str::from_utf8(&word).ok().and_then(|word| self.timed.get(word));
                timed.map_or(word.clone(), |timed| timed.clone().into_bytes())
            })
            .collect();
        self.command(&words)
    }

    /// Sends and completes a pipeline at this time, as a connection does.
    pub(super) fn exchange(&mut self, pipeline: &mut RedisPipeline, now: Time) -> Learned {
        let (mut written, mut sent) = (Vec::new(), Vec::new());
        pipeline.write(&mut written);
        let (second, micros) = (now.seconds().to_string(), (now.micros() % 1_000_000).to_string());
        resp::write_command(
            &mut sent,
            &[b"MSET", b"second", second.as_bytes(), b"micros", micros.as_bytes()],
        );
        let mut rest = &written[..];
        while let Ok(Some((Reply::List(words), length))) = resp::read(rest) {
            resp::begin_command(&mut sent, words.len());
            for word in words {
                let Reply::Text(word) = word else { panic!("{word:?}") };
                let timed = str::from_utf8(&word).ok().and_then(|word| self.timed.get(word));
                resp::write_word(&mut sent, timed.map_or(&word[..], |timed| timed.as_bytes()));
            }
            rest = &rest[length..];
            if rest.is_empty() {
                break;
            }
        }
        self.stream.write_all(&sent).unwrap();
        self.reply();
        let replies: Vec<_> = (0..pipeline.replies()).map(|_| self.reply()).collect();
        let shown = pipeline.complete(replies, |kind, error| Failure::new(kind, error));
        pipeline.clear();
        shown
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
