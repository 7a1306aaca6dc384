//! Connection scripts of HTTP/2, composed from a grammar: service × body × header fields, floods of frames, streams that
//! are held open, windows, readers, and ends. [`super::attack`] runs them.

use crate::support::{noise::Noise, quotas::PATH as QUOTAS, raw::frame as message};

use super::attack::{End, Reader, Round, Script};

/// A method of the gRPC port, and its request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) name: &'static str,
    path: &'static str,
    request: &'static [u8],
}

/// A request of one descriptor, `k=v`.
const ASK: &[u8] = b"\x0a\x01d\x12\x08\x0a\x06\x0a\x01k\x12\x01v";

const fn service(name: &'static str, path: &'static str, request: &'static [u8]) -> Service {
    Service { name, path, request }
}

pub(super) const LIMIT: Service =
    service("ShouldRateLimit", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", ASK);
pub(super) const CHECK: Service = service("Check", "/grpc.health.v1.Health/Check", b"");
pub(super) const WATCH: Service = service("Watch", "/grpc.health.v1.Health/Watch", b"");
/// Asks for the file that has this symbol.
pub(super) const REFLECTION: Service = service(
    "reflection",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    b"\x22\x2cenvoy.service.ratelimit.v3.RateLimitResponse",
);
pub(super) const UNKNOWN_METHOD: Service =
    service("unknown method", "/envoy.service.ratelimit.v3.RateLimitService/Unknown", b"");
pub(super) const UNKNOWN_PATH: Service = service("unknown path", "/unknown", b"");

pub(super) const SERVICES: [Service; 6] = [LIMIT, CHECK, WATCH, REFLECTION, UNKNOWN_METHOD, UNKNOWN_PATH];

/// An enum with a list of its values.
macro_rules! axis {
    ($(#[$doc:meta])* $axis:ident { $($(#[$of:meta])* $value:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $axis { $($(#[$of])* $value,)* }

        impl $axis {
            pub(super) const ALL: &'static [Self] = &[$(Self::$value,)*];
        }
    };
}

axis! {
    /// The DATA frames of a call.
    Body {
        /// A valid message.
        Whole,
        /// No message.
        Absent,
        /// 4 MB are declared and 64 bytes are sent.
        Declared,
        /// 64 bytes of a message in frames of one byte.
        Trickled,
        /// 4 MB are declared and a whole window is sent.
        Huge,
        /// 1,000 messages of no bytes.
        Empty,
        /// 100 valid messages.
        Many,
        /// A message with the flag for compression.
        Compressed,
    }
}

axis! {
    /// Header fields beside those that a call needs.
    Fields {
        None,
        /// As many one-byte references to an entry of 4 KB as a frame has room for.
        References,
        /// Three of them: as many as the list of fields has room for.
        FewReferences,
        /// New entries of two bytes that copy a name of 4 KB.
        Names,
        /// New entries with a name of 500 bytes.
        LongEntries,
        /// New entries of five bytes.
        ShortEntries,
        /// Huffman codes of five bits.
        Huffman,
        /// CONTINUATION frames of one byte.
        Continued,
        /// Updates of the table's size.
        Resized,
        /// 400 different names.
        Distinct,
        /// Frames that are mostly padding.
        Padded,
    }
}

axis! {
    /// Frames that do not advance a request.
    Flood {
        Ping,
        Settings,
        /// SETTINGS with 100 windows of new streams.
        Windows,
        EmptyData,
        WindowUpdate,
        StreamWindowUpdate,
        Priority,
        /// A call and its reset.
        RapidReset,
        Unknown,
        Goaway,
        /// A call without a path.
        Malformed,
    }
}

axis! {
    /// The part of a call that has the fields.
    Place {
        Head,
        Trailers,
    }
}

/// A part of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Item {
    Call(Service, Body, Fields, Place),
    Flood(Flood),
}

/// A script before its bytes are made.
#[derive(Clone)]
pub(super) struct Shape {
    /// Calls that the opening starts, until a connection may open no more.
    pub(super) held: Option<Item>,
    /// Parts of each round, and how often they are repeated in turn.
    pub(super) items: Vec<(usize, Item)>,
    /// `SETTINGS_INITIAL_WINDOW_SIZE`.
    pub(super) window: u32,
    pub(super) reader: Reader,
    /// The default is `Stay` for calls that stay open, else `Close`.
    pub(super) end: Option<End>,
    /// The default is 10 for calls that stay open, else 2.
    pub(super) connections: Option<usize>,
    /// Calls that a connection leaves open.
    pub(super) open: usize,
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const UNKNOWN: u8 = 0xfe;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest payload of a frame.
const MAX_FRAME: usize = 16_384;

/// The window of a new stream.
pub(super) const WINDOW: u32 = 65_535;

/// The size of a round: large writes keep the generator cheap.
const ROUND: usize = 64 * 1024;

/// Streams that a connection may have open, but for a few.
const STREAMS: usize = 1_000;

/// More frames than a connection may send before it is closed as a flood.
const FLOODED: usize = 2_200;

/// Such frames that a response allows.
const EARNED: usize = 8;

/// The entry that references refer to: with the fields of a call and its overhead, it fills the table of 4,096 bytes.
const ENTRY: usize = 3_850;

impl Shape {
    pub(super) fn of(items: &[(usize, Item)]) -> Self {
        Self {
            held: None,
            items: items.to_vec(),
            window: WINDOW,
            reader: Reader::All,
            end: None,
            connections: None,
            open: STREAMS,
        }
    }

    /// A random shape.
    pub(super) fn random(noise: &mut Noise) -> Self {
        let items = (0..=noise.below(3)).map(|_| ([1, 1, 8][noise.below(3)], Item::random(noise)));
        let items: Vec<_> = items.collect();
        let held = (noise.below(3) == 0).then(|| {
            let body = [Body::Declared, Body::Trickled, Body::Huge][noise.below(3)];
            Item::Call(any(noise, &SERVICES), body, Fields::None, Place::Head)
        });
        let window = any(noise, &[WINDOW, WINDOW, 0, 1, 0x7fff_ffff]);
        let (reader, end) = (any(noise, Reader::ALL), Some(any(noise, End::ALL)));
        Self { held, window, reader, end, ..Self::of(&items) }
    }

    fn name(&self) -> String {
        let mut names = Vec::new();
        for (times, item) in &self.items {
            names.push(if *times == 1 { item.name() } else { format!("{times} × {}", item.name()) });
        }
        let mut name = names.join(" and ");
        if let Some(held) = self.held {
            name = format!("{name} beside {} × {}", self.open, held.name());
        }
        if self.window != WINDOW {
            name = format!("{name}; window {}", self.window);
        }
        if self.reader != Reader::All {
            name = format!("{name}; reads {:?}", self.reader);
        }
        if let Some(connections) = self.connections {
            name = format!("{name}; {connections} connections");
        }
        self.end.map_or_else(|| name.clone(), |end| format!("{name}; {end:?}"))
    }

    /// The bytes: items are repeated until the round has 64 KB, or all that a connection may send.
    pub(super) fn script(&self) -> Script {
        let all = || self.items.iter().map(|(_, item)| *item);
        let count = |of: fn(&Item) -> bool| -> usize {
            self.items.iter().filter(|(_, item)| of(item)).map(|(times, _)| times).sum()
        };
        let opening_calls = count(Item::stays_open);
        let floods = count(|item| matches!(item, Item::Flood(_)));
        let calls = count(|item| matches!(item, Item::Call(..))) - opening_calls;
        let mut opening = opening(self.window);
        // Entries of the items replace those of the opening.
        let path = all().chain(self.held).find_map(Item::path);
        if let (Some(path), false) = (path, all().any(Item::changes_table)) {
            opening.fill_table(path);
        }
        if let Some(held) = self.held {
            (0..self.open).for_each(|_| held.write(&mut opening));
        }
        let mut round = opening.next();
        let fits = |round: &Round, times: usize| {
            if opening_calls > 0 {
                times * opening_calls < self.open
            } else if floods > EARNED * calls {
                times * floods < FLOODED
            } else {
                round.bytes.len() < ROUND
            }
        };
        for times in 0.. {
            if !fits(&round, times) {
                break;
            }
            for (times, item) in &self.items {
                (0..*times).for_each(|_| item.write(&mut round));
            }
        }
        let is_endless = opening_calls == 0 && floods <= EARNED * calls;
        let end = if opening_calls > 0 { End::Stay } else { End::Close };
        Script {
            name: self.name(),
            connections: self.connections.unwrap_or(if opening_calls > 0 { 10 } else { 2 }),
            opening: opening.bytes,
            round,
            rounds: if is_endless { usize::MAX } else { 1 },
            reader: self.reader,
            end: self.end.unwrap_or(end),
        }
    }
}

fn any<T: Copy>(noise: &mut Noise, all: &[T]) -> T {
    all[noise.below(all.len())]
}

/// Calls of `ShouldRateLimit` with this request, in which `mark` is new each time.
pub(super) fn calls(name: &str, request: &[u8], mark: &[u8]) -> Script {
    let mut opening = opening(WINDOW);
    opening.fill_table(LIMIT.path);
    let mut round = opening.next();
    while round.bytes.len() < ROUND {
        round.ask(request, mark);
    }
    let (name, opening) = (name.to_owned(), opening.bytes);
    let (rounds, reader, end) = (usize::MAX, Reader::All, End::Close);
    Script { name, connections: 2, opening, round, rounds, reader, end }
}

/// Reports of quotas on one stream, each a DATA frame of its own, in which `mark` is new each time: as many as the window of a
/// stream has room for.
pub(super) fn reports(name: &str, report: &[u8], mark: &[u8]) -> Script {
    let (mut opening, framed) = (opening(WINDOW), message(report));
    let (id, head) = (opening.open(), opening.head(QUOTAS));
    opening.frame(HEADERS, END_HEADERS, id, &head);
    let mut round = opening.next();
    for _ in 0..WINDOW as usize / framed.len() {
        round.data_with_key(0, id, &framed, mark);
    }
    let (name, opening) = (name.to_owned(), opening.bytes);
    Script { name, connections: 2, opening, round, rounds: 1, reader: Reader::All, end: End::Close }
}

/// The opening of an honest client, and a call.
pub(super) fn honest() -> (Vec<u8>, Round) {
    let mut opening = opening(WINDOW);
    opening.fill_table(LIMIT.path);
    let mut call = opening.next();
    call.ask(ASK, b"");
    (opening.bytes, call)
}

/// The preface, SETTINGS, and a window for all responses of the connection.
fn opening(window: u32) -> Round {
    let mut round = Round { bytes: PREFACE.to_vec(), ..Round::default() };
    round.frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    round.frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]);
    round
}

