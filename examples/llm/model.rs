//! A model: answers with server-sent events, the last of which has the usage. It never answers the model named `broken`.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// The tokens of an event, and the pause after it.
const TOKENS: u64 = 10;
const PAUSE: Duration = Duration::from_millis(50);

/// Serves until the process ends: each of Envoy's connections has a thread.
pub(crate) fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        thread::spawn(move || connection(&stream));
    }
}

fn connection(stream: &TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(body) = request(&mut reader)? {
        let asked: Value = serde_json::from_slice(&body)?;
        answer(stream, &asked, body.len())?;
    }
    Ok(())
}

/// The body of the next request; `None` at the end of the connection.
fn request(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(body))
}

fn answer(mut stream: &TcpStream, asked: &Value, bytes: usize) -> io::Result<()> {
    if asked["model"] == "broken" {
        return stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
    }
    // Four bytes are about a token, and `seed` decides how long the answer is.
    let (prompt, most) = (bytes as u64 / 4, asked["max_tokens"].as_u64().unwrap_or(1000).max(1));
    let completion = 1 + asked["seed"].as_u64().unwrap_or(0) % most;
    stream.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    )?;
    let mut left = completion;
    while left > 0 {
        let words: String = (0..left.min(TOKENS)).map(|_| "word ").collect();
        event(stream, &json!({"choices": [{"delta": {"content": words}}]}).to_string())?;
        left = left.saturating_sub(TOKENS);
        thread::sleep(PAUSE);
    }
    let usage = format!(
        r#"{{"choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{}}}}}"#,
        prompt + completion
    );
    event(stream, &usage)?;
    event(stream, "[DONE]")?;
    stream.write_all(b"0\r\n\r\n")
}

fn event(mut stream: &TcpStream, data: &str) -> io::Result<()> {
    let text = format!("data: {data}\n\n");
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}
