//! The settings of Redis: its servers and the connections to them.
//!
//! Settings with which the Go service could not reach Redis are rejected. Those that it ignores are ignored here too, with
//! a warning.

#[cfg(test)]
mod tests;
mod url;

use std::{path::PathBuf, time::Duration};

use self::url::Parsed;
use super::{
    aws,
    reader::Reader,
    tls::TlsVars,
    values::{RedisType, SocketType},
    variable::Setting,
    vars::{self, RedisVars, SecondRedis},
};
use net::ServerAddress;
use net::tls::ClientTls;
use redis_store::settings::{
    CredentialFile, CredentialSource, Credentials, Redis, RedisPool, RedisServers, Startup,
};

/// The default of `REDIS_TIMEOUT` in the Go service.
const GO_TIMEOUT: Duration = Duration::from_secs(10);

const TLS: TlsVars = TlsVars {
    ca: &vars::REDIS_TLS_CACERT,
    certificate: &vars::REDIS_TLS_CLIENT_CERT,
    key: &vars::REDIS_TLS_CLIENT_KEY,
    enabled_by: "REDIS_TLS=true or rediss:// in REDIS_URL",
};

/// The settings of Redis; `None` if a URL was rejected.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Redis> {
    let set = RedisVars::read(reader);
    let startup = startup(reader, &set);
    let mut uses_tls = false;
    let main = pool(reader, &set, "/var/run/nutcracker/ratelimit.sock", &mut uses_tls);
    let has_second = SecondRedis::read(reader).is_on;
    let per_second = has_second.then(|| {
        reader.of_second_redis(|reader| {
            let set = RedisVars::read(reader);
            pool(reader, &set, "/var/run/nutcracker/ratelimitpersecond.sock", &mut uses_tls)
        })
    });
    if !has_second {
        reader.warn_unused_prefix(&vars::REDIS_PERSECOND, "true", "REDIS_PERSECOND_");
    }
    TLS.check_files(reader, uses_tls);
    if uses_tls {
        TLS.reject_half_identity(reader);
    }
    let per_second = match per_second {
        Some(pool) => Some(pool?),
        None => None,
    };
    Some(Redis { main: main?, per_second, unhealthy_without: set.unhealthy_without, startup })
}

/// One Redis, whose URL in the Go service is `go_default` by default. `uses_tls` becomes true if TLS is enabled.
fn pool(
    reader: &mut Reader<'_>,
    set: &RedisVars,
    go_default: &'static str,
    uses_tls: &mut bool,
) -> Option<RedisPool> {
    read_unused(reader);
    *uses_tls |= set.use_tls;
    let skip_hostname = reader.read(&vars::REDIS_TLS_SKIP_HOSTNAME_VERIFICATION);
    let tls = ClientTls { skip_hostname, ..TLS.read(reader) };
    let timeout = reader.timeout(&vars::REDIS_TIMEOUT, GO_TIMEOUT);
    if set.pipeline_window >= timeout && !reader.is_rejected(&vars::REDIS_TIMEOUT) {
        let expected = format!("less than {} ({timeout:?})", reader.effective(&vars::REDIS_TIMEOUT).name);
        let hint = "checks gathered for that long would time out";
        reader.conflict(&vars::REDIS_PIPELINE_WINDOW, &expected, hint);
    }
    let Parsed { at: servers, login, database, tls: is_tls_url } = servers(reader, set, go_default)?;
    let has_login = !login.is_empty() && !matches!(servers, RedisServers::Sentinel { .. });
    let (servers, credentials) = logins(reader, servers, login);
    *uses_tls |= is_tls_url;
    let tls = (set.use_tls || is_tls_url).then_some(tls);
    let iam = aws::read(reader, set, tls.is_some(), has_login);
    let credentials = iam.map(|iam| CredentialSource::Iam(Box::new(iam))).or(credentials);
    if tls.is_some() && matches!(servers, RedisServers::Single(ServerAddress::Unix(_))) {
        reader.conflict(&vars::REDIS_TLS, "false", "Redis does not support TLS over a unix socket");
    }
    Some(RedisPool {
        servers,
        credentials,
        database,
        tls,
        connections: set.connections,
        timeout,
        connect_timeout: set.connect_timeout,
        pipeline_window: set.pipeline_window,
        max_queued: set.max_queued,
    })
}

