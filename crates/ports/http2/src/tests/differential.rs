//! Sends the same random frames, valid and invalid, to this connection and to a server of the `h2` crate: a client must
//! see the same.
//!
//! Compared after each frame: the data of each stream, the streams with a response, the reset ones, and whether the
//! connection ended with an error. Where RFC 9113 allows several reactions the two may differ, and the sequence ends
//! there; see [`is_allowed`].
//!
//! `TOLLGATE_TEST_SEQUENCES` sets how many sequences are compared, `TOLLGATE_TEST_SEED` the first of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, mem,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use tokio::{
    io::{AsyncRead, AsyncWriteExt, DuplexStream, ReadBuf, duplex},
    runtime::{Builder, Runtime},
    task::{JoinHandle, LocalSet, yield_now},
};

use super::{
    super::{
        frame::{self, FrameHead, HEAD, flag, kind},
        hpack,
    },
    peer::{PATH, Peer},
};

/// Reproducible random numbers.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(most).unwrap()).unwrap()
    }

    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.byte()).collect()
    }
}

/// Generates mostly valid frames.
struct Frames {
    noise: Noise,
    next: u32,
    /// Streams with incomplete requests.
    open: Vec<u32>,
}

impl Frames {
    /// A frame, and whether a byte of its payload is damaged.
    fn some(&mut self) -> (Vec<u8>, bool) {
        let (kind, mut flags, mut stream, mut payload) = self.good();
        if self.noise.once_in(100) {
            flags = self.noise.byte();
        }
        if self.noise.once_in(100) {
            stream = u32::from(self.noise.byte() & 15);
        }
        let is_damaged = self.noise.once_in(60) && !payload.is_empty();
        if is_damaged {
            let at = self.noise.below(payload.len());
            payload[at] = self.noise.byte();
        }
        if self.noise.once_in(200) {
            payload.pop();
        }
        let mut bytes = Vec::new();
        frame::write(&mut bytes, kind, flags, stream, &payload);
        (bytes, is_damaged)
    }

    fn good(&mut self) -> (u8, u8, u32, Vec<u8>) {
        let end = if self.noise.once_in(2) { flag::END_STREAM } else { 0 };
        let kinds = if self.noise.once_in(4) { 24 } else { 21 };
        match self.noise.below(kinds) {
            0..8 => self.request(end),
            8..15 => self.data(end),
            15 => (kind::RST_STREAM, 0, self.known(), vec![0, 0, 0, 8]),
            16 | 17 => {
                let more: u32 = self.noise.pick(&[1, 5, 100, 65_535, 0x7fff_ffff, 0]);
                let stream = if self.noise.once_in(2) { 0 } else { self.known() };
                (kind::WINDOW_UPDATE, 0, stream, more.to_be_bytes().to_vec())
            }
            18 | 19 => (kind::SETTINGS, 0, 0, self.settings()),
            20 => (kind::PING, 0, 0, vec![7; 8]),
            // Rare, since most of them end a stream or the connection.
            21 => (kind::PRIORITY, 0, self.known(), vec![0, 0, 0, self.noise.byte() & 31, 9]),
            22 => {
                let block = self.noise.pick(&[&[0, 1, b'x', 1, b'y'][..], &[0x40, 1, b'z', 1, b'y']]);
                let end = if self.noise.once_in(4) { 0 } else { flag::END_STREAM };
                (kind::HEADERS, flag::END_HEADERS | end, self.known(), block.to_vec())
            }
            _ => {
                let kind = self.noise.pick(&[kind::CONTINUATION, kind::PUSH_PROMISE, 11, 12, 77]);
                (kind, self.noise.byte(), self.known(), self.noise.bytes(12))
            }
        }
    }

    /// A stream number around those that were opened, mostly an open one.
    fn known(&mut self) -> u32 {
        if !self.open.is_empty() && !self.noise.once_in(12) {
            return self.open[self.noise.below(self.open.len())];
        }
        let back = u32::try_from(self.noise.below(6)).unwrap();
        self.next.saturating_sub(2 * back).max(1)
    }

