//! The server behind Envoy: records the requests, and answers what their headers and queries name.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
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

/// Answers the requests of a connection.
fn serve(stream: &TcpStream, log: &Mutex<Vec<Vec<String>>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = Vec::new();
            if reader.read_until(b'\n', &mut line).ok()? == 0 {
                return None;
            }
            let line = String::from_utf8_lossy(line.trim_ascii_end()).to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            head.push(line);
        }
        let header = |name: &str| head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let length = header("content-length").map_or(0, |length| length.parse().expect("a length"));
        io::copy(&mut (&mut reader).take(length), &mut io::sink()).ok()?;
        let answer = answer(&head[0], header(TOKENS_TO_ANSWER));
        log.lock().ok()?.push(head);
        let mut writer = stream;
        writer.write_all(answer.as_bytes()).ok()?;
    }
}

/// The answer to a request line: 200, or the `status` of its query, and `ok`, or as many `bytes`. `cost` becomes the header
/// `x-cost`. A path of a model has its answer, with a usage block unless the query has `usage=none`.
fn answer(request: &str, tokens: Option<&str>) -> String {
    let target = request.split(' ').nth(1).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let asked = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let status = asked("status").unwrap_or("200");
    let headers = [("x-tokens", tokens), ("x-cost", asked("cost"))];
    let mut headers: String =
        headers.into_iter().filter_map(|(name, value)| Some(format!("{name}: {}\r\n", value?))).collect();
    let body = if path == "/v1/chat/completions" {
        headers += "content-type: application/json\r\n";
        let usage = r#","usage":{"prompt_tokens":11,"completion_tokens":31,"total_tokens":42}"#;
        let usage = if asked("usage") == Some("none") { "" } else { usage };
        format!(r#"{{"id":"x","object":"chat.completion","model":"m","choices":[]{usage}}}"#)
    } else {
        asked("bytes").map_or("ok".to_owned(), |bytes| "x".repeat(bytes.parse().expect("a number of bytes")))
    };
    format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
}
