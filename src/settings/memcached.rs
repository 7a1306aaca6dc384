//! The settings of memcached: which servers there are, and how they are asked.
//!
//! What the Go service would not get to memcached with is refused; it passes every request then, and says so in
//! its log alone.

use std::{fmt, path::Path, time::Duration};

use super::{
    ClientTls, HostPort, ServerAddress, address,
    parse::InvalidValue,
    reader::Reader,
    server::{self, TlsSettings},
    vars::{self, MemcachedVars},
};

/// memcached as a store of counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memcached {
    /// Where it is.
    pub servers: MemcachedServers,
    /// TLS, if it is spoken.
    pub tls: Option<ClientTls>,
    /// How long an operation may take, from the question to the answer.
    pub timeout: Duration,
    /// How long connecting may take, with TLS.
    pub connect_timeout: Duration,
    /// Checks that may wait for one connection; one at least.
    pub max_queued: usize,
    /// The service is unhealthy while it has no connection to one of the servers.
    pub unhealthy_without: bool,
}

/// Which servers share the keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemcachedServers {
    /// These, in this order; one at least.
    Named(Vec<ServerAddress>),
    /// Those of a DNS SRV record.
    Srv {
        /// The name that is looked up: `_service._protocol.name`.
        name: String,
        /// How often it is looked up again; none looks it up until it was found.
        refresh: Option<Duration>,
    },
}

impl fmt::Display for MemcachedServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(servers) => {
                f.write_str(&servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
            }
            Self::Srv { name, .. } => f.write_str(name),
        }
    }
}

const PORT: u16 = 11211;

/// How long the Go service's client waits.
const GO_TIMEOUT: Duration = Duration::from_millis(500);

const TLS: TlsSettings = TlsSettings {
    ca: &vars::MEMCACHE_TLS_CACERT,
    certificate: &vars::MEMCACHE_TLS_CLIENT_CERT,
    key: &vars::MEMCACHE_TLS_CLIENT_KEY,
    skip_hostname: &vars::MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION,
    asked_for_by: "MEMCACHE_TLS=true",
};

/// The memcached that the variables describe; none when something about it was refused.
pub(super) fn read(reader: &mut Reader<'_>, exists: &dyn Fn(&Path) -> bool) -> Option<Memcached> {
    let set = MemcachedVars::read(reader);
    let tls = TLS.read(reader);
    TLS.check(reader, set.use_tls, exists);
    reader.read(&vars::MEMCACHE_MAX_IDLE_CONNS);
    let timeout = server::timeout(reader, &vars::MEMCACHE_TIMEOUT, GO_TIMEOUT);
    let is_unix = set.servers.iter().any(|address| matches!(address, ServerAddress::Unix(_)));
    let (use_tls, connect_timeout, max_queued) = (set.use_tls, set.connect_timeout, set.max_queued);
    let unhealthy_without = set.unhealthy_without;
    let servers = servers_of(reader, set)?;
    if use_tls && is_unix {
        let refusal = InvalidValue::new("false").with_hint("over a unix socket memcached speaks no TLS");
        reader.refuse(&vars::MEMCACHE_TLS, Some("true".to_owned()), refusal);
    }
    let tls = use_tls.then_some(tls);
    Some(Memcached { servers, tls, timeout, connect_timeout, max_queued, unhealthy_without })
}

/// Warns of variables of memcached where `BACKEND_TYPE` is not set.
pub(super) fn warn_of_unused(reader: &mut Reader<'_>) {
    let set = reader.set_with_prefix("MEMCACHE_");
    if !set.is_empty() {
        let message = format!("is not memcache, so that these do nothing: {}", set.join(", "));
        reader.warn(&vars::BACKEND_TYPE, message);
    }
}

fn servers_of(reader: &mut Reader<'_>, set: MemcachedVars) -> Option<MemcachedServers> {
    match (reader.is_set(&vars::MEMCACHE_HOST_PORT), reader.is_set(&vars::MEMCACHE_SRV)) {
        (true, false) => (!set.servers.is_empty()).then_some(MemcachedServers::Named(set.servers)),
        (false, true) => {
            let refresh = (!set.srv_refresh.is_zero()).then_some(set.srv_refresh);
            set.srv.map(|name| MemcachedServers::Srv { name, refresh })
        }
        (true, true) => {
            let refusal = InvalidValue::new("nothing where MEMCACHE_HOST_PORT is set");
            let refusal = refusal.with_hint("one of them says where the servers are, as in the Go service");
            reader.refuse(&vars::MEMCACHE_SRV, set.srv, refusal);
            None
        }
        (false, false) => {
            let refusal = InvalidValue::new(ADDRESSES);
            let refusal = refusal.with_hint("BACKEND_TYPE=memcache needs it, or MEMCACHE_SRV");
            reader.refuse(&vars::MEMCACHE_HOST_PORT, None, refusal);
            None
        }
    }
}

