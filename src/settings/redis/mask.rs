//! How `REDIS_URL` is shown: it may hold a password, also where it could not be read.

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
