//! The settings of memcached: its servers and the connections to them.
//!
//! Settings with which the Go service could not reach memcached are rejected. The Go service allows every request then,
//! and reports it only in its log.

use std::time::Duration;

use super::{
    reader::Reader,
    tls::TlsVars,
    values::MEMCACHED_SERVERS,
    vars::{self, MemcachedVars},
};
use ::memcached::settings::{Memcached, MemcachedServers};
use net::ServerAddress;
use net::tls::ClientTls;

const GO_TIMEOUT: Duration = Duration::from_millis(500);

const TLS: TlsVars = TlsVars {
    ca: &vars::MEMCACHE_TLS_CACERT,
    certificate: &vars::MEMCACHE_TLS_CLIENT_CERT,
    key: &vars::MEMCACHE_TLS_CLIENT_KEY,
    enabled_by: "MEMCACHE_TLS=true",
};

/// The settings of memcached; `None` if its servers were rejected.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Memcached> {
    let MemcachedVars { servers, srv, srv_refresh, use_tls, connect_timeout, max_queued, unhealthy_without } =
        MemcachedVars::read(reader);
    let skip_hostname = reader.read(&vars::MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION);
    let tls = ClientTls { skip_hostname, ..TLS.read(reader) };
    TLS.check_files(reader, use_tls);
    if use_tls {
        TLS.reject_half_identity(reader);
    }
    reader.read(&vars::MEMCACHE_MAX_IDLE_CONNS);
    let timeout = reader.timeout(&vars::MEMCACHE_TIMEOUT, GO_TIMEOUT);
    if use_tls && servers.iter().any(|address| matches!(address, ServerAddress::Unix(_))) {
        reader.conflict(&vars::MEMCACHE_TLS, "false", "memcached does not support TLS over a unix socket");
    }
    let servers = match (reader.is_set(&vars::MEMCACHE_HOST_PORT), reader.is_set(&vars::MEMCACHE_SRV)) {
        (true, false) => (!servers.is_empty()).then_some(MemcachedServers::Named(servers))?,
        (false, true) => {
            let refresh = (!srv_refresh.is_zero()).then_some(srv_refresh);
            MemcachedServers::Srv { name: srv?, refresh }
        }
        (true, true) => {
            let hint = "set one of the two, as in the Go service";
            reader.conflict(&vars::MEMCACHE_SRV, "nothing, because MEMCACHE_HOST_PORT is set", hint);
            return None;
        }
        (false, false) => {
            let hint = "BACKEND_TYPE=memcache requires it, or MEMCACHE_SRV";
            reader.conflict(&vars::MEMCACHE_HOST_PORT, MEMCACHED_SERVERS, hint);
            return None;
        }
    };
    let tls = use_tls.then_some(tls);
    Some(Memcached { servers, tls, timeout, connect_timeout, max_queued, unhealthy_without })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The settings, warnings and problems of these variables.
    fn read_from(set: &[(&str, &str)]) -> (Option<Memcached>, Vec<String>, Vec<String>) {
        let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        let exists = |path: &Path| path == Path::new("/there.pem");
        let mut reader = Reader::new(&env, &exists);
        let read = read(&mut reader);
        let warnings = reader.warnings.iter().map(ToString::to_string).collect();
        (read, warnings, reader.problems.iter().map(ToString::to_string).collect())
    }

    fn named(text: &str) -> Vec<String> {
        match read_from(&[("MEMCACHE_HOST_PORT", text)]) {
            (Some(Memcached { servers: MemcachedServers::Named(servers), .. }), warnings, problems) => {
                assert_eq!((warnings.len(), problems.len()), (0, 0), "{text}: {warnings:?} {problems:?}");
                servers.iter().map(ToString::to_string).collect()
            }
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn servers_keep_their_order() {
        assert_eq!(named("b:11212,a:11211,b:11212"), ["b:11212", "a:11211", "b:11212"]);
        assert_eq!(named(" memcached , [::1]:1,::1,"), ["memcached:11211", "[::1]:1", "[::1]:11211"]);
        assert_eq!(named("/run/memcached.sock"), ["/run/memcached.sock"]);
    }

    #[test]
    fn rejects_servers_that_are_missing_or_invalid() {
        for (set, expected) in [
            (&[][..], "BACKEND_TYPE=memcache requires it"),
            (&[("MEMCACHE_HOST_PORT", "")], "BACKEND_TYPE=memcache requires it"),
            (&[("MEMCACHE_HOST_PORT", ",")], "MEMCACHE_HOST_PORT=\",\": expected servers"),
            (&[("MEMCACHE_HOST_PORT", "a:0")], "invalid server \"a:0\""),
            (&[("MEMCACHE_HOST_PORT", "a:1,b:x")], "invalid server \"b:x\""),
            (&[("MEMCACHE_HOST_PORT", "tcp://a:1")], "remove the scheme"),
            (&[("MEMCACHE_HOST_PORT", "a:1"), ("MEMCACHE_SRV", "_m._tcp.a")], "one of the two"),
            (&[("MEMCACHE_SRV", "memcached.example.com")], "each after a _"),
            (&[("MEMCACHE_SRV", "_memcache._tcp.")], "each after a _"),
        ] {
            let (read, _, problems) = read_from(set);
            assert!(read.is_none() && problems.len() == 1, "{set:?}: {problems:?}");
            assert!(problems[0].contains(expected), "{set:?}: {problems:?}");
        }
    }

    #[test]
    fn an_srv_record_is_resolved_at_the_refresh_interval() {
        for (refresh, expected) in [("0", None), ("30s", Some(Duration::from_secs(30)))] {
            let set = [("MEMCACHE_SRV", "_memcache._tcp.example.com"), ("MEMCACHE_SRV_REFRESH", refresh)];
            let name = "_memcache._tcp.example.com".to_owned();
            let servers = MemcachedServers::Srv { name, refresh: expected };
            assert_eq!(read_from(&set).0.unwrap().servers, servers);
        }
    }

    #[test]
    fn times_and_bounds_have_defaults() {
        let read = read_from(&[("MEMCACHE_HOST_PORT", "a"), ("MEMCACHE_MAX_IDLE_CONNS", "-1")]).0.unwrap();
        assert_eq!(
            (read.timeout, read.connect_timeout),
            (Duration::from_millis(10), Duration::from_millis(300))
        );
        assert_eq!((read.max_queued, read.unhealthy_without, read.tls), (8192, false, None));
        let (_, warnings, _) = read_from(&[("MEMCACHE_HOST_PORT", "a"), ("MEMCACHE_TIMEOUT", "500ms")]);
        assert!(warnings[0].contains("the Go service's default"), "{warnings:?}");
    }

    #[test]
    fn tls_requires_its_files_and_files_require_tls() {
        let host = ("MEMCACHE_HOST_PORT", "a");
        let on = ("MEMCACHE_TLS", "true");
        let ca = ("MEMCACHE_TLS_CACERT", "/there.pem");
        let (read, warnings, problems) = read_from(&[host, on, ca]);
        assert_eq!((warnings.len(), problems.len()), (0, 0));
        let tls = ClientTls { ca: Some("/there.pem".into()), ..ClientTls::default() };
        assert_eq!(read.unwrap().tls, Some(tls));
        let (read, warnings, _) = read_from(&[host, ca]);
        assert_eq!(read.unwrap().tls, None);
        assert_eq!(warnings, ["MEMCACHE_TLS_CACERT: has no effect without MEMCACHE_TLS=true"]);
        let (_, _, problems) = read_from(&[host, on, ("MEMCACHE_TLS_CLIENT_KEY", "/there.pem")]);
        assert!(problems[0].starts_with("MEMCACHE_TLS_CLIENT_CERT: "), "{problems:?}");
        let (_, _, problems) = read_from(&[("MEMCACHE_HOST_PORT", "/run/m.sock"), on]);
        assert!(problems[0].contains("over a unix socket"), "{problems:?}");
    }
}
