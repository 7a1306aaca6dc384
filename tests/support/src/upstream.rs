//! The server behind Envoy: returns 200, records the requests, and returns a header that the request names.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// A request header with this name is returned as `x-tokens`.
pub const TOKENS_TO_ANSWER: &str = "x-tokens-to-answer";

/// A server on its own port, until the process ends.
pub struct Upstream {
    pub port: u16,
    seen: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Upstream {
    pub fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("cannot bind a port");
        let port = listener.local_addr().expect("the listener has no address").port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let log = Arc::clone(&log);
                // Envoy keeps its connections; each has a thread.
                thread::spawn(move || serve(&stream, &log));
            }
        });
        Self { port, seen }
    }

    /// The heads of the received requests, each a list of lines in lower case.
    pub fn seen(&self) -> Vec<Vec<String>> {
        self.seen.lock().expect("the lock is poisoned").clone()
    }
}

/// Answers the requests of a connection, which have no bodies.
fn serve(stream: &TcpStream, log: &Mutex<Vec<Vec<String>>>) -> Option<()> {
    let mut lines = BufReader::new(stream).split(b'\n');
    loop {
        let mut head = Vec::new();
        loop {
            let line = lines.next()?.ok()?;
            let line = String::from_utf8_lossy(line.trim_ascii_end());
            if line.is_empty() {
                break;
            }
            head.push(line.to_ascii_lowercase());
        }
        let tokens = head.iter().find_map(|line| line.strip_prefix(TOKENS_TO_ANSWER)?.strip_prefix(": "));
        let extra = tokens.map(|tokens| format!("x-tokens: {tokens}\r\n")).unwrap_or_default();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n{extra}\r\nok");
        log.lock().ok()?.push(head);
        let mut writer = stream;
        writer.write_all(answer.as_bytes()).ok()?;
    }
}
