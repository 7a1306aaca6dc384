//! Every form of a request, and invalid frames.

use proptest::prelude::*;

use super::{
    super::frame::{Reason, flag, kind},
    peer::{Peer, frames, head, head_with},
};
use crate::fuzz::ENVELOPE;

#[test]
fn our_settings_come_first_and_the_peers_are_acknowledged() {
    let mut peer = Peer::with(7, 1000);
    let greeting = peer.frames();
    assert_eq!((greeting[0].kind, greeting[1].kind), (kind::SETTINGS, kind::WINDOW_UPDATE));
    assert_eq!(greeting[0].payload[..6], [0, 3, 0, 0, 0, 7]);
    assert!(peer.http.awaits_preface());
    peer.greet();
    assert!(!peer.http.awaits_preface());
    let answer = peer.frames();
    assert_eq!((answer.len(), answer[0].kind, answer[0].flags), (1, kind::SETTINGS, flag::ACK));
}

#[test]
fn a_response_has_headers_data_and_trailers() {
    let mut peer = Peer::new();
    peer.request(1, b"abc").unwrap();
    let sent = peer.frames();
    let kinds: Vec<_> = sent.iter().map(|sent| (sent.kind, sent.flags, sent.stream)).collect();
    let end = flag::END_HEADERS | flag::END_STREAM;
    assert_eq!(kinds, [(1, flag::END_HEADERS, 1), (0, 0, 1), (1, end, 1)]);
    let mut decoder = fluke_hpack::Decoder::new();
    let mut fields = |block: &[u8]| {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let fields = decoder.decode(block).unwrap();
        fields.into_iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect::<Vec<_>>()
    };
    assert_eq!(fields(&sent[0].payload), [":status=200", "content-type=application/grpc"]);
    assert_eq!(sent[1].payload, b"abc");
    assert_eq!(fields(&sent[2].payload), ["grpc-status=0"]);
}

#[test]
fn accepts_every_form_of_a_request() {
    let mut peer = Peer::new();
    let block = head();
    // END_STREAM in a separate frame.
    peer.open(1).unwrap();
    peer.data(1, b"ab", false).unwrap();
    peer.data(1, b"", true).unwrap();
    // END_STREAM in trailers.
    peer.open(3).unwrap();
    peer.data(3, b"ab", false).unwrap();
    peer.send(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 3, &[0, 1, b'x', 1, b'y']).unwrap();
    // Headers in CONTINUATION, some of it empty.
    peer.send(kind::HEADERS, 0, 5, &block[..3]).unwrap();
    peer.send(kind::CONTINUATION, 0, 5, &[]).unwrap();
    peer.send(kind::CONTINUATION, flag::END_HEADERS, 5, &block[3..]).unwrap();
    peer.data(5, b"ab", true).unwrap();
    // Padding and a priority.
    let padded = [&[3, 0, 0, 0, 0, 9], block.as_slice(), &[0; 3]].concat();
    let flags = flag::END_HEADERS | flag::PADDED | flag::PRIORITY;
    peer.send(kind::HEADERS, flags, 7, &padded).unwrap();
    peer.send(kind::DATA, flag::PADDED, 7, &[4, b'a', 0, 0, 0, 0]).unwrap();
    peer.send(kind::DATA, flag::PADDED | flag::END_STREAM, 7, &[0, b'b']).unwrap();
    // Interleaved streams.
    peer.open(9).unwrap();
    peer.open(15).unwrap();
    peer.data(15, b"ab", true).unwrap();
    peer.data(9, b"ab", true).unwrap();
    // A correct content-length.
    peer.send(kind::HEADERS, flag::END_HEADERS, 17, &head_with(&[("content-length", "2")])).unwrap();
    peer.data(17, b"ab", true).unwrap();
    // Unknown frame types.
    peer.send(99, 255, 17, b"whatever").unwrap();
    let answered = [1, 3, 5, 7, 15, 9, 17].map(|stream| (stream, b"ab".to_vec()));
    assert_eq!(peer.answers(), answered);
}