impl Item {
    fn random(noise: &mut Noise) -> Self {
        if noise.below(3) == 0 {
            return Self::Flood(any(noise, Flood::ALL));
        }
        let fields = if noise.below(2) == 0 { Fields::None } else { any(noise, Fields::ALL) };
        Self::Call(any(noise, &SERVICES), any(noise, Body::ALL), fields, any(noise, Place::ALL))
    }

    fn name(&self) -> String {
        match self {
            Self::Flood(flood) => format!("{flood:?}"),
            Self::Call(service, body, Fields::None, Place::Head) => format!("{}, {body:?}", service.name),
            Self::Call(service, body, fields, place) => {
                format!("{}, {body:?}, {fields:?} in {place:?}", service.name)
            }
        }
    }

    fn path(self) -> Option<&'static str> {
        match self {
            Self::Call(service, ..) => Some(service.path),
            Self::Flood(_) => None,
        }
    }

    fn changes_table(self) -> bool {
        let changes = [Fields::Names, Fields::LongEntries, Fields::ShortEntries, Fields::Resized];
        matches!(self, Self::Call(_, _, fields, _) if changes.contains(&fields))
    }

    /// True for a call that the service cannot answer yet.
    fn stays_open(&self) -> bool {
        match self {
            Self::Call(WATCH, Body::Whole, ..) => true,
            Self::Call(_, body, _, Place::Head) => {
                matches!(body, Body::Declared | Body::Trickled | Body::Huge)
            }
            Self::Call(..) | Self::Flood(_) => false,
        }
    }

    fn write(self, round: &mut Round) {
        match self {
            Self::Call(service, body, fields, place) => round.call(service, body, fields, place),
            Self::Flood(flood) => round.flood(flood),
        }
    }
}

