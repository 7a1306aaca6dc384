//! Name resolution: host names and SRV records.

pub(crate) mod dns;
pub(crate) mod lookup;
pub(crate) mod name_servers;

/// A reply to the query before it, or to one of ours.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_dns(bytes: &[u8]) {
    if let Some(question) = dns::query(0x1234, "_memcache._tcp.cache.test") {
        let _ = dns::reply(&question, bytes);
    }
    let (question, answer) = bytes.split_at(bytes.len() / 2);
    let _ = dns::reply(question, answer);
    let _ = dns::query(7, &String::from_utf8_lossy(bytes));
}

/// The system's `resolv.conf`.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_resolv_conf(bytes: &[u8]) {
    name_servers::fuzz(&String::from_utf8_lossy(bytes));
}
