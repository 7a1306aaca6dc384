//! A turn ends between frames, and the next one continues.

use std::time::Duration;

use super::{
    super::frame::{self, flag, kind},
    peer::{Peer, frames, head},
};

/// Requests, pings and a message in pieces.
fn script() -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in 0..40 {
        let stream = 2 * number + 1;
        frame::write(&mut bytes, kind::HEADERS, flag::END_HEADERS, stream, &head());
        frame::write(&mut bytes, kind::PING, 0, 0, &[7; 8]);
        frame::write(&mut bytes, kind::DATA, 0, stream, &[1; 300]);
        frame::write(&mut bytes, kind::DATA, flag::END_STREAM, stream, &[2; 300]);
    }
    bytes
}

#[test]
fn an_interrupted_read_has_the_same_result() {
    let mut whole = Peer::new();
    whole.bytes(&script()).unwrap();
    let expected = whole.frames();

    let mut peer = Peer::new();
    let (bytes, mut taken, mut turns) = (script(), 0, 0);
    while taken < bytes.len() {
        // It is over at once, so each turn does the least that it can.
        peer.http.begin_turn(peer.now.checked_sub(Duration::from_secs(1)).unwrap());
        let more = peer.http.receive(&bytes[taken..], peer.now, &mut peer.echo).unwrap();
        assert!(more > 0 && more < 4096, "{more} bytes in one turn");
        taken += more;
        turns += 1;
        assert_eq!(peer.http.is_interrupted(), taken < bytes.len());
    }
    assert!(turns > 10, "{turns} turns");
    assert_eq!(peer.frames(), expected);
}

#[test]
fn a_turn_writes_at_most_64_kib_and_a_frame() {
    let mut peer = Peer::new();
    let mut bytes = Vec::new();
    for number in 0..100 {
        frame::write(&mut bytes, kind::HEADERS, flag::END_HEADERS, 2 * number + 1, &head());
        frame::write(&mut bytes, kind::DATA, flag::END_STREAM, 2 * number + 1, &[1; 2000]);
    }
    // The peer's windows take all of it.
    peer.send(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]).unwrap();
    peer.frames();
    peer.http.begin_turn(peer.now + Duration::from_secs(3600));
    let taken = peer.http.receive(&bytes, peer.now, &mut peer.echo).unwrap();
    assert!(taken < bytes.len() && peer.http.is_interrupted());
    let written = peer.http.out.len();
    assert!((65_536..65_536 + 4096).contains(&written), "{written} bytes");
    assert!(frames(&peer.http.out).len() > 32);
}
