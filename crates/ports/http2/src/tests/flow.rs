//! Flow control in both directions.

use super::{
    super::frame::{Reason, flag, kind},
    peer::Peer,
};
use crate::fuzz::ENVELOPE;

/// A peer with this initial window for streams.
fn with_window(window: u8) -> Peer {
    let mut peer = Peer::new();
    peer.send(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, window]).unwrap();
    peer.frames();
    peer
}

fn data_of(peer: &mut Peer) -> Vec<(u32, usize)> {
    let data = peer.frames().into_iter().filter(|sent| sent.kind == kind::DATA);
    data.map(|sent| (sent.stream, sent.payload.len())).collect()
}

#[test]
fn a_response_waits_for_the_window_of_its_stream() {
    let mut peer = with_window(3);
    peer.request(1, b"abcde").unwrap();
    peer.request(3, b"abc").unwrap();
    assert_eq!(data_of(&mut peer), [(1, 3), (3, 3)]);
    assert!(peer.http.is_blocked(1) && peer.http.has_blocked() && !peer.http.is_blocked(3));
    peer.send(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]).unwrap();
    assert_eq!(data_of(&mut peer), [(1, 1)]);
    peer.send(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]).unwrap();
    let sent = peer.frames();
    assert_eq!(
        (sent[0].payload.as_slice(), sent[1].flags),
        (&b"e"[..], flag::END_HEADERS | flag::END_STREAM)
    );
    assert!(!peer.http.has_blocked());
}

#[test]
fn a_window_of_one_is_served_byte_by_byte() {
    let mut peer = with_window(0);
    peer.request(1, b"abc").unwrap();
    assert_eq!(data_of(&mut peer), []);
    for _ in 0..3 {
        peer.send(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]).unwrap();
        assert_eq!(data_of(&mut peer), [(1, 1)]);
    }
}

#[test]
fn settings_change_the_windows_of_open_streams() {
    let mut peer = with_window(3);
    peer.request(1, b"abcdef").unwrap();
    assert_eq!(data_of(&mut peer), [(1, 3)]);
    // Two less: the window is negative now.
    peer.send(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]).unwrap();
    peer.send(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 2]).unwrap();
    assert_eq!(data_of(&mut peer), []);
    peer.send(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 2]).unwrap();
    assert_eq!(data_of(&mut peer), [(1, 1)]);
    peer.send(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 9]).unwrap();
    assert_eq!(data_of(&mut peer), [(1, 2)]);
}

#[test]
fn responses_wait_for_the_window_of_the_connection() {
    let mut peer = Peer::new();
    let large = vec![7; 60_000];
    peer.request(1, &large).unwrap_err();
    let mut peer = Peer::new();
    for stream in [1, 3] {
        peer.open(stream).unwrap();
        for piece in large.chunks(16_384) {
            peer.data(stream, piece, false).unwrap();
        }
        peer.data(stream, b"", true).unwrap();
    }
    let sent: usize = data_of(&mut peer).iter().map(|(_, length)| length).sum();
    assert_eq!(sent, 65_535);
    peer.send(kind::WINDOW_UPDATE, 0, 0, &[0, 1, 0, 0]).unwrap();
    let sent: usize = data_of(&mut peer).iter().map(|(_, length)| length).sum();
    assert_eq!(sent, 120_000 - 65_535);
    assert!(!peer.http.has_blocked());
}

#[test]
fn large_frames_are_sent_only_to_peers_that_allow_them() {
    let mut peer = Peer::new();
    peer.echo.waits = true;
    peer.request(1, b"x").unwrap();
    peer.http.answer(1, &ENVELOPE, &vec![0; 40_000]);
    let lengths: Vec<_> = data_of(&mut peer).iter().map(|(_, length)| *length).collect();
    assert_eq!(lengths, [16_384, 16_384, 7_232]);
    peer.send(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0x80, 0]).unwrap();
    peer.frames();
    peer.request(3, b"x").unwrap();
    peer.http.answer(3, &ENVELOPE, &vec![0; 20_000]);
    assert_eq!(data_of(&mut peer), [(3, 20_000)]);
}

#[test]
fn a_stream_that_exceeds_its_window_is_reset() {
    let mut peer = Peer::new();
    peer.open(1).unwrap();
    for _ in 0..3 {
        peer.data(1, &[0; 16_384], false).unwrap();
    }
    peer.data(1, &[0; 16_383], false).unwrap();
    assert_eq!(peer.resets(), [], "65,535 bytes fit");
    peer.data(1, &[0; 1], false).unwrap();
    assert_eq!(peer.resets(), [(1, 3)]);
    peer.request(3, b"x").unwrap();
    assert_eq!(peer.answers().len(), 1);
}

