//! Header blocks: one that CONTINUATION frames complete, and the memory of the last one, with the head of its request.

use super::{
    hpack::MAX_LIST,
    meter::{Work, count},
};
use budget::Reservation;

/// The head of a well-formed request.
#[derive(Clone)]
pub(super) struct Request<H> {
    pub(super) head: H,
    pub(super) content_length: Option<u64>,
}

/// The maximum size of a header block: no list below [`MAX_LIST`] needs more (CVE-2024-27316).
const MAX_BLOCK: usize = 2 * MAX_LIST;

/// The maximum number of frames of a header block, for the same reason.
const MAX_BLOCK_FRAMES: u32 = 16;

/// The last header block that did not change the HPACK table, and its decoded head.
pub(super) struct Memo<H> {
    pub(super) block: Vec<u8>,
    pub(super) version: u64,
    pub(super) request: Option<Request<H>>,
}

impl<H> Default for Memo<H> {
    fn default() -> Self {
        Self { block: Vec::new(), version: 0, request: None }
    }
}

/// A header block that CONTINUATION frames complete.
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) end: bool,
    pub(super) depends_on_itself: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) frames: u32,
    pub(super) share: Reservation,
}

impl Block {
    pub(super) fn add(&mut self, bytes: &[u8]) -> bool {
        self.frames += 1;
        let length = self.bytes.len() + bytes.len();
        if length > MAX_BLOCK || self.frames > MAX_BLOCK_FRAMES || !self.share.resize(length) {
            return false;
        }
        self.bytes.reserve_exact(bytes.len());
        count(Work::Copied, bytes.len());
        self.bytes.extend_from_slice(bytes);
        true
    }
}
