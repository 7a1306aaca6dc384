//! From variables to a [`Redis`]: what each means, and which of them do not go together.
//!
//! What the Go service would not get to Redis with is refused. What it ignores is ignored here as well, with a
//! warning.

use std::{path::Path, time::Duration};

use super::{
    super::{
        duration::duration,
        parse::{InvalidValue, whole},
        reader::Reader,
        server::{self, TlsSettings},
        vars::{self, RedisVars, SecondRedis, Setting, Var},
    },
    Redis, RedisAddress, RedisPool, RedisServers, Startup,
    login::Login,
    place::{self, Names, RedisType, Socket},
    url::Named,
};

/// `REDIS_TIMEOUT` of the Go service, when it is not set.
const GO_TIMEOUT: Duration = Duration::from_secs(10);

/// TLS to both.
const TLS: TlsSettings = TlsSettings {
    ca: &vars::REDIS_TLS_CACERT,
    certificate: &vars::REDIS_TLS_CLIENT_CERT,
    key: &vars::REDIS_TLS_CLIENT_KEY,
    skip_hostname: &vars::REDIS_TLS_SKIP_HOSTNAME_VERIFICATION,
    asked_for_by: "REDIS_TLS=true, or write rediss:// in REDIS_URL,",
};

/// The Redis that the variables describe; none when something about it was refused.
pub(in super::super) fn read(reader: &mut Reader<'_>, exists: &dyn Fn(&Path) -> bool) -> Option<Redis> {
    let set = RedisVars::read(reader);
    let (unhealthy_without, startup) = (set.unhealthy_without, startup(reader, &set));
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
        warn_of_unused_second(reader);
    }
    TLS.check(reader, uses_tls, exists);
    let per_second = match per_second {
        Some(pool) => Some(pool?),
        None => None,
    };
    Some(Redis { main: main?, per_second, unhealthy_without, startup })
}

/// One Redis, whose URL in the Go service is `usual_path` by default. `uses_tls` becomes true if TLS is enabled.
fn pool(
    reader: &mut Reader<'_>,
    set: &RedisVars,
    usual_path: &'static str,
    uses_tls: &mut bool,
) -> Option<RedisPool> {
    read_unused(reader);
    let wants_tls = set.use_tls;
    *uses_tls |= wants_tls;
    let tls = TLS.read(reader);
    let timeout = server::timeout(reader, &vars::REDIS_TIMEOUT, GO_TIMEOUT);
    let window = set.pipeline_window;
    if window >= timeout && !reader.is_refused(&vars::REDIS_TIMEOUT) {
        let accepted = format!("less than {} ({timeout:?})", reader.meant(&vars::REDIS_TIMEOUT).name);
        let refusal = InvalidValue::new(accepted)
            .with_hint("what is gathered for so long has no time left to be answered");
        let seen = reader.raw(&vars::REDIS_PIPELINE_WINDOW);
        reader.refuse(&vars::REDIS_PIPELINE_WINDOW, seen, refusal);
    }
    let Named { at: servers, login, database, tls: url_wants_tls } = servers(reader, set, usual_path)?;
    let (servers, login) = logins(reader, set, servers, login);
    *uses_tls |= url_wants_tls;
    let tls = (wants_tls || url_wants_tls).then_some(tls);
    if tls.is_some() && matches!(servers, RedisServers::Single(RedisAddress::Unix(_))) {
        let refusal = InvalidValue::new("false").with_hint("over a unix socket Redis speaks no TLS");
        reader.refuse(&vars::REDIS_TLS, Some("true".to_owned()), refusal);
    }
    Some(RedisPool {
        servers,
        credentials: login.credentials(),
        database,
        tls,
        connections: set.connections,
        timeout,
        connect_timeout: set.connect_timeout,
        pipeline_window: window,
        max_queued: set.max_queued,
    })
}

