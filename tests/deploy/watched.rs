//! Envoy, Tollgate with Redis, and Prometheus together: the cause of each alert is injected, and every query of the
//! dashboard must have data.

use std::{
    collections::BTreeSet,
    fs,
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use proto::envoy::{
    extensions::common::ratelimit::v3::RateLimitDescriptor, service::ratelimit::v3::RateLimitRequest,
};

use support::client::hold_id;
use support::{
    client::descriptor,
    clock::Clock,
    eventually, holds,
    proxy::{Proxy, Way},
    redis::{self, Redis},
    server::{Server, Setup},
};

use super::{
    dependent::Dependent,
    front::Front,
    prometheus::Prometheus,
    read,
    rules::{RULES, alerts, dashboard_queries},
    secured::Secured,
};

/// Rules with data for every panel: names made from requests, and shadow mode.
const NAMED: &str = "
domain: named
descriptors:
  - key: tenant
    value_to_metric: true
    rate_limit: {unit: hour, requests_per_unit: 1000000}
  - key: rehearsed
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: budget
    rate_limit: {unit: hour, requests_per_unit: 1000000, hold: {amount: 1, ttl: 1h}}
  - key: forgotten
    rate_limit: {unit: hour, requests_per_unit: 1000000, hold: {amount: 1, ttl: 100ms}}
";

/// These may fire at any time on a busy machine, on which a store answers late; promtool's tests check when they are silent.
const ABOUT_TIME: [&str; 8] = [
    "TollgateEnvoyErrors",
    "TollgateRedisSlow",
    "TollgateLatencyHigh",
    "TollgateRedisUnavailable",
    "TollgateMemcachedUnavailable",
    "TollgateStoreFailures",
    "TollgateErrorRateHigh",
    "TollgateNotEnforced",
];

#[test]
fn each_alert_fires_with_its_cause_and_every_query_of_the_dashboard_has_data() {
    let _clock = Clock::machine().enter();
    let redis = Redis::single();
    let way = Proxy::to(redis.port);
    let mut shared = setup().redis(&redis::tcp(&way.address())).start_healthy();
    let mut alone = setup()
        .env("MEMORY_MAX_KEYS", "1000")
        .env("METRICS_MAX_SERIES", "4")
        .env("GRPC_MAX_CONNECTIONS", "8")
        .env("TOLLGATE_TEST_PANICS", "panics")
        .start();
    let mut secured = Secured::start();
    let mut dependent = Dependent::start();
    let envoy = Front::start(shared.ports.grpc);
    let at_once: String = read(RULES).lines().map(at_once).collect();
    let jobs = [
        ("tollgate", vec![shared.ports.metrics, alone.ports.metrics]),
        // This job has other rules, which must not count as a difference between replicas.
        ("secured", vec![secured.server.ports.metrics]),
        ("dependent", vec![dependent.server.ports.metrics]),
    ];
    let prometheus = Prometheus::start(&jobs, envoy.metrics, &at_once);
    let mut watch = Watch { prometheus: &prometheus, fired: BTreeSet::new() };

    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| envoy.ask_until(&over));
        // Also if a check below fails, so that the load stops and the failure is reported.
        let _ends = Ends(&over);

        watch.sees_load();
        watch.sees_that_all_is_well();
        freeze(&shared, &mut watch);
        lose_redis(&redis, &way, &shared, &mut watch);
        forget_to_settle(&alone, &mut watch);
        if cfg!(debug_assertions) {
            panic_once(&alone, &mut watch);
        }
        serve_other_rules(&alone, &mut watch);
        go_beyond_bounds(&alone, &mut watch);
        neglect(&mut secured, &mut watch);
        take_away(&mut dependent, &mut watch);

        show_the_rest(&shared);
        watch.expects(&["TollgateUnmatchedTraffic"]);
        secured.speak_no_tls();
        let [_, all] = dashboard_queries();
        watch.sees_panels(all);
    });

    for server in [&mut shared, &mut alone, &mut secured.server, &mut dependent.server] {
        server.process.kill();
    }
    watch.expects(&["TollgateDown"]);
    let mut expected = alerts();
    if !cfg!(debug_assertions) {
        expected.remove("TollgatePanics");
    }
    assert_eq!(watch.fired, expected, "each alert was seen to fire");
}

