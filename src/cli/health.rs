//! `tollgate health`: asks the service on this machine whether it is healthy, for exec probes.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use clap::Args;

use super::{
    request::timeout,
    serve::Environment,
    terminal::{self, ERROR, GOOD, Verdict, paint},
};
use crate::settings::HostPort;

/// The longest response that is read.
const MAX_RESPONSE: u64 = 4 << 20;

/// The arguments of `tollgate health`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct HealthArgs {
    /// How long to wait for the response.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = timeout)]
    pub timeout: Duration,
}

/// Requests `/healthcheck` on the HTTP port that the environment sets.
#[must_use]
pub fn run(args: &HealthArgs, environment: &Environment) -> Verdict {
    let listen = match environment.settings() {
        Ok((settings, _)) => settings.http.listen(),
        Err(problems) => {
            terminal::print_error(&format!("invalid settings:\n  {}", problems.join("\n  ")));
            return Verdict::Unknown;
        }
    };
    match get(&listen, "/healthcheck", args.timeout) {
        Ok((200, _)) => {
            terminal::print(&format!("{}\n", paint(GOOD, "healthy")));
            Verdict::Yes
        }
        Ok((_, body)) => {
            terminal::print(&format!("{}: {}\n", paint(ERROR, "unhealthy"), body.trim()));
            Verdict::No
        }
        Err(error) => {
            terminal::print_error(&format!(
                "cannot reach http://{}/healthcheck: {error}\n  is the service running? PORT={} is its HTTP port",
                if listen.is_every_address() {
                    format!("localhost:{}", listen.port)
                } else {
                    listen.to_string()
                },
                listen.port,
            ));
            Verdict::Unknown
        }
    }
}

/// The status and the body of a page of the service.
pub(super) fn get(at: &HostPort, path: &str, timeout: Duration) -> io::Result<(u16, String)> {
    let until = Instant::now() + timeout;
    let mut last = io::Error::other("no address");
    for address in at.resolve()? {
        match get_from(address, at, path, until) {
            Ok(response) => return Ok(response),
            Err(error) => last = error,
        }
    }
    Err(match last.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::other(format!("no response within {timeout:?}"))
        }
        _ => last,
    })
}

fn get_from(address: SocketAddr, at: &HostPort, path: &str, until: Instant) -> io::Result<(u16, String)> {
    let left = || match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok::<_, io::Error>(left),
    };
    let mut socket = TcpStream::connect_timeout(&address, left()?)?;
    socket.set_write_timeout(Some(left()?))?;
    write!(socket, "GET {path} HTTP/1.0\r\nhost: {at}\r\nconnection: close\r\n\r\n")?;
    let mut response = Vec::new();
    let mut part = [0; 16 << 10];
    // A peer that sends a byte now and then must not extend the timeout.
    while (response.len() as u64) < MAX_RESPONSE {
        socket.set_read_timeout(Some(left()?))?;
        match socket.read(&mut part)? {
            0 => break,
            read => response.extend_from_slice(part.get(..read).unwrap_or_default()),
        }
    }
    parsed(&String::from_utf8_lossy(&response))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the response is not HTTP"))
}

fn parsed(response: &str) -> Option<(u16, String)> {
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}
