//! memcached killed, frozen and unreachable under a steady load, with all policies at the same time.

use std::{
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use crate::{
    counters::redis::{ENVOYS_PATIENCE, assert_in_time, by_policy, of_kind, turn},
    support::{
        eventually, holds,
        proxy::{Proxy, Way},
        server::Server,
        steady::{Asked, Outcome, Steady, Verdict},
    },
};

use super::{Memcached, one, setup, with_rules};

/// Indexes in the list of requests that the load cycles through.
const MANY: usize = 0;
const FIVE: usize = 1;

const PER_SECOND: u32 = 60;
/// The time before the fault.
const CALM: Duration = Duration::from_millis(700);
const FAULT: Duration = Duration::from_secs(2);
/// The time until counters decide every request again after memcached is back.
const RECOVERY: Duration = Duration::from_secs(1);
/// The first decisions may still come from memcached or wait for it; the last ones may be late.
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

#[test]
fn memcached_is_killed_and_restarted() {
    play(|memcached, _| memcached.kill(), |memcached, _| memcached.start());
}

#[test]
fn memcached_is_frozen() {
    play(|memcached, _| memcached.freeze(), |memcached, _| memcached.thaw());
}

#[test]
fn packets_to_memcached_are_dropped() {
    play(|_, proxy| proxy.set(Way::BlackHole), |_, proxy| proxy.set(Way::CLEAR));
}

/// Runs services with all policies through a fault, again if counters were late because the machine may be busy.
fn play(begin: impl Fn(&mut Memcached, &Proxy), end: impl Fn(&mut Memcached, &Proxy)) {
    let _turn = turn();
    let late: Vec<_> = (0..4).map_while(|_| play_once(&begin, &end).err()).collect();
    assert!(late.len() < 4, "counters decided too late each time: {late:#?}");
}

fn play_once(
    begin: impl Fn(&mut Memcached, &Proxy),
    end: impl Fn(&mut Memcached, &Proxy),
) -> Result<(), String> {
    let mut memcached = Memcached::single();
    let proxy = Proxy::to(memcached.port);
    let policies = [Policy::Error, Policy::Allow, Policy::Deny, Policy::Local];
    let services = policies.map(|policy| Service::start(policy, &proxy));
    thread::sleep(CALM);
    for service in &services {
        eventually("it counts", || holds(service.counts(), || service.server.process.log()));
    }
    // A busy machine makes some decisions late also while memcached answers.
    let calm = services.each_ref().map(Service::without_counters);
    let began = Instant::now();
    begin(&mut memcached, &proxy);
    thread::sleep(FAULT);
    for service in &services {
        eventually("the loss is seen", || {
            let (by_policy, healthy) = (by_policy(&service.server), service.server.is_healthy());
            holds(by_policy > 0.0 && !healthy, || {
                let (policy, log) = (service.policy, service.server.process.log());
                format!("{policy:?}: {by_policy} by policy, healthy: {healthy}\n{log}")
            })
        });
    }
    let lost = began + MARGIN..began + FAULT.saturating_sub(MARGIN);
    end(&mut memcached, &proxy);
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
    fn start(policy: Policy, proxy: &Proxy) -> Self {
        let name = format!("{policy:?}").to_lowercase();
        // Default timeouts; counters separate from those of the other services.
        let setup = with_rules(setup(&proxy.address())).unset("MEMCACHE_TIMEOUT");
        let setup = setup.unset("MEMCACHE_CONNECT_TIMEOUT").env("CACHE_KEY_PREFIX", &name);
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

/// While memcached is lost the policy decides.
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