const ADDRESSES: &str = "servers such as host:11211,host:11211, or the path of a unix socket";

/// The servers of a list; none where it is empty.
pub(super) fn servers(text: &str) -> Result<Vec<ServerAddress>, InvalidValue> {
    let all = text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(server);
    let all: Vec<_> = all.collect::<Result<_, _>>()?;
    if all.is_empty() && !text.is_empty() { Err(InvalidValue::new(ADDRESSES)) } else { Ok(all) }
}

fn server(text: &str) -> Result<ServerAddress, InvalidValue> {
    if text.contains("://") {
        return Err(InvalidValue::new(ADDRESSES).with_hint("leave out the scheme"));
    }
    if text.contains('/') {
        return Ok(ServerAddress::Unix(text.into()));
    }
    let with_port = address::host_port(text).ok().filter(|address| address.port != 0);
    let alone = || address::host(text).ok().map(|host| HostPort { host, port: PORT });
    with_port
        .or_else(alone)
        .map(ServerAddress::Tcp)
        .ok_or_else(|| InvalidValue::new(ADDRESSES).with_hint(format!("{text:?} is none")))
}

/// A name of the form that the Go service takes; none where nothing is set.
pub(super) fn srv(text: &str) -> Result<Option<String>, InvalidValue> {
    if text.is_empty() {
        return Ok(None);
    }
    let parts = text.strip_prefix('_').and_then(|rest| {
        let (service, rest) = rest.split_once("._")?;
        let (protocol, name) = rest.split_once('.')?;
        Some([service, protocol, name])
    });
    match parts {
        Some(parts) if parts.iter().all(|part| !part.is_empty()) => Ok(Some(text.to_owned())),
        _ => Err(InvalidValue::new("a name such as _memcache._tcp.example.com")
            .with_hint("the service and the protocol come first, each behind a _")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What these variables come to: the settings, warnings and problems.
    fn read_from(set: &[(&str, &str)]) -> (Option<Memcached>, Vec<String>, Vec<String>) {
        let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        let mut reader = Reader::new(&env);
        let read = read(&mut reader, &|path| path == Path::new("/there.pem"));
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
    fn what_names_no_server_is_refused() {
        for (set, expected) in [
            (&[][..], "BACKEND_TYPE=memcache needs it"),
            (&[("MEMCACHE_HOST_PORT", "")], "BACKEND_TYPE=memcache needs it"),
            (&[("MEMCACHE_HOST_PORT", ",")], "MEMCACHE_HOST_PORT=\",\": accepted is servers"),
            (&[("MEMCACHE_HOST_PORT", "a:0")], "\"a:0\" is none"),
            (&[("MEMCACHE_HOST_PORT", "a:1,b:x")], "\"b:x\" is none"),
            (&[("MEMCACHE_HOST_PORT", "tcp://a:1")], "leave out the scheme"),
            (&[("MEMCACHE_HOST_PORT", "a:1"), ("MEMCACHE_SRV", "_m._tcp.a")], "one of them"),
            (&[("MEMCACHE_SRV", "memcached.example.com")], "each behind a _"),
            (&[("MEMCACHE_SRV", "_memcache._tcp.")], "each behind a _"),
        ] {
            let (read, _, problems) = read_from(set);
            assert!(read.is_none() && problems.len() == 1, "{set:?}: {problems:?}");
            assert!(problems[0].contains(expected), "{set:?}: {problems:?}");
        }
    }

    #[test]
    fn a_name_is_looked_up_as_often_as_is_set() {
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
    fn tls_needs_its_files_and_files_need_tls() {
        let host = ("MEMCACHE_HOST_PORT", "a");
        let on = ("MEMCACHE_TLS", "true");
        let ca = ("MEMCACHE_TLS_CACERT", "/there.pem");
        let (read, warnings, problems) = read_from(&[host, on, ca]);
        assert_eq!((warnings.len(), problems.len()), (0, 0));
        let tls = ClientTls { ca: Some("/there.pem".into()), ..ClientTls::default() };
        assert_eq!(read.unwrap().tls, Some(tls));
        let (read, warnings, _) = read_from(&[host, ca]);
        assert_eq!(read.unwrap().tls, None);
        assert_eq!(warnings, ["MEMCACHE_TLS_CACERT: does nothing: set MEMCACHE_TLS=true to speak TLS"]);
        let (_, _, problems) = read_from(&[host, on, ("MEMCACHE_TLS_CLIENT_KEY", "/there.pem")]);
        assert!(problems[0].starts_with("MEMCACHE_TLS_CLIENT_CERT: "), "{problems:?}");
        let (_, _, problems) = read_from(&[("MEMCACHE_HOST_PORT", "/run/m.sock"), on]);
        assert!(problems[0].contains("over a unix socket"), "{problems:?}");
    }
}
