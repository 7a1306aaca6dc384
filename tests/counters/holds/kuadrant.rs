//! Kuadrant's service in every store: the assertions of limitador's and Kuadrant's own suites, and what they do not ask.

use std::{thread, time::Duration};

use proto::{
    envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
    kuadrant::service::ratelimit::v1::{
        CommitRequest, ReserveRequest, ReserveResponse, rate_limit_service_client::RateLimitServiceClient,
    },
};
use tokio::time::timeout;
use tonic::{Code as Grpc, Status};

use super::Places;
use support::{
    client::{Client, request},
    eventually, holds,
    memcached::Memcached,
    redis::Redis,
    server::{Server, Setup, pass_on_tonic},
};

/// Rules without holds, and budgets. Their windows do not end while a test runs.
const RULES: &str = "
domain: d
descriptors:
  - {key: one, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: two, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: ten, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
";
const HOLDS: &str = "
  - {key: small, rate_limit: {unit: year, requests_per_unit: 10, hold: {amount: 1, ttl: 10m}}}
  - {key: brief, rate_limit: {unit: year, requests_per_unit: 10, hold: {amount: 1, ttl: 1s}}}
  - key: tokenlimit.free__65da223d
    value: '1'
    descriptors:
      - key: auth.identity.userid
        rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 50, ttl: 10m}}
";

fn setup() -> Setup {
    Setup::new().rules("d.yaml", &format!("{RULES}{HOLDS}"))
}

struct Kuadrant(Client);

impl Kuadrant {
    fn of(server: &Server) -> Self {
        Self(server.client())
    }

    fn check(&self, asked: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let call = async |channel| RateLimitServiceClient::new(channel).check_rate_limit(asked).await;
        self.0.call(call).map(tonic::Response::into_inner)
    }

    fn report(&self, asked: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let call = async |channel| RateLimitServiceClient::new(channel).report(asked).await;
        self.0.call(call).map(tonic::Response::into_inner)
    }

    fn reserve(&self, asked: ReserveRequest) -> Result<ReserveResponse, Status> {
        let call = async |channel| RateLimitServiceClient::new(channel).reserve(asked).await;
        self.0.call(call).map(tonic::Response::into_inner)
    }

    fn commit(&self, asked: CommitRequest) -> Result<bool, Status> {
        let call = async |channel| RateLimitServiceClient::new(channel).commit(asked).await;
        self.0.call(call).map(|response| response.into_inner().reservation_released)
    }

    /// The code of a check of one descriptor.
    fn checked(&self, key: &str) -> Code {
        self.check(request("d", &[&[(key, "a")]])).unwrap().overall_code()
    }

    fn reported(&self, key: &str, hits: u32) -> Code {
        let asked = RateLimitRequest { hits_addend: hits, ..request("d", &[&[(key, "a")]]) };
        self.report(asked).unwrap().overall_code()
    }

    /// The id of a reservation; `None` if it is refused.
    fn reserved(&self, key: &str, amount: u64) -> Option<String> {
        reservation(&self.reserve(reserve(&[&[(key, "a")]], amount)).unwrap())
    }

    fn committed(&self, key: &str, id: &str, amount: u64) -> bool {
        self.commit(commit(&[&[(key, "a")]], id, amount)).unwrap()
    }
}

fn reserve(descriptors: &[&[(&str, &str)]], amount: u64) -> ReserveRequest {
    let RateLimitRequest { domain, descriptors, .. } = request("d", descriptors);
    ReserveRequest { domain, descriptors, amount, ttl: None }
}

fn commit(descriptors: &[&[(&str, &str)]], id: &str, amount: u64) -> CommitRequest {
    let RateLimitRequest { domain, descriptors, .. } = request("d", descriptors);
    CommitRequest { domain, descriptors, reservation_id: id.to_owned(), actual_amount: amount }
}

/// The id in a response, which only one that is admitted may have.
fn reservation(answer: &ReserveResponse) -> Option<String> {
    match answer.code() {
        Code::Ok => Some(answer.reservation_id.clone()),
        code => {
            assert_eq!((code, &*answer.reservation_id), (Code::OverLimit, ""));
            None
        }
    }
}

fn everywhere(test: impl Fn(&str, &Kuadrant, &Server)) {
    let places = Places::start();
    for (place, setup) in places.setups() {
        let server = setup.rules("d.yaml", &format!("{RULES}{HOLDS}")).start_healthy();
        test(place, &Kuadrant::of(&server), &server);
    }
}

#[test]
fn the_reference_serves_it_too() {
    pass_on_tonic(&["kuadrant::"], 11);
}

