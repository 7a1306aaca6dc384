//! `REDIS_URL`: servers by address or by URL, depending on `REDIS_TYPE` and `REDIS_SOCKET_TYPE`, and their logins.
//!
//! A list is split at its commas, as in the Go service. URLs have the form that its library reads
//! (`redis://user:password@host:port/database`, also with `?username=`, `?password=` and `?db=`), or begin with
//! `rediss://`.

use super::super::{
    address::host_port,
    parse::percent_decoded,
    reader::Reader,
    values::{RedisType, SocketType},
    vars,
};
use net::HostPort;
use net::ServerAddress;
use redis_store::settings::{Credentials, RedisServers};
use text::InvalidValue;

/// Addresses, with the other contents of their URLs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Parsed<A> {
    pub(super) at: A,
    pub(super) login: Credentials,
    pub(super) database: u32,
    pub(super) tls: bool,
}

impl<A> Parsed<A> {
    pub(super) fn new(at: A) -> Self {
        Self { at, login: Credentials::default(), database: 0, tls: false }
    }

    pub(super) fn map<B>(self, map: impl FnOnce(A) -> B) -> Parsed<B> {
        Parsed { at: map(self.at), login: self.login, database: self.database, tls: self.tls }
    }
}

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The servers of a URL. Its login is for those servers: for the sentinels, if it names sentinels.
pub(super) fn servers(
    text: &str,
    kind: RedisType,
    socket: Option<SocketType>,
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
        RedisType::Single => format!("{SERVER}, or the path of a unix socket"),
        RedisType::Sentinel => {
            "the name of the master and its sentinels: mymaster,host:26379,host:26379".to_owned()
        }
        RedisType::Cluster => "some of the cluster's nodes: host:6379,host:6379".to_owned(),
    };
    InvalidValue::new(expected).with_hint(hint)
}

fn single(
    text: &str,
    socket: Option<SocketType>,
    reader: &Reader<'_>,
) -> Result<Parsed<RedisServers>, InvalidValue> {
    let is_path = text.starts_with('/') || (text.contains('/') && !text.contains("://"));
    let is_server = |text: &str| is_url(text) || server(text, PORT).is_ok();
    let variable = reader.effective(&vars::REDIS_SOCKET_TYPE).name;
    match socket {
        Some(SocketType::Tcp) if is_path => {
            Err(invalid(RedisType::Single, format!("a path requires {variable}=unix")))
        }
        Some(SocketType::Unix) if is_server(text) => {
            Err(invalid(RedisType::Single, format!("{variable}=unix requires a path; set it to tcp")))
        }
        None if !is_path => tcp(text, reader),
        Some(SocketType::Tcp) => tcp(text, reader),
        Some(SocketType::Unix) | None => {
            Ok(Parsed::new(RedisServers::Single(ServerAddress::Unix(text.into()))))
        }
    }
}

fn tcp(text: &str, reader: &Reader<'_>) -> Result<Parsed<RedisServers>, InvalidValue> {
    if text.split(',').nth(1).is_some_and(|second| server(second, PORT).is_ok()) {
        let kind = reader.effective(&vars::REDIS_TYPE).name;
        let hint = format!(
            "this is one server; several require {kind}=CLUSTER, or {kind}=SENTINEL with the master's name first"
        );
        return Err(invalid(RedisType::Single, hint));
    }
    let server = server(text, PORT)
        .map_err(|error| InvalidValue { hint: error.hint, ..invalid(RedisType::Single, "") })?;
    Ok(server.map(|at| RedisServers::Single(ServerAddress::Tcp(at))))
}

fn sentinel(text: &str) -> Result<Parsed<RedisServers>, InvalidValue> {
    let (master, sentinels) = text.split_once(',').unwrap_or((text, ""));
    let master = master.trim();
    // Redis does not allow these characters in a master's name.
    if master.is_empty() || master.contains([':', '/', '@']) {
        return Err(invalid(RedisType::Sentinel, "the name of the master comes first"));
    }
    let sentinels = server_list(sentinels.split(','), SENTINEL_PORT)?;
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
    let seeds = server_list(text.split(','), PORT)?;
    if seeds.at.is_empty() {
        return Err(invalid(RedisType::Cluster, "at least one server is required"));
    }
    if seeds.database > 0 {
        return Err(invalid(RedisType::Cluster, "a cluster has only database 0; remove the database"));
    }
    Ok(seeds.map(|seeds| RedisServers::Cluster { seeds }))
}

