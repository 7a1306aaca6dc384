//! The server behind Envoy: it answers 200, remembers what it was sent, and gives back in its answer the
//! header that the request asks for.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// A request's header of this name comes back as a header `x-tokens` of the answer.
pub(crate) const TOKENS_TO_ANSWER: &str = "x-tokens-to-answer";

/// A server on a port of its own, for as long as the process lives.
pub(crate) struct Upstream {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port can be had");
        let port = listener.local_addr().expect("a listener has an address").port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let log = Arc::clone(&log);
                // Envoy keeps its connections; each has a thread that ends with it.
                thread::spawn(move || serve(&stream, &log));
            }
        });
        Self { port, seen }
    }

    /// The heads of the requests that came through, each a list of lines in lower case.
    pub(crate) fn seen(&self) -> Vec<Vec<String>> {
        self.seen.lock().expect("no thread panics with the log in hand").clone()
    }
}

/// Answers the requests of a connection, none of which has a body.
fn serve(stream: &TcpStream, log: &Mutex<Vec<Vec<String>>>) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    loop {
        let mut head = Vec::new();
        loop {
            let line = lines.next()?.ok()?;
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
