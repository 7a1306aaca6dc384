//! Callers of the gateway: some read everything, others leave before the answer, during it, or after the usage.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use serde_json::{Value, json};

/// A request to the model.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) team: String,
    pub(crate) key: String,
    pub(crate) model: &'static str,
    pub(crate) max_tokens: u64,
    /// Decides how long the answer is.
    pub(crate) seed: u64,
    pub(crate) leaves: Leaves,
}

/// When a caller closes the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaves {
    AtTheEnd,
    /// At once: while the request is checked, or before the answer begins.
    Before,
    During,
    /// After the usage, before the stream ends.
    AfterTheUsage,
}

/// What a caller saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// The whole stream, with its tokens of the prompt and of the answer.
    Stream {
        prompt: u64,
        completion: u64,
    },
    Status(u16),
    Left,
}

/// The longest silence of a stream.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends a request to the gateway on 127.0.0.1, and reads its stream until the caller leaves.
pub(crate) fn call(port: u16, call: &Call) -> io::Result<Seen> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    (&stream).write_all(&written(call))?;
    if call.leaves == Leaves::Before {
        stream.shutdown(Shutdown::Both)?;
        return Ok(Seen::Left);
    }
    let mut lines = BufReader::new(&stream).lines();
    let status = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
    let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or(io::ErrorKind::InvalidData)?;
    if status != 200 {
        return Ok(Seen::Status(status));
    }
    let mut usage = None;
    for line in lines {
        let line = line?;
        match line.strip_prefix("data: ") {
            Some("[DONE]") => break,
            Some(_) if call.leaves == Leaves::During => return Ok(Seen::Left),
            Some(data) => {
                let data: Value = serde_json::from_str(data)?;
                let number = |name: &str| data["usage"][name].as_u64();
                usage = number("prompt_tokens").zip(number("completion_tokens")).or(usage);
            }
            None => {}
        }
        if usage.is_some() && call.leaves == Leaves::AfterTheUsage {
            return Ok(Seen::Left);
        }
    }
    let (prompt, completion) = usage.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(Seen::Stream { prompt, completion })
}

fn written(call: &Call) -> Vec<u8> {
    let body = json!({
        "model": call.model,
        "max_tokens": call.max_tokens,
        "seed": call.seed,
        "stream": true,
        "messages": [{"role": "user", "content": "Tell me about rate limits."}],
    });
    let (Call { team, key, .. }, body) = (call, body.to_string());
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-team: {team}\r\nx-api-key: {key}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
