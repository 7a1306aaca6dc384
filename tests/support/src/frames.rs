//! An HTTP/2 connection to the gRPC port, frame by frame.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use super::PATIENCE;

/// `ShouldRateLimit`.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// A connection, frame by frame.
pub struct Connection {
    pub stream: TcpStream,
    received: Vec<u8>,
}

#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Connection {
    /// Connects and sends the preface.
    pub fn open(port: u16) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        Self { stream, received: Vec::new() }
    }

    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend_from_slice(&[kind, flags]);
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).unwrap();
    }

    /// Opens a stream of `ShouldRateLimit`.
    pub fn begin(&mut self, stream: u32) {
        self.call(stream, PATH);
    }

    /// Opens a stream of any method.
    pub fn call(&mut self, stream: u32, path: &str) {
        self.send(HEADERS, END_HEADERS, stream, &head(path));
    }

    pub fn data(&mut self, stream: u32, data: &[u8]) {
        data.chunks(16_384).for_each(|piece| self.send(DATA, 0, stream, piece));
    }

    /// The next frame, if it arrives within this time.
    pub fn receive(&mut self, limit: Duration) -> Option<Frame> {
        self.try_receive(limit).expect("the connection was closed")
    }

    /// The next frame, if it arrives within this time.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn try_receive(&mut self, limit: Duration) -> Result<Option<Frame>, ()> {
        self.stream.set_read_timeout(Some(limit)).unwrap();
        loop {
            if let Some((head, rest)) = self.received.split_first_chunk::<9>() {
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                if let Some(payload) = rest.get(..length) {
                    let frame = Frame { kind: head[3], flags: head[4], stream, payload: payload.to_vec() };
                    self.received.drain(..9 + length);
                    return Ok(Some(frame));
                }
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(()),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                // A stopped process continues.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(()),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The first frame of this kind on this stream that arrives in time.
    pub fn frame_of(&mut self, kind: u8, stream: u32) -> Frame {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            let frame = self.receive(left).unwrap_or_else(|| panic!("no frame {kind} on stream {stream}"));
            if (frame.kind, frame.stream) == (kind, stream) {
                return frame;
            }
        }
    }

    /// Returns when everything that was sent is handled.
    pub fn settle(&mut self) {
        self.send(PING, 0, 0, b"settled?");
        self.frame_of(PING, 0);
    }

    /// The header block that ends a stream, as text.
    pub fn end_of(&mut self, stream: u32) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let frame =
                self.receive(deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
            let frame = frame.unwrap_or_else(|| panic!("stream {stream} does not end"));
            if (frame.kind, frame.stream) == (HEADERS, stream) && frame.flags & END_STREAM != 0 {
                return String::from_utf8_lossy(&frame.payload).replace("%20", " ");
            }
        }
    }
}

/// The header block of a call.
pub fn head(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(b"\x0f\x10\x10application/grpc");
    block
}
