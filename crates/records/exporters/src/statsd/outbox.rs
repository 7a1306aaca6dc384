//! Packs lines into packets for a sink, and settles the counts of sent lines.

use std::{io, thread, time::Duration};

use super::{
    connection::SinkConnection,
    line::{Amount, Dialect},
};

/// The sender pauses after this many bytes. Otherwise a flush of ten thousand rules would take a core from the workers,
/// and overrun the receive buffer of a UDP sink, which is 208 KiB on Linux.
const BURST: usize = 64 << 10;
const REST: Duration = Duration::from_millis(1);

pub(super) struct Outbox<'s, 'l> {
    connection: &'s mut SinkConnection,
    dialect: &'s Dialect,
    packet: String,
    lines: Vec<Line<'l>>,
    since_rest: usize,
}

struct Line<'l> {
    end: usize,
    /// The sent count, and its value once the line is sent.
    settles: Option<(&'l mut u64, u64)>,
}

impl<'s, 'l> Outbox<'s, 'l> {
    pub(super) fn new(connection: &'s mut SinkConnection, dialect: &'s Dialect) -> Self {
        Self { connection, dialect, packet: String::new(), lines: Vec::new(), since_rest: 0 }
    }

    /// Adds a line; sends the packet first if the line does not fit.
    pub(super) fn put(
        &mut self,
        name: &str,
        amount: Amount,
        settles: Option<(&'l mut u64, u64)>,
    ) -> io::Result<()> {
        let begin = self.packet.len();
        self.dialect.write(&mut self.packet, name, amount);
        if begin > 0 && self.packet.len() > self.connection.packet_bytes() {
            let line = self.packet.split_off(begin);
            self.send()?;
            self.packet = line;
        }
        self.lines.push(Line { end: self.packet.len(), settles });
        Ok(())
    }

    /// Sends the packet, and settles the lines that were sent.
    pub(super) fn send(&mut self) -> io::Result<()> {
        let (bytes, result) = self.connection.send(self.packet.as_bytes());
        for line in self.lines.drain(..) {
            // A sink that reads to the end of a stream counts a line without its line break.
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
