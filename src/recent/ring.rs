//! The last decisions of one kind: a new one is written over the oldest, into its memory.

use super::decision::Decision;

/// The last decisions.
#[derive(Debug)]
pub(super) struct Ring {
    most: usize,
    decisions: Vec<Decision>,
    /// The place of the next one, once it is full.
    next: usize,
}

impl Ring {
    /// Room for this many.
    pub(super) const fn new(most: usize) -> Self {
        Self { most, decisions: Vec::new(), next: 0 }
    }

    /// Has `fill` write a decision.
    pub(super) fn push(&mut self, fill: impl FnOnce(&mut Decision)) {
        if self.decisions.len() < self.most {
            let mut decision = Decision::default();
            fill(&mut decision);
            return self.decisions.push(decision);
        }
        if let Some(oldest) = self.decisions.get_mut(self.next) {
            fill(oldest);
        }
        self.next = self.next.saturating_add(1);
        if self.next >= self.most {
            self.next = 0;
        }
    }

    /// The decisions, the newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = &Decision> {
        let (newer, older) = self.decisions.split_at_checked(self.next).unwrap_or_default();
        newer.iter().rev().chain(older.iter().rev())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_ones_and_shows_the_newest_first() {
        let mut ring = Ring::new(3);
        let hits = |ring: &Ring| ring.newest_first().map(|decision| decision.hits).collect::<Vec<_>>();
        assert_eq!(hits(&ring), [0_u64; 0]);
        for (n, expected) in [
            (1, &[1][..]),
            (2, &[2, 1]),
            (3, &[3, 2, 1]),
            (4, &[4, 3, 2]),
            (5, &[5, 4, 3]),
            (6, &[6, 5, 4]),
            (7, &[7, 6, 5]),
        ] {
            ring.push(|decision| decision.hits = n);
            assert_eq!(hits(&ring), expected);
        }
    }
}
