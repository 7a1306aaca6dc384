//! Connection scripts of HTTP/2, composed from a grammar: service × body × header fields, floods of frames, windows,
//! readers, and ends. [`super::attack`] runs them.

use crate::support::{noise::Noise, raw::frame as message};

use super::attack::{End, Reader, Round, Script};

/// A method of the gRPC port, and its request.
#[derive(Clone, Copy)]
pub(super) struct Service {
    pub(super) name: &'static str,
    path: &'static str,
    request: &'static [u8],
}

/// A request of one descriptor, `k=v`.
const ASK: &[u8] = b"\x0a\x01d\x12\x08\x0a\x06\x0a\x01k\x12\x01v";

pub(super) const SERVICES: [Service; 6] = [
    Service {
        name: "ShouldRateLimit",
        path: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        request: ASK,
    },
    Service { name: "Check", path: "/grpc.health.v1.Health/Check", request: b"" },
    Service { name: "Watch", path: "/grpc.health.v1.Health/Watch", request: b"" },
    Service {
        name: "reflection",
        path: "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        // The file that has this symbol.
        request: b"\x22\x2cenvoy.service.ratelimit.v3.RateLimitResponse",
    },
    Service {
        name: "unknown method",
        path: "/envoy.service.ratelimit.v3.RateLimitService/Unknown",
        request: b"",
    },
    Service { name: "unknown path", path: "/unknown", request: b"" },
];

/// The DATA frames of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
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

pub(super) const BODIES: [Body; 8] = [
    Body::Whole,
    Body::Absent,
    Body::Declared,
    Body::Trickled,
    Body::Huge,
    Body::Empty,
    Body::Many,
    Body::Compressed,
];

/// Header fields beside those that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fields {
    None,
    /// One-byte references to an entry of 4 KB.
    References,
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

pub(super) const FIELDS: [Fields; 9] = [
    Fields::References,
    Fields::Names,
    Fields::LongEntries,
    Fields::ShortEntries,
    Fields::Huffman,
    Fields::Continued,
    Fields::Resized,
    Fields::Distinct,
    Fields::Padded,
];

/// Frames that do not advance a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flood {
    Ping,
    Settings,
    SettingsValues,
    EmptyData,
    WindowUpdate,
    Priority,
    RapidReset,
    Unknown,
    Goaway,
    Malformed,
}

pub(super) const FLOODS: [Flood; 10] = [
    Flood::Ping,
    Flood::Settings,
    Flood::SettingsValues,
    Flood::EmptyData,
    Flood::WindowUpdate,
    Flood::Priority,
    Flood::RapidReset,
    Flood::Unknown,
    Flood::Goaway,
    Flood::Malformed,
];

/// The part of a call that has the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Head,
    Trailers,
}

/// A part of a round.
#[derive(Clone, Copy)]
pub(super) enum Item {
    Call(Service, Body, Fields, Place),
    Flood(Flood),
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

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest payload of a frame.
const MAX_FRAME: usize = 16_384;

/// The window of a new stream.
const WINDOW: usize = 65_535;

/// The size of a round: large writes keep the generator cheap.
const ROUND: usize = 64 * 1024;

/// Streams that a connection may have open.
const STREAMS: usize = 1_000;

/// More than a connection may send before it is closed as a flood.
const FLOODED: usize = 2_200;

/// The entry that [`Fields::References`] and [`Fields::Names`] refer to fills the table: 4,096 bytes with its overhead.
const ENTRY: usize = 4_096 - 32;

/// A script of a name and a round, which is repeated by two connections that read everything.
pub(super) fn script(name: String, round: Round) -> Script {
    Script {
        name,
        connections: 2,
        opening: opening(&[]),
        round,
        rounds: usize::MAX,
        reader: Reader::All,
        end: End::Close,
    }
}

/// The preface, SETTINGS with these values, and a window for all responses of the connection.
pub(super) fn opening(settings: &[(u16, u32)]) -> Vec<u8> {
    let values: Vec<_> =
        settings.iter().map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
    let mut round = Round { bytes: PREFACE.to_vec(), ..Round::default() };
    round.frame(SETTINGS, 0, 0, &values.concat());
    round.frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]);
    round.bytes
}

