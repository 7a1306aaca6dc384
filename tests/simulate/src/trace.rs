//! What happened: a hash of every event, and the lines of a story, if it is told.

use std::{collections::VecDeque, fmt};

use crate::world::Micros;

/// The last lines of a story that are kept.
const LINES: usize = 100_000;

#[derive(Clone, Debug, Default)]
pub struct Trace {
    hash: u64,
    is_told: bool,
    lines: VecDeque<(Micros, String)>,
}

impl Trace {
    pub fn told() -> Self {
        Self { is_told: true, ..Self::default() }
    }

    pub fn is_told(&self) -> bool {
        self.is_told
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn add(&mut self, number: u64) {
        self.hash = (self.hash.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    pub fn add_bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last));
        self.add(bytes.len() as u64);
    }

    /// Adds a line: time, who, and what.
    pub fn tell(&mut self, now: Micros, who: &dyn fmt::Display, what: fmt::Arguments<'_>) {
        if !self.is_told {
            return;
        }
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        let (seconds, micros) = (now / 1_000_000, now % 1_000_000);
        let line = format!("{seconds:>4}.{micros:06}  {:<10} {what}", who.to_string());
        self.lines.push_back((now, line));
    }

    /// The last lines before `end`, of those about `subject` and those of the plan.
    pub fn about(&self, subject: Option<&str>, end: Micros, most: usize) -> Vec<String> {
        let is_about = |line: &&(Micros, String)| {
            let (at, line) = line;
            *at <= end && (subject.is_none_or(|subject| line.contains(subject)) || line.contains("  plan "))
        };
        let lines = self.lines.iter().rev().filter(is_about).take(most);
        let mut lines: Vec<String> = lines.map(|(_, line)| line.clone()).collect();
        lines.reverse();
        lines
    }
}