#[test]
fn checks_count_nothing_and_reports_count_beyond_the_limit() {
    let places = Places::start();
    let memcached = Memcached::single();
    let others = places.setups().map(|(place, setup)| (place, setup.rules("d.yaml", RULES)));
    let all = others.into_iter().chain([("memcached", memcached.setup().rules("d.yaml", RULES))]);
    for (place, setup) in all {
        let server = setup.start_healthy();
        let kuadrant = Kuadrant::of(&server);
        let check =
            |entries: &[&[(&str, &str)]]| kuadrant.check(request("d", entries)).unwrap().overall_code();
        assert_eq!([kuadrant.checked("one"), kuadrant.checked("one")], [Code::Ok; 2], "{place}");
        assert_eq!(kuadrant.reported("one", 0), Code::Ok, "{place}: 0 means 1");
        assert_eq!(kuadrant.checked("one"), Code::OverLimit, "{place}");
        assert_eq!(kuadrant.checked("none"), Code::OverLimit, "{place}: the limit is 0");
        assert_eq!(
            check(&[&[("ten", "z")], &[("none", "a")]]),
            Code::OverLimit,
            "{place}: of all descriptors"
        );
        assert_eq!([check(&[&[("unknown", "a")]]), check(&[]), check(&[&[]])], [Code::Ok; 3], "{place}");
        // limitador's example of its library.
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.push(kuadrant.checked("two"));
            assert_eq!(kuadrant.reported("two", 1), Code::Ok, "{place}");
        }
        assert_eq!(seen, [Code::Ok; 2], "{place}");
        assert_eq!(kuadrant.checked("two"), Code::OverLimit, "{place}");
        // A check has one hit, whatever it asks for.
        let many = RateLimitRequest { hits_addend: 1000, ..request("d", &[&[("ten", "a")]]) };
        assert_eq!(kuadrant.check(many).unwrap().overall_code(), Code::Ok, "{place}");
        assert_eq!([kuadrant.reported("ten", 4), kuadrant.reported("ten", 20)], [Code::Ok; 2], "{place}");
        let left = kuadrant.check(request("d", &[&[("ten", "a")]])).unwrap();
        assert_eq!((left.overall_code(), left.statuses[0].limit_remaining), (Code::OverLimit, 0), "{place}");
        let other = RateLimitRequest { domain: "other".into(), ..request("d", &[&[("none", "a")]]) };
        assert_eq!(kuadrant.check(other.clone()).unwrap().overall_code(), Code::Ok, "{place}");
        assert_eq!(kuadrant.report(other).unwrap().overall_code(), Code::Ok, "{place}");
        let decided = kuadrant.0.ask(request("d", &[&[("ten", "a")]])).unwrap();
        assert_eq!(decided.overall_code(), Code::OverLimit, "{place}: the counters are those of all callers");
        for (method, calls) in [("CheckRateLimit", 14), ("Report", 6), ("ShouldRateLimit", 1)] {
            let name = format!("ratelimit_service_total_requests{{grpc_method=\"{method}\"}}");
            assert_eq!(server.count(&name), calls, "{place}");
        }
        let of_rule = |name: &str| {
            name.starts_with("ratelimit_service_rate_limit_total_hits{") && name.contains("\"ten\"")
        };
        let total: f64 =
            server.metrics().into_iter().filter(|(name, _)| of_rule(name)).map(|(_, hits)| hits).sum();
        assert!((total - 26.0).abs() < 0.5, "{place}: 24 reported, 1 refused by a check, 1 decided: {total}");
    }
}

#[test]
fn a_check_leaves_no_counter_in_redis() {
    let redis = Redis::single();
    let server = setup().redis(&redis.env()).start_healthy();
    let kuadrant = Kuadrant::of(&server);
    let counters = || redis.keys().into_iter().filter(|key| key.starts_with("d_")).count();
    assert_eq!((kuadrant.checked("ten"), kuadrant.checked("small"), counters()), (Code::Ok, Code::Ok, 0));
    assert_eq!(
        (kuadrant.reported("ten", 7), kuadrant.reported("small", 3), counters()),
        (Code::Ok, Code::Ok, 2)
    );
}

