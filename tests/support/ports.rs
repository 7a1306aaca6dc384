//! Unique ports, for servers whose port is set before they start.
//!
//! The system gives outgoing connections ports from 32768, so a port that was free for a bind to port 0 may be used by
//! another test's client later. These ports are below that range, and each is used once in this process.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU32, Ordering},
};

const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;

/// A free port on 127.0.0.1.
pub(crate) fn free_port() -> u16 {
    static DEALT: AtomicU32 = AtomicU32::new(0);
    // Concurrent test runs begin at different ports.
    let start = process::id().wrapping_mul(257);
    for _ in 0..COUNT {
        let dealt = DEALT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(dealt) % COUNT;
        let port = u16::try_from(port).expect("the range ends below 65536");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}