/// Items in turn, as often as a round of 64 KB has room; a call that stays open only as often as a connection may.
pub(super) fn of(items: &[Item]) -> Script {
    let names: Vec<_> = items.iter().map(Item::name).collect();
    let mut round = Round::default();
    let stays_open = items.iter().any(|item| item.stays_open());
    let has_flood = items.iter().any(|item| matches!(item, Item::Flood(_)));
    let fits = |round: &Round, times: usize| match (stays_open, has_flood) {
        (true, _) => times < STREAMS / items.len(),
        (false, true) => times < FLOODED,
        (false, false) => round.bytes.len() < ROUND,
    };
    for times in 0.. {
        if !fits(&round, times) {
            break;
        }
        for item in items {
            item.write(&mut round);
        }
    }
    let script = script(names.join(" and "), round);
    match (stays_open, has_flood) {
        (true, _) => Script { rounds: 1, connections: 10, end: End::Stay, ..script },
        (false, true) => Script { rounds: 1, ..script },
        (false, false) => script,
    }
}

/// A random script of up to three items.
pub(super) fn random(noise: &mut Noise) -> Script {
    fn any<T: Copy>(noise: &mut Noise, all: &[T]) -> T {
        all[noise.below(all.len())]
    }
    let items: Vec<_> = (0..=noise.below(3))
        .map(|_| {
            if noise.below(4) == 0 {
                return Item::Flood(any(noise, &FLOODS));
            }
            let fields = if noise.below(2) == 0 { Fields::None } else { any(noise, &FIELDS) };
            let place = any(noise, &[Place::Head, Place::Trailers]);
            Item::Call(any(noise, &SERVICES), any(noise, &BODIES), fields, place)
        })
        .collect();
    let script = of(&items);
    let reader = any(noise, &[Reader::All, Reader::Never, Reader::Slow]);
    let end = any(noise, &[End::Close, End::Reset, End::Stay]);
    let windows = [65_535, 0, 1];
    let window = any(noise, &windows);
    let name = format!("{}, {reader:?}, {end:?}, window {window}", script.name);
    Script { name, reader, end, opening: opening(&[(4, window)]), ..script }
}

impl Item {
    fn name(&self) -> String {
        match self {
            Self::Flood(flood) => format!("{flood:?}"),
            Self::Call(service, body, Fields::None, _) => format!("{}, {body:?}", service.name),
            Self::Call(service, body, fields, place) => {
                format!("{}, {body:?}, {fields:?} in {place:?}", service.name)
            }
        }
    }

    /// True for a call that the service cannot answer yet.
    fn stays_open(self) -> bool {
        match self {
            Self::Call(service, body, _, place) => {
                (service.name == "Watch" && body == Body::Whole)
                    || (place == Place::Head && matches!(body, Body::Declared | Body::Trickled | Body::Huge))
            }
            Self::Flood(_) => false,
        }
    }

    fn write(self, round: &mut Round) {
        match self {
            Self::Call(service, body, fields, place) => call(round, service, body, fields, place),
            Self::Flood(flood) => flooded(round, flood),
        }
    }
}

impl Round {
    /// Adds a frame; of stream 0, or of the stream that was opened last.
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

    /// The number of a new stream.
    fn open(&mut self) -> u32 {
        self.streams += 1;
        2 * self.streams - 1
    }

    /// A complete call of `ShouldRateLimit`. `mark` in the message is replaced by a new text of the same length each time.
    pub(super) fn ask(&mut self, request: &[u8], mark: &[u8]) {
        let id = self.open();
        self.frame(HEADERS, END_HEADERS, id, &head(SERVICES[0].path));
        let start = self.bytes.len() + 9;
        let framed = message(request);
        self.frame(DATA, END_STREAM, id, &framed);
        if !mark.is_empty() {
            let places = framed.windows(mark.len()).enumerate().filter(|(_, part)| *part == mark);
            self.keys.extend(places.map(|(place, _)| start + place));
        }
    }
}

fn call(round: &mut Round, service: Service, body: Body, fields: Fields, place: Place) {
    let id = round.open();
    let plain = head(service.path);
    let extra = if place == Place::Head { fields } else { Fields::None };
    let ends = body == Body::Absent && place == Place::Head;
    headers(round, id, if ends { END_STREAM } else { 0 }, plain, extra);
    data(round, id, service, body, if place == Place::Head { END_STREAM } else { 0 });
    if place == Place::Trailers {
        headers(round, id, END_STREAM, Vec::new(), fields);
    }
}

/// The fields of a call.
fn head(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x04];
    text(&mut block, path.as_bytes());
    block.extend_from_slice(b"\x0f\x10\x10application/grpc");
    block
}