proptest! {
    #[test]
    fn the_split_into_reads_makes_no_difference(cuts in prop::collection::vec(1..40_usize, 0..60)) {
        let mut bytes = Vec::new();
        let mut write = |kind, flags, stream, payload: &[u8]| {
            super::super::frame::write(&mut bytes, kind, flags, stream, payload);
        };
        for stream in [1, 3, 5] {
            write(kind::HEADERS, flag::END_HEADERS, stream, &head());
            write(kind::DATA, flag::PADDED, stream, &[2, b'a', b'b', 0, 0]);
            write(kind::PING, 0, 0, &[7; 8]);
            write(kind::DATA, flag::END_STREAM, stream, &[b'c'; 100]);
        }
        let whole = {
            let mut peer = Peer::new();
            peer.bytes(&bytes).unwrap();
            peer.frames()
        };
        let mut peer = Peer::new();
        let mut rest = bytes.as_slice();
        for cut in cuts {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            peer.bytes(now).unwrap();
            rest = later;
        }
        peer.bytes(rest).unwrap();
        prop_assert_eq!(peer.frames(), whole);
    }
}

#[test]
fn a_repeated_header_block_has_the_same_meaning_until_the_table_changes() {
    let mut peer = Peer::new();
    // :path is added to the table and then referenced by its index.
    let adding = [&[0x83, 0x86, 0x44, 4][..], b"/s/m"].concat();
    peer.send(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &adding).unwrap();
    for stream in [3, 5, 7] {
        peer.send(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &[0x83, 0x86, 0xbe]).unwrap();
    }
    assert_eq!(peer.answers().len(), 4);
    // Another field gets the index: now the block is malformed.
    let adding = [&[0x83, 0x86, 0xbe, 0x40, 1, b'a', 1, b'b'][..]].concat();
    peer.send(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 9, &adding).unwrap();
    assert_eq!(peer.answers().len(), 1);
    peer.send(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 11, &[0x83, 0x86, 0xbe]).unwrap();
    assert_eq!(peer.resets(), [(11, 1)]);
}

/// Frames, the error of the last one, and its mistake.
type Broken<'a> = (Vec<(u8, u8, u32, &'a [u8])>, Reason, &'a str);

