//! Ports that nobody else has: for servers whose port is set before they start.
//!
//! A system hands outgoing connections ports from 32768 upwards, so one that is free by asking for port 0
//! may be taken by another test's client a moment later. These come from below that range and are dealt
//! out once in the life of this process.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU32, Ordering},
};

const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;

/// A port on 127.0.0.1 that nothing listens on.
pub(crate) fn free_port() -> u16 {
    static DEALT: AtomicU32 = AtomicU32::new(0);
    // Two test runs at the same time begin at different places.
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