    fn request(&mut self, end: u8) -> (u8, u8, u32, Vec<u8>) {
        let stream = self.next + if self.noise.once_in(20) { 4 } else { 0 };
        self.next = stream + 2;
        if end == 0 {
            self.open.push(stream);
        }
        let mut block = vec![0x83, 0x86];
        match self.noise.below(3) {
            0 => hpack::write_field(&mut block, b":path", PATH.as_bytes()),
            1 => block.extend([&[0x44, 4][..], PATH.as_bytes()].concat()),
            _ => block.extend([&[0x04, 4][..], PATH.as_bytes()].concat()),
        }
        let fields = if self.noise.once_in(3) { self.noise.below(4) } else { 0 };
        for _ in 0..fields {
            block.extend(self.noise.pick(&[
                &[0x40, 1, b'a', 1, b'b'][..],
                &[0x40, 3, b'a', b'-', b'b', 0],
                &[0xbe],
                &[0xbf],
                &[0x0f, 0x0d, 1, b'2'],
                &[0x10, 2, b't', b'e', 8, b't', b'r', b'a', b'i', b'l', b'e', b'r', b's'],
                &[0x00, 2, b't', b'e', 1, b'x'],
                &[0x00, 1, b'A', 1, b'x'],
                &[0x00, 10, b'c', b'o', b'n', b'n', b'e', b'c', b't', b'i', b'o', b'n', 1, b'x'],
                &[0x82],
                &[0x5f, 0x85, 0xa8, 0xeb, 0x10, 0x64, 0x9f],
            ]));
        }
        let (mut flags, mut payload) = (flag::END_HEADERS | end, block);
        if self.noise.once_in(6) {
            let priority = vec![0, 0, 0, self.noise.byte() & 15, 3];
            (flags, payload) = (flags | flag::PRIORITY, [priority, payload].concat());
        }
        if self.noise.once_in(6) {
            let padding = self.noise.byte() & 7;
            payload = [vec![padding], payload, vec![0; padding.into()]].concat();
            flags |= flag::PADDED;
        }
        (kind::HEADERS, flags, stream, payload)
    }

    fn data(&mut self, end: u8) -> (u8, u8, u32, Vec<u8>) {
        let (mut data, stream) = (self.noise.bytes(6), self.known());
        if end != 0 {
            self.open.retain(|open| *open != stream);
        }
        let mut flags = end;
        if self.noise.once_in(4) {
            let padding = self.noise.byte() & 7;
            data = [vec![padding], data, vec![0; padding.into()]].concat();
            flags |= flag::PADDED;
        }
        (kind::DATA, flags, stream, data)
    }

    fn settings(&mut self) -> Vec<u8> {
        let mut payload = Vec::new();
        for _ in 0..self.noise.below(3) {
            let id = self.noise.pick(&[1, 2, 3, 4, 5, 6, 8, 99]);
            let value = match id {
                // The extension that defines 8 has no other values.
                8 => self.noise.pick(&[0, 1]),
                2 => self.noise.pick(&[0, 1, 1, 0, 1, 0, 2]),
                4 => self.noise.pick(&[0, 1, 3, 65_535, 65_535, 1 << 20, 1 << 20, 1 << 31]),
                5 => self.noise.pick(&[16_384, 16_384, 16_385, 16_385, 1 << 24, 5]),
                _ => self.noise.pick(&[0, 100, 4096, 1 << 20]),
            };
            frame::write_setting(&mut payload, id, value);
        }
        payload
    }
}

/// The view of a client.
#[derive(Default, PartialEq, Eq, Debug)]
struct Seen {
    data: BTreeMap<u32, Vec<u8>>,
    answered: BTreeSet<u32>,
    reset: BTreeSet<u32>,
    /// The code of the error that ended the connection.
    ended: Option<u32>,
}

