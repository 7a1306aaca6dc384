//! A small HTTP/1.1 client: one request for each connection.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
};

use serde_json::Value;

use super::PATIENCE;

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// `GET path` on 127.0.0.1.
pub fn get(port: u16, path: &str) -> Answer {
    send(port, "GET", path, &[], b"").unwrap_or_else(|error| panic!("GET {path} on port {port}: {error}"))
}

/// `POST path` on 127.0.0.1.
pub fn post(port: u16, path: &str, body: &str) -> Answer {
    send(port, "POST", path, &[("content-type", "application/json")], body.as_bytes())
        .unwrap_or_else(|error| panic!("POST {path} on port {port}: {error}"))
}

/// Any request on 127.0.0.1.
pub fn send(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Answer> {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    send_bytes(port, method, path, &headers, body)
}

/// As [`send`], with any bytes in headers.
pub fn send_bytes(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &[u8])],
    body: &[u8],
) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    write!(request, "{method} {path} HTTP/1.1\r\nconnection: close\r\n")?;
    if !headers.iter().any(|(name, _)| *name == "host") {
        write!(request, "host: localhost\r\n")?;
    }
    for (name, value) in headers {
        write!(request, "{name}: ")?;
        request.extend_from_slice(value);
        request.extend_from_slice(b"\r\n");
    }
    if !body.is_empty() {
        write!(request, "content-length: {}\r\n", body.len())?;
    }
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(body);
    stream.write_all(&request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    parse(&answer).ok_or_else(|| {
        let seen = String::from_utf8_lossy(&answer).into_owned();
        io::Error::new(io::ErrorKind::InvalidData, format!("no HTTP answer: {seen:?}"))
    })
}

impl Answer {
    /// The value of the first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("invalid JSON ({error}) with status {}: {}", self.status, self.text())
        })
    }
}

/// Parses a complete response; `None` if it is truncated.
fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = find(bytes, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let rest = &bytes[end + 4..];
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked { joined(rest)? } else { rest.to_vec() };
    Some(Answer { status, headers, body })
}

/// The chunks of a chunked body without their sizes.
fn joined(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = find(rest, b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        let chunk = line + 2;
        body.extend_from_slice(rest.get(chunk..chunk + size)?);
        rest = rest.get(chunk + size + 2..)?;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[test]
fn chunks_are_joined() {
    let answer =
        parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    assert_eq!(answer.expect("truncated").text(), "abcde");
}

#[test]
fn a_truncated_response_is_none() {
    assert!(parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab").is_none());
    assert!(parse(b"HTTP/1.1 200").is_none());
}