/// RFC 9113, frame by frame: the last of these frames ends the connection with this code.
fn end_the_connection(cases: &[Broken<'_>]) {
    for (frames, reason, why) in cases {
        let mut peer = Peer::new();
        let (last, first) = frames.split_last().unwrap();
        for (kind, flags, stream, payload) in first {
            peer.send(*kind, *flags, *stream, payload).unwrap();
        }
        let (kind, flags, stream, payload) = *last;
        assert_eq!(peer.send(kind, flags, stream, payload), Err(*reason), "{why}");
        peer.frames();
        peer.http.fail(*reason);
        let goaway = peer.frames();
        assert_eq!((goaway[0].kind, goaway[0].payload[7]), (kind::GOAWAY, *reason as u8));
    }
}

#[test]
fn invalid_frames_of_a_stream_end_the_connection() {
    let head = head();
    let block = head.as_slice();
    let end = flag::END_HEADERS | flag::END_STREAM;
    let long = vec![0; 16_385];
    end_the_connection(&[
        (vec![(kind::DATA, 0, 0, &b"x"[..])], Reason::ProtocolError, "DATA on stream 0"),
        (vec![(kind::DATA, 0, 1, b"x")], Reason::ProtocolError, "DATA on an idle stream"),
        (vec![(kind::DATA, 0, 1, &long)], Reason::FrameSizeError, "a frame that is too long"),
        (vec![(kind::HEADERS, end, 0, block)], Reason::ProtocolError, "HEADERS on stream 0"),
        (vec![(kind::HEADERS, end, 2, block)], Reason::ProtocolError, "HEADERS on an even stream"),
        (
            vec![(kind::HEADERS, end, 5, block), (kind::HEADERS, end, 3, block)],
            Reason::ProtocolError,
            "a lower stream",
        ),
        (vec![(kind::HEADERS, end, 1, &[0xff, 0xff])], Reason::CompressionError, "a broken block"),
        (
            vec![(kind::HEADERS, flag::PADDED | end, 1, &[9, 0])],
            Reason::ProtocolError,
            "padding that is too long",
        ),
        (vec![(kind::HEADERS, flag::PADDED | end, 1, &[])], Reason::FrameSizeError, "no padding length"),
        (vec![(kind::HEADERS, flag::PRIORITY | end, 1, &[0; 4])], Reason::FrameSizeError, "half a priority"),
        (
            vec![(kind::HEADERS, 0, 1, block), (kind::PING, 0, 0, &[0; 8])],
            Reason::ProtocolError,
            "no CONTINUATION",
        ),
        (
            vec![(kind::HEADERS, 0, 1, block), (kind::CONTINUATION, 4, 3, b"")],
            Reason::ProtocolError,
            "another's",
        ),
        (vec![(kind::CONTINUATION, 4, 1, block)], Reason::ProtocolError, "CONTINUATION of nothing"),
        (vec![(kind::PRIORITY, 0, 0, &[0; 5])], Reason::ProtocolError, "PRIORITY on stream 0"),
        (vec![(kind::RST_STREAM, 0, 0, &[0; 4])], Reason::ProtocolError, "RST_STREAM on stream 0"),
        (vec![(kind::RST_STREAM, 0, 1, &[0; 4])], Reason::ProtocolError, "RST_STREAM on an idle stream"),
        (
            vec![(kind::HEADERS, 4, 1, block), (kind::RST_STREAM, 0, 1, &[0; 3])],
            Reason::FrameSizeError,
            "3 bytes",
        ),
        (
            vec![(kind::HEADERS, 4, 1, block), (kind::DATA, flag::PADDED, 1, &[2, 0])],
            Reason::ProtocolError,
            "padding of DATA that is too long",
        ),
    ]);
}

#[test]
fn invalid_frames_of_the_connection_end_it() {
    end_the_connection(&[
        (vec![(kind::SETTINGS, 0, 1, b"")], Reason::ProtocolError, "SETTINGS on a stream"),
        (vec![(kind::SETTINGS, 0, 0, &[0; 5])], Reason::FrameSizeError, "half a setting"),
        (vec![(kind::SETTINGS, flag::ACK, 0, &[0; 6])], Reason::FrameSizeError, "an ACK with content"),
        (vec![(kind::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2])], Reason::ProtocolError, "ENABLE_PUSH of 2"),
        (vec![(kind::SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0])], Reason::FlowControlError, "a window of 2^31"),
        (vec![(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0x3f, 0xff])], Reason::ProtocolError, "frames of 16,383"),
        (vec![(kind::SETTINGS, 0, 0, &[0, 5, 1, 0, 0, 0])], Reason::ProtocolError, "frames of 2^24"),
        (vec![(kind::PUSH_PROMISE, 4, 1, &[0, 0, 0, 2])], Reason::ProtocolError, "PUSH_PROMISE"),
        (vec![(kind::PING, 0, 1, &[0; 8])], Reason::ProtocolError, "PING on a stream"),
        (vec![(kind::PING, 0, 0, &[0; 7])], Reason::FrameSizeError, "PING of 7 bytes"),
        (vec![(kind::GOAWAY, 0, 1, &[0; 8])], Reason::ProtocolError, "GOAWAY on a stream"),
        (vec![(kind::GOAWAY, 0, 0, &[0; 7])], Reason::FrameSizeError, "GOAWAY of 7 bytes"),
        (vec![(kind::WINDOW_UPDATE, 0, 0, &[0; 4])], Reason::ProtocolError, "WINDOW_UPDATE of 0"),
        (vec![(kind::WINDOW_UPDATE, 0, 0, &[0; 3])], Reason::FrameSizeError, "WINDOW_UPDATE of 3 bytes"),
        (vec![(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])], Reason::ProtocolError, "WINDOW_UPDATE when idle"),
        (
            vec![(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])],
            Reason::FlowControlError,
            "a window too wide",
        ),
    ]);
}