impl Seen {
    /// Records received bytes.
    fn note(&mut self, mut bytes: &[u8]) {
        while let Some(head) = FrameHead::read(bytes) {
            let (payload, behind) = bytes[HEAD..].split_at(head.length);
            bytes = behind;
            if head.kind == kind::DATA && !payload.is_empty() {
                self.data.entry(head.stream).or_default().extend_from_slice(payload);
            }
            match head.kind {
                kind::DATA | kind::HEADERS if head.has(flag::END_STREAM) => {
                    self.answered.insert(head.stream);
                }
                // After a response the rest of the request may be reset.
                kind::RST_STREAM if frame::u32_at(payload) != Some(0) => {
                    self.reset.insert(head.stream);
                }
                kind::GOAWAY => {
                    let code = frame::u32_at(&payload[4..]).unwrap();
                    self.ended = self.ended.or(Some(code).filter(|code| *code != 0));
                }
                _ => {}
            }
        }
    }
}

/// A server of the `h2` crate that behaves like `Echo`.
struct Other<'r> {
    runtime: &'r Runtime,
    tasks: &'r LocalSet,
    client: DuplexStream,
    serving: JoinHandle<()>,
}

impl<'r> Other<'r> {
    fn new(runtime: &'r Runtime, tasks: &'r LocalSet) -> Self {
        let (client, server) = duplex(1 << 20);
        let serving = tasks.spawn_local(async move {
            let mut builder = h2::server::Builder::new();
            builder
                .max_concurrent_streams(100)
                .max_header_list_size(16 * 1024)
                .initial_connection_window_size(1 << 20);
            let Ok(mut connection) = builder.handshake::<_, Bytes>(server).await else { return };
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::task::spawn_local(echo(request.into_body(), respond));
            }
        });
        Self { runtime, tasks, client, serving }
    }

    /// Sends bytes and returns the output.
    fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        let client = &mut self.client;
        self.tasks.block_on(self.runtime, async {
            // It may have closed the connection.
            let _ = client.write_all(bytes).await;
            for _ in 0..12 {
                yield_now().await;
            }
            let mut got = Vec::new();
            let mut buffer = vec![0; 4096];
            loop {
                let mut space = ReadBuf::new(&mut buffer);
                let read =
                    Pin::new(&mut *client).poll_read(&mut Context::from_waker(Waker::noop()), &mut space);
                match read {
                    Poll::Ready(Ok(())) if !space.filled().is_empty() => {
                        got.extend_from_slice(space.filled());
                    }
                    _ => return got,
                }
            }
        })
    }
}

impl Drop for Other<'_> {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn echo(mut body: h2::RecvStream, mut respond: h2::server::SendResponse<Bytes>) {
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        let Ok(data) = data else { return };
        let _ = body.flow_control().release_capacity(data.len());
        all.extend_from_slice(&data);
    }
    if body.trailers().await.is_err() {
        return;
    }
    let Ok(mut stream) = respond.send_response(Response::new(()), false) else { return };
    if stream.send_data(all.into(), false).is_ok() {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("0"))]);
        let _ = stream.send_trailers(trailers);
    }
}

/// Whether the two may differ after this frame.
fn is_allowed(frame: &[u8], is_damaged: bool, ours: &Seen, theirs: &Seen) -> bool {
    let head = FrameHead::read(frame).unwrap();
    let resets_more = |some: &Seen, other: &Seen| some.reset.len() > other.reset.len();
    match (ours.ended, theirs.ended) {
        // A stream error may be treated as a connection error (section 5.4.2). `h2` does not if both
        // sides had ended the stream, or if HEADERS arrive on an even stream or cannot be decoded.
        (None, Some(_)) if resets_more(ours, theirs) => true,
        (Some(_), None) if resets_more(theirs, ours) => true,
        // Late frames on a reset stream are ignored here (section 5.1), whatever their content.
        (None, Some(_)) if ours.reset.contains(&head.stream) => true,
        // A client must not send PUSH_PROMISE (section 8.4) or HEADERS on an even stream. `h2` waits for the end of the
        // block first.
        (Some(1), None) => {
            head.kind == kind::PUSH_PROMISE || head.kind == kind::HEADERS && !head.has(flag::END_HEADERS)
        }
        // `h2` decodes a header block and checks its priority before it is complete.
        (None, Some(_)) if holds_headers(head.kind) && !head.has(flag::END_HEADERS) => true,
        // An increment of 0 on a closed stream, an acknowledgement of settings that were acknowledged, and values of
        // settings that belong to extensions.
        (None, Some(1)) => match head.kind {
            kind::WINDOW_UPDATE => frame.ends_with(&[0; 4]),
            kind::SETTINGS => head.has(flag::ACK) || is_damaged,
            // A path that is not UTF-8 or has no leading slash matches nothing here.
            _ => is_damaged && head.kind == kind::HEADERS,
        },
        (None, None) if resets_more(theirs, ours) => {
            head.kind == kind::HEADERS && (is_damaged || !head.has(flag::END_HEADERS))
        }
        // Trailers must not contain pseudo-fields (section 8.1). `h2` ignores them.
        (None, None) => head.kind == kind::HEADERS && resets_more(ours, theirs),
        _ => false,
    }
}

