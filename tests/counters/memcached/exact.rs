//! Four processes on three memcached servers under contention: although hits share commands, each caller receives its
//! own outcome, and exactly the limit is admitted.

use crate::redis::exact::Servers;

use super::{Memcached, setup};

#[test]
fn exactly_the_limit_is_admitted() {
    let memcached = [(); 3].map(|()| Memcached::single());
    let addresses = memcached.each_ref().map(Memcached::address).join(",");
    let servers = Servers::start(&setup(&addresses));
    let counter = |key: &str| -> i64 { memcached.iter().map(|server| server.counter(key)).sum() };
    servers.each_hit_is_one(&counter);
    servers.hits_are_many(&counter);
    servers.hits_are_refunded(&counter);
}