#[test]
fn frames_before_the_first_settings_end_the_connection() {
    let mut peer = Peer::with(1, 1000);
    assert_eq!(peer.bytes(b"GET / HTTP/1.1\r\n"), Err(Reason::ProtocolError));
    let mut peer = Peer::with(1, 1000);
    peer.bytes(b"PRI * HTTP/2.0\r\n\r\n").unwrap();
    assert_eq!(peer.bytes(b"XX"), Err(Reason::ProtocolError));
    let mut peer = Peer::with(1, 1000);
    peer.bytes(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    assert_eq!(peer.send(kind::PING, 0, 0, &[0; 8]), Err(Reason::ProtocolError), "SETTINGS are missing");
}

/// Each case resets one stream and keeps the others.
#[test]
fn stream_errors_reset_only_the_stream() {
    let end = flag::END_HEADERS | flag::END_STREAM;
    let good = head();
    for (frames, code, why) in [
        (vec![(kind::HEADERS, end, head_with(&[("Upper", "x")]))], 1, "upper case"),
        (
            vec![(kind::HEADERS, end, head_with(&[("content-length", "1")]))],
            1,
            "less than the content-length",
        ),
        (vec![(kind::HEADERS, 4, head_with(&[("content-length", "1")])), (0, 1, b"ab".to_vec())], 1, "more"),
        (vec![(kind::HEADERS, 4, head_with(&[("content-length", "3")])), (0, 1, b"ab".to_vec())], 1, "less"),
        (
            vec![(kind::HEADERS, end | flag::PRIORITY, [&[0, 0, 0, 1, 0][..], &good].concat())],
            1,
            "depends on itself",
        ),
        (
            vec![(kind::HEADERS, 4, good.clone()), (kind::PRIORITY, 0, vec![0, 0, 0, 1, 0])],
            1,
            "depends on itself",
        ),
        (vec![(kind::HEADERS, 4, good.clone()), (kind::PRIORITY, 0, vec![0; 4])], 6, "PRIORITY of 4 bytes"),
        (
            vec![(kind::HEADERS, 4, good.clone()), (kind::HEADERS, 4, vec![0, 1, b'a', 0])],
            1,
            "trailers without an end",
        ),
        (
            vec![(kind::HEADERS, 4, good.clone()), (kind::HEADERS, end, vec![0x83])],
            1,
            "pseudo-fields in trailers",
        ),
        (
            vec![(kind::HEADERS, 4, good.clone()), (kind::WINDOW_UPDATE, 0, vec![0; 4])],
            1,
            "WINDOW_UPDATE of 0",
        ),
        (
            vec![(kind::HEADERS, 4, good.clone()), (kind::WINDOW_UPDATE, 0, vec![0x7f, 255, 255, 255])],
            3,
            "a window too wide",
        ),
    ] {
        let mut peer = Peer::new();
        for (kind, flags, payload) in frames {
            peer.send(kind, flags, 1, &payload).unwrap();
        }
        assert_eq!(peer.resets(), [(1, code)], "{why}");
        assert_eq!(peer.echo.closed, usize::from(peer.echo.opened.len() == 1), "{why}");
        peer.request(3, b"x").unwrap();
        assert_eq!(peer.answers().len(), 1, "others are answered: {why}");
    }
}

/// RFC 9113, section 5.1: the frames allowed on a closed stream depend on how it was closed.
#[test]
fn frames_on_a_stream_that_both_sides_ended_end_the_connection() {
    let end = flag::END_HEADERS | flag::END_STREAM;
    for (kind, flags, payload) in
        [(kind::DATA, flag::END_STREAM, b"x".to_vec()), (kind::HEADERS, end, head())]
    {
        let mut peer = Peer::new();
        peer.request(1, b"x").unwrap();
        assert_eq!(peer.answers().len(), 1);
        peer.send(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]).unwrap();
        peer.send(kind::RST_STREAM, 0, 1, &[0; 4]).unwrap();
        peer.send(kind::PRIORITY, 0, 1, &[0; 5]).unwrap();
        assert_eq!(peer.frames(), [], "these may have been in flight");
        assert_eq!(peer.send(kind, flags, 1, &payload), Err(Reason::StreamClosed), "{kind}");
    }
}

#[test]
fn frames_on_a_stream_that_the_peer_ended_reset_it() {
    let mut peer = Peer::new();
    peer.echo.waits = true;
    for stream in [1, 3] {
        peer.request(stream, b"x").unwrap();
    }
    peer.data(1, b"x", false).unwrap();
    peer.send(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 3, &[0, 1, b'x', 1, b'y']).unwrap();
    assert_eq!(peer.resets(), [(1, 5), (3, 5)]);
}

