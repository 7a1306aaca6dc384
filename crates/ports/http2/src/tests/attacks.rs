//! Each attack on HTTP/2 with a CVE number. The connection ends after a limited number of frames,
//! and its memory stays within the budget.

use super::{
    super::{
        frame::{self, Reason, flag, kind},
        limits::Limits,
    },
    peer::{Peer, head, head_with},
};
use crate::limits::Flood;

/// The number of rounds until the connection ends for this flood.
fn rounds(flood: Flood, mut round: impl FnMut(&mut Peer, u32) -> Result<(), Reason>) -> u32 {
    let mut peer = Peer::new();
    for number in 0..100_000 {
        if let Err(reason) = round(&mut peer, number) {
            assert_eq!((reason, peer.http.fail(reason)), (Reason::EnhanceYourCalm, Some(flood)));
            return number;
        }
        peer.frames();
    }
    panic!("the connection never ends");
}

/// At most the burst, in frames of a round.
fn assert_cut_off(flood: Flood, round: impl FnMut(&mut Peer, u32) -> Result<(), Reason>) {
    let rounds = rounds(flood, round);
    assert!((100..=Limits::BURST).contains(&rounds), "after {rounds} rounds");
}

#[test]
fn data_dribble_cve_2019_9511() {
    // One byte of a message at a time.
    assert_cut_off(Flood::Data, |peer, number| {
        if number == 0 {
            peer.open(1)?;
        }
        peer.data(1, b"x", false)
    });
    // One byte of a response at a time.
    assert_cut_off(Flood::WindowUpdates, |peer, number| {
        if number == 0 {
            peer.send(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])?;
            peer.request(1, &[0; 10_000])?;
        }
        peer.send(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])
    });
}

#[test]
fn ping_flood_cve_2019_9512() {
    assert_cut_off(Flood::Pings, |peer, _| peer.send(kind::PING, 0, 0, &[0; 8]));
}

#[test]
fn resource_loop_of_priorities_cve_2019_9513() {
    assert_cut_off(Flood::Priorities, |peer, number| {
        peer.send(kind::PRIORITY, 0, 2 * (number % 50) + 1, &[0, 0, 0, 101, 9])
    });
}

#[test]
fn reset_flood_cve_2019_9514() {
    // Malformed requests, each of which is reset.
    let bad = head_with(&[("Upper", "x")]);
    assert_cut_off(Flood::Malformed, |peer, number| {
        peer.send(kind::HEADERS, flag::END_HEADERS, 2 * number + 1, &bad)
    });
    // Data on a stream that was reset.
    assert_cut_off(Flood::ClosedStreams, |peer, number| {
        if number == 0 {
            peer.open(1)?;
            peer.send(kind::WINDOW_UPDATE, 0, 1, &[0; 4])?;
        }
        peer.data(1, &[0; 100], false)
    });
}

#[test]
fn settings_flood_cve_2019_9515() {
    assert_cut_off(Flood::Settings, |peer, _| peer.send(kind::SETTINGS, 0, 0, &[]));
    // Each setting of a frame counts.
    let many = [0, 3, 0, 0, 0, 1].repeat(100);
    assert!(rounds(Flood::Settings, |peer, _| peer.send(kind::SETTINGS, 0, 0, &many)) <= 20);
}

#[test]
fn headers_without_names_and_values_cve_2019_9516() {
    let empty = [&head()[..], &[0, 0, 0].repeat(100)].concat();
    assert_cut_off(Flood::Malformed, |peer, number| {
        peer.send(kind::HEADERS, flag::END_HEADERS, 2 * number + 1, &empty)
    });
    // With indexed names: the table stays within its bound, and the request succeeds.
    let mut peer = Peer::new();
    for number in 0..5000 {
        let block = [&head()[..], &[0x40, 1, b'a', 0].repeat(100)].concat();
        peer.send(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 2 * number + 1, &block).unwrap();
        assert_eq!(peer.answers().len(), 1);
    }
}