const SERVER: &str = "host:port, or a URL such as redis://user:password@host:6379/0 (rediss:// for TLS)";

/// One server; `default_port` applies to URLs without a port.
fn server(text: &str, default_port: u16) -> Result<Parsed<HostPort>, InvalidValue> {
    if is_url(text) {
        return url(text, default_port);
    }
    if text.contains("://") {
        return Err(InvalidValue::new(SERVER).with_hint("the schemes are redis:// and rediss://"));
    }
    address(text, default_port).map(Parsed::new)
}

/// The servers of one Redis. A login in one of the URLs applies to all servers.
fn server_list<'t>(
    texts: impl Iterator<Item = &'t str>,
    default_port: u16,
) -> Result<Parsed<Vec<HostPort>>, InvalidValue> {
    let mut all = Parsed::new(Vec::new());
    for text in texts.map(str::trim).filter(|text| !text.is_empty()) {
        let one = server(text, default_port)?;
        if !one.login.is_empty() && !all.login.is_empty() && one.login != all.login {
            let invalid = InvalidValue::new("a list of servers with one user and password for all");
            return Err(invalid.with_hint("write them in one of the URLs, or in their own variable"));
        }
        if all.login.is_empty() {
            all.login = one.login;
        }
        all.database = all.database.max(one.database);
        all.tls |= one.tls;
        all.at.push(one.at);
    }
    Ok(all)
}

fn is_url(text: &str) -> bool {
    ["redis://", "rediss://"].iter().any(|scheme| text.starts_with(scheme))
}

fn address(text: &str, default_port: u16) -> Result<HostPort, InvalidValue> {
    let address = host_port(text).map_err(|invalid| {
        let with_port = format!("{text}:{default_port}");
        let lacks_port =
            || host_port(&with_port).is_ok().then(|| format!("the port is missing: {with_port}"));
        InvalidValue { expected: SERVER.to_owned(), hint: invalid.hint.or_else(lacks_port) }
    })?;
    if address.port == 0 {
        let hint = format!("cannot connect to port 0; the default is {default_port}");
        return Err(InvalidValue::new(SERVER).with_hint(hint));
    }
    Ok(address.or_localhost())
}

fn url(text: &str, default_port: u16) -> Result<Parsed<HostPort>, InvalidValue> {
    let invalid = || {
        let hint = "percent-encode special characters of a user or password: %40 for @, %2F for /, %23 for #, %25 \
            for %";
        InvalidValue::new(SERVER).with_hint(hint)
    };
    let uri: http::Uri = text.parse().map_err(|_| invalid())?;
    let authority = uri.authority().ok_or_else(invalid)?.as_str();
    let (info, at) = authority.rsplit_once('@').unwrap_or(("", authority));
    let has_port = at.rsplit(']').next().is_some_and(|behind| behind.contains(':'));
    let at = if has_port { at.to_owned() } else { format!("{at}:{default_port}") };
    // A special character in a password ends the authority before its `@`.
    let is_cut = info.is_empty() && text.contains('@');
    let at = address(&at, default_port).map_err(|error| if is_cut { invalid() } else { error })?;
    let (user, password) = info.split_once(':').unwrap_or((info, ""));
    let login = (
        percent_decoded(user),
        percent_decoded(password),
        in_query(&uri, "username"),
        in_query(&uri, "password"),
    );
    let (Some(user), Some(password), Some(other_user), Some(other_password)) = login else {
        return Err(invalid());
    };
    let login = Credentials::new(user, password).or(Credentials::new(other_user, other_password));
    let database = match uri.path().strip_prefix('/').unwrap_or_default() {
        "" => in_query(&uri, "db").ok_or_else(invalid)?,
        path => path.to_owned(),
    };
    Ok(Parsed { at, login, database: number(&database)?, tls: text.starts_with("rediss:") })
}