#[test]
fn no_domain_is_the_code_unknown() {
    let server = setup().start();
    let kuadrant = Kuadrant::of(&server);
    let none = RateLimitRequest { domain: String::new(), ..request("d", &[&[("none", "a")]]) };
    assert_eq!(kuadrant.check(none.clone()).unwrap(), RateLimitResponse::default());
    assert_eq!(kuadrant.report(none).unwrap(), RateLimitResponse::default());
    let id = kuadrant.reserved("small", 6).unwrap();
    let none = ReserveRequest { domain: String::new(), ..reserve(&[&[("small", "a")]], 1) };
    assert_eq!(kuadrant.reserve(none).unwrap(), ReserveResponse::default());
    let none = CommitRequest { domain: String::new(), ..commit(&[&[("small", "a")]], &id, 3) };
    assert!(!kuadrant.commit(none).unwrap());
    assert!(kuadrant.committed("small", &id, 0), "it was not released");
    assert_eq!(server.count("ratelimit_service_total_requests{grpc_method=\"Reserve\"}"), 2);
    assert_eq!(server.count("ratelimit_service_total_requests{grpc_method=\"Commit\"}"), 2);
}

#[test]
fn a_reservation_is_in_the_way_until_its_cost_is_committed() {
    everywhere(|place, kuadrant, server| {
        let id = kuadrant.reserved("small", 6).filter(|id| !id.is_empty()).expect(place);
        assert_eq!(kuadrant.reserved("small", 6), None, "{place}: 12 of 10");
        assert!(kuadrant.committed("small", &id, 2), "{place}");
        let again = kuadrant.reserved("small", 6).expect(place);
        assert_eq!(kuadrant.reserved("small", 3), None, "{place}: 2 spent, 6 reserved");
        assert_eq!(kuadrant.checked("small"), Code::Ok, "{place}");
        let last = kuadrant.reserved("small", 2).expect(place);
        assert_eq!(kuadrant.checked("small"), Code::OverLimit, "{place}: a check sees what is reserved");
        assert!(kuadrant.committed("small", &last, 0), "{place}: free");
        // More than was reserved.
        assert!(kuadrant.committed("small", &again, 8), "{place}");
        assert_eq!(
            (kuadrant.reserved("small", 1), kuadrant.checked("small")),
            (None, Code::OverLimit),
            "{place}"
        );
        // The counter and the ids are those of all callers.
        assert_eq!(server.count("tollgate_holds_settled_total{rule=\"d.small\"}"), 3, "{place}");
        assert_eq!(server.count("tollgate_holds_unknown_ids_total"), 0, "{place}");
    });
}

#[test]
fn a_commit_counts_whatever_its_reservation_is() {
    everywhere(|place, kuadrant, server| {
        assert!(!kuadrant.committed("small", "never", 1), "{place}");
        assert!(!kuadrant.committed("small", "", 1), "{place}: none was reserved");
        assert!(!kuadrant.committed("small", &"A".repeat(100_000), 1), "{place}");
        assert_eq!(kuadrant.reserved("small", 8), None, "{place}: 3 of 10 are spent");
        let id = kuadrant.reserved("small", 5).expect(place);
        assert!(kuadrant.committed("small", &id, 2), "{place}");
        assert!(!kuadrant.committed("small", &id, 2), "{place}: twice counts twice");
        assert_eq!(kuadrant.reserved("small", 4), None, "{place}: 7 of 10");
        let id = kuadrant.reserved("small", 1).expect(place);
        kuadrant.report(request("d", &[&[("hold_settle", &*id)], &[("hold_end", &*id)]])).unwrap();
        assert!(kuadrant.committed("small", &id, 0), "{place}: only ShouldRateLimit settles by descriptors");
        // One that has expired costs nothing, and is in nobody's way.
        let expired = kuadrant.reserved("brief", 10).expect(place);
        assert_eq!(kuadrant.reserved("brief", 1), None, "{place}");
        thread::sleep(Duration::from_millis(1100));
        let next = kuadrant.reserved("brief", 10).expect("the first has expired");
        assert!(!kuadrant.committed("brief", &expired, 4), "{place}");
        assert!(kuadrant.committed("brief", &next, 4), "{place}");
        assert_eq!(
            (kuadrant.reserved("brief", 3), kuadrant.reserved("brief", 2).is_some()),
            (None, true),
            "{place}"
        );
        assert!(server.count("tollgate_holds_unknown_ids_total") >= 3, "{place}");
        // Other descriptors than those that it was reserved for.
        let id = kuadrant.reserved("small", 3).expect(place);
        assert!(
            kuadrant.commit(commit(&[&[("ten", "a")], &[("unknown", "b")]], &id, 10)).unwrap(),
            "{place}"
        );
        assert_eq!(
            (kuadrant.checked("ten"), kuadrant.checked("small")),
            (Code::OverLimit, Code::Ok),
            "{place}"
        );
    });
}

