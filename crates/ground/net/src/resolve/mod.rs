//! Name resolution: host names and SRV records.

pub mod dns;
pub mod lookup;
pub mod name_servers;

#[cfg(any(test, feature = "testing"))]
pub use name_servers::fuzz as fuzz_resolv_conf;

/// A reply to the query before it, or to one of ours.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_dns(bytes: &[u8]) {
    if let Some(question) = dns::query(0x1234, "_memcache._tcp.cache.test") {
        let _ = dns::reply(&question, bytes);
    }
    let (question, answer) = bytes.split_at(bytes.len() / 2);
    let _ = dns::reply(question, answer);
    let _ = dns::query(7, &String::from_utf8_lossy(bytes));
}
