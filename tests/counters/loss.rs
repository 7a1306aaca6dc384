//! A store that is killed, frozen, unreachable or slow under a steady load, with all policies at the same time: one test a
//! kind of failure. Both stores share the queues, deadlines and breakers of `wire`.

use std::{
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use super::redis::{ENVOYS_PATIENCE, RULES, assert_in_time, by_policy, of_kind, one, turn};
use support::{
    eventually, holds,
    memcached::{self, Memcached},
    proxy::{Proxy, Way},
    redis::{Redis, tcp},
    server::{Server, Setup},
    steady::{Asked, Outcome, Steady, Verdict},
};

/// Indexes in the list of requests that the load cycles through.
const MANY: usize = 0;
const FIVE: usize = 1;

const PER_SECOND: u32 = 60;
/// The time before the fault.
const CALM: Duration = Duration::from_millis(700);
const FAULT: Duration = Duration::from_secs(2);
/// The time until counters decide every request again after the store is back.
const RECOVERY: Duration = Duration::from_secs(1);
/// The first decisions may still come from the store or wait for it; the last ones may be late.
const MARGIN: Duration = Duration::from_millis(300);
/// The interval in which decisions are counted.
const WINDOW: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Policy {
    Error,
    Allow,
    Deny,
    Local,
}

/// A store that a test can disturb, behind a proxy.
trait Store {
    fn start_new() -> Self;
    fn port(&self) -> u16;
    /// A service with default timeouts for the store at this address.
    fn setup(address: &str) -> Setup;
}

impl Store for Redis {
    fn start_new() -> Self {
        Self::single()
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn setup(address: &str) -> Setup {
        Setup::new().redis(&tcp(address)).unset("REDIS_TIMEOUT").unset("REDIS_CONNECT_TIMEOUT")
    }
}

impl Store for Memcached {
    fn start_new() -> Self {
        Self::single()
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn setup(address: &str) -> Setup {
        memcached::setup(address).unset("MEMCACHE_TIMEOUT").unset("MEMCACHE_CONNECT_TIMEOUT")
    }
}

#[test]
fn the_policy_decides_while_redis_is_killed_and_until_it_is_back() {
    play::<Redis>(|redis, _| redis.kill(), |redis, _| redis.start());
}

#[test]
fn the_policy_decides_while_packets_to_redis_are_late() {
    let delay = |_: &mut Redis, proxy: &Proxy| proxy.set(Way::Open(Duration::from_millis(50)));
    play(delay, |_, proxy| proxy.set(Way::CLEAR));
}

#[test]
fn the_policy_decides_while_memcached_is_frozen() {
    play::<Memcached>(|memcached, _| memcached.freeze(), |memcached, _| memcached.thaw());
}

#[test]
fn the_policy_decides_while_packets_to_memcached_are_dropped() {
    let drop_all = |_: &mut Memcached, proxy: &Proxy| proxy.set(Way::BlackHole);
    play(drop_all, |_, proxy| proxy.set(Way::CLEAR));
}

/// Runs services with all policies through a fault, again if counters were late because the machine may be busy.
fn play<S: Store>(begin: impl Fn(&mut S, &Proxy), end: impl Fn(&mut S, &Proxy)) {
    let _turn = turn();
    let late: Vec<_> = (0..4).map_while(|_| play_once(&begin, &end).err()).collect();
    assert!(late.len() < 4, "counters decided too late each time: {late:#?}");
}

fn play_once<S: Store>(begin: impl Fn(&mut S, &Proxy), end: impl Fn(&mut S, &Proxy)) -> Result<(), String> {
    let mut store = S::start_new();
    let proxy = Proxy::to(store.port());
    let policies = [Policy::Error, Policy::Allow, Policy::Deny, Policy::Local];
    let services = policies.map(|policy| Service::start(policy, S::setup(&proxy.address())));
    thread::sleep(CALM);
    for service in &services {
        eventually("it counts", || holds(service.counts(), || service.server.process.log()));
    }
    // A busy machine makes some decisions late also while the store answers.
    let calm = services.each_ref().map(Service::without_counters);
    let began = Instant::now();
    begin(&mut store, &proxy);
    thread::sleep(FAULT);
    for service in &services {
        eventually("the loss is seen", || {
            let (by_policy, is_healthy) = (by_policy(&service.server), service.server.is_healthy());
            holds(by_policy > 0.0 && !is_healthy, || {
                let (policy, log) = (service.policy, service.server.process.log());
                format!("{policy:?}: {by_policy} by policy, healthy: {is_healthy}\n{log}")
            })
        });
    }
    let lost = began + MARGIN..began + FAULT.saturating_sub(MARGIN);
    end(&mut store, &proxy);
    let ended = Instant::now();
    let back = calm.iter().zip(&services).map(|(calm, service)| {
        eventually("counters decide again", || service.decides_by_counters(*calm));
        ended.elapsed()
    });
    let back: Vec<_> = back.collect();
    // All are checked, even if the first fails.
    let checked = services.into_iter().zip(back).map(|(service, back)| service.check(&lost, back));
    let late: Vec<_> = checked.filter_map(Result::err).collect();
    holds(late.is_empty(), || late.join(", "))
}

/// A service under load.
struct Service {
    policy: Policy,
    server: Server,
    load: Steady,
}

impl Service {
    fn start(policy: Policy, setup: Setup) -> Self {
        let name = format!("{policy:?}").to_lowercase();
        // Counters separate from those of the other services.
        let setup = setup.rules("d.yaml", RULES).env("CACHE_KEY_PREFIX", &name);
        let server = setup.env("STORE_FAILURE_POLICY", &name).start_healthy();
        let (requests, control) = ([one("many", "v"), one("five", "v")], one("control", "v"));
        let load = Steady::start(server.ports.grpc, PER_SECOND, ENVOYS_PATIENCE, &requests, &control);
        Self { policy, server, load }
    }

    fn counts(&self) -> bool {
        let is_over = |name: &str| {
            name.starts_with("ratelimit_service_rate_limit_over_limit{") && name.contains("five")
        };
        self.server.metrics().iter().any(|(name, count)| is_over(name) && *count > 0.0)
    }

    /// The decisions of a window that are made by policy.
    fn without_counters(&self) -> f64 {
        let before = by_policy(&self.server);
        thread::sleep(WINDOW);
        by_policy(&self.server) - before
    }

    /// Counters decide all but a tenth of the requests, or as many as in a window before the fault.
    fn decides_by_counters(&self, calm: f64) -> Result<(), String> {
        let all = f64::from(PER_SECOND) * WINDOW.as_secs_f64();
        let (without, most) = (self.without_counters(), all / 10.0 + calm);
        holds(without <= most, || format!("{without} of {all} decisions without counters, {calm} before"))
    }

    /// An error if counters decided again too late.
    fn check(self, lost: &Range<Instant>, back: Duration) -> Result<(), String> {
        let Self { policy, server, load } = self;
        server.wait_until_healthy();
        let outcome = load.stop();
        assert_in_time(&outcome, ENVOYS_PATIENCE);
        check_verdicts(policy, &outcome, lost);
        // The services are checked one after the other, and a busy machine may delay each of several steps.
        let machine = outcome.control.iter().map(|one| one.took).max().unwrap_or_default();
        let may_take = RECOVERY + 4 * WINDOW + 10 * machine;
        assert!(!server.final_log().contains("panicked"));
        holds(back <= may_take, || format!("{policy:?}: after {back:?}, machine {machine:?}"))
    }
}

/// Longer requests were late before they were sent: the machine was busy.
fn is_in_time(one: &Asked) -> bool {
    one.took <= ENVOYS_PATIENCE
}

/// While the store is lost the policy decides.
fn check_verdicts(policy: Policy, outcome: &Outcome, lost: &Range<Instant>) {
    let during = |kind| of_kind(outcome, kind).filter(|one| is_in_time(one) && lost.contains(&one.due));
    let is_usual = |one: &&Asked| match policy {
        Policy::Error => matches!(one.verdict, Verdict::Error(2, _)),
        Policy::Allow | Policy::Local => one.verdict == Verdict::Ok,
        Policy::Deny => one.verdict == Verdict::OverLimit,
    };
    let (usual, all) = (during(MANY).filter(is_usual).count(), during(MANY).count());
    let unusual: Vec<_> = during(MANY).filter(|one| !is_usual(one)).collect();
    assert!(
        usual * 100 >= all * 98,
        "{policy:?}: {usual} of {all} decisions are those of the policy; {unusual:?}"
    );
    let passed = during(FIVE).filter(|one| one.verdict == Verdict::Ok).count();
    let may_pass = match policy {
        Policy::Error | Policy::Deny => 0..1,
        Policy::Allow => during(FIVE).count() * 98 / 100..usize::MAX,
        Policy::Local => 0..6,
    };
    assert!(may_pass.contains(&passed), "{policy:?}: {passed} of {} passed", during(FIVE).count());
}