fn headers(round: &mut Round, id: u32, end: u8, mut block: Vec<u8>, fields: Fields) {
    match fields {
        Fields::Continued => {
            round.frame(HEADERS, end, id, &block);
            let last = [0, 1, b'x', 0];
            for (index, byte) in last.iter().enumerate() {
                let flags = if index + 1 == last.len() { END_HEADERS } else { 0 };
                round.frame(CONTINUATION, flags, id, &[*byte]);
            }
        }
        Fields::Padded => {
            block.insert(0, 255);
            block.resize(block.len() + 255, 0);
            round.frame(HEADERS, end | END_HEADERS | PADDED, id, &block);
        }
        Fields::Resized => {
            // To 0 and back to 4,096, before all fields.
            let updates = [0x20, 0x3f, 0xe1, 0x1f].repeat((MAX_FRAME - block.len()) / 4);
            round.frame(HEADERS, end | END_HEADERS, id, &[updates, block].concat());
        }
        _ => {
            let room = MAX_FRAME - block.len();
            block.extend_from_slice(&many(fields, room));
            round.frame(HEADERS, end | END_HEADERS, id, &block);
        }
    }
}

/// As many of these fields as fit into `room`.
fn many(fields: Fields, room: usize) -> Vec<u8> {
    let mut block = Vec::new();
    let mut once = |name: usize, value: usize| {
        block.push(0x40);
        text(&mut block, &vec![b'n'; name]);
        text(&mut block, &vec![b'v'; value]);
    };
    match fields {
        Fields::References => {
            once(1, ENTRY - 1);
            let left = room - block.len();
            block.resize(block.len() + left, 0xbe);
        }
        Fields::Names => {
            once(ENTRY, 0);
            let times = (room - block.len()) / 2;
            block.extend_from_slice(&[0x7e, 0x00].repeat(times));
        }
        Fields::LongEntries => (0..room / 504).for_each(|_| once(500, 0)),
        Fields::ShortEntries => (0..room / 5).for_each(|_| once(1, 1)),
        Fields::Huffman => {
            // The code of `0` is five zero bits.
            block.extend_from_slice(&[0, 1, b'x']);
            let length = (room - 8) / 5 * 5;
            integer(&mut block, 0x80, length);
            block.resize(block.len() + length, 0);
        }
        Fields::Distinct => (100..room.div_ceil(7).min(500)).for_each(|number| {
            block.push(0);
            text(&mut block, format!("n{number}").as_bytes());
            text(&mut block, b"v");
        }),
        Fields::None | Fields::Continued | Fields::Resized | Fields::Padded => {}
    }
    block
}

fn data(round: &mut Round, id: u32, service: Service, body: Body, end: u8) {
    let framed = message(service.request);
    // A field of an unknown number.
    let mut part = [&[0, 0, 0x3f, 0xff, 0xf0][..], &[0x7a, 0xeb, 0xff, 0xff, 0x01], &[b'x'; 54]].concat();
    match body {
        Body::Whole => round.frame(DATA, end, id, &framed),
        Body::Absent => {}
        Body::Declared => round.frame(DATA, 0, id, &part),
        Body::Trickled => part.iter().for_each(|byte| round.frame(DATA, 0, id, &[*byte])),
        Body::Huge => {
            part.resize(WINDOW, b'x');
            part.chunks(MAX_FRAME).for_each(|piece| round.frame(DATA, 0, id, piece));
        }
        Body::Empty => round.frame(DATA, end, id, &[0; 5_000]),
        Body::Many => round.frame(DATA, end, id, &framed.repeat(100)),
        Body::Compressed => round.frame(DATA, end, id, &[&[1][..], &framed[1..]].concat()),
    }
}

fn flooded(round: &mut Round, flood: Flood) {
    // The second frame of a pair belongs to the stream that the first opens.
    let open = |round: &mut Round, flags: u8| {
        let id = round.open();
        round.frame(HEADERS, END_HEADERS | flags, id, &head(SERVICES[0].path));
        id
    };
    match flood {
        Flood::Ping => round.frame(PING, 0, 0, &[7; 8]),
        Flood::Settings => round.frame(SETTINGS, 0, 0, &[]),
        Flood::SettingsValues => round.frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff].repeat(100)),
        Flood::EmptyData => {
            if round.streams == 0 {
                open(round, 0);
            }
            let id = 2 * round.streams - 1;
            round.frame(DATA, 0, id, &[]);
        }
        Flood::WindowUpdate => round.frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
        Flood::Priority => round.frame(PRIORITY, 0, 1, &[0; 5]),
        Flood::RapidReset => {
            let id = open(round, 0);
            round.frame(RST_STREAM, 0, id, &[0, 0, 0, 8]);
        }
        Flood::Unknown => round.frame(UNKNOWN, 0, 0, &[]),
        Flood::Goaway => round.frame(GOAWAY, 0, 0, &[0; 8]),
        Flood::Malformed => {
            let id = round.open();
            round.frame(HEADERS, END_HEADERS | END_STREAM, id, &[0x83]);
        }
    }
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

/// A round of one call, for an honest client.
pub(super) fn one_call() -> Round {
    let mut round = Round::default();
    round.ask(ASK, b"");
    round
}