/// As deployed by the manifests: no TLS, no control plane, no collector, no rules that hold, and nothing goes wrong.
#[test]
fn every_open_panel_of_the_dashboard_has_data_with_redis() {
    let _clock = Clock::machine().enter();
    let redis = Redis::single();
    let server = Setup::new().rules("shop.yaml", &read("deploy/kubernetes/rules/shop.yaml"));
    let server = server.redis(&redis::tcp(&format!("127.0.0.1:{}", redis.port))).start_healthy();
    let envoy = Front::start(server.ports.grpc);
    let jobs = [("tollgate", vec![server.ports.metrics])];
    let prometheus = Prometheus::start(&jobs, envoy.metrics, &read(RULES));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| envoy.ask_until(&over));
        let _ends = Ends(&over);
        let [shown, _] = dashboard_queries();
        assert!(shown.len() > 30, "{shown:?}");
        Watch { prometheus: &prometheus, fired: BTreeSet::new() }.sees_panels(shown);
    });
}

fn setup() -> Setup {
    Setup::new().rules("shop.yaml", &read("deploy/kubernetes/rules/shop.yaml")).rules("named.yaml", NAMED)
}

/// A line of the rules without the `for` of an alert.
fn at_once(line: &str) -> String {
    match line.split_once("for: ") {
        Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: 0s\n"),
        _ => format!("{line}\n"),
    }
}

/// The alerts of Prometheus so far.
struct Watch<'a> {
    prometheus: &'a Prometheus,
    fired: BTreeSet<String>,
}

impl Watch<'_> {
    /// Waits until the requests of Envoy are scraped.
    fn sees_load(&self) {
        eventually("the load is recorded", || {
            let rate = self
                .prometheus
                .query("namespace_job_domain:ratelimit_service_rate_limit_total_hits:rate5m > 0");
            let over = self
                .prometheus
                .query("namespace_job_domain:ratelimit_service_rate_limit_over_limit:rate5m > 0");
            holds(!rate.is_empty() && !over.is_empty(), || format!("{rate:?}, {over:?}"))
        });
    }

    /// Only alerts that a busy machine may cause are firing.
    fn sees_that_all_is_well(&self) {
        let mut firing = self.prometheus.firing();
        firing.retain(|name, _| !ABOUT_TIME.contains(&name.as_str()));
        assert!(firing.is_empty(), "all is well, but for {firing:?}");
    }

    /// Waits until every one of these queries of the dashboard has data.
    fn sees_panels(&self, queries: Vec<(String, String)>) {
        for (place, query) in queries {
            eventually(&format!("{place} of the dashboard shows something"), || {
                let samples = self.prometheus.query(&query);
                holds(samples.iter().any(|(_, value)| value.is_finite()), || format!("{query}: {samples:?}"))
            });
        }
    }

    /// Waits until these alerts fire, none of which did before, with complete texts.
    fn expects(&mut self, names: &[&str]) {
        for name in names.iter().filter(|name| !ABOUT_TIME.contains(name)) {
            assert!(!self.fired.contains(*name), "{name} fired before its cause");
        }
        eventually("the alerts fire", || {
            let firing = self.prometheus.firing();
            self.fired.extend(firing.keys().cloned());
            let texts = firing.values().flatten().map(ToString::to_string).collect::<String>();
            assert!(!texts.contains("no value") && !texts.contains("error expanding"), "{texts}");
            let missing: Vec<_> = names.iter().filter(|name| !firing.contains_key(**name)).collect();
            holds(missing.is_empty(), || format!("no {missing:?} among {:?}", firing.keys()))
        });
    }
}

/// Sets a flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One replica of two is frozen, and Envoy gives up on what it sends there.
fn freeze(server: &Server, watch: &mut Watch<'_>) {
    server.process.signal("STOP");
    watch.expects(&["TollgateReplicaDown", "TollgateEnvoyErrors"]);
    server.process.signal("CONT");
    watch.expects(&["TollgateLatencyHigh"]);
}

/// Redis is slow, then frozen, then cut off while requests end that hold, then back.
fn lose_redis(redis: &Redis, way: &Proxy, server: &Server, watch: &mut Watch<'_>) {
    let ids: Vec<_> =
        (0..101).filter_map(|_| hold_id(&server.ask(holding("budget")).expect("it holds"))).collect();
    assert_eq!(ids.len(), 101);
    way.set(Way::Open(Duration::from_millis(30)));
    watch.expects(&["TollgateRedisSlow"]);
    way.set(Way::CLEAR);
    redis.freeze();
    watch.expects(&[
        "TollgateRedisUnavailable",
        "TollgateStoreFailures",
        "TollgateErrorRateHigh",
        "TollgateNotEnforced",
    ]);
    way.set(Way::Cut);
    redis.thaw();
    for id in &ids {
        let end = of("named", vec![descriptor(&[("hold_end", id)])]);
        server.ask(end).expect("an end is always answered");
    }
    watch.expects(&["TollgateHoldsQueued"]);
    way.set(Way::CLEAR);
}

