//! Every store, each with a service's setup.

use std::any::Any;

use super::{memcached::Memcached, redis::Redis, server::Setup};

/// In memory, Redis, Redis with leases, memcached. The servers stop with the list.
pub struct Stores(Vec<(&'static str, Setup, Box<dyn Any>)>);

impl Stores {
    pub fn start(rules: &str) -> Self {
        let (redis, leased, memcached) = (Redis::single(), Redis::single(), Memcached::single());
        let setups = [
            ("memory", Setup::new(), Box::new(()) as Box<dyn Any>),
            ("redis", Setup::new().redis(&redis.env()), Box::new(redis)),
            ("leased", Setup::new().redis(&leased.env()).env("COUNTING", "leased"), Box::new(leased)),
            ("memcached", memcached.setup(), Box::new(memcached)),
        ];
        let with_rules = |(name, setup, store): (_, Setup, _)| (name, setup.rules("d.yaml", rules), store);
        Self(setups.map(with_rules).into())
    }

    pub fn setups(&self) -> impl Iterator<Item = (&'static str, Setup)> {
        self.0.iter().map(|(name, setup, _)| (*name, setup.clone()))
    }
}

/// A service with these variables that counts in a Redis of its own, which stops when the second is dropped.
pub fn with_redis(env: &[(&str, &str)]) -> (Setup, Box<dyn Any>) {
    let redis = Redis::single();
    let setup = Setup::new().redis(&redis.env());
    (env.iter().fold(setup, |setup, (name, value)| setup.env(name, value)), Box::new(redis))
}
