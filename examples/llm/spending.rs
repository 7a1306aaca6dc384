//! What was spent and what is held, from Tollgate's admin API.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
};

use serde_json::Value;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    pub(crate) limit: u64,
    pub(crate) spent: u64,
    pub(crate) held: u64,
}

/// The budget of a key and a value of the rules.
pub(crate) fn budget(admin: u16, key: &str, value: &str) -> io::Result<Budget> {
    let mut stream = TcpStream::connect(("127.0.0.1", admin))?;
    let query = format!("/api/v1/counters?domain=llm&descriptor={key}={value}");
    let head = format!("GET {query} HTTP/1.1\r\nhost: localhost:{admin}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let counters: Value = serde_json::from_str(body)?;
    let limit = &counters["limits"][0];
    let number = |name: &str| {
        limit[name]
            .as_u64()
            .ok_or_else(|| io::Error::other(format!("{key}={value} has no {name:?}: {answer}")))
    };
    Ok(Budget { limit: number("requests_per_unit")?, spent: number("spent")?, held: number("held")? })
}
