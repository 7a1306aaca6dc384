//! Explores the model exhaustively, as it is and with each slip. `tests/run deep` has more renewals in each run.

use std::{collections::BTreeSet, env, time::Instant};

use lease_model::{Protocol, Slip, property};
use stateright::{Checker, HasDiscoveries, Model as _};

/// A grant of two hits is spent one by one, and Redis loses data once.
const LOSS: Protocol = Protocol {
    slip: None,
    limit: 3,
    hits: 2,
    renewals: 4,
    asks: 0,
    returns: 1,
    in_flight: 2,
    losses: 1,
    resets: 0,
    lost_connections: 1,
    evictions: 0,
};

/// The same with single hits, of which Redis counts one.
const COUNTED: Protocol = Protocol { limit: 2, hits: 1, renewals: 3, asks: 1, ..LOSS };

const LOST_TWICE: Protocol = Protocol { losses: 2, asks: 0, ..COUNTED };

/// An operator resets the counter too.
const RESET: Protocol = Protocol { resets: 1, lost_connections: 0, asks: 0, ..COUNTED };

/// A lease is evicted meanwhile, and another one of the key begins.
const EVICTED: Protocol = Protocol { losses: 0, resets: 1, renewals: 2, evictions: 1, ..COUNTED };

const ALWAYS: [&str; 4] =
    [property::BOUND, property::NEVER_RETURNED, property::ENDED_BY_RESET, property::ENDED_BY_GRANT];

/// As many renewals as are enough for every slip to violate a property.
fn usual(protocol: Protocol) -> Protocol {
    if env::var_os("TOLLGATE_TEST_DEEP").is_some() {
        return protocol;
    }
    Protocol { renewals: protocol.renewals.min(3), ..protocol }
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
    for protocol in [LOSS, COUNTED, LOST_TWICE, RESET, EVICTED] {
        let checker = explore(protocol);
        assert_eq!(violated(&checker), BTreeSet::new());
        // Else the properties above hold for nothing.
        for name in [property::USED_UP, property::RETURNED, property::EXCEEDED] {
            assert!(checker.discovery(name).is_some(), "never: {name}");
        }
    }
}

#[test]
fn without_losses_and_resets_no_more_than_the_limit_is_admitted() {
    let checker = explore(Protocol { losses: 0, asks: 1, ..LOSS });
    assert_eq!(violated(&checker), BTreeSet::new());
    assert!(checker.discovery(property::USED_UP).is_some());
    assert!(checker.discovery(property::EXCEEDED).is_none());
}

#[test]
fn each_slip_violates_a_property() {
    for (slip, protocol) in [
        (Slip::ReturnToAnyCounter, LOSS),
        (Slip::ReturnTwice, LOSS),
        (Slip::ReplyTwice, LOSS),
        (Slip::BlindGrant, LOSS),
        (Slip::CounterAlone, LOSS),
        (Slip::KeepPastReset, RESET),
        (Slip::GrantOfBeforeReset, RESET),
        (Slip::TrustAfterResubscribing, RESET),
        (Slip::RestoreToAnotherLease, EVICTED),
    ] {
        let checker = explore(Protocol { slip: Some(slip), ..protocol });
        assert_ne!(violated(&checker), BTreeSet::new(), "{slip:?}");
    }
}
