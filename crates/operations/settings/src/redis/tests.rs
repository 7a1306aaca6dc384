//! The settings of Redis in whole environments.

mod wrong;

use std::path::Path;

use super::{super::Settings, *};
use crate::{Available, Backend};
use net::HostPort;
use net::ServerAddress;
use net::tls::ClientTls;
use redis_store::settings::{CredentialFile, CredentialSource, Redis, RedisPool, RedisServers, Startup};

type Outcome = Result<(Settings, Vec<String>), Vec<String>>;

/// Reads an environment where only the files of `/tls` exist.
fn read(set: &[(&str, &str)]) -> Outcome {
    let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
    match Settings::read(&env, &|path| path.starts_with(Path::new("/tls")), 1, Available::default()) {
        Ok((settings, warnings)) => Ok((settings, warnings.iter().map(ToString::to_string).collect())),
        Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
    }
}

/// The Redis of an environment without warnings.
fn redis(set: &[(&str, &str)]) -> Redis {
    let (settings, warnings) = read(set).unwrap();
    assert_eq!(warnings, [""; 0], "{set:?}");
    let Backend::Redis(redis) = settings.backend else { panic!("{set:?} does not select Redis") };
    *redis
}

fn warnings(set: &[(&str, &str)]) -> Vec<String> {
    read(set).unwrap().1
}

fn problems(set: &[(&str, &str)]) -> Vec<String> {
    read(set).unwrap_err()
}

fn single(url: &str) -> RedisServers {
    redis(&[("REDIS_URL", url)]).main.servers
}

fn at(host: &str, port: u16) -> HostPort {
    HostPort { host: host.to_owned(), port }
}

