//! The pull requests of `envoyproxy/ratelimit` after the recorded answers: merged ones are the default, open ones have a
//! variable. docs/differences.md lists them.

// 1140: `is_negative_hits`.
mod negative_hits;

use proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::support::{
    client::{descriptor, request},
    memcached::Memcached,
    redis::Redis,
    server::Setup,
};

/// Every store, with a service's setup. The stores stop with the list.
struct Stores(Vec<(&'static str, Setup, Box<dyn std::any::Any>)>);

impl Stores {
    fn start(rules: &str) -> Self {
        let (redis, leased, memcached) = (Redis::single(), Redis::single(), Memcached::single());
        let setups = [
            ("memory", Setup::new(), Box::new(()) as Box<dyn std::any::Any>),
            ("redis", Setup::new().redis(&redis.env()), Box::new(redis)),
            ("leased", Setup::new().redis(&leased.env()).env("COUNTING", "leased"), Box::new(leased)),
            ("memcached", memcached.setup(), Box::new(memcached)),
        ];
        let with_rules = |(name, setup, store): (_, Setup, _)| (name, setup.rules("d.yaml", rules), store);
        Self(setups.map(with_rules).into())
    }

    fn setups(&self) -> impl Iterator<Item = (&'static str, Setup)> {
        self.0.iter().map(|(name, setup, _)| (*name, setup.clone()))
    }
}

/// A request of one descriptor, which gives back its hits if they are negative.
fn hits(key: &str, value: &str, hits: i64) -> RateLimitRequest {
    let mut request = request("d", &[]);
    let mut descriptor = descriptor(&[(key, value)]);
    descriptor.hits_addend = Some(hits.unsigned_abs());
    descriptor.is_negative_hits = hits < 0;
    request.descriptors = vec![descriptor];
    request
}
