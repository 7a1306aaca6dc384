//! User and password, which a URL and a variable of their own may give in parts, and how a URL is shown that may hold
//! them.

use super::{Credentials, Secret};

/// What a text gives of a user and a password; what it does not give is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: Secret,
}

impl Login {
    pub(super) fn new(user: String, password: String) -> Self {
        Self { user, password: Secret(password) }
    }

    /// Of `password` or `user:password`, as `REDIS_AUTH` holds it.
    pub(super) fn of_auth(text: &str) -> Self {
        let (user, password) = text.split_once(':').unwrap_or(("", text));
        Self::new(user.to_owned(), password.to_owned())
    }

    /// True when neither is given.
    pub(super) fn is_empty(&self) -> bool {
        self.user.is_empty() && self.password.0.is_empty()
    }

    /// This, and what it does not give from the other.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            user: if self.user.is_empty() { other.user } else { self.user },
            password: if self.password.0.is_empty() { other.password } else { self.password },
        }
    }

    /// None when neither is given.
    pub(super) fn credentials(self) -> Option<Credentials> {
        let user = (!self.user.is_empty()).then(|| self.user.clone());
        (!self.is_empty()).then_some(Credentials { user, password: self.password })
    }
}

/// A value of `REDIS_URL` without what may be a password in it: rather too little than too much.
pub(in crate::settings) fn masked(text: &str) -> String {
    let begin = text.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = text.split_at(begin);
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    if query.is_some_and(|query| query.contains('@')) {
        return format!("{scheme}***");
    }
    let (login, hosts) = rest.rsplit_once('@').map_or(("", rest), |(_, hosts)| ("***@", hosts));
    let is_plain = scheme.is_empty() && login.is_empty();
    let hosts = if is_plain || looks_like_hosts(hosts) { hosts } else { "***" };
    format!("{scheme}{login}{hosts}{}", query.map_or("", |_| "?***"))
}

/// False where a URL may lack its host, so that a password stands in the place of the port.
fn looks_like_hosts(text: &str) -> bool {
    let is_port =
        |text: &str| text.split('/').next().unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
    text.split(',').all(|one| {
        let at = one.split_once("://").map_or(one, |(_, at)| at);
        let behind_ipv6 = at.rsplit(']').next().unwrap_or(at);
        behind_ipv6.split_once(':').is_none_or(|(_, port)| is_port(port))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_goes_before_a_url_in_each_part() {
        let of = |auth: &str, user: &str, password: &str| {
            let login = Login::of_auth(auth).or(Login::new(user.to_owned(), password.to_owned()));
            login.credentials().map(|found| (found.user.unwrap_or_default(), found.password.0))
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
        let login = Login::of_auth("user:hunter2");
        assert!(!format!("{login:?}{:?}", login.clone().credentials()).contains("hunter2"));
    }

    #[test]
    fn a_value_is_shown_without_what_may_be_a_password() {
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
}
