//! Lines on their way to a sink: packed as large as the way allows, and settled when they are gone.

use std::{io, thread, time::Duration};

use super::{
    line::{Amount, Dialect},
    link::Link,
};

/// After so many bytes the sender rests. A flush of ten thousand rules would else take a core from those
/// who answer requests, and overrun the buffer of a sink that reads datagrams: Linux gives it 208 KiB.
const BURST: usize = 64 << 10;
const REST: Duration = Duration::from_millis(1);

/// Lines that were not sent yet.
pub(super) struct Outbox<'s, 'l> {
    link: &'s mut Link,
    dialect: &'s Dialect,
    packet: String,
    lines: Vec<Line<'l>>,
    since_rest: usize,
}

/// A line of the packet.
struct Line<'l> {
    /// Where it ends.
    end: usize,
    /// What is settled when the line is sent, and the value then.
    settles: Option<(&'l mut u64, u64)>,
}

impl<'s, 'l> Outbox<'s, 'l> {
    pub(super) fn new(link: &'s mut Link, dialect: &'s Dialect) -> Self {
        Self { link, dialect, packet: String::new(), lines: Vec::new(), since_rest: 0 }
    }

    /// Adds a line, and sends those before it if there is no more room.
    pub(super) fn put(
        &mut self,
        name: &str,
        amount: Amount,
        settles: Option<(&'l mut u64, u64)>,
    ) -> io::Result<()> {
        let begin = self.packet.len();
        self.dialect.write(&mut self.packet, name, amount);
        if begin > 0 && self.packet.len() > self.link.packet_bytes() {
            let line = self.packet.split_off(begin);
            self.send()?;
            self.packet = line;
        }
        self.lines.push(Line { end: self.packet.len(), settles });
        Ok(())
    }

    /// Sends what is there, and settles as much as went.
    pub(super) fn send(&mut self) -> io::Result<()> {
        let (bytes, result) = self.link.send(self.packet.as_bytes());
        for line in self.lines.drain(..) {
            // A line whose end alone is missing is counted by who reads up to where the stream breaks off.
            if let Some((sent, counted)) = line.settles
                && line.end <= bytes + 1
            {
                *sent = counted;
            }
        }
        self.since_rest += self.packet.len();
        self.packet.clear();
        if self.since_rest >= BURST {
            self.since_rest = 0;
            thread::sleep(REST);
        }
        result
    }
}