#[test]
fn amounts_and_times_beyond_all_numbers_reserve_nothing_too_much() {
    everywhere(|place, kuadrant, server| {
        for amount in [11, 1 << 53, u64::MAX] {
            assert_eq!(kuadrant.reserved("small", amount), None, "{place}: nothing is cut");
        }
        assert_eq!(kuadrant.reserved("small", 0), Some(String::new()), "{place}: nothing is held");
        let id = kuadrant.reserved("small", 10).expect(place);
        assert!(kuadrant.committed("small", &id, 0), "{place}");
        // Where nothing holds, or nothing limits, there is no id.
        let without_id = [
            reserve(&[&[("ten", "a")]], 10),
            reserve(&[&[("unknown", "a")]], 10),
            reserve(&[], 10),
            reserve(&[&[]], 1),
        ];
        for asked in without_id {
            assert_eq!(reservation(&kuadrant.reserve(asked).unwrap()).as_deref(), Some(""), "{place}");
        }
        assert_eq!(kuadrant.reserved("ten", 11), None, "{place}");
        // A limit that does not hold refuses for all.
        let both = reserve(&[&[("small", "a")], &[("none", "a")]], 4);
        assert_eq!(reservation(&kuadrant.reserve(both).unwrap()), None, "{place}");
        let all = kuadrant.reserved("small", 10).expect("what is refused holds nothing");
        assert!(kuadrant.committed("small", &all, 0), "{place}");
        // The rule's time is the longest, and that of a request without a valid one.
        for (seconds, nanos) in
            [(0, 0), (-1, 0), (0, -1), (i64::MIN, i32::MIN), (i64::MAX, i32::MAX), (i64::MAX, 0)]
        {
            let ttl = Some(prost_types::Duration { seconds, nanos });
            let asked = ReserveRequest { ttl, ..reserve(&[&[("small", "a")]], 10) };
            let id = reservation(&kuadrant.reserve(asked).unwrap()).expect(place);
            assert_eq!(kuadrant.reserved("small", 1), None, "{place} {ttl:?}");
            assert!(kuadrant.committed("small", &id, 0), "{place} {ttl:?}");
        }
        let ttl = Some(prost_types::Duration { seconds: 0, nanos: 200_000_000 });
        let asked = ReserveRequest { ttl, ..reserve(&[&[("small", "a")]], 10) };
        assert!(reservation(&kuadrant.reserve(asked).unwrap()).is_some(), "{place}");
        thread::sleep(Duration::from_millis(300));
        assert!(
            kuadrant.reserved("small", 10).is_some_and(|id| kuadrant.committed("small", &id, 0)),
            "{place}"
        );
        for _ in 0..3 {
            assert!(!kuadrant.committed("small", "", u64::MAX), "{place}");
            assert_eq!(kuadrant.reserved("small", 1), None, "{place}");
        }
        assert_eq!(kuadrant.checked("small"), Code::OverLimit, "{place}");
        let panics =
            server.metrics().into_iter().filter(|(name, _)| name.starts_with("tollgate_panics_total"));
        assert!(panics.map(|(_, times)| times).all(|times| times < 1.0), "{place}");
    });
}

/// Kuadrant's own suite: requests at once, a user beside another, and the mode without reservations.
#[test]
fn token_limits_of_users_admit_what_they_have_room_for() {
    everywhere(|place, kuadrant, server| {
        let entries = |user| [("tokenlimit.free__65da223d", "1"), ("auth.identity.userid", user)];
        let reserved = |user: &'static str| {
            let labels = [("metric.model", "m")];
            reservation(&kuadrant.reserve(reserve(&[&entries(user), &labels], 50)).unwrap())
        };
        let at_once = thread::scope(|scope| {
            let all = [(); 3].map(|()| {
                scope.spawn(|| {
                    let asked = reserve(&[&entries("ann")], 50);
                    reservation(&Kuadrant::of(server).reserve(asked).unwrap())
                })
            });
            all.map(|one| one.join().unwrap())
        });
        let ids: Vec<_> = at_once.iter().flatten().collect();
        assert_eq!(ids.len(), 2, "{place}: 150 of 100");
        assert!(reserved("bob").is_some(), "{place}: another user");
        for id in ids {
            assert!(kuadrant.commit(commit(&[&entries("ann")], id, 35)).unwrap(), "{place}");
        }
        assert_eq!(reserved("ann"), None, "{place}: 70 of 100");
        let asked = request("d", &[&entries("ann")]);
        assert_eq!(
            kuadrant.check(asked.clone()).unwrap().overall_code(),
            Code::Ok,
            "{place}: amounts do not matter"
        );
        kuadrant.report(RateLimitRequest { hits_addend: 60, ..asked.clone() }).unwrap();
        assert_eq!(kuadrant.check(asked).unwrap().overall_code(), Code::OverLimit, "{place}");
    });
}

