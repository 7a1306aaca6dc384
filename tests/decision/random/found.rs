//! What random requests have found, each as its shortest sequence.

use std::time::Duration;

use proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::{
        RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus},
    },
    r#type::v3::RateLimitUnit,
};

use support::{
    client::request,
    redis::{Cluster, Redis},
    server::{Server, Setup},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: budget, rate_limit: {unit: year, requests_per_unit: 10, hold: {amount: 4, ttl: 1h}}}
  - {key: streams, rate_limit: {algorithm: concurrency, requests_per_unit: 3, hold: {ttl: 1h}}}
  - key: both
    rate_limit:
      - {algorithm: concurrency, requests_per_unit: 5, hold: {ttl: 1h}}
      - {unit: year, requests_per_unit: 10, hold: {amount: 1, ttl: 1h}}
  - key: quota
    quota_mode: true
    rate_limit:
      - {unit: year, requests_per_unit: 10, hold: {amount: 4, ttl: 1h}}
      - {unit: month, requests_per_unit: 1, hold: {amount: 1, ttl: 1h}}
  - {key: other, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 10}}
  - key: list
    shadow_mode: true
    rate_limit: [{unit: year, requests_per_unit: 0}, {unit: month, requests_per_unit: 0}]
";

fn ask(server: &Server, key: &str, hits: Option<u64>, is_refund: bool) -> RateLimitResponse {
    let mut asked = request("d", &[&[(key, "v")]]);
    asked.descriptors[0].hits_addend = hits;
    asked.descriptors[0].is_negative_hits = is_refund;
    server.ask(asked).unwrap_or_else(|error| panic!("{error}\n{}", server.process.log()))
}

fn in_memory_and_redis(check: impl Fn(&Server)) {
    let redis = Redis::single();
    for setup in [Setup::new(), Setup::new().redis(&redis.env())] {
        check(&setup.rules("d.yaml", RULES).start_healthy());
    }
}

#[test]
fn a_refund_answers_what_remains_beside_what_is_held() {
    in_memory_and_redis(|server| {
        assert_eq!(ask(server, "budget", None, false).statuses[0].limit_remaining, 6);
        assert_eq!(ask(server, "budget", Some(1), true).statuses[0].limit_remaining, 6);
        assert_eq!(ask(server, "budget", Some(0), false).statuses[0].limit_remaining, 6);
    });
}

#[test]
fn a_refund_of_a_list_with_a_concurrency_limit_is_answered() {
    in_memory_and_redis(|server| {
        let answer = ask(server, "both", Some(1), true);
        assert_eq!((answer.overall_code(), answer.statuses[0].limit_remaining), (Code::Ok, 5));
    });
}

#[test]
fn a_refund_of_a_concurrency_limit_is_ok_even_over_the_limit() {
    in_memory_and_redis(|server| {
        for _ in 0..3 {
            ask(server, "streams", None, false);
        }
        assert_eq!(ask(server, "streams", Some(1), true).overall_code(), Code::Ok, "none is over");
        server.write("d.yaml", &RULES.replace("requests_per_unit: 3", "requests_per_unit: 2"));
        server.wait_for_rule("requests_per_unit=2");
        assert_eq!(ask(server, "streams", Some(1), true).overall_code(), Code::Ok);
    });
}

#[test]
fn an_exhausted_quota_with_a_list_holds_nothing() {
    in_memory_and_redis(|server| {
        let mut both = request("d", &[&[("quota", "v")], &[("other", "v")]]);
        both.hits_addend = 1;
        let [first, second] = [(); 2].map(|()| server.ask(both.clone()).unwrap());
        assert!(first.dynamic_metadata.is_some(), "both limits have room");
        let codes = second.statuses.iter().map(DescriptorStatus::code).collect::<Vec<_>>();
        assert_eq!((second.overall_code(), codes), (Code::Ok, vec![Code::OverLimit, Code::Ok]));
        assert!(second.dynamic_metadata.is_none(), "{second:?}");
    });
}

#[test]
fn a_refund_of_a_list_that_holds_counts_behind_another_list() {
    let (redis, cluster) = (Redis::single(), Cluster::start(Duration::from_secs(15)));
    for env in [redis.env(), cluster.env()] {
        let setup = Setup::new().redis(&env).env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true");
        let server = setup.env("REDIS_TIMEOUT", "5s").rules("d.yaml", RULES).start_healthy();
        for value in ["a", "b", "c", "d"] {
            let ask = |asked| {
                let answer = server.ask(asked);
                answer.unwrap_or_else(|error| panic!("{error}\n{}", server.process.log()))
            };
            // A larger limit that comes with the request spends eight of ten.
            let mut spends = request("d", &[&[("both", value)]]);
            let unit = RateLimitUnit::Year.into();
            spends.descriptors[0].limit =
                Some(RateLimitOverride { requests_per_unit: 100, unit, unit_multiplier: None });
            spends.descriptors[0].hits_addend = Some(8);
            assert_eq!(ask(spends).overall_code(), Code::Ok);
            let mut refund = request("d", &[&[("list", value)], &[("both", value)]]);
            refund.descriptors[1].hits_addend = Some(8);
            refund.descriptors[1].is_negative_hits = true;
            assert_eq!(ask(refund.clone()).statuses[1].limit_remaining, 5, "{value}");
            let mut read = request("d", &[&[("both", value)]]);
            read.descriptors[0].hits_addend = Some(0);
            assert_eq!(
                ask(read).statuses[0].limit_remaining,
                5,
                "{value}: of ten all are left, and five places"
            );
        }
    }
}