impl Round {
    /// Adds a frame; of stream 0, or of a stream of this round.
    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("a frame has at most 16 MB").to_be_bytes();
        self.bytes.extend_from_slice(&length[1..]);
        self.bytes.extend_from_slice(&[kind, flags]);
        if stream > 0 {
            self.ids.push(self.bytes.len());
        }
        self.bytes.extend_from_slice(&stream.to_be_bytes());
        self.bytes.extend_from_slice(payload);
    }

    /// An empty round after this one.
    fn next(&self) -> Self {
        Self { before: self.before + self.streams, indexed: self.indexed, ..Self::default() }
    }

    fn last(&self) -> u32 {
        2 * (self.before + self.streams) - 1
    }

    fn open(&mut self) -> u32 {
        self.streams += 1;
        self.last()
    }

    /// A call that puts the fields of a call, and the entry for references, into the table.
    fn fill_table(&mut self, path: &'static str) {
        let mut block = vec![0x83, 0x86, 0x44];
        text(&mut block, path.as_bytes());
        block.extend_from_slice(b"\x5f\x10application/grpc");
        entry(&mut block, 1, ENTRY);
        let id = self.open();
        self.frame(HEADERS, END_HEADERS | END_STREAM, id, &block);
        self.indexed = Some(path);
    }

    /// The fields of a call, by references if they are in the table.
    fn head(&self, path: &'static str) -> Vec<u8> {
        if self.indexed == Some(path) {
            return vec![0x83, 0x86, 0xc0, 0xbf];
        }
        let mut block = vec![0x83, 0x86, 0x04];
        text(&mut block, path.as_bytes());
        block.extend_from_slice(b"\x0f\x10\x10application/grpc");
        block
    }

    /// A complete call of `ShouldRateLimit`. A `mark` in the message is replaced by a new text of the same length each time.
    fn ask(&mut self, request: &[u8], mark: &[u8]) {
        let id = self.open();
        let head = self.head(LIMIT.path);
        self.frame(HEADERS, END_HEADERS, id, &head);
        self.data_with_key(END_STREAM, id, &message(request), mark);
    }

    fn data_with_key(&mut self, flags: u8, id: u32, framed: &[u8], mark: &[u8]) {
        let start = self.bytes.len() + 9;
        self.frame(DATA, flags, id, framed);
        if !mark.is_empty() {
            let places = framed.windows(mark.len()).enumerate().filter(|(_, part)| *part == mark);
            self.keys.extend(places.map(|(place, _)| start + place));
        }
    }

    fn call(&mut self, service: Service, body: Body, fields: Fields, place: Place) {
        let id = self.open();
        let (in_head, end) = match place {
            Place::Head => (fields, END_STREAM),
            Place::Trailers => (Fields::None, 0),
        };
        let head = self.head(service.path);
        self.headers(id, if body == Body::Absent { end } else { 0 }, head, in_head);
        self.data(id, service, body, end);
        if place == Place::Trailers {
            self.headers(id, END_STREAM, Vec::new(), fields);
        }
    }

    fn headers(&mut self, id: u32, end: u8, mut block: Vec<u8>, fields: Fields) {
        let mut flags = END_HEADERS;
        match fields {
            Fields::Continued => {
                self.frame(HEADERS, end, id, &block);
                let pieces = b"\0\x01x\x01y\0\x01z\x01y";
                for (index, byte) in pieces.iter().enumerate() {
                    let flags = if index + 1 == pieces.len() { END_HEADERS } else { 0 };
                    self.frame(CONTINUATION, flags, id, &[*byte]);
                }
                return;
            }
            Fields::Padded => {
                block.insert(0, 255);
                block.resize(block.len() + 255, 0);
                flags |= PADDED;
            }
            Fields::Resized => {
                // To 0 and back to 4,096, before all fields.
                let updates = [0x20, 0x3f, 0xe1, 0x1f].repeat((MAX_FRAME - block.len()) / 4);
                block.splice(0..0, updates);
            }
            _ => add(&mut block, fields, self.indexed.is_some()),
        }
        self.frame(HEADERS, end | flags, id, &block);
    }

    fn data(&mut self, id: u32, service: Service, body: Body, end: u8) {
        let framed = message(service.request);
        // A field of an unknown number.
        let mut part = [&[0, 0, 0x3f, 0xff, 0xf0][..], &[0x7a, 0xeb, 0xff, 0xff, 0x01], &[b'x'; 54]].concat();
        match body {
            Body::Whole => self.frame(DATA, end, id, &framed),
            Body::Absent => {}
            Body::Declared => self.frame(DATA, 0, id, &part),
            Body::Trickled => part.iter().for_each(|byte| self.frame(DATA, 0, id, &[*byte])),
            Body::Huge => {
                part.resize(WINDOW as usize, b'x');
                part.chunks(MAX_FRAME).for_each(|piece| self.frame(DATA, 0, id, piece));
            }
            Body::Empty => self.frame(DATA, end, id, &[0; 5_000]),
            Body::Many => self.frame(DATA, end, id, &framed.repeat(100)),
            Body::Compressed => self.frame(DATA, end, id, &[&[1][..], &framed[1..]].concat()),
        }
    }

    fn flood(&mut self, flood: Flood) {
        let head = self.head(LIMIT.path);
        if self.streams == 0
            && matches!(flood, Flood::EmptyData | Flood::StreamWindowUpdate | Flood::Priority)
        {
            let id = self.open();
            self.frame(HEADERS, END_HEADERS, id, &head);
        }
        match flood {
            Flood::Ping => self.frame(PING, 0, 0, &[7; 8]),
            Flood::Settings => self.frame(SETTINGS, 0, 0, &[]),
            Flood::Windows => self.frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff].repeat(100)),
            Flood::EmptyData => self.frame(DATA, 0, self.last(), &[]),
            Flood::WindowUpdate => self.frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
            Flood::StreamWindowUpdate => self.frame(WINDOW_UPDATE, 0, self.last(), &[0, 0, 0, 1]),
            Flood::Priority => self.frame(PRIORITY, 0, self.last(), &[0; 5]),
            Flood::RapidReset => {
                let id = self.open();
                self.frame(HEADERS, END_HEADERS, id, &head);
                self.frame(RST_STREAM, 0, id, &[0, 0, 0, 8]);
            }
            Flood::Unknown => self.frame(UNKNOWN, 0, 0, &[]),
            Flood::Goaway => self.frame(GOAWAY, 0, 0, &[0; 8]),
            Flood::Malformed => {
                let id = self.open();
                self.frame(HEADERS, END_HEADERS | END_STREAM, id, &[0x83]);
            }
        }
    }
}

