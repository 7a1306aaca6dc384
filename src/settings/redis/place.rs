//! Where a Redis is: what `REDIS_URL` means beside `REDIS_TYPE` and `REDIS_SOCKET_TYPE`.

use super::{
    super::parse::InvalidValue,
    RedisAddress, RedisServers,
    login::Login,
    names::Names,
    url::{self, Named},
};

/// `REDIS_TYPE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Kind {
    #[default]
    Single,
    Sentinel,
    Cluster,
}

/// `REDIS_SOCKET_TYPE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Socket {
    Tcp,
    Unix,
}

/// Redis's own port, and that of its sentinels.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

pub(super) fn kind(text: &str) -> Result<Kind, InvalidValue> {
    match text.to_ascii_lowercase().as_str() {
        "single" => Ok(Kind::Single),
        "sentinel" => Ok(Kind::Sentinel),
        "cluster" => Ok(Kind::Cluster),
        _ => Err(InvalidValue::new("SINGLE, SENTINEL or CLUSTER, in any case")),
    }
}

/// None when it is to be told by the URL.
pub(super) fn socket(text: &str) -> Result<Option<Socket>, InvalidValue> {
    match text.to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "tcp" | "tcp4" | "tcp6" => Ok(Some(Socket::Tcp)),
        "unix" => Ok(Some(Socket::Unix)),
        _ => Err(InvalidValue::new("tcp or unix")),
    }
}

/// What the URL says. The login in it is that of the servers that it names: of the sentinels, where it
/// names sentinels.
pub(super) fn servers(
    text: &str,
    kind: Kind,
    socket: Option<Socket>,
    names: &Names,
) -> Result<Named<RedisServers>, InvalidValue> {
    let text = text.trim();
    if text.is_empty() {
        let hint = format!("set it; the Go service's default is {}", names.usual_path);
        return Err(InvalidValue::new(accepted(kind)).with_hint(hint));
    }
    match kind {
        Kind::Single => single(text, socket, names),
        Kind::Sentinel => sentinel(text),
        Kind::Cluster => cluster(text),
    }
}

fn accepted(kind: Kind) -> String {
    match kind {
        Kind::Single => format!("{}, or the path of a unix socket", url::SERVER),
        Kind::Sentinel => "the master's name and its sentinels: mymaster,host:26379,host:26379".to_owned(),
        Kind::Cluster => "some of the cluster's servers: host:6379,host:6379".to_owned(),
    }
}

fn single(text: &str, socket: Option<Socket>, names: &Names) -> Result<Named<RedisServers>, InvalidValue> {
    let refusal = |hint: String| InvalidValue::new(accepted(Kind::Single)).with_hint(hint);
    let is_path = text.starts_with('/') || (text.contains('/') && !text.contains("://"));
    let is_server = |text: &str| url::is_url(text) || url::server(text, PORT).is_ok();
    match socket {
        Some(Socket::Tcp) if is_path => Err(refusal(format!("a path needs {}=unix", names.socket_type.name))),
        Some(Socket::Unix) if is_server(text) => {
            Err(refusal(format!("{}=unix needs a path: set it to tcp", names.socket_type.name)))
        }
        None if !is_path => tcp(text, names),
        Some(Socket::Tcp) => tcp(text, names),
        Some(Socket::Unix) | None => {
            let at = RedisServers::Single(RedisAddress::Unix(text.into()));
            Ok(Named { at, login: Login::default(), database: 0, tls: false })
        }
    }
}

fn tcp(text: &str, names: &Names) -> Result<Named<RedisServers>, InvalidValue> {
    let refusal = InvalidValue::new(accepted(Kind::Single));
    if text.split(',').nth(1).is_some_and(|second| url::server(second, PORT).is_ok()) {
        let kind = names.kind.name;
        return Err(refusal.with_hint(format!(
            "one server is meant; several need {kind}=CLUSTER, or {kind}=SENTINEL with the master's name first"
        )));
    }
    let server =
        url::server(text, PORT).map_err(|InvalidValue { hint, .. }| InvalidValue { hint, ..refusal })?;
    let Named { at, login, database, tls } = server;
    Ok(Named { at: RedisServers::Single(RedisAddress::Tcp(at)), login, database, tls })
}

fn sentinel(text: &str) -> Result<Named<RedisServers>, InvalidValue> {
    let refusal = |hint: &str| InvalidValue::new(accepted(Kind::Sentinel)).with_hint(hint);
    let (master, sentinels) = text.split_once(',').unwrap_or((text, ""));
    // Redis lets no master be called so.
    if master.trim().is_empty() || master.contains([':', '/', '@']) {
        return Err(refusal("the name by which the sentinels know the master comes first"));
    }
    let Named { at: sentinels, login, database, tls } = url::servers(sentinels.split(','), SENTINEL_PORT)?;
    if sentinels.is_empty() {
        return Err(refusal("at least one sentinel is needed behind the name"));
    }
    if database > 0 {
        return Err(refusal("sentinels have no databases, and counters behind them are in database 0"));
    }
    let at = RedisServers::Sentinel { master: master.trim().to_owned(), sentinels, credentials: None };
    Ok(Named { at, login, database, tls })
}

fn cluster(text: &str) -> Result<Named<RedisServers>, InvalidValue> {
    let refusal = |hint: &str| InvalidValue::new(accepted(Kind::Cluster)).with_hint(hint);
    if text.split(',').any(|one| one.trim().starts_with('/')) {
        return Err(refusal("a cluster is reached over TCP, not over a unix socket"));
    }
    let Named { at: seeds, login, database, tls } = url::servers(text.split(','), PORT)?;
    if seeds.is_empty() {
        return Err(refusal("at least one server is needed"));
    }
    if database > 0 {
        return Err(refusal("a cluster has database 0 alone: leave the database out"));
    }
    Ok(Named { at: RedisServers::Cluster { seeds }, login, database, tls })
}
