//! From variables to a [`Redis`]: what each means, and which of them do not go together.
//!
//! What the Go service would not get to Redis with is refused. What it passes over is passed over here as
//! well, with a warning.

use std::{path::Path, time::Duration};

use super::{
    super::{
        duration::duration,
        parse::{self, InvalidValue},
        reader::Reader,
        server::{self, TlsNames},
        vars::{self, Var},
    },
    Redis, RedisAddress, RedisPool, RedisServers, RedisTls, Startup,
    login::Login,
    mask::masked,
    names::{MAIN, Names, PER_SECOND},
    place::{self, Kind, Socket},
    url::Named,
};

/// `REDIS_TIMEOUT` of the Go service, when it is not set.
const GO_TIMEOUT: Duration = Duration::from_secs(10);

/// The variables of TLS, of both.
const TLS: TlsNames = TlsNames {
    ca: vars::REDIS_TLS_CACERT,
    certificate: vars::REDIS_TLS_CLIENT_CERT,
    key: vars::REDIS_TLS_CLIENT_KEY,
    skip_hostname: vars::REDIS_TLS_SKIP_HOSTNAME_VERIFICATION,
    asked_for_by: "REDIS_TLS=true, or write rediss:// in REDIS_URL,",
};

/// What both share.
struct Shared {
    tls: RedisTls,
    connect_timeout: Duration,
    max_queued: usize,
    /// One of them speaks TLS.
    speaks_tls: bool,
}

/// The Redis that the variables describe; none when something about it cannot be, which is told.
pub(in super::super) fn read(reader: &mut Reader<'_>, exists: &dyn Fn(&Path) -> bool) -> Option<Redis> {
    let mut shared = Shared {
        tls: TLS.read(reader),
        connect_timeout: reader.parsed(vars::REDIS_CONNECT_TIMEOUT, server::some_duration),
        max_queued: reader.count(vars::REDIS_MAX_QUEUED, 1),
        speaks_tls: false,
    };
    let main = pool(reader, &MAIN, &mut shared);
    let has_second = reader.flag(vars::REDIS_PERSECOND);
    let per_second = has_second.then(|| pool(reader, &PER_SECOND, &mut shared));
    if !has_second {
        warn_of_unused_second(reader);
    }
    TLS.check(reader, shared.speaks_tls, exists);
    let unhealthy_without = reader.flag(vars::REDIS_HEALTH_CHECK_ACTIVE_CONNECTION);
    let startup = startup(reader);
    let per_second = match per_second {
        Some(pool) => Some(pool?),
        None => None,
    };
    Some(Redis { main: main?, per_second, unhealthy_without, startup })
}

fn pool(reader: &mut Reader<'_>, names: &Names, shared: &mut Shared) -> Option<RedisPool> {
    read_idle(reader, names);
    let wants_tls = reader.flag(names.tls);
    shared.speaks_tls |= wants_tls;
    let timeout = server::timeout(reader, names.timeout, GO_TIMEOUT);
    let pipeline_window = reader.duration(names.window);
    if pipeline_window >= timeout {
        let refusal = InvalidValue::new(format!("less than {} ({timeout:?})", names.timeout.name));
        reader.refuse(
            names.window,
            Some(reader.text(names.window)),
            refusal.with_hint("what is gathered for so long has no time left to be answered"),
        );
    }
    let connections = connections(reader, names.pool_size);
    let Named { at: servers, login, database, tls } = servers(reader, names)?;
    let (servers, login) = logins(reader, names, servers, login);
    shared.speaks_tls |= tls;
    let tls = (wants_tls || tls).then(|| shared.tls.clone());
    if tls.is_some() && matches!(servers, RedisServers::Single(RedisAddress::Unix(_))) {
        let refusal = InvalidValue::new("false").with_hint("over a unix socket Redis speaks no TLS");
        reader.refuse(names.tls, Some("true".to_owned()), refusal);
    }
    Some(RedisPool {
        servers,
        credentials: login.credentials(),
        database,
        tls,
        connections,
        timeout,
        connect_timeout: shared.connect_timeout,
        pipeline_window,
        max_queued: shared.max_queued,
    })
}

