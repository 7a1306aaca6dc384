//! Explores the model exhaustively, as it is and with each slip. `tests/run deep` has more faults in each run.

use std::{collections::BTreeSet, env, time::Instant};

use hold_model::{Protocol, Slip, property};
use stateright::{Checker, HasDiscoveries, Model as _};

/// Three requests for a limit of two. Their costs are nothing, what is held, and more.
const COSTS: Protocol = Protocol {
    slip: None,
    limit: 2,
    estimate: 1,
    unknown: None,
    costs: &[0, 1, 2],
    requests: 3,
    slots: 1,
    windows: 1,
    in_flight: 3,
    expiries: 2,
    forgotten: 0,
    lost_connections: 1,
    ends: 0,
    kills: 0,
    terminations: 0,
};

/// An unknown cost is free, so that others take the room that a late cost needs.
const FREE: Protocol = Protocol { unknown: Some(0), costs: &[1], expiries: 1, ends: 1, ..COSTS };

/// An unknown cost is more than what was held.
const DEAR: Protocol = Protocol { unknown: Some(2), ..FREE };

/// Holds outlive their window and its counter, and are forgotten.
const WINDOWS: Protocol = Protocol { requests: 2, windows: 2, costs: &[0, 2], forgotten: 1, ..COSTS };

/// Connections are lost twice, and a replica ends by SIGKILL or SIGTERM.
const ENDS: Protocol =
    Protocol { costs: &[1], expiries: 1, lost_connections: 2, kills: 1, terminations: 1, ..COSTS };

/// A request holds in two slots, or in none.
const SLOTS: Protocol = Protocol { requests: 2, limit: 1, costs: &[1], slots: 2, in_flight: 4, ..COSTS };

const ALWAYS: [&str; 4] = [property::BOUND, property::CHARGED, property::RELEASED, property::TAKEN];

/// Each fault at most once, which is enough for every slip to violate a property.
fn usual(protocol: Protocol) -> Protocol {
    if env::var_os("TOLLGATE_TEST_DEEP").is_some() {
        return protocol;
    }
    let Protocol { expiries, lost_connections, .. } = protocol;
    Protocol { expiries: expiries.min(1), lost_connections: lost_connections.min(1), ..protocol }
}

/// Explores all states. The states with a slip until a property is violated.
fn explore(protocol: Protocol) -> impl Checker<Protocol> {
    let protocol = usual(protocol);
    let start = Instant::now();
    let mut checker = protocol.checker().threads(2);
    if protocol.slip.is_some() {
        checker = checker.finish_when(HasDiscoveries::AnyFailures);
    }
    let checker = checker.spawn_bfs().join();
    println!("{protocol:?}: {} states in {:.1?}", checker.unique_state_count(), start.elapsed());
    checker
}

/// The properties that do not hold, with the actions that lead there.
fn violated(checker: &impl Checker<Protocol>) -> BTreeSet<&'static str> {
    let found = checker.discoveries().into_iter().filter(|(name, _)| ALWAYS.contains(name));
    found
        .map(|(name, path)| {
            println!("violated: {name}, by {:?}", path.into_actions());
            name
        })
        .collect()
}

#[test]
fn the_published_bound_holds_in_every_order_of_messages_and_faults() {
    for protocol in [COSTS, FREE, DEAR, WINDOWS, ENDS, SLOTS] {
        let checker = explore(protocol);
        assert_eq!(violated(&checker), BTreeSet::new());
        // Else the properties above hold for nothing.
        for name in [property::USED_UP, property::ALL_DONE] {
            assert!(checker.discovery(name).is_some(), "never: {name}");
        }
    }
}

#[test]
fn estimates_that_cover_the_cost_never_exceed_the_limit() {
    let checker = explore(Protocol { costs: &[0, 1], ..COSTS });
    assert_eq!(violated(&checker), BTreeSet::new());
    assert!(checker.discovery(property::EXCEEDED).is_none());
    let checker = explore(Protocol { costs: &[2], ..COSTS });
    assert!(checker.discovery(property::EXCEEDED).is_some(), "costs above what is held do");
}

#[test]
fn each_slip_violates_a_property() {
    for (slip, protocol) in [
        (Slip::ChecksOnlySpent, COSTS),
        (Slip::SettlesAgain, COSTS),
        (Slip::LateInNewWindow, WINDOWS),
        (Slip::NoTombstone, COSTS),
        (Slip::EndFirst, FREE),
        (Slip::ExpiryIsFree, COSTS),
        (Slip::NotRepeated, COSTS),
        (Slip::LeavesQueue, ENDS),
        (Slip::KeepsOtherSlot, SLOTS),
        (Slip::LateAgainstHeld, FREE),
    ] {
        let checker = explore(Protocol { slip: Some(slip), ..protocol });
        assert_ne!(violated(&checker), BTreeSet::new(), "{slip:?}");
    }
}
