//! Rules with several limits. memcached changes one counter at a time, so the counters are read, changed, and refunded
//! after concurrent changes: the limits are never exceeded, and rejected hits are not counted.

use crate::redis::{
    exact::Servers,
    several::{FIXED, admitted, counter, hits, offered, rules},
};

use super::{Code, Memcached, decision, setup};

#[test]
fn the_limit_is_not_exceeded_and_rejected_hits_are_not_counted() {
    let memcached = [(); 3].map(|()| Memcached::single());
    let addresses = memcached.each_ref().map(Memcached::address).join(",");
    for stop in ["false", "true"] {
        let setup = setup(&addresses).env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", stop);
        let setup = setup.env("CACHE_KEY_PREFIX", stop);
        let servers = Servers::with(&setup, &rules(&[FIXED]), "2");
        let counter_of = |value: &str, years| -> i64 {
            let key = format!("{stop}{}", counter("fixed", value, years));
            memcached.iter().map(|server| server.counter(&key)).sum()
        };
        for ((key, value), admitted) in admitted(&servers, &offered(&["fixed"])) {
            assert!(admitted <= 40, "{key} {value}: {admitted}");
            // Hits that were refunded may have displaced others, which a request without concurrency is not.
            let client = servers.first().client();
            let more =
                (0..50).filter(|_| decision(&client.ask(hits(&key, &value, 1)).unwrap()).0 == Code::Ok);
            assert_eq!(admitted + more.count() as u64, 40, "{key} {value}");
            assert_eq!([1, 2].map(|years| counter_of(&value, years)), [40, 40], "{value}");
        }
    }
}

#[test]
fn refunds_apply_to_every_limit_and_reads_count_nothing() {
    let memcached = Memcached::single();
    let server = setup(&memcached.address()).rules("d.yaml", &rules(&[FIXED])).start_healthy();
    let client = server.client();
    let ask = |count: u64, back: bool| {
        let mut request = hits("fixed", "v", count);
        request.descriptors[0].is_negative_hits = back;
        decision(&client.ask(request).unwrap())
    };
    assert_eq!(ask(35, false), (Code::Ok, 5));
    assert_eq!(ask(6, false), (Code::OverLimit, 5));
    assert_eq!(ask(0, false), (Code::Ok, 5));
    assert_eq!(ask(10, true), (Code::Ok, 15));
    assert_eq!(ask(15, false), (Code::Ok, 0));
    assert_eq!([1, 2].map(|years| memcached.counter(&counter("fixed", "v", years))), [40, 40]);
}