/// The peer opens its windows and does not read. `driver` stops reading from it; here the blocked data is bounded.
#[test]
fn internal_data_buffering_cve_2019_9517() {
    let mut peer = Peer::with(1000, 100_000);
    peer.greet();
    peer.send(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]).unwrap();
    peer.frames();
    let mut refused = 0;
    for number in 0..500 {
        if peer.request(2 * number + 1, &[0; 1000]).is_err() {
            break;
        }
        refused += peer.resets().len();
    }
    assert!(refused > 300, "{refused}");
    assert!(peer.http.config.budget.used() <= 100_000);
}

#[test]
fn empty_frames_flood_cve_2019_9518() {
    assert_cut_off(Flood::Data, |peer, number| {
        if number == 0 {
            peer.open(1)?;
        }
        peer.data(1, b"", false)
    });
    // All of it padding.
    assert_cut_off(Flood::Data, |peer, number| {
        if number == 0 {
            peer.open(1)?;
        }
        peer.send(kind::DATA, flag::PADDED, 1, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    });
    let continuations = rounds(Flood::Headers, |peer, number| {
        if number == 0 {
            return peer.send(kind::HEADERS, 0, 1, &[]);
        }
        peer.send(kind::CONTINUATION, 0, 1, &[])
    });
    assert!(continuations <= 16, "{continuations}");
}

#[test]
fn rapid_reset_cve_2023_44487() {
    assert_cut_off(Flood::Resets, |peer, number| {
        peer.open(2 * number + 1)?;
        peer.send(kind::RST_STREAM, 0, 2 * number + 1, &[0, 0, 0, 8])
    });
    // With a complete request that waits for its store.
    assert_cut_off(Flood::Resets, |peer, number| {
        peer.echo.waits = true;
        peer.request(2 * number + 1, b"x")?;
        peer.send(kind::RST_STREAM, 0, 2 * number + 1, &[0, 0, 0, 8])
    });
}

/// Envoy resets every request at its timeout. Without Redis that may be all requests.
#[test]
fn resets_after_a_timeout_are_not_a_flood() {
    let mut peer = Peer::new();
    peer.echo.waits = true;
    for number in 0..20_000 {
        peer.request(2 * number + 1, b"x").unwrap();
        peer.wait(10);
        peer.send(kind::RST_STREAM, 0, 2 * number + 1, &[0, 0, 0, 8]).unwrap();
    }
    assert_eq!(peer.echo.closed, 20_000);
}

#[test]
fn continuation_flood_cve_2024_27316() {
    let mut peer = Peer::new();
    peer.send(kind::HEADERS, 0, 1, &[0; 16_000]).unwrap();
    peer.send(kind::CONTINUATION, 0, 1, &[0; 16_000]).unwrap();
    assert_eq!(peer.send(kind::CONTINUATION, 0, 1, &[0; 16_000]), Err(Reason::EnhanceYourCalm));
    // Small ones.
    let mut peer = Peer::new();
    peer.send(kind::HEADERS, 0, 1, &head()).unwrap();
    let small =
        (0..100).take_while(|_| peer.send(kind::CONTINUATION, 0, 1, &[0, 1, b'a', 0]).is_ok()).count();
    assert!(small <= 16, "{small}");
    // Many connections together stay within the budget.
    let mut peer = Peer::with(10, 20_000);
    peer.greet();
    peer.send(kind::HEADERS, 0, 1, &[0; 16_000]).unwrap();
    assert_eq!(peer.send(kind::CONTINUATION, 0, 1, &[0; 16_000]), Err(Reason::EnhanceYourCalm));
}

/// The peer makes the service reset streams, so that they do not count against its limit.
#[test]
fn made_you_reset_cve_2025_8671() {
    for (kind, payload) in [
        (kind::WINDOW_UPDATE, &[0, 0, 0, 0][..]),
        (kind::WINDOW_UPDATE, &[0x7f, 255, 255, 255]),
        (kind::PRIORITY, &[0; 4]),
        (kind::DATA, &[0; 100]),
        (kind::HEADERS, &[0, 1, b'a', 0]),
    ] {
        assert_cut_off(Flood::Malformed, |peer, number| {
            peer.echo.waits = true;
            let stream = 2 * number + 1;
            peer.request(stream, b"x")?;
            let flags = if kind == kind::HEADERS { flag::END_HEADERS } else { 0 };
            peer.send(kind, flags, stream, payload)
        });
    }
}

#[test]
fn unknown_frames_acknowledgements_and_goaways_are_limited() {
    assert_cut_off(Flood::Others, |peer, _| peer.send(200, 0, 0, b""));
    assert_cut_off(Flood::Settings, |peer, _| peer.send(kind::SETTINGS, flag::ACK, 0, b""));
    assert_cut_off(Flood::Pings, |peer, _| peer.send(kind::PING, flag::ACK, 0, &[0; 8]));
    assert_cut_off(Flood::Others, |peer, _| peer.send(kind::GOAWAY, 0, 0, &[0; 8]));
    assert_cut_off(Flood::WindowUpdates, |peer, _| peer.send(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]));
}