#[test]
fn the_window_of_the_connection_is_replenished_before_it_is_exhausted() {
    let mut peer = Peer::new();
    let mut updates = 0;
    for stream in 0..200 {
        let stream = 2 * stream + 1;
        peer.open(stream).unwrap();
        peer.data(stream, &[0; 16_384], true).unwrap();
        let update = |sent: &super::peer::Sent| sent.kind == kind::WINDOW_UPDATE && sent.stream == 0;
        updates += peer.frames().iter().filter(|sent| update(sent)).count();
    }
    assert_eq!(updates, 6, "3.1 MiB in steps of half a MiB");
}

#[test]
fn a_connection_that_exceeds_its_window_ends() {
    let mut peer = Peer::new();
    let mut bytes = Vec::new();
    for stream in 0..17_u32 {
        let id = 2 * stream + 1;
        super::super::frame::write(&mut bytes, kind::HEADERS, flag::END_HEADERS, id, &super::peer::head());
        for _ in 0..4 {
            super::super::frame::write(&mut bytes, kind::DATA, 0, id, &[0; 16_000]);
        }
    }
    // In one piece: nothing is sent to the peer in between.
    assert_eq!(peer.bytes(&bytes), Err(Reason::FlowControlError));
}

#[test]
fn a_blocked_response_is_charged_to_the_budget() {
    let mut peer = Peer::with(100, 1000);
    peer.greet();
    peer.send(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]).unwrap();
    peer.frames();
    peer.request(1, &[0; 600]).unwrap();
    assert_eq!(peer.resets(), []);
    peer.request(3, &[0; 600]).unwrap();
    assert_eq!(peer.resets(), [(3, 11)], "the budget is exhausted");
    peer.send(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 9, 0]).unwrap();
    assert_eq!(peer.answers().len(), 1);
    peer.request(5, &[0; 600]).unwrap();
    assert_eq!(peer.resets(), [], "the budget is released");
}

/// The fast path and the general path write the same response.
#[test]
fn the_fast_path_and_the_general_path_send_the_same_frames() {
    for (length, window) in [(5, 65_535), (5, 5), (6, 5), (16_384, 65_535), (16_379, 0)] {
        let sent = [true, false].map(|at_once| {
            let mut peer = Peer::new();
            // The header block to repeat.
            peer.request(1, b"first").unwrap();
            let mut setting = vec![0, 4];
            setting.extend_from_slice(&u32::to_be_bytes(window));
            peer.send(kind::SETTINGS, 0, 0, &setting).unwrap();
            peer.frames();
            let mut bytes = Vec::new();
            super::super::frame::write(&mut bytes, kind::HEADERS, flag::END_HEADERS, 3, &super::peer::head());
            super::super::frame::write(&mut bytes, kind::DATA, flag::END_STREAM, 3, &vec![7; length]);
            let (first, second) = bytes.split_at(if at_once { bytes.len() } else { bytes.len() - 1 });
            peer.bytes(first).unwrap();
            peer.bytes(second).unwrap();
            let blocked = peer.http.is_blocked(3);
            peer.send(kind::WINDOW_UPDATE, 0, 3, &[0, 1, 0, 0]).unwrap();
            (blocked, peer.frames())
        });
        assert_eq!(sent[0], sent[1], "{length} bytes, a window of {window}");
        assert_eq!(sent[0].0, length > window as usize);
    }
}

/// The window was reduced by the whole frame when its header arrived.
#[test]
fn the_rest_of_a_frame_counts_as_expected_data() {
    let mut peer = Peer::new();
    peer.echo.waits = true;
    peer.open(1).unwrap();
    let mut bytes = Vec::new();
    super::super::frame::write(&mut bytes, kind::DATA, 0, 1, &[0; 16_384]);
    for cut in [9, 10, 1000, bytes.len()] {
        let whole = peer.http.window(1);
        assert_eq!(whole % 16_384, 65_535 % 16_384, "between frames");
        let (first, second) = bytes.split_at(cut);
        peer.bytes(first).unwrap();
        let taken = u32::try_from(cut - 9).unwrap();
        assert_eq!(peer.http.window(1), whole - taken, "{taken} bytes have come");
        peer.bytes(second).unwrap();
        if cut == 10 {
            peer.http.open_window(1, 65_536);
        }
    }
}