/// The first value of this name in the query, or an empty one; `None` if it cannot be decoded.
fn in_query(uri: &http::Uri, name: &str) -> Option<String> {
    let mut pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(key, _)| *key == name).map_or("", |(_, value)| value);
    percent_decoded(&value.replace('+', " "))
}

fn number(text: &str) -> Result<u32, InvalidValue> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if text.is_empty() { Some(0) } else { text.parse().ok().filter(|_| is_number) };
    number
        .ok_or_else(|| InvalidValue::new("a URL whose path is the number of a database: redis://host:6379/0"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::super::variable::masked, *};

    /// Address, user, password, database and TLS of a text.
    fn read(text: &str) -> Option<(String, String, String, u32, bool)> {
        let Parsed { at, login, database, tls } = server(text, 6379).ok()?;
        Some((at.to_string(), login.user.unwrap_or_default(), login.password.0, database, tls))
    }

    #[test]
    fn servers_are_read() {
        for (text, at, user, password, database, tls) in [
            ("redis:6379", "redis:6379", "", "", 0, false),
            (":6380", "localhost:6380", "", "", 0, false),
            ("[::1]:6379", "[::1]:6379", "", "", 0, false),
            ("redis://h", "h:6379", "", "", 0, false),
            ("redis://h:1/", "h:1", "", "", 0, false),
            ("redis://h:1/7", "h:1", "", "", 7, false),
            ("redis://[::1]", "[::1]:6379", "", "", 0, false),
            ("redis://[::1]:1/2", "[::1]:1", "", "", 2, false),
            ("redis://:p@h", "h:6379", "", "p", 0, false),
            ("redis://u@h", "h:6379", "u", "", 0, false),
            ("redis://u:p:q@h", "h:6379", "u", "p:q", 0, false),
            ("redis://u%40v:%2f%23%25%C3%A9@h", "h:6379", "u@v", "/#%\u{e9}", 0, false),
            ("rediss://u:p@h:1/3", "h:1", "u", "p", 3, true),
            ("redis://h?username=u&password=p%20+q&db=4", "h:6379", "u", "p  q", 4, false),
            ("redis://v:r@h/3?username=u&password=p&db=4", "h:6379", "v", "r", 3, false),
            ("redis://h?timeout=1s&db", "h:6379", "", "", 0, false),
        ] {
            let expected = (at.to_owned(), user.to_owned(), password.to_owned(), database, tls);
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn rejects_other_texts() {
        for text in [
            "",
            "redis",
            "redis:",
            "redis:0",
            "redis:port",
            "a:1,b:2",
            "/run/redis.sock",
            "http://redis:6379",
            "REDIS://h",
            "unix:///run/redis.sock",
            "redis://",
            "redis://:6379:1",
            "redis://u:p/q@h",
            "redis://u:p#q@h",
            "redis://u:p q@h",
            "redis://u:%4@h",
            "redis://u:%zz@h",
            "redis://u:%+1@h",
            "redis://u:%ff@h",
            "redis://h:70000",
            "redis://h/x",
            "redis://h/-1",
            "redis://h/1/2",
            "redis://h?db=+1",
            "redis://h/4294967296",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn common_mistakes_have_a_hint() {
        for (text, hint) in [
            ("redis", "the port is missing: redis:6379"),
            ("6379", "write :6379"),
            ("tcp://h:6379", "the schemes are redis:// and rediss://"),
            ("redis://u:p/q@h", "%2F for /"),
            ("h:0", "cannot connect to port 0; the default is 6379"),
        ] {
            let shown = server(text, 6379).unwrap_err().hint.unwrap_or_default();
            assert!(shown.contains(hint), "{text}: {shown}");
        }
    }

    #[test]
    fn a_login_in_one_url_applies_to_the_whole_list() {
        let read = |text: &str| server_list(text.split(','), 26379);
        let list = read(" a:1, redis://u:p@b ,rediss://c:3,").unwrap();
        let places: Vec<String> = list.at.iter().map(ToString::to_string).collect();
        assert_eq!(places, ["a:1", "b:26379", "c:3"]);
        assert_eq!((list.login, list.tls), (Credentials::parse("u:p"), true));
        assert!(read("redis://u:p@a,redis://u:p@b").is_ok());
        assert!(read("redis://u:p@a,redis://u:q@b").is_err());
        assert!(read("a:1,b").is_err());
    }

    #[test]
    fn a_variable_takes_precedence_over_a_url_in_each_part() {
        let of = |auth: &str, user: &str, password: &str| {
            let login = Credentials::parse(auth).or(Credentials::new(user.to_owned(), password.to_owned()));
            (!login.is_empty()).then(|| (login.user.unwrap_or_default(), login.password.0))
        };
        let found = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(of("", "", ""), None);
        assert_eq!(of(":", "", ""), None);
        assert_eq!(of("p", "", ""), found("", "p"));
        assert_eq!(of("u:p:q", "v", "r"), found("u", "p:q"));
        assert_eq!(of("p", "v", "r"), found("v", "p"));
        assert_eq!(of("u:", "v", "r"), found("u", "r"));
        assert_eq!(of("", "v", "r"), found("v", "r"));
        assert_eq!(of(":p", "", "r"), found("", "p"));
    }

    #[test]
    fn passwords_are_not_printed() {
        let login = Credentials::parse("user:hunter2");
        assert!(!format!("{login:?}").contains("hunter2"));
    }

    #[test]
    fn masks_possible_passwords() {
        for (text, shown) in [
            ("redis:6379", "redis:6379"),
            ("localhost:http", "localhost:http"),
            ("/run/redis.sock", "/run/redis.sock"),
            ("mymaster,a:1,b:2", "mymaster,a:1,b:2"),
            ("redis://h:6379/3", "redis://h:6379/3"),
            ("redis://[::1]:6379", "redis://[::1]:6379"),
            ("redis://a:1,redis://b:2", "redis://a:1,redis://b:2"),
            ("redis://u:hunter2@h:6379/x", "redis://***@h:6379/x"),
            ("redis://hunter2@h", "redis://***@h"),
            ("u:hunter2@h:6379", "***@h:6379"),
            ("hunter2@h", "***@h"),
            ("redis://u:hun,ter2@h:1", "redis://***@h:1"),
            ("redis://u:hun@ter2@h:1", "redis://***@h:1"),
            ("redis://u:hun?ter2@h:1", "redis://***"),
            ("redis://u:hun/ter2@h:1", "redis://***@h:1"),
            ("m,redis://:hunter2@a:1,redis://:hunter2@b:2", "m,redis://***@b:2"),
            ("redis://h?password=hunter2", "redis://h?***"),
            ("redis://h?password=hunter@2", "redis://***"),
            ("redis://u:hunter2", "redis://***"),
            ("redis://u:p@hunter:2x", "redis://***@***"),
        ] {
            assert_eq!(masked(text), shown);
        }
    }

    proptest! {
        #[test]
        fn any_login_is_read_back_and_never_shown(user in "[a-z]{0,5}", password in "\\PC{3,12}") {
            let written = password.bytes().fold(String::new(), |text, byte| format!("{text}%{byte:02x}"));
            let text = format!("redis://{user}:{written}@h:1");
            prop_assert_eq!(read(&text), Some(("h:1".to_owned(), user.clone(), password.clone(), 0, false)));
            prop_assert_eq!(masked(&text), "redis://***@h:1");
            // Written as it is, it may not be read, but it is not shown either.
            let shown = masked(&format!("redis://{user}:{password}@h:1"));
            prop_assert!(["redis://***@h:1", "redis://***"].contains(&&*shown), "{}", shown);
        }

        #[test]
        fn any_text_is_accepted_or_rejected(text in "(redis://)?\\PC{0,30}") {
            let _ = (server(&text, 1), server_list(text.split(','), 1), masked(&text));
        }
    }
}