#[test]
fn idle_open_streams_are_charged_to_the_budget() {
    let mut peer = Peer::with(1024, 100_000);
    peer.greet();
    peer.frames();
    let mut open = 0;
    for number in 0..1024 {
        peer.open(2 * number + 1).unwrap();
        open += usize::from(peer.resets().is_empty());
    }
    assert_eq!(open, 8 + 16 * 8, "16 steps of 8 streams, at 768 bytes, fit the budget beside the first 8");
    assert_eq!(peer.echo.opened.len(), open, "a refused stream does not begin its call");
    assert_eq!(peer.echo.closed, 0);
}

/// Settings of windows and windows of the connection visit each stream.
#[test]
fn frames_that_visit_all_streams_cost_more() {
    let with_streams = |streams: u32, kind, payload: &[u8]| {
        let mut peer = Peer::with(1024, 1 << 20);
        peer.greet();
        peer.echo.waits = true;
        for number in 0..streams {
            peer.request(2 * number + 1, b"x").unwrap();
        }
        (0..100_000).take_while(|_| peer.send(kind, 0, 0, payload).is_ok()).count()
    };
    assert_eq!(with_streams(63, kind::SETTINGS, &[0, 4, 0, 0, 255, 255]), 999);
    assert_eq!(with_streams(640, kind::SETTINGS, &[0, 4, 0, 0, 255, 255]), 166);
    assert_eq!(with_streams(640, kind::SETTINGS, &[0, 3, 0, 0, 255, 255]), 999, "another setting");
    assert_eq!(with_streams(640, kind::WINDOW_UPDATE, &[0, 0, 0, 1]), 1998, "nothing is blocked");
    // Responses that wait for a connection whose window stays exhausted.
    let mut peer = Peer::with(1024, 1 << 20);
    peer.greet();
    peer.send(kind::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]).unwrap();
    for number in 0..640 {
        peer.request(2 * number + 1, &[0; 200]).unwrap();
    }
    let updates =
        (0..100_000).take_while(|_| peer.send(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]).is_ok()).count();
    assert!((300..700).contains(&updates), "{updates}");
}

/// A client may send many frames per request as long as it sends requests.
#[test]
fn the_frames_of_an_honest_client_are_not_a_flood() {
    let mut peer = Peer::new();
    for number in 0..20_000 {
        let stream = 2 * number + 1;
        peer.request(stream, b"x").unwrap();
        peer.send(kind::PING, 0, 0, &[0; 8]).unwrap();
        peer.send(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]).unwrap();
        peer.send(kind::WINDOW_UPDATE, 0, stream, &[0, 0, 0, 1]).unwrap();
        peer.send(kind::PRIORITY, 0, stream, &[0; 5]).unwrap();
        peer.frames();
    }
    let mut bytes = Vec::new();
    frame::write(&mut bytes, kind::PING, 0, 0, &[0; 8]);
    assert!(peer.bytes(&bytes).is_ok());
}
