//! Streams that ended with a reset.
//!
//! A frame on a closed stream is a late one if we reset the stream, an error of the stream if the peer did, and an
//! error of the connection if both sides had ended it (RFC 9113, section 5.1). `connection` decides with this which
//! it is.

/// Streams that are remembered by their number.
const REMEMBERED: usize = 16;

/// The streams that one side reset last.
#[derive(Default)]
pub(super) struct Resets {
    last: [u32; REMEMBERED],
    next: usize,
    /// Streams above this one are not forgotten.
    forgotten: u32,
}

impl Resets {
    pub(super) fn add(&mut self, id: u32) {
        if let Some(place) = self.last.get_mut(self.next) {
            self.forgotten = self.forgotten.max(std::mem::replace(place, id));
        }
        self.next = self.next.wrapping_add(1) & (REMEMBERED - 1);
    }

    /// True for a stream that was reset and is remembered.
    pub(super) fn contains(&self, id: u32) -> bool {
        self.last.contains(&id)
    }

    /// False for a stream that was not reset.
    pub(super) fn may_contain(&self, id: u32) -> bool {
        id <= self.forgotten || self.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_stream_is_never_taken_for_another() {
        let mut resets = Resets::default();
        for id in (1..=31).step_by(2) {
            resets.add(id);
        }
        assert!(
            resets.contains(1) && resets.contains(31) && !resets.may_contain(33) && !resets.may_contain(2)
        );
        resets.add(40);
        assert!(!resets.contains(1) && resets.may_contain(1) && !resets.may_contain(2));
        assert!(resets.contains(3) && resets.contains(40));
    }
}
