//! HTTP/2 frames (RFC 9113, sections 4, 6 and 7): header, types, flags, settings and error codes.

pub(super) const HEAD: usize = 9;

/// The largest payload that is accepted: the initial value of `SETTINGS_MAX_FRAME_SIZE`.
pub(super) const MAX_PAYLOAD: usize = 16_384;

pub(super) const SETTING: usize = 6;

pub(super) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(super) mod flag {
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
    pub(crate) const PADDED: u8 = 8;
    pub(crate) const PRIORITY: u8 = 32;
}

pub(super) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// An error ends the connection with this code.
pub(super) type Handled = Result<(), Reason>;

/// An error code of RFC 9113, section 7.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Reason {
    NoError = 0,
    ProtocolError = 1,
    FlowControlError = 3,
    StreamClosed = 5,
    FrameSizeError = 6,
    RefusedStream = 7,
    CompressionError = 9,
    EnhanceYourCalm = 11,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FrameHead {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// The stream, without the reserved bit.
    pub(super) stream: u32,
}

impl FrameHead {
    /// Reads the header at the start of `bytes`; `None` if it is incomplete.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = bytes.first_chunk::<HEAD>()?;
        Some(Self {
            length: u32::from_be_bytes([0, *a, *b, *c]) as usize,
            kind: *kind,
            flags: *flags,
            stream: u32::from_be_bytes(*stream) & 0x7fff_ffff,
        })
    }

    #[inline]
    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Writes the header of a frame whose payload is below 2^24 bytes.
#[inline]
pub(super) fn write_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let [_, length @ ..] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

#[inline]
pub(super) fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    write_head(out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
}

pub(super) fn write_setting(out: &mut Vec<u8>, id: u16, value: u32) {
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn u32_at(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