fn holds_headers(of: u8) -> bool {
    of == kind::HEADERS || of == kind::CONTINUATION
}

/// True for HEADERS on a stream that depends on itself. `h2` does not decode their block, so its dynamic table differs
/// from the client's.
fn depends_on_itself(frame: &[u8]) -> bool {
    let head = FrameHead::read(frame).unwrap();
    let at = HEAD + usize::from(head.has(flag::PADDED));
    let dependency =
        frame.get(at..at + 4).map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()) & !(1 << 31));
    head.kind == kind::HEADERS && head.has(flag::PRIORITY) && dependency == Some(head.stream)
}

/// Compares one sequence; the error describes the difference.
fn compare(seed: u64, runtime: &Runtime, tasks: &LocalSet) -> Result<usize, String> {
    let mut frames = Frames {
        noise: Noise(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1),
        next: 1,
        open: vec![],
    };
    let (mut peer, mut other) = (Peer::with(100, 1 << 20), Other::new(runtime, tasks));
    let (mut ours, mut theirs) = (Seen::default(), Seen::default());
    peer.greet();
    let mut greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame::write(&mut greeting, kind::SETTINGS, 0, 0, &[]);
    frame::write(&mut greeting, kind::SETTINGS, flag::ACK, 0, &[]);
    other.send(&greeting);
    let mut sent = Vec::new();
    for number in 0..frames.noise.below(24) {
        let (bytes, is_damaged) = frames.some();
        sent.push(bytes.clone());
        if let Err(reason) = peer.bytes(&bytes) {
            peer.http.fail(reason);
        }
        ours.note(&mem::take(&mut peer.http.out));
        theirs.note(&other.send(&bytes));
        let differ = || Err(format!("seed {seed}: {ours:?} here, {theirs:?} there, after {sent:02x?}"));
        match (ours.ended, theirs.ended) {
            _ if depends_on_itself(&bytes) => return Ok(number + 1),
            (None, None) if ours == theirs => {}
            (Some(_), Some(_)) => return Ok(number + 1),
            _ if is_allowed(&bytes, is_damaged, &ours, &theirs) => return Ok(number + 1),
            _ => return differ(),
        }
    }
    Ok(sent.len())
}

#[test]
fn clients_see_the_same_as_with_the_h2_crate() {
    let runtime = Builder::new_current_thread().build().unwrap();
    let tasks = LocalSet::new();
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let sequences = number("TOLLGATE_TEST_SEQUENCES").unwrap_or(2_000);
    // The same seeds in every run, unless the variable sets another first one.
    let first = number("TOLLGATE_TEST_SEED").unwrap_or(1 << 40);
    let (mut compared, mut differ) = (0, Vec::new());
    for seed in first..first + sequences {
        match compare(seed, &runtime, &tasks) {
            Ok(frames) => compared += frames,
            Err(text) => differ.push(text),
        }
    }
    println!("{sequences} sequences, {compared} frames compared, {} differ", differ.len());
    assert!(
        differ.is_empty(),
        "{} of {sequences} differ:\n{}",
        differ.len(),
        differ[..differ.len().min(25)].join("\n")
    );
}