/// User and password.
fn who(credentials: Option<&CredentialSource>) -> Option<(Option<&str>, &str)> {
    match credentials? {
        CredentialSource::Fixed(found) => Some((found.user.as_deref(), &*found.password.0)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_url_is_enough() {
    let expected = RedisPool {
        servers: RedisServers::Single(ServerAddress::Tcp(at("redis", 6379))),
        credentials: None,
        database: 0,
        tls: None,
        connections: 10,
        timeout: Duration::from_millis(10),
        connect_timeout: Duration::from_millis(300),
        pipeline_window: Duration::ZERO,
        max_queued: 8192,
    };
    let startup = Startup {
        initial_interval: Duration::from_millis(50),
        max_interval: Duration::from_millis(300),
        give_up_after: None,
    };
    let expected = Redis { main: expected, per_second: None, unhealthy_without: false, startup };
    assert_eq!(redis(&[("REDIS_URL", "redis:6379")]), expected);
    assert_eq!(redis(&[("REDIS_URL", "redis:6379"), ("BACKEND_TYPE", "redis")]), expected);
}

#[test]
fn derives_the_socket_type_from_the_url() {
    assert_eq!(single("/run/r.sock"), RedisServers::Single(ServerAddress::Unix("/run/r.sock".into())));
    assert_eq!(single("./r"), RedisServers::Single(ServerAddress::Unix("./r".into())));
    assert_eq!(single("redis://h"), RedisServers::Single(ServerAddress::Tcp(at("h", 6379))));
    for (socket, url) in [("unix", "/run/a:1,b"), ("unix", "r.sock"), ("tcp", "[::1]:6379"), ("TCP4", "h:1")]
    {
        let Redis { main, .. } = redis(&[("REDIS_SOCKET_TYPE", socket), ("REDIS_URL", url)]);
        let RedisServers::Single(address) = main.servers else { panic!("{url}") };
        assert_eq!(address.to_string(), url);
        assert_eq!(matches!(address, ServerAddress::Unix(_)), socket == "unix");
    }
}

#[test]
fn sentinels_and_clusters_are_read() {
    let sentinels = redis(&[
        ("REDIS_TYPE", "sentinel"),
        ("REDIS_URL", "mymaster,a:26379, redis://u:p@b ,"),
        ("REDIS_AUTH", "master:secret"),
    ]);
    let RedisServers::Sentinel { master, sentinels, credentials } = sentinels.main.servers else { panic!() };
    assert_eq!((&*master, &*sentinels), ("mymaster", &[at("a", 26379), at("b", 26379)][..]));
    assert_eq!(who(credentials.as_ref()), Some((Some("u"), "p")), "a URL names a sentinel, and its user");
    assert_eq!(who(sentinels_main(&[]).credentials.as_ref()), None);
    assert_eq!(
        who(sentinels_main(&[("REDIS_AUTH", "m:n"), ("REDIS_SENTINEL_AUTH", "s")]).credentials.as_ref()),
        Some((Some("m"), "n"))
    );

    let cluster = redis(&[("REDIS_TYPE", "Cluster"), ("REDIS_URL", "a:1,redis://:p@b,rediss://c")]).main;
    let seeds = vec![at("a", 1), at("b", 6379), at("c", 6379)];
    assert_eq!(cluster.servers, RedisServers::Cluster { seeds });
    assert_eq!(who(cluster.credentials.as_ref()), Some((None, "p")));
    assert!(cluster.tls.is_some());
}

fn sentinels_main(with: &[(&str, &str)]) -> RedisPool {
    redis(&[&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "m,a:1")], with].concat()).main
}

#[test]
fn a_url_contains_user_password_database_and_tls() {
    let pool = redis(&[("REDIS_URL", "rediss://u:p@h:1/3")]).main;
    assert_eq!(who(pool.credentials.as_ref()), Some((Some("u"), "p")));
    assert_eq!((pool.database, pool.tls), (3, Some(ClientTls::default())));
    let pool = redis(&[("REDIS_URL", "redis://u:p@h"), ("REDIS_AUTH", "v:q"), ("REDIS_TLS", "true")]).main;
    assert_eq!(who(pool.credentials.as_ref()), Some((Some("v"), "q")), "the variable takes precedence");
    assert!(pool.tls.is_some());
}

#[test]
fn credentials_of_files_replace_those_of_variables_and_urls() {
    let file = |variable, path: &str, user: Option<&str>| {
        let user = user.map(str::to_owned);
        Some(CredentialSource::File(CredentialFile { variable, path: path.into(), user }))
    };
    let main = redis(&[("REDIS_URL", "redis://u:p@h"), ("REDIS_AUTH_FILE", "/tls/a")]).main;
    assert_eq!(main.credentials, file("REDIS_AUTH_FILE", "/tls/a", Some("u")));
    let main = sentinels_main(&[("REDIS_AUTH_FILE", "/tls/a"), ("REDIS_SENTINEL_AUTH_FILE", "/tls/s")]);
    assert_eq!(main.credentials, file("REDIS_AUTH_FILE", "/tls/a", None));
    let RedisServers::Sentinel { credentials, .. } = main.servers else { panic!() };
    assert_eq!(credentials, file("REDIS_SENTINEL_AUTH_FILE", "/tls/s", None));
    let second = redis(&[
        ("REDIS_URL", "a:1"),
        ("REDIS_AUTH_FILE", "/tls/a"),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", "m,b:2"),
        ("REDIS_PERSECOND_TYPE", "SENTINEL"),
        ("REDIS_PERSECOND_AUTH_FILE", "/tls/b"),
        ("REDIS_PERSECOND_SENTINEL_AUTH_FILE", "/tls/c"),
    ]);
    let second = second.per_second.unwrap();
    assert_eq!(second.credentials, file("REDIS_PERSECOND_AUTH_FILE", "/tls/b", None));
    let RedisServers::Sentinel { credentials, .. } = second.servers else { panic!() };
    assert_eq!(credentials, file("REDIS_PERSECOND_SENTINEL_AUTH_FILE", "/tls/c", None));
}

#[test]
fn a_variable_and_a_file_with_credentials_exclude_each_other() {
    let both = [("REDIS_URL", "a:1"), ("REDIS_AUTH", "hunter2"), ("REDIS_AUTH_FILE", "/tls/a")];
    let problems = problems(&both);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("only one of REDIS_AUTH and REDIS_AUTH_FILE"), "{problems:?}");
    assert!(!problems[0].contains("hunter2"), "{problems:?}");
    let absent = warnings(&[("REDIS_URL", "a:1"), ("REDIS_AUTH_FILE", "/absent")]);
    assert!(absent.len() == 1 && absent[0].contains("does not exist yet"), "{absent:?}");
    let unused = warnings(&[("REDIS_URL", "a:1"), ("REDIS_SENTINEL_AUTH_FILE", "/tls/a")]);
    assert!(unused.len() == 1 && unused[0].contains("without REDIS_TYPE=SENTINEL"), "{unused:?}");
}

