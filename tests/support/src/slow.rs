//! A Redis with a known speed: each key of a command takes a fixed time, with regular pauses, and stalls that a test
//! causes. A real server answers the commands.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

/// A proxy to a slow server, on its own port, until the process ends.
pub struct Slow {
    pub port: u16,
    pace: Arc<Mutex<Pace>>,
}

/// How much of its time the server makes up for, if a busy machine kept commands from it.
const CATCH_UP: Duration = Duration::from_millis(250);

/// The speed of the server.
pub struct Pace {
    each: Duration,
    pause: Duration,
    every: Duration,
    start: Instant,
    /// The time at which all received keys are done.
    free: Instant,
    /// Received keys.
    served: u64,
}

impl Pace {
    /// `each` for a key, and a pause of `pause` in every `every`.
    pub fn new(each: Duration, pause: Duration, every: Duration) -> Self {
        Self { each, pause, every, start: Instant::now(), free: Instant::now(), served: 0 }
    }

    /// Keys per second.
    pub fn per_second(&self) -> f64 {
        (1.0 - self.pause.as_secs_f64() / self.every.as_secs_f64()) / self.each.as_secs_f64()
    }

    /// The time at which this many new keys are done.
    fn done(&mut self, keys: u32) -> Instant {
        let now = Instant::now();
        let mut at = self.free.max(now.checked_sub(CATCH_UP).unwrap_or(now));
        for _ in 0..keys {
            at += self.each;
            let nanos = (at - self.start).as_nanos() % self.every.as_nanos();
            let within = Duration::from_nanos(u64::try_from(nanos).expect("more than a period"));
            at += self.pause.saturating_sub(within);
        }
        self.free = at;
        self.served += u64::from(keys);
        at
    }
}

impl Slow {
    /// A proxy to the Redis on a port of 127.0.0.1.
    pub fn to(port: u16, pace: Pace) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("cannot bind a port");
        let own = listener.local_addr().expect("the listener has no address").port();
        let pace = Arc::new(Mutex::new(pace));
        let shared = Arc::clone(&pace);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let pace = Arc::clone(&shared);
                // The threads end with their connection.
                thread::spawn(move || carry(&client, &server, &pace));
            }
        });
        Self { port: own, pace }
    }

    /// Stalls for this time.
    pub fn stall(&self, time: Duration) {
        let mut pace = self.pace.lock().expect("the lock is poisoned");
        pace.free = pace.free.max(Instant::now()) + time;
    }

    /// Received keys.
    pub fn served(&self) -> u64 {
        self.pace.lock().expect("the lock is poisoned").served
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

fn carry(mut client: &TcpStream, server: &TcpStream, pace: &Mutex<Pace>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (sender, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::scope(|scope| {
        scope.spawn(move || {
            for (at, bytes) in due {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                if (&*server).write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        scope.spawn(move || {
            let _ = std::io::copy(&mut &*server, &mut &*client);
            let _ = client.shutdown(Shutdown::Both);
        });
        let (mut buffer, mut pending) = (vec![0; 16 * 1024], Vec::new());
        while let Ok(count @ 1..) = client.read(&mut buffer) {
            pending.extend_from_slice(&buffer[..count]);
            let mut at = 0;
            while let Some((length, keys)) = command(&pending[at..]) {
                let done = pace.lock().expect("the lock is poisoned").done(keys);
                let _ = sender.send((done, pending[at..at + length].to_vec()));
                at += length;
            }
            pending.drain(..at);
        }
        drop(sender);
        let _ = server.shutdown(Shutdown::Both);
    });
}

/// The length of the first command, if it is complete, and the number of its keys.
fn command(bytes: &[u8]) -> Option<(usize, u32)> {
    let number = |at: usize| {
        let end = at + bytes.get(at..)?.iter().position(|byte| *byte == b'\n')?;
        let number = str::from_utf8(bytes.get(at + 1..end)?).ok()?.trim().parse::<usize>().ok()?;
        Some((number, end + 1))
    };
    let (words, mut next) = number(0)?;
    let mut keys = 0;
    for word in 0..words {
        // Each word follows its length.
        let (length, start) = number(next)?;
        let text = bytes.get(start..start + length)?;
        next = start + length + 2;
        match (word, text) {
            (0, b"INCRBY" | b"GET") => keys = 1,
            (0, b"EVALSHA" | b"EVAL") => keys = u32::MAX,
            (2, text) if keys == u32::MAX => keys = str::from_utf8(text).ok()?.parse().ok()?,
            _ => {}
        }
    }
    (next <= bytes.len()).then_some((next, keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_commands_and_their_keys() {
        let bytes = b"*3\r\n$6\r\nINCRBY\r\n$1\r\na\r\n$1\r\n1\r\n*4\r\n$7\r\nEVALSHA\r\n$1\r\nx\r\n$2\r\n17\r\n$1\r\nk\r\n*1\r\n$4\r\nPI";
        let (first, keys) = command(bytes).unwrap();
        assert_eq!(keys, 1);
        let (second, keys) = command(&bytes[first..]).unwrap();
        assert_eq!(keys, 17);
        assert_eq!(command(&bytes[first + second..]), None);
    }

    #[test]
    fn pauses_and_pace_add_up() {
        let (milli, micro) = (Duration::from_millis(1), Duration::from_micros(1));
        let mut pace = Pace::new(100 * micro, 2 * milli, 4 * milli);
        let start = pace.free;
        let took = pace.done(1000) - start;
        assert!((1000.0 / took.as_secs_f64() - pace.per_second()).abs() < 100.0, "{took:?}");
    }
}