fn servers(
    reader: &mut Reader<'_>,
    set: &RedisVars,
    go_default: &'static str,
) -> Option<Parsed<RedisServers>> {
    if set.kind != RedisType::Single && set.socket_type == Some(SocketType::Unix) {
        let message = "is ignored: connections to sentinels and clusters use TCP";
        reader.warn(&vars::REDIS_SOCKET_TYPE, message);
    }
    let servers = match set.url.trim() {
        "" => Err(url::invalid(set.kind, format!("set it; the Go service's default is {go_default}"))),
        text => url::servers(text, set.kind, set.socket_type, reader),
    };
    servers.map_err(|invalid| reader.reject(&vars::REDIS_URL, invalid)).ok()
}

/// The servers with the sentinels' credentials, and those of the servers themselves.
fn logins(
    reader: &mut Reader<'_>,
    servers: RedisServers,
    of_url: Credentials,
) -> (RedisServers, Option<CredentialSource>) {
    let RedisServers::Sentinel { master, sentinels, .. } = servers else {
        let kind = reader.effective(&vars::REDIS_TYPE).name;
        let unused = [&*vars::REDIS_SENTINEL_AUTH, &*vars::REDIS_SENTINEL_AUTH_FILE];
        reader.warn_unused(&unused, &format!("without {kind}=SENTINEL"));
        let own = credentials(reader, &vars::REDIS_AUTH, &vars::REDIS_AUTH_FILE, of_url);
        return (servers, own);
    };
    let own = credentials(reader, &vars::REDIS_AUTH, &vars::REDIS_AUTH_FILE, Credentials::default());
    let credentials =
        credentials(reader, &vars::REDIS_SENTINEL_AUTH, &vars::REDIS_SENTINEL_AUTH_FILE, of_url);
    (RedisServers::Sentinel { master, sentinels, credentials }, own)
}

/// Credentials of a file if one is named, else of a variable, with missing parts taken from the URL.
fn credentials(
    reader: &mut Reader<'_>,
    auth: &'static Setting<String>,
    file: &'static Setting<Option<PathBuf>>,
    of_url: Credentials,
) -> Option<CredentialSource> {
    let value = reader.read(auth);
    let Some(path) = reader.read(file) else {
        let login = Credentials::parse(&value).or(of_url);
        if login.user.is_some() && login.password.0.is_empty() {
            reader.warn(auth, "a user without a password; write user:password, here or in the URL");
        }
        return (!login.is_empty()).then_some(CredentialSource::Fixed(login));
    };
    let variable = reader.effective(file).name;
    if !value.is_empty() {
        let other = reader.effective(auth).name;
        reader.conflict(file, &format!("only one of {other} and {variable}"), "unset one of them");
    } else if !reader.exists(&path) {
        reader.warn(file, "the file does not exist yet; there is no connection before it does");
    }
    Some(CredentialSource::File(CredentialFile { variable, path, user: of_url.user }))
}

/// The delays between attempts. Zero means the default, and a default maximum is raised to the first delay.
fn startup(reader: &Reader<'_>, set: &RedisVars) -> Startup {
    let or_default = |set: Duration, setting: &Setting<Duration>| {
        if set.is_zero() { (setting.parse)(setting.default).unwrap_or_default() } else { set }
    };
    let initial = or_default(set.startup_initial, &vars::REDIS_STARTUP_INITIAL_INTERVAL);
    let max = or_default(set.startup_max, &vars::REDIS_STARTUP_MAX_INTERVAL);
    let max = if reader.is_set(&vars::REDIS_STARTUP_MAX_INTERVAL) { max } else { max.max(initial) };
    let give_up_after = set.startup_give_up_after;
    Startup {
        initial_interval: initial.min(max),
        max_interval: max,
        give_up_after: (!give_up_after.is_zero()).then_some(give_up_after),
    }
}

/// Checks the variables that the Go service parses and that have no effect.
fn read_unused(reader: &mut Reader<'_>) {
    reader.read(&vars::REDIS_PIPELINE_LIMIT);
    reader.read(&vars::REDIS_CLUSTER_PIPELINE_PARALLELISM);
    let on_empty = reader.read(&vars::REDIS_POOL_ON_EMPTY_BEHAVIOR);
    if ["CREATE", "ERROR"].iter().any(|known| on_empty.eq_ignore_ascii_case(known)) {
        let message = "has no effect: REDIS_MAX_QUEUED bounds the queue of a connection";
        reader.warn(&vars::REDIS_POOL_ON_EMPTY_BEHAVIOR, message);
    }
}