/// The service is told of responses that came too late, and not of streams without one.
#[test]
fn a_reset_of_a_stream_with_a_response_is_told_from_others() {
    let mut peer = Peer::new();
    let reset = |peer: &mut Peer, stream| {
        peer.send(kind::RST_STREAM, 0, stream, &[0, 0, 0, 2]).unwrap();
        (peer.echo.missed, peer.echo.closed)
    };
    peer.request(1, b"x").unwrap();
    assert_eq!(reset(&mut peer, 1), (1, 0), "the response was on its way");
    peer.open(3).unwrap();
    assert_eq!(reset(&mut peer, 3), (1, 1), "it has no response");
    assert_eq!(reset(&mut peer, 3), (1, 1), "it is reset already");
    peer.open(5).unwrap();
    peer.send(kind::WINDOW_UPDATE, 0, 5, &[0; 4]).unwrap();
    assert_eq!(peer.resets(), [(5, 1)]);
    assert_eq!(reset(&mut peer, 5), (1, 2), "we reset it");
}

#[test]
fn frames_on_a_stream_that_we_reset_are_ignored() {
    let mut peer = Peer::new();
    peer.open(1).unwrap();
    peer.send(kind::WINDOW_UPDATE, 0, 1, &[0; 4]).unwrap();
    assert_eq!(peer.resets(), [(1, 1)]);
    let on_their_way = |peer: &mut Peer, stream| {
        peer.data(stream, b"x", false).unwrap();
        peer.send(kind::PRIORITY, 0, stream, &[0; 4]).unwrap();
        peer.send(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &[0, 1, b'x', 1, b'y'])
            .unwrap();
        peer.data(stream, b"x", true).unwrap();
        peer.send(kind::RST_STREAM, 0, stream, &[0; 4]).unwrap();
    };
    on_their_way(&mut peer, 1);
    assert_eq!(peer.frames(), []);
    // A request with an early response is reset without an error.
    peer.open(3).unwrap();
    peer.http.answer(3, &ENVELOPE, b"early");
    assert_eq!(peer.resets(), [(3, 0)]);
    on_their_way(&mut peer, 3);
    assert_eq!(peer.frames(), []);
    peer.request(5, b"x").unwrap();
    assert_eq!(peer.answers().len(), 1);
}

/// Only the latest resets are remembered; older ones must not end the connection.
#[test]
fn frames_on_a_stream_with_a_forgotten_reset_reset_it_again() {
    let mut peer = Peer::new();
    for stream in (1..=33).step_by(2) {
        peer.open(stream).unwrap();
        peer.send(kind::WINDOW_UPDATE, 0, stream, &[0; 4]).unwrap();
    }
    assert_eq!(peer.resets().len(), 17);
    peer.data(3, b"x", true).unwrap();
    assert_eq!(peer.resets(), []);
    peer.data(1, b"x", true).unwrap();
    assert_eq!(peer.resets(), [(1, 5)]);
}

#[test]
fn frames_on_a_stream_that_the_peer_reset_are_stream_errors() {
    for count in [1, 17] {
        let mut peer = Peer::new();
        for stream in (0..count).map(|number| 2 * number + 1) {
            peer.open(stream).unwrap();
            peer.send(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8]).unwrap();
        }
        peer.data(1, b"x", true).unwrap();
        assert_eq!(peer.resets(), [(1, 5)], "{count} resets");
        peer.data(1, b"x", true).unwrap();
        assert_eq!(peer.resets(), [], "once is enough");
    }
}

#[test]
fn a_header_list_above_the_limit_returns_431() {
    let mut peer = Peer::new();
    let value = "v".repeat(9000);
    let block = head_with(&[("a", &value), ("b", &value)]);
    let (first, second) = block.split_at(16_000);
    peer.send(kind::HEADERS, 0, 1, first).unwrap();
    peer.send(kind::CONTINUATION, flag::END_HEADERS, 1, second).unwrap();
    let sent = peer.frames();
    assert_eq!((sent[0].kind, sent[0].payload.as_slice()), (kind::HEADERS, &b"\x08\x03431"[..]));
    assert_eq!((sent[1].kind, sent[1].payload[3]), (kind::RST_STREAM, 0));
    peer.request(3, b"x").unwrap();
    assert_eq!(peer.answers().len(), 1);
}

