//! Counters in memcached: real servers, what is kept in them, and what happens without them.

use crate::{
    redis::{RULES, by_policy, code, counter, decision, one},
    support::{
        client::request,
        memcached::{Memcached, setup},
        server::Setup,
    },
};

use tollgate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

// Servers that are not what they should be, and values that are no counters.
mod bad_input;
// Contention: exactly the limit is admitted.
mod exact;
// Names, values and expiries, to the letter.
mod keys;
// memcached killed, frozen and cut off, under load.
mod loss;
// Limits that memcached cannot count.
mod refused;
// Rules with several limits, which count all or nothing.
mod several;
// Several servers, and those that a name server lists.
mod servers;
// TLS, and certificates that do not fit.
mod tls;

/// Services with the rules that the tests of Redis have.
fn with_rules(setup: Setup) -> Setup {
    setup.rules("d.yaml", RULES)
}