fn servers(
    reader: &mut Reader<'_>,
    set: &RedisVars,
    usual_path: &'static str,
) -> Option<Named<RedisServers>> {
    if set.kind != RedisType::Single && set.socket_type == Some(Socket::Unix) {
        let message = "is passed over: sentinels and clusters are reached over TCP";
        reader.warn(&vars::REDIS_SOCKET_TYPE, message);
    }
    let names = Names {
        kind: reader.meant(&vars::REDIS_TYPE).name,
        socket_type: reader.meant(&vars::REDIS_SOCKET_TYPE).name,
        usual_path,
    };
    let servers = place::servers(&set.url, set.kind, set.socket_type, &names);
    servers.map_err(|refusal| reader.refuse(&vars::REDIS_URL, Some(set.url.clone()), refusal)).ok()
}

/// The servers with the sentinels' credentials, and the login to the servers themselves.
fn logins(
    reader: &mut Reader<'_>,
    set: &RedisVars,
    servers: RedisServers,
    of_url: Login,
) -> (RedisServers, Login) {
    let own = Login::of_auth(&set.auth);
    let of_sentinels = Login::of_auth(&set.sentinel_auth);
    let RedisServers::Sentinel { master, sentinels, .. } = servers else {
        if !of_sentinels.is_empty() {
            let message = format!("does nothing without {}=SENTINEL", reader.meant(&vars::REDIS_TYPE).name);
            reader.warn(&vars::REDIS_SENTINEL_AUTH, message);
        }
        let login = own.or(of_url);
        warn_of_missing_password(reader, &vars::REDIS_AUTH, &login);
        return (servers, login);
    };
    let of_sentinels = of_sentinels.or(of_url);
    warn_of_missing_password(reader, &vars::REDIS_AUTH, &own);
    warn_of_missing_password(reader, &vars::REDIS_SENTINEL_AUTH, &of_sentinels);
    (RedisServers::Sentinel { master, sentinels, credentials: of_sentinels.credentials() }, own)
}

fn warn_of_missing_password(reader: &mut Reader<'_>, auth: &'static Var, login: &Login) {
    if !login.user.is_empty() && login.password.0.is_empty() {
        reader.warn(auth, "a user without a password is given: write user:password, here or in the URL");
    }
}

/// Connections to each server, up to as many as it has ports to answer from.
pub(in super::super) fn pool_size(text: &str) -> Result<usize, InvalidValue> {
    let connections = whole::<_, 0, 65_535>(text)?;
    // The client library of the Go service takes 0 for 4.
    Ok(if connections == 0 { 4 } else { connections })
}

/// The pauses between attempts. Zero is the usual pause, and the longest is not shorter than the first
/// unless it is set so.
fn startup(reader: &Reader<'_>, set: &RedisVars) -> Startup {
    let or_usual = |set: Duration, setting: &Setting<Duration>| {
        if set.is_zero() { duration(setting.default).unwrap_or_default() } else { set }
    };
    let initial = or_usual(set.startup_initial, &vars::REDIS_STARTUP_INITIAL_INTERVAL);
    let max = or_usual(set.startup_max, &vars::REDIS_STARTUP_MAX_INTERVAL);
    let max = if reader.is_set(&vars::REDIS_STARTUP_MAX_INTERVAL) { max } else { max.max(initial) };
    let give_up_after = set.startup_give_up_after;
    Startup {
        initial_interval: initial.min(max),
        max_interval: max,
        give_up_after: (!give_up_after.is_zero()).then_some(give_up_after),
    }
}

/// What is read as the Go service reads it, and has no effect.
fn read_unused(reader: &mut Reader<'_>) {
    reader.read(&vars::REDIS_PIPELINE_LIMIT);
    reader.read(&vars::REDIS_CLUSTER_PIPELINE_PARALLELISM);
    let on_empty = reader.read(&vars::REDIS_POOL_ON_EMPTY_BEHAVIOR);
    if ["CREATE", "ERROR"].iter().any(|known| on_empty.eq_ignore_ascii_case(known)) {
        let message = "does nothing: REDIS_MAX_QUEUED bounds what waits for a connection";
        reader.warn(&vars::REDIS_POOL_ON_EMPTY_BEHAVIOR, message);
    }
}

fn warn_of_unused_second(reader: &mut Reader<'_>) {
    let set = reader.set_with_prefix("REDIS_PERSECOND_");
    if !set.is_empty() {
        let message = format!("is not true, so that these do nothing: {}", set.join(", "));
        reader.warn(&vars::REDIS_PERSECOND, message);
    }
}
