//! The choices of which a script is made, and the numbers among which they choose.

/// How often a frame or a request is repeated: a few more than a connection may have streams.
pub(super) const FRAMES: [usize; 12] = [1, 1, 1, 1, 1, 1, 1, 2, 5, 20, 200, 1100];

/// How many requests begin a script: those that its further steps wait on, visit or answer.
pub(super) const CROWDS: [usize; 6] = [1, 20, 200, 1000, 1000, 1000];

/// How many calls are decided at once.
pub(super) const DECIDED: [usize; 6] = [1, 1, 5, 20, 200, 1100];

/// The control frames of a connection, which a peer may send before its tokens are spent (`limits`), with a reserve for
/// requests that are malformed.
pub(super) const CONTROL: usize = 1_600;

/// How often a field is repeated: as many references as a frame holds.
pub(super) const FIELDS: [usize; 12] = [1, 1, 1, 1, 1, 2, 3, 10, 100, 1000, 16_384, 16_384];

pub(super) const LENGTHS: [usize; 12] = [0, 0, 1, 1, 2, 8, 30, 127, 500, 2000, 4000, 16_000];

pub(super) const NUMBERS: [u32; 8] = [0, 1, 2, 100, 4096, 65_535, 1 << 17, 1 << 20];

/// The lengths that messages declare, as far as they are not their own.
pub(super) const DECLARED: [u32; 8] = [0, 64, 4096, 65_536, 1 << 20, 4 << 20, 4 << 20, u32::MAX];

/// The sizes of frames and blocks that the peer is not allowed to exceed; a few do.
pub(super) const MAX_FRAME: usize = 16_384;

/// The bytes of one step: enough for a connection's worth of streams.
pub(super) const MAX_STEP: usize = 64 * 1024;

pub(super) struct Choices<'b>(pub(super) &'b [u8]);

impl Choices<'_> {
    pub(super) fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()).checked_rem(end).unwrap_or(0)
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len());
        from.get(at).copied()
    }

    /// True for what ends a connection in most cases.
    pub(super) fn rarely(&mut self) -> bool {
        self.byte() == 255
    }

    /// Never true after the last choice.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == times.saturating_sub(1)
    }

    pub(super) fn length(&mut self) -> usize {
        self.pick(&LENGTHS).unwrap_or(0)
    }

    pub(super) fn number(&mut self) -> u32 {
        if self.rarely() {
            return u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()]);
        }
        self.pick(&NUMBERS).unwrap_or(0)
    }
}
