//! Where a Redis is: what `REDIS_URL` means beside `REDIS_TYPE` and `REDIS_SOCKET_TYPE`.

use super::{
    super::parse::{InvalidValue, Value, choice},
    RedisAddress, RedisServers,
    login::Login,
    url::{self, Named},
};

/// The variables that advice names: those of this Redis.
pub(super) struct Names {
    pub(super) kind: &'static str,
    pub(super) socket_type: &'static str,
    /// What the URL is when it is not set, in the Go service.
    pub(super) usual_path: &'static str,
}

/// `REDIS_TYPE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RedisType {
    /// One server.
    #[default]
    Single,
    /// Sentinels.
    Sentinel,
    /// A cluster.
    Cluster,
}

impl Value for RedisType {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        let choices = [("single", Self::Single), ("sentinel", Self::Sentinel), ("cluster", Self::Cluster)];
        choice(text, &choices, "SINGLE, SENTINEL or CLUSTER, in any case")
    }
}

/// `REDIS_SOCKET_TYPE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Socket {
    /// TCP.
    Tcp,
    /// A unix socket.
    Unix,
}

/// None leaves it to the URL.
impl Value for Option<Socket> {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        let tcp = Some(Socket::Tcp);
        let choices = [("", None), ("tcp", tcp), ("tcp4", tcp), ("tcp6", tcp), ("unix", Some(Socket::Unix))];
        choice(text, &choices, "tcp or unix")
    }
}

/// Redis's own port, and that of its sentinels.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// What the URL says. The login in it is that of the servers that it names: of the sentinels, where it
/// names sentinels.
pub(super) fn servers(
    text: &str,
    kind: RedisType,
    socket: Option<Socket>,
    names: &Names,
) -> Result<Named<RedisServers>, InvalidValue> {
    let text = text.trim();
    if text.is_empty() {
        let hint = format!("set it; the Go service's default is {}", names.usual_path);
        return Err(InvalidValue::new(accepted(kind)).with_hint(hint));
    }
    match kind {
        RedisType::Single => single(text, socket, names),
        RedisType::Sentinel => sentinel(text),
        RedisType::Cluster => cluster(text),
    }
}

fn accepted(kind: RedisType) -> String {
    match kind {
        RedisType::Single => format!("{}, or the path of a unix socket", url::SERVER),
        RedisType::Sentinel => {
            "the master's name and its sentinels: mymaster,host:26379,host:26379".to_owned()
        }
        RedisType::Cluster => "some of the cluster's servers: host:6379,host:6379".to_owned(),
    }
}

fn single(text: &str, socket: Option<Socket>, names: &Names) -> Result<Named<RedisServers>, InvalidValue> {
    let refusal = |hint: String| InvalidValue::new(accepted(RedisType::Single)).with_hint(hint);
    let is_path = text.starts_with('/') || (text.contains('/') && !text.contains("://"));
    let is_server = |text: &str| url::is_url(text) || url::server(text, PORT).is_ok();
    match socket {
        Some(Socket::Tcp) if is_path => Err(refusal(format!("a path needs {}=unix", names.socket_type))),
        Some(Socket::Unix) if is_server(text) => {
            Err(refusal(format!("{}=unix needs a path: set it to tcp", names.socket_type)))
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
    let refusal = InvalidValue::new(accepted(RedisType::Single));
    if text.split(',').nth(1).is_some_and(|second| url::server(second, PORT).is_ok()) {
        let kind = names.kind;
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
    let refusal = |hint: &str| InvalidValue::new(accepted(RedisType::Sentinel)).with_hint(hint);
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
    let refusal = |hint: &str| InvalidValue::new(accepted(RedisType::Cluster)).with_hint(hint);
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
