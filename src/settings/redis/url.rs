//! The servers that `REDIS_URL` names, by address or by URL.
//!
//! A list is split at its commas, as in the Go service. URLs are those that its library reads
//! (`redis://user:password@host:port/database`, also with `?username=`, `?password=` and `?db=`), and
//! `rediss://` beside them.

use super::{
    super::{
        address::host_port,
        parse::{InvalidValue, percent_decoded},
    },
    HostPort,
    login::Login,
};

/// Addresses, and what the URLs among them say beside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Named<A> {
    pub(super) at: A,
    pub(super) login: Login,
    pub(super) database: u32,
    pub(super) tls: bool,
}

/// What a server is written as.
pub(super) const SERVER: &str =
    "host:port, or a URL such as redis://user:password@host:6379/0 (rediss:// for TLS)";

/// One server; a URL without a port means `usual_port`.
pub(super) fn server(text: &str, usual_port: u16) -> Result<Named<HostPort>, InvalidValue> {
    if is_url(text) {
        return url(text, usual_port);
    }
    if text.contains("://") {
        return Err(InvalidValue::new(SERVER).with_hint("the schemes are redis:// and rediss://"));
    }
    let at = address(text, usual_port)?;
    Ok(Named { at, login: Login::default(), database: 0, tls: false })
}

/// Several servers that are one Redis. Whoever is given in one of the URLs is meant in all.
pub(super) fn servers<'t>(
    texts: impl Iterator<Item = &'t str>,
    usual_port: u16,
) -> Result<Named<Vec<HostPort>>, InvalidValue> {
    let mut all = Named { at: Vec::new(), login: Login::default(), database: 0, tls: false };
    for text in texts.map(str::trim).filter(|text| !text.is_empty()) {
        let one = server(text, usual_port)?;
        if !one.login.is_empty() && !all.login.is_empty() && one.login != all.login {
            let refusal = InvalidValue::new("a list of servers with one user and password for all");
            return Err(refusal.with_hint("give them in one of the URLs, or in a variable of their own"));
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

pub(super) fn is_url(text: &str) -> bool {
    ["redis://", "rediss://"].iter().any(|scheme| text.starts_with(scheme))
}

fn address(text: &str, usual_port: u16) -> Result<HostPort, InvalidValue> {
    let refusal = || InvalidValue::new(SERVER);
    let mut address = host_port(text).map_err(|wrong| {
        let with_port = format!("{text}:{usual_port}");
        match wrong.hint {
            Some(hint) => refusal().with_hint(hint),
            None if host_port(&with_port).is_ok() => {
                refusal().with_hint(format!("the port is missing: {with_port}"))
            }
            None => refusal(),
        }
    })?;
    if address.port == 0 {
        return Err(refusal().with_hint(format!("port 0 cannot be connected to; {usual_port} is usual")));
    }
    if address.host.is_empty() {
        // As Go dials an address without a host.
        address.host.push_str("localhost");
    }
    Ok(address)
}

fn url(text: &str, usual_port: u16) -> Result<Named<HostPort>, InvalidValue> {
    let refusal = || {
        let hint = "in a URL what is special in a user or password is written with a percent sign: %40 for @, %2F \
            for /, %23 for #, %25 for %";
        InvalidValue::new(SERVER).with_hint(hint)
    };
    let uri: http::Uri = text.parse().map_err(|_| refusal())?;
    let authority = uri.authority().ok_or_else(refusal)?.as_str();
    let (info, at) = authority.rsplit_once('@').unwrap_or(("", authority));
    let has_port = at.rsplit(']').next().is_some_and(|behind| behind.contains(':'));
    let at = if has_port { at.to_owned() } else { format!("{at}:{usual_port}") };
    // A special character in a password ends the server's part of the URL before its `@`.
    let is_cut = info.is_empty() && text.contains('@');
    let at = address(&at, usual_port).map_err(|wrong| if is_cut { refusal() } else { wrong })?;
    let (user, password) = info.split_once(':').unwrap_or((info, ""));
    let login = (
        percent_decoded(user),
        percent_decoded(password),
        in_query(&uri, "username"),
        in_query(&uri, "password"),
    );
    let (Some(user), Some(password), Some(other_user), Some(other_password)) = login else {
        return Err(refusal());
    };
    let login = Login::new(user, password).or(Login::new(other_user, other_password));
    let database = match uri.path().strip_prefix('/').unwrap_or_default() {
        "" => in_query(&uri, "db").ok_or_else(refusal)?,
        path => path.to_owned(),
    };
    Ok(Named { at, login, database: number(&database)?, tls: text.starts_with("rediss:") })
}

/// The first value of this name behind the `?`, empty when there is none; none when it cannot be decoded.
fn in_query(uri: &http::Uri, name: &str) -> Option<String> {
    let mut pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(key, _)| *key == name).map_or("", |(_, value)| value);
    percent_decoded(&value.replace('+', " "))
}

/// The number of a database; nothing is 0.
fn number(text: &str) -> Result<u32, InvalidValue> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if text.is_empty() { Some(0) } else { text.parse().ok().filter(|_| is_number) };
    number.ok_or_else(|| {
        InvalidValue::new(
            "a URL with the number of a database behind the server, or nothing: redis://host:6379/0",
        )
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::login::masked, *};

    /// What a text is read as: address, user, password, database, TLS.
    fn read(text: &str) -> Option<(String, String, String, u32, bool)> {
        let Named { at, login, database, tls } = server(text, 6379).ok()?;
        Some((at.to_string(), login.user, login.password.0, database, tls))
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
    fn other_texts_are_no_servers() {
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
            ("h:0", "port 0 cannot be connected to; 6379 is usual"),
        ] {
            let shown = server(text, 6379).unwrap_err().hint.unwrap_or_default();
            assert!(shown.contains(hint), "{text}: {shown}");
        }
    }

    #[test]
    fn who_is_given_once_is_meant_in_a_whole_list() {
        let read = |text: &str| servers(text.split(','), 26379);
        let list = read(" a:1, redis://u:p@b ,rediss://c:3,").unwrap();
        let places: Vec<String> = list.at.iter().map(ToString::to_string).collect();
        assert_eq!(places, ["a:1", "b:26379", "c:3"]);
        assert_eq!((&*list.login.user, &*list.login.password.0, list.tls), ("u", "p", true));
        assert!(read("redis://u:p@a,redis://u:p@b").is_ok());
        assert!(read("redis://u:p@a,redis://u:q@b").is_err());
        assert!(read("a:1,b").is_err());
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
        fn any_text_is_read_or_refused(text in "(redis://)?\\PC{0,30}") {
            let _ = (server(&text, 1), servers(text.split(','), 1), masked(&text));
        }
    }
}