#[test]
fn the_second_redis_has_its_own_variables_and_shares_some() {
    let read = redis(&[
        ("REDIS_URL", "a:1"),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", "m,b:2"),
        ("REDIS_PERSECOND_TYPE", "SENTINEL"),
        ("REDIS_PERSECOND_AUTH", "p"),
        ("REDIS_PERSECOND_SENTINEL_AUTH", "s"),
        ("REDIS_PERSECOND_TLS", "1"),
        ("REDIS_PERSECOND_TIMEOUT", "5ms"),
        ("REDIS_PERSECOND_POOL_SIZE", "3"),
        ("REDIS_PERSECOND_PIPELINE_WINDOW", "150us"),
        ("REDIS_TLS_CACERT", "/tls/ca"),
        ("REDIS_TLS_CLIENT_CERT", "/tls/cert"),
        ("REDIS_TLS_CLIENT_KEY", "/tls/key"),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"),
        ("REDIS_CONNECT_TIMEOUT", "1s"),
        ("REDIS_MAX_QUEUED", "7"),
    ]);
    assert_eq!(read.main.tls, None);
    let second = read.per_second.unwrap();
    let RedisServers::Sentinel { credentials, .. } = &second.servers else { panic!() };
    assert_eq!(who(credentials.as_ref()), Some((None, "s")));
    assert_eq!(who(second.credentials.as_ref()), Some((None, "p")));
    assert_eq!((second.timeout, second.connections), (Duration::from_millis(5), 3));
    assert_eq!(second.pipeline_window, Duration::from_micros(150));
    let identity = Some(("/tls/cert".into(), "/tls/key".into()));
    let tls = ClientTls { ca: Some("/tls/ca".into()), trust_system: false, identity, skip_hostname: true };
    assert_eq!(second.tls, Some(tls));
    for pool in [&read.main, &second] {
        assert_eq!((pool.connect_timeout, pool.max_queued), (Duration::from_secs(1), 7));
    }
}

#[test]
fn accepts_unused_variables_of_the_go_service() {
    let read = redis(&[
        ("REDIS_URL", "a:1"),
        ("REDIS_PIPELINE_LIMIT", "-8"),
        ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "0"),
        ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "wait"),
        ("REDIS_POOL_ON_EMPTY_WAIT_DURATION", "1s"),
        ("REDIS_POOL_SIZE", "0"),
        ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
    ]);
    assert_eq!(read.main.connections, 4);
    assert!(read.unhealthy_without);
}

#[test]
fn reads_the_delays_between_attempts() {
    let startup = |set: &[(&str, &str)]| {
        let read = redis(&[&[("REDIS_URL", "a:1")], set].concat()).startup;
        (read.initial_interval.as_millis(), read.max_interval.as_millis(), read.give_up_after)
    };
    let (first, longest) = ("REDIS_STARTUP_INITIAL_INTERVAL", "REDIS_STARTUP_MAX_INTERVAL");
    assert_eq!(startup(&[(first, "1s"), (longest, "30s")]), (1000, 30_000, None));
    assert_eq!(startup(&[(first, "1s")]), (1000, 1000, None));
    assert_eq!(startup(&[(first, "1s"), (longest, "100ms")]), (100, 100, None));
    assert_eq!(startup(&[(first, "0"), (longest, "0")]), (50, 300, None));
    let elapsed = ("REDIS_STARTUP_MAX_ELAPSED_TIME", "2m");
    assert_eq!(startup(&[elapsed]), (50, 300, Some(Duration::from_secs(120))));
}