/// Nobody settles what requests hold.
fn forget_to_settle(server: &Server, watch: &mut Watch<'_>) {
    // The first ones make the series, whose increase counts from then on.
    server.ask(holding("forgotten")).expect("it holds");
    eventually("the series is recorded", || {
        let ended = watch.prometheus.query("tollgate_holds_ended_total{how=\"expired\"}");
        holds(!ended.is_empty(), || format!("{ended:?}"))
    });
    for _ in 0..50 {
        server.ask(holding("forgotten")).expect("it holds");
    }
    watch.expects(&["TollgateHoldsUnsettled"]);
}

fn holding(key: &str) -> RateLimitRequest {
    of("named", vec![descriptor(&[(key, "team")])])
}

/// One request panics, which builds with debug assertions support.
fn panic_once(server: &Server, watch: &mut Watch<'_>) {
    let points = server.dir().join("panics");
    fs::create_dir_all(&points).unwrap();
    fs::write(points.join("grpc_request"), "").unwrap();
    let tenant = || of("named", vec![descriptor(&[("tenant", "one")])]);
    server.ask(tenant()).expect_err("the request panics");
    server.ask(tenant()).expect("the next one does not");
    watch.expects(&["TollgatePanics"]);
}

/// One replica gets invalid rules, then other rules than its neighbour.
fn serve_other_rules(server: &Server, watch: &mut Watch<'_>) {
    server.write("shop.yaml", "domain: shop\ndescriptors: [{value: no key}]\n");
    watch.expects(&["TollgateRulesRejected"]);
    server.write("shop.yaml", "domain: shop\ndescriptors: []\n");
    watch.expects(&["TollgateRulesDiffer"]);
}

/// A small service exceeds its bounds.
fn go_beyond_bounds(server: &Server, watch: &mut Watch<'_>) {
    fill_with_keys(server);
    watch.expects(&["TollgateStoreFull", "TollgateSeriesLimitReached"]);
    ask_too_much(server);
    watch.expects(&["TollgateBoundsReached"]);
}

/// Certificates expire and the control plane fails.
fn neglect(secured: &mut Secured, watch: &mut Watch<'_>) {
    secured.serve_what_expires_soon();
    watch.expects(&["TollgateCertificateExpiring"]);
    secured.confuse_the_keys();
    watch.expects(&["TollgateCertificateReloadFailed"]);
    secured.publish_nonsense();
    watch.expects(&["TollgateXdsUpdatesRejected"]);
    secured.lose_the_control_plane();
    watch.expects(&["TollgateControlPlaneDisconnected"]);
}

/// The collector stops, then memcached.
fn take_away(dependent: &mut Dependent, watch: &mut Watch<'_>) {
    dependent.lose_the_collector();
    watch.expects(&["TollgateSpansDropped", "TollgateMetricsNotExported"]);
    dependent.lose_memcached();
    watch.expects(&["TollgateMemcachedUnavailable"]);
}

/// More counters and series than the bounds.
fn fill_with_keys(server: &Server) {
    let client = server.client();
    for batch in 0..40 {
        let tenants: Vec<_> = (0..100).map(|number| format!("{batch}-{number}")).collect();
        let descriptors = tenants.iter().map(|tenant| descriptor(&[("tenant", tenant)])).collect();
        client.ask(of("named", descriptors)).expect("limits hold all the same");
    }
}

/// A request and connections beyond a bound.
fn ask_too_much(server: &Server) {
    let descriptors = (0..200).map(|_| descriptor(&[("tenant", "many")])).collect();
    server.ask(of("named", descriptors)).expect_err("these are too many descriptors");
    let open = || TcpStream::connect(("127.0.0.1", server.ports.grpc)).unwrap();
    let connections: Vec<_> = (0..12).map(|_| open()).collect();
    eventually("silent connections make room", || {
        let metrics = server.metrics();
        let closed =
            metrics.get("tollgate_connections_closed_total{port=\"grpc\",reason=\"silent\"}").copied();
        holds(closed.is_some_and(|count| count > 0.0), || format!("{closed:?}"))
    });
    drop(connections);
}

/// Data without an alert: a domain without rules, and a limit in shadow mode.
fn show_the_rest(server: &Server) {
    for domain in ["misspelt", "named"] {
        let rehearsed = || vec![descriptor(&[("rehearsed", "yes")])];
        eventually("it answers again", || {
            server.ask(of(domain, rehearsed())).map_err(|status| status.to_string())
        });
    }
}

fn of(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 }
}