#[test]
fn another_replica_commits_and_an_ordinary_hold_is_a_reservation_too() {
    let redis = Redis::single();
    let shared = setup().redis(&redis.env());
    let servers = [shared.clone().start_healthy(), shared.start_healthy()];
    let [here, there] = servers.each_ref().map(Kuadrant::of);
    let id = here.reserved("small", 10).unwrap();
    assert_eq!((there.reserved("small", 1), there.checked("small")), (None, Code::OverLimit));
    assert!(there.committed("small", &id, 4));
    assert!(!here.committed("small", &id, 0));
    assert_eq!(here.reserved("small", 7), None);
    let held = super::Holder::of(&servers[0]).hold_hits("small", "a", 6).unwrap();
    assert!(there.committed("small", &held, 6), "the room of a hold is freed, and its cost is the report");
    assert_eq!(here.checked("small"), Code::OverLimit);
    let id = here.reserved("brief", 9).unwrap();
    super::Holder::of(&servers[1]).settle(&id, 3);
    assert_eq!((here.reserved("brief", 8), here.reserved("brief", 7).is_some()), (None, true));
}

#[test]
fn a_caller_who_leaves_a_reservation_holds_nothing() {
    let redis = Redis::single();
    let server = setup().redis(&redis.env()).env("REDIS_TIMEOUT", "5s").start_healthy();
    let kuadrant = Kuadrant::of(&server);
    assert_eq!(kuadrant.checked("small"), Code::Ok, "the connection is open");
    redis.freeze();
    let asked = reserve(&[&[("small", "a")]], 10);
    let left = server.client().call(|channel| async move {
        let mut client = RateLimitServiceClient::new(channel);
        timeout(Duration::from_millis(100), client.reserve(asked)).await
    });
    assert!(left.is_err(), "{left:?}");
    // A commit is counted even so.
    let asked = commit(&[&[("brief", "a")]], "", 10);
    let left = server.client().call(|channel| async move {
        let mut client = RateLimitServiceClient::new(channel);
        timeout(Duration::from_millis(100), client.commit(asked)).await
    });
    assert!(left.is_err(), "{left:?}");
    redis.thaw();
    eventually("the reservation has gone", || {
        let id = kuadrant.reserved("small", 10);
        holds(id.is_some(), || server.process.log().to_string())
    });
    eventually("the commit is counted", || {
        let code = kuadrant.checked("brief");
        holds(code == Code::OverLimit, || format!("{code:?}"))
    });
}

#[test]
fn errors_have_the_statuses_that_kuadrants_filter_fails_on() {
    let mut redis = Redis::single();
    let more = [("MAX_DESCRIPTORS_PER_REQUEST", "2"), ("REDIS_TIMEOUT", "300ms")];
    let setup = more.iter().fold(setup().redis(&redis.env()), |setup, (name, value)| setup.env(name, value));
    let server = setup.start_healthy();
    let kuadrant = Kuadrant::of(&server);
    let one: &[(&str, &str)] = &[("ten", "a")];
    let three = &[one; 3];
    let id = kuadrant.reserved("small", 10).unwrap();
    let failed = |kuadrant: &Kuadrant, descriptors: &[&[(&str, &str)]]| {
        let codes = [
            kuadrant.check(request("d", descriptors)).map(drop),
            kuadrant.report(request("d", descriptors)).map(drop),
            kuadrant.reserve(reserve(descriptors, 1)).map(drop),
            kuadrant.commit(commit(descriptors, &id, 1)).map(drop),
        ];
        codes.map(|result| result.map_err(|status| status.code()))
    };
    assert_eq!(failed(&kuadrant, three), [Err(Grpc::InvalidArgument); 4]);
    redis.freeze();
    assert_eq!(failed(&kuadrant, &[&[("small", "a")]]), [Err(Grpc::Unavailable); 4]);
    redis.thaw();
    eventually("what the commit ends is freed once Redis answers", || {
        let again = kuadrant.reserve(reserve(&[&[("small", "a")]], 7)).map(|answer| answer.code());
        holds(again.as_ref().is_ok_and(|code| *code == Code::Ok), || format!("{again:?}"))
    });
    redis.kill();
}
