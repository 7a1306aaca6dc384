//! The servers of a Redis: `REDIS_URL` depending on `REDIS_TYPE` and `REDIS_SOCKET_TYPE`.

use super::{
    super::{
        parse::InvalidValue,
        reader::Reader,
        values::{RedisType, Socket},
        vars,
    },
    RedisAddress, RedisServers,
    url::{self, Parsed},
};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The servers of a URL. Its login is for those servers: for the sentinels, if it names sentinels.
pub(super) fn servers(
    text: &str,
    kind: RedisType,
    socket: Option<Socket>,
    reader: &Reader<'_>,
) -> Result<Parsed<RedisServers>, InvalidValue> {
    match kind {
        RedisType::Single => single(text, socket, reader),
        RedisType::Sentinel => sentinel(text),
        RedisType::Cluster => cluster(text),
    }
}

pub(super) fn invalid(kind: RedisType, hint: impl Into<String>) -> InvalidValue {
    let expected = match kind {
        RedisType::Single => format!("{}, or the path of a unix socket", url::SERVER),
        RedisType::Sentinel => {
            "the name of the master and its sentinels: mymaster,host:26379,host:26379".to_owned()
        }
        RedisType::Cluster => "some of the cluster's nodes: host:6379,host:6379".to_owned(),
    };
    InvalidValue::new(expected).with_hint(hint)
}

fn single(
    text: &str,
    socket: Option<Socket>,
    reader: &Reader<'_>,
) -> Result<Parsed<RedisServers>, InvalidValue> {
    let is_path = text.starts_with('/') || (text.contains('/') && !text.contains("://"));
    let is_server = |text: &str| url::is_url(text) || url::server(text, PORT).is_ok();
    let variable = reader.effective(&vars::REDIS_SOCKET_TYPE).name;
    match socket {
        Some(Socket::Tcp) if is_path => {
            Err(invalid(RedisType::Single, format!("a path requires {variable}=unix")))
        }
        Some(Socket::Unix) if is_server(text) => {
            Err(invalid(RedisType::Single, format!("{variable}=unix requires a path; set it to tcp")))
        }
        None if !is_path => tcp(text, reader),
        Some(Socket::Tcp) => tcp(text, reader),
        Some(Socket::Unix) | None => Ok(Parsed::new(RedisServers::Single(RedisAddress::Unix(text.into())))),
    }
}

fn tcp(text: &str, reader: &Reader<'_>) -> Result<Parsed<RedisServers>, InvalidValue> {
    if text.split(',').nth(1).is_some_and(|second| url::server(second, PORT).is_ok()) {
        let kind = reader.effective(&vars::REDIS_TYPE).name;
        let hint = format!(
            "this is one server; several require {kind}=CLUSTER, or {kind}=SENTINEL with the master's name first"
        );
        return Err(invalid(RedisType::Single, hint));
    }
    let server = url::server(text, PORT)
        .map_err(|error| InvalidValue { hint: error.hint, ..invalid(RedisType::Single, "") })?;
    Ok(server.map(|at| RedisServers::Single(RedisAddress::Tcp(at))))
}

fn sentinel(text: &str) -> Result<Parsed<RedisServers>, InvalidValue> {
    let (master, sentinels) = text.split_once(',').unwrap_or((text, ""));
    let master = master.trim();
    // Redis does not allow these characters in a master's name.
    if master.is_empty() || master.contains([':', '/', '@']) {
        return Err(invalid(RedisType::Sentinel, "the name of the master comes first"));
    }
    let sentinels = url::servers(sentinels.split(','), SENTINEL_PORT)?;
    if sentinels.at.is_empty() {
        return Err(invalid(RedisType::Sentinel, "at least one sentinel is required after the name"));
    }
    if sentinels.database > 0 {
        let hint = "sentinels have no databases, and counters behind them are in database 0";
        return Err(invalid(RedisType::Sentinel, hint));
    }
    let master = master.to_owned();
    Ok(sentinels.map(|sentinels| RedisServers::Sentinel { master, sentinels, credentials: None }))
}

fn cluster(text: &str) -> Result<Parsed<RedisServers>, InvalidValue> {
    if text.split(',').any(|one| one.trim().starts_with('/')) {
        return Err(invalid(RedisType::Cluster, "a cluster requires TCP, not a unix socket"));
    }
    let seeds = url::servers(text.split(','), PORT)?;
    if seeds.at.is_empty() {
        return Err(invalid(RedisType::Cluster, "at least one server is required"));
    }
    if seeds.database > 0 {
        return Err(invalid(RedisType::Cluster, "a cluster has only database 0; remove the database"));
    }
    Ok(seeds.map(|seeds| RedisServers::Cluster { seeds }))
}
