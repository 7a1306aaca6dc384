//! Admission compared with a slow and obvious model, and the times after which connections make room.

use proptest::prelude::*;

use super::*;
use metrics::StatsOptions;

fn registry(connections: usize, per_address: usize, idle_closed_per_second: usize) -> Arc<Registry> {
    patient(connections, per_address, idle_closed_per_second, Duration::ZERO)
}

fn patient(
    connections: usize,
    per_address: usize,
    idle_closed_per_second: usize,
    patience: Duration,
) -> Arc<Registry> {
    let stats = Arc::new(Stats::new(StatsOptions { max_series: 1, ..StatsOptions::default() }));
    let names = ["TOTAL", "PER_ADDRESS"];
    let limits = ConnectionLimits { connections, per_address, patience, idle_closed_per_second, names };
    Registry::new(Port::Grpc, limits, stats, Instant::now())
}

fn must_close(handle: &Handle) -> bool {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
    };
    pin!(handle.closing()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// A time after the registry's start.
fn at(registry: &Registry, millis: u64) -> Instant {
    registry.start + Duration::from_millis(millis)
}

#[test]
fn an_ipv6_network_counts_as_one_address_and_a_mapped_address_as_ipv4() {
    let of = |text: &str| network(text.parse().unwrap());
    assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
    assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
}

#[test]
fn idle_connections_make_room_at_a_limited_rate() {
    let registry = registry(3, 3, 2);
    let mut kept = Vec::new();
    let mut admit = |millis| {
        let now = at(&registry, millis);
        let admitted = registry.admit(None, now);
        admitted.map(|handle| {
            handle.ready(now);
            kept.push(handle);
        })
    };
    for _ in 0..5 {
        assert!(admit(10).is_ok());
    }
    assert_eq!(admit(10), Err(ConnectionRefused::Total), "two have made room in this second");
    assert!(admit(1500).is_ok(), "the next second has begun");
}

#[test]
fn a_connection_makes_room_only_after_the_minimum_silent_or_idle_time() {
    let registry = patient(1, 1, 10, Duration::from_millis(100));
    let silent = registry.admit(None, at(&registry, 1000)).unwrap();
    assert!(registry.admit(None, at(&registry, 1099)).is_err() && !must_close(&silent));
    let idle = registry.admit(None, at(&registry, 1100)).unwrap();
    assert!(must_close(&silent));
    idle.ready(at(&registry, 1150));
    assert!(registry.admit(None, at(&registry, 1249)).is_err() && !must_close(&idle));
    // Beyond the pause after a failed scan.
    let newcomer = registry.admit(None, at(&registry, 1400)).unwrap();
    assert!(must_close(&idle) && newcomer.is_silent());
}

/// A connection of the model: address, state, and whether it has a place.
struct Modelled {
    handle: Handle,
    address: Option<IpAddr>,
    state: u64,
    admitted: usize,
    holds_place: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Admit(u8),
    Ready(prop::sample::Index),
    Busy(prop::sample::Index),
    Idle(prop::sample::Index),
    Leave(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..4u8).prop_map(Step::Admit),
        2 => any::<prop::sample::Index>().prop_map(Step::Ready),
        2 => any::<prop::sample::Index>().prop_map(Step::Busy),
        2 => any::<prop::sample::Index>().prop_map(Step::Idle),
        1 => any::<prop::sample::Index>().prop_map(Step::Leave),
    ];
    prop::collection::vec(step, 1..120)
}

/// The index in `model` of the connection that has to make room.
fn next_to_close(model: &[Modelled], address: Option<IpAddr>) -> Option<usize> {
    let of_scope = |one: &&(usize, &Modelled)| {
        one.1.holds_place && (address.is_none() || one.1.address == address) && one.1.state != BUSY
    };
    let all: Vec<_> = model.iter().enumerate().collect();
    let rank = |one: &&(usize, &Modelled)| {
        if one.1.state == SILENT { (0, one.1.admitted as u64) } else { (1, one.1.state) }
    };
    all.iter().filter(of_scope).min_by_key(rank).map(|one| one.0)
}

/// The connection that makes room for a new one of this address, or the reason of the rejection.
fn admission(
    model: &[Modelled],
    address: Option<IpAddr>,
    total: usize,
    per_address: usize,
) -> (Option<usize>, Option<ConnectionRefused>) {
    let count = |of: Option<IpAddr>| {
        model.iter().filter(|one| one.holds_place && (of.is_none() || one.address == of)).count()
    };
    let make_room = |of: Option<IpAddr>, refused: ConnectionRefused| match next_to_close(model, of) {
        Some(one) => (Some(one), None),
        None => (None, Some(refused)),
    };
    if address.is_some() && count(address) >= per_address {
        return make_room(address, ConnectionRefused::PerAddress);
    }
    if count(None) >= total { make_room(None, ConnectionRefused::Total) } else { (None, None) }
}

proptest! {
    #[test]
    fn admission_matches_the_model(
        (total, per_address, steps) in (1..8usize, 1..8usize, steps())
    ) {
        let registry = registry(total, per_address, usize::MAX);
        let mut model: Vec<Modelled> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            // Longer than the pause after a scan.
            let millis = 1000 * (number as u64 + 1);
            let now = at(&registry, millis);
            match step {
                Step::Admit(peer) => {
                    let address = (peer > 0).then(|| IpAddr::from([10, 0, 0, peer]));
                    let (room, refused) = admission(&model, address, total, per_address);
                    let admitted = registry.admit(address, now);
                    prop_assert_eq!(admitted.as_ref().err().copied(), refused);
                    if let Some(one) = room {
                        model[one].holds_place = false;
                        prop_assert!(must_close(&model[one].handle), "step {}: {}", number, one);
                    }
                    if let Ok(handle) = admitted {
                        model.push(Modelled { handle, address, state: SILENT, admitted: number, holds_place: true });
                    }
                }
                Step::Leave(index) if !model.is_empty() => {
                    model.swap_remove(index.index(model.len()));
                }
                Step::Ready(_) | Step::Busy(_) | Step::Idle(_) if model.is_empty() => {}
                Step::Ready(index) => {
                    let at = index.index(model.len());
                    let one = &mut model[at];
                    one.handle.ready(now);
                    if one.state == SILENT {
                        one.state = millis * 1000;
                    }
                }
                Step::Busy(index) => {
                    let at = index.index(model.len());
                    let one = &mut model[at];
                    if one.state != SILENT {
                        one.handle.busy();
                        one.state = BUSY;
                    }
                }
                Step::Idle(index) => {
                    let at = index.index(model.len());
                    let one = &mut model[at];
                    if one.state == BUSY {
                        one.handle.idle(now);
                        one.state = millis * 1000;
                    }
                }
                Step::Leave(_) => {}
            }
            prop_assert_eq!(registry.open(), model.iter().filter(|one| one.holds_place).count());
        }
        drop(model);
        let members = lock(&registry.members);
        prop_assert!(members.by_address.is_empty(), "no address is remembered without a connection");
        prop_assert!(members.all.silent.is_empty());
    }
}