fn servers(reader: &mut Reader<'_>, names: &Names) -> Option<Named<RedisServers>> {
    let kind = reader.parsed(names.kind, place::kind);
    let socket = reader.parsed(names.socket_type, place::socket);
    if kind != Kind::Single && socket == Some(Socket::Unix) {
        reader.warn(names.socket_type, "is passed over: sentinels and clusters are reached over TCP");
    }
    let text = reader.text(names.url);
    let servers = place::servers(&text, kind, socket, names);
    servers.map_err(|refusal| reader.refuse(names.url, Some(masked(&text)), refusal)).ok()
}

/// The servers with the sentinels' credentials, and the login to the servers themselves.
fn logins(
    reader: &mut Reader<'_>,
    names: &Names,
    servers: RedisServers,
    of_url: Login,
) -> (RedisServers, Login) {
    let own = Login::of_auth(&reader.text(names.auth));
    let of_sentinels = Login::of_auth(&reader.text(names.sentinel_auth));
    let RedisServers::Sentinel { master, sentinels, .. } = servers else {
        if !of_sentinels.is_empty() {
            reader.warn(names.sentinel_auth, format!("does nothing without {}=SENTINEL", names.kind.name));
        }
        let login = own.or(of_url);
        warn_of_missing_password(reader, names.auth, &login);
        return (servers, login);
    };
    let of_sentinels = of_sentinels.or(of_url);
    warn_of_missing_password(reader, names.auth, &own);
    warn_of_missing_password(reader, names.sentinel_auth, &of_sentinels);
    (RedisServers::Sentinel { master, sentinels, credentials: of_sentinels.credentials() }, own)
}

fn warn_of_missing_password(reader: &mut Reader<'_>, auth: Var, login: &Login) {
    if !login.user.is_empty() && login.password.0.is_empty() {
        reader.warn(auth, "a user without a password is given: write user:password, here or in the URL");
    }
}

/// Connections to each server.
fn connections(reader: &mut Reader<'_>, var: Var) -> usize {
    // As many as a server has ports to answer from.
    match reader.whole(var, 0..=65_535) {
        // So reads the client library of the Go service.
        0 => 4,
        number => usize::try_from(number).unwrap_or(usize::MAX),
    }
}

/// The pauses between attempts. Zero is the usual pause, and the longest is not shorter than the first
/// unless it is set so.
fn startup(reader: &mut Reader<'_>) -> Startup {
    let mut pause = |var: Var| {
        let set = reader.duration(var);
        if set.is_zero() { duration(var.default).unwrap_or_default() } else { set }
    };
    let initial_interval = pause(vars::REDIS_STARTUP_INITIAL_INTERVAL);
    let max_interval = pause(vars::REDIS_STARTUP_MAX_INTERVAL);
    let is_set = reader.is_set(vars::REDIS_STARTUP_MAX_INTERVAL);
    let max_interval = if is_set { max_interval } else { max_interval.max(initial_interval) };
    let give_up_after = reader.duration(vars::REDIS_STARTUP_MAX_ELAPSED_TIME);
    Startup {
        initial_interval: initial_interval.min(max_interval),
        max_interval,
        give_up_after: (!give_up_after.is_zero()).then_some(give_up_after),
    }
}

/// What is read as the Go service reads it, and changes nothing.
fn read_idle(reader: &mut Reader<'_>, names: &Names) {
    let integer = |text: &str| parse::integer(text.strip_prefix('-').unwrap_or(text), 0..=1 << 63);
    reader.parsed(names.limit, integer);
    reader.whole(names.parallelism, 0..=u64::MAX >> 1);
    let on_empty = reader.text(names.on_empty);
    if ["CREATE", "ERROR"].iter().any(|known| on_empty.eq_ignore_ascii_case(known)) {
        reader.warn(names.on_empty, "does nothing: REDIS_MAX_QUEUED bounds what waits for a connection");
    }
    reader.text(names.on_empty_wait);
}

fn warn_of_unused_second(reader: &mut Reader<'_>) {
    let of_second = vars::ALL.iter().filter(|var| var.name.starts_with("REDIS_PERSECOND_"));
    let set: Vec<&str> = of_second.filter(|var| reader.is_set(**var)).map(|var| var.name).collect();
    if !set.is_empty() {
        let message = format!("is not true, so that these do nothing: {}", set.join(", "));
        reader.warn(vars::REDIS_PERSECOND, message);
    }
}
