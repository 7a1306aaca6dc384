//! Unique ports, for servers whose port is set before they start.
//!
//! The system gives outgoing connections ports from 32768, so a port that was free for a bind to port 0 may be used by
//! another test's client later. These ports are below that range, and each is used once in this process. They come in
//! blocks. A process listens on the first port of each of its blocks until it ends, so that test runs beside each other
//! share none.

use std::{
    net::TcpListener,
    process,
    sync::{Mutex, PoisonError},
};

const FIRST: u16 = 12_000;
const BLOCK: u16 = 100;
const BLOCKS: u16 = 200;

struct Dealt {
    claims: Vec<TcpListener>,
    /// Ports of the last claimed block.
    ports: std::ops::Range<u16>,
    /// The number of blocks that were tried.
    tried: u16,
}

/// A free port on 127.0.0.1.
pub fn free_port() -> u16 {
    static DEALT: Mutex<Dealt> = Mutex::new(Dealt { claims: Vec::new(), ports: 0..0, tried: 0 });
    let mut dealt = DEALT.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(port) = dealt.ports.find(|port| listen(*port).is_some()) {
            return port;
        }
        dealt.claim();
    }
}

impl Dealt {
    fn claim(&mut self) {
        let start = process::id() % u32::from(BLOCKS);
        loop {
            assert!(self.tried < BLOCKS, "no free port from {FIRST} on");
            let at = (start + u32::from(self.tried)) % u32::from(BLOCKS);
            let first =
                FIRST + BLOCK * u16::try_from(at).expect("the remainder is below the number of blocks");
            self.tried += 1;
            if let Some(claim) = listen(first) {
                self.claims.push(claim);
                self.ports = first + 1..first + BLOCK;
                return;
            }
        }
    }
}

fn listen(port: u16) -> Option<TcpListener> {
    TcpListener::bind(("127.0.0.1", port)).ok()
}
