//! A fake Redis whose replies the test defines.

use std::{
    io::{BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::redis::read;

/// A server on its own port, until the process ends.
pub struct Fake {
    pub port: u16,
    asked: Arc<AtomicU64>,
}

impl Fake {
    /// Replies to each command with these bytes, given its words and the port.
    pub fn answering(answer: impl Fn(&[String], u16) -> String + Send + Sync + 'static) -> Self {
        Self::start(move |stream, port, asked| {
            let mut commands = BufReader::new(stream);
            while let Ok(command) = read(&mut commands) {
                asked.fetch_add(1, Ordering::Relaxed);
                let answer = answer(&command.words(), port);
                if commands.get_mut().write_all(answer.as_bytes()).is_err() {
                    break;
                }
            }
        })
    }

    /// Sends these bytes after each read, whatever it received.
    pub fn saying(bytes: &'static [u8]) -> Self {
        Self::start(move |mut stream, _, asked| {
            let mut buffer = [0; 4096];
            while matches!(std::io::Read::read(&mut stream, &mut buffer), Ok(1..)) {
                asked.fetch_add(1, Ordering::Relaxed);
                if stream.write_all(bytes).is_err() {
                    break;
                }
            }
        })
    }

    fn start(serve: impl Fn(TcpStream, u16, &AtomicU64) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("cannot bind a port");
        let port = listener.local_addr().expect("the listener has no address").port();
        let asked = Arc::new(AtomicU64::new(0));
        let (serve, counter) = (Arc::new(serve), Arc::clone(&asked));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (serve, counter) = (Arc::clone(&serve), Arc::clone(&counter));
                // The thread ends with its connection.
                thread::spawn(move || serve(stream, port, &counter));
            }
        });
        Self { port, asked }
    }

    /// The number of commands.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}