/// A reference of one byte in trailers stands for a field of 4 KB, as in heads.
#[test]
fn trailers_above_the_limit_reset_the_stream() {
    let entry = head_with(&[]);
    let long = "v".repeat(4096 - 32 - 1);
    for (references, resets) in [(4, &[][..]), (5, &[(1, 1)]), (16_000, &[(1, 1)])] {
        let mut peer = Peer::new();
        peer.open(1).unwrap();
        let mut block = vec![0x40, 1, b'x', 127];
        // The rest of the length above 127.
        block.extend([
            0x80 | u8::try_from((long.len() - 127) & 127).unwrap(),
            u8::try_from((long.len() - 127) >> 7).unwrap(),
        ]);
        block.extend(long.bytes());
        peer.send(kind::HEADERS, flag::END_HEADERS, 3, &[&entry[..], &block].concat()).unwrap();
        peer.frames();
        peer.send(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &vec![0xbe; references]).unwrap();
        assert_eq!(peer.resets(), resets, "{references}");
        // The table is still that of the peer.
        peer.send(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 3, &[0xbe]).unwrap();
        assert_eq!(peer.answers().len(), 1);
    }
}

#[test]
fn streams_beyond_the_limit_are_refused_and_can_be_retried() {
    let mut peer = Peer::with(2, 1 << 20);
    peer.greet();
    for stream in [1, 3, 5] {
        peer.open(stream).unwrap();
    }
    assert_eq!(peer.resets(), [(5, 7)]);
    peer.data(1, b"x", true).unwrap();
    peer.request(7, b"x").unwrap();
    assert_eq!(peer.answers().len(), 2);
}

#[test]
fn a_peer_with_a_smaller_table_receives_a_table_size_update() {
    let mut peer = Peer::new();
    peer.send(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 100]).unwrap();
    peer.frames();
    peer.request(1, b"x").unwrap();
    peer.request(3, b"x").unwrap();
    let sent = peer.frames();
    let blocks: Vec<_> =
        sent.iter().filter(|sent| sent.kind == kind::HEADERS).map(|sent| sent.payload[0]).collect();
    assert_eq!(blocks, [0x20, 0, 0x88, 0]);
}

#[test]
fn a_graceful_shutdown_loses_no_request() {
    let mut peer = Peer::new();
    peer.open(1).unwrap();
    peer.http.announce_goaway();
    let sent = peer.frames();
    assert_eq!((sent[0].kind, &sent[0].payload[..4]), (kind::GOAWAY, &[0x7f, 255, 255, 255][..]));
    let ping = sent[1].payload.clone();
    // A request that crosses the first GOAWAY succeeds.
    peer.request(3, b"x").unwrap();
    assert_eq!(peer.answers().len(), 1);
    peer.send(kind::PING, flag::ACK, 0, &ping).unwrap();
    let sent = peer.frames();
    assert_eq!((sent[0].kind, &sent[0].payload[..]), (kind::GOAWAY, &[0, 0, 0, 3, 0, 0, 0, 0][..]));
    // A later one is ignored, as the final GOAWAY declares.
    peer.request(5, b"x").unwrap();
    assert_eq!(peer.frames(), []);
    assert!(!peer.http.is_done());
    peer.data(1, b"x", true).unwrap();
    assert_eq!(peer.answers().len(), 1);
    assert!(peer.http.is_done());
}

#[test]
fn a_peer_that_sends_goaway_still_receives_its_responses() {
    let mut peer = Peer::new();
    peer.open(1).unwrap();
    peer.send(kind::GOAWAY, 0, 0, &[0; 8]).unwrap();
    assert!(!peer.http.is_done());
    peer.data(1, b"x", true).unwrap();
    assert!(peer.http.is_done());
}

#[test]
fn pings_are_acknowledged() {
    let mut peer = Peer::new();
    peer.send(kind::PING, 0, 0, b"12345678").unwrap();
    peer.send(kind::PING, flag::ACK, 0, b"12345678").unwrap();
    let sent = peer.frames();
    assert_eq!((sent.len(), sent[0].flags, sent[0].payload.as_slice()), (1, flag::ACK, &b"12345678"[..]));
}

proptest! {
    #[test]
    fn random_frames_never_panic(frames_in in prop::collection::vec(
        (0..12_u8, any::<u8>(), 0..8_u32, prop::collection::vec(any::<u8>(), 0..40)), 0..40,
    )) {
        let mut peer = Peer::new();
        for (kind, flags, stream, payload) in frames_in {
            if peer.send(kind, flags, stream, &payload).is_err() {
                break;
            }
        }
        frames(&peer.http.out);
    }
}