/// Adds as many of these fields to a block as it has room for.
fn add(block: &mut Vec<u8>, fields: Fields, has_entry: bool) {
    let room = MAX_FRAME - block.len();
    match fields {
        Fields::References | Fields::FewReferences => {
            if !has_entry {
                entry(block, 1, ENTRY);
            }
            let few = block.len() + 3;
            block.resize(if fields == Fields::References { MAX_FRAME } else { few }, 0xbe);
        }
        Fields::Names => {
            // With its overhead of 32 bytes, the name fills the table.
            entry(block, 4_096 - 32, 0);
            let times = (MAX_FRAME - block.len()) / 2;
            block.extend_from_slice(&[0x7e, 0x00].repeat(times));
        }
        Fields::LongEntries => (0..room / 504).for_each(|_| entry(block, 500, 0)),
        Fields::ShortEntries => (0..room / 5).for_each(|_| entry(block, 1, 1)),
        Fields::Huffman => {
            // The code of `0` is five zero bits.
            let length = (room - 8) / 5 * 5;
            block.extend_from_slice(&[0, 1, b'x']);
            integer(block, 0x80, length);
            block.resize(block.len() + length, 0);
        }
        Fields::Distinct => (100..500).for_each(|number| {
            block.push(0);
            text(block, format!("n{number}").as_bytes());
            text(block, b"v");
        }),
        Fields::None | Fields::Continued | Fields::Resized | Fields::Padded => {}
    }
}

/// A field with a name and a value of these lengths, which is added to the table.
fn entry(block: &mut Vec<u8>, name: usize, value: usize) {
    block.push(0x40);
    text(block, &vec![b'n'; name]);
    text(block, &vec![b'v'; value]);
}

fn text(block: &mut Vec<u8>, text: &[u8]) {
    integer(block, 0, text.len());
    block.extend_from_slice(text);
}

/// An integer with a prefix of seven bits.
fn integer(block: &mut Vec<u8>, first: u8, value: usize) {
    let byte = |value: usize| u8::try_from(value).expect("it is below 256");
    if value < 127 {
        return block.push(first | byte(value));
    }
    block.push(first | 127);
    let mut rest = value - 127;
    while rest >= 128 {
        block.push(byte(rest % 128) | 128);
        rest /= 128;
    }
    block.push(byte(rest));
}
