//! Counters in real memcached servers: keys and values, and failures.

use crate::redis::{RULES, by_policy, code, counter, decision, one};
use support::{
    client::request,
    memcached::{Memcached, setup},
    server::Setup,
};

use proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

// Servers that are not memcached, and values that are not counters.
mod bad_input;
// Contention: exactly the limit is admitted.
mod exact;
// Exact names, values and expiries.
mod keys;
// Limits that memcached cannot count.
mod refused;
// Rules with several limits, which count all or nothing.
mod several;
// Several servers, and those of an SRV record.
mod servers;
// TLS, and invalid certificates.
mod tls;

/// Services with the rules of the Redis tests.
fn with_rules(setup: Setup) -> Setup {
    setup.rules("d.yaml", RULES)
}
