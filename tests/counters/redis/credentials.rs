//! Credentials that change while the service runs: a rotation costs no request and no hit, mistakes in a file are reported,
//! and nothing of a file is shown.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use support::{
    eventually, holds, http,
    ports::free_port,
    redis::{Cluster, Env, Redis, Sentinels},
    server::{Server, Setup},
    steady::{Steady, Verdict},
};

use super::{RULES, counter, one};

/// Long enough that a busy machine causes no failover of a cluster.
const STEADY: Duration = Duration::from_secs(15);

const PATIENCE: Duration = Duration::from_secs(10);

/// An ACL user that may do everything.
const ALL: [&str; 3] = ["~*", "&*", "+@all"];

const IN_USE: &str = "all connections that count use the new credentials";

/// A directory as Kubernetes, Vault's agent and CSI drivers mount a secret: its files are links through `..data`, which is
/// replaced as a whole.
struct Mounted {
    dir: TempDir,
    version: u32,
}

impl Mounted {
    fn new(text: &str) -> Self {
        let mut mounted = Self { dir: tempfile::tempdir().unwrap(), version: 0 };
        symlink("..data/redis", mounted.path()).unwrap();
        mounted.put(text);
        mounted
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("redis")
    }

    fn put(&mut self, text: &str) {
        let (old, new) = (format!("..{}", self.version), format!("..{}", self.version + 1));
        let at = |name: &str| self.dir.path().join(name);
        fs::create_dir(at(&new)).unwrap();
        write_private(&at(&new).join("redis"), text);
        symlink(&new, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        if self.version > 0 {
            fs::remove_dir_all(at(&old)).unwrap();
        }
        self.version += 1;
    }
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn file(name: &'static str, path: &Path) -> Env {
    vec![(name, path.display().to_string())]
}

fn start(env: &[Env]) -> Server {
    Setup::new().env("LOG_LEVEL", "info").redis(&env.concat()).rules("d.yaml", RULES).start_healthy()
}

fn user<'a>(name: &'a str, password: &'a str) -> Vec<&'a str> {
    [&["--user", name, "on", password][..], &ALL].concat()
}

/// Hits of three users, until all are answered: each was counted, by the right answer.
struct Load {
    steady: Steady,
    before: Vec<i64>,
}

const USERS: [&str; 3] = ["0", "1", "2"];

impl Load {
    fn start(server: &Server, counted: &dyn Fn(&str) -> i64) -> Self {
        let requests = USERS.map(|user| one("many", user));
        let before = USERS.map(|user| counted(&counter("many", user))).to_vec();
        let steady = Steady::start(server.ports.grpc, 400, PATIENCE, &requests, &one("control", "v"));
        Self { steady, before }
    }

    fn assert_all_counted(self, counted: &dyn Fn(&str) -> i64) {
        let outcome = self.steady.stop();
        let failed: Vec<_> = outcome.asked.iter().filter(|one| one.verdict != Verdict::Ok).collect();
        let all = outcome.asked.len();
        assert!(failed.is_empty(), "{} of {all} failed, the first: {:?}", failed.len(), failed[0]);
        assert!(all > 0, "nothing was sent");
        for (kind, (user, before)) in USERS.iter().zip(self.before).enumerate() {
            let hits = i64::try_from(outcome.asked.iter().filter(|one| one.kind == kind).count()).unwrap();
            assert_eq!(counted(&counter("many", user)), before + hits, "hits of {user}");
        }
    }
}

/// The number of lines of the log so far with a text.
fn lines(server: &Server, text: &str) -> usize {
    server.process.log().to_string().lines().filter(|line| line.contains(text)).count()
}

fn wait_for_lines(server: &Server, text: &str, count: usize) {
    eventually("the line is logged", || {
        holds(lines(server, text) >= count, || {
            format!("not {count} times {text:?}:\n{}", server.process.log())
        })
    });
}

/// A new password is added, the file changes, the old password is removed, and connections are closed.
fn rotates_a_password(env: &[Env], servers: &[&Redis], counted: &dyn Fn(&str) -> i64) {
    let mut mounted = Mounted::new("app:hush-0\n");
    let server = start(&[env.concat(), file("REDIS_AUTH_FILE", &mounted.path())]);
    let each = |words: &[&str]| servers.iter().for_each(|server| drop(server.ask(words)));
    for round in 1..=3 {
        let load = Load::start(&server, counted);
        each(&["ACL", "SETUSER", "app", &format!(">hush-{round}")]);
        mounted.put(&format!("app:hush-{round}\n"));
        wait_for_lines(&server, IN_USE, round);
        each(&["ACL", "SETUSER", "app", &format!("<hush-{}", round - 1)]);
        thread::sleep(Duration::from_millis(300));
        load.assert_all_counted(counted);
        // While nothing is in flight, since the reply to a pipeline of a closed connection is lost.
        each(&["CLIENT", "KILL", "USER", "app"]);
        let load = Load::start(&server, counted);
        thread::sleep(Duration::from_millis(300));
        load.assert_all_counted(counted);
    }
    let log = server.final_log();
    assert!(!log.contains("hush"), "a secret is in the log:\n{log}");
    assert!(!log.contains("WRONGPASS"), "{log}");
}

#[test]
fn a_rotated_password_of_servers_and_sentinels_costs_no_request_and_no_hit() {
    let sentinels = Sentinels::with(&user("app", ">hush-0"), Some("hush-sentinel"));
    let watchers = Mounted::new("hush-sentinel");
    let env = [sentinels.env(), file("REDIS_SENTINEL_AUTH_FILE", &watchers.path())];
    let servers: Vec<_> = sentinels.servers.iter().collect();
    let master = sentinels.master();
    rotates_a_password(&env, &servers, &|key| master.counter(key));
}

#[test]
fn a_rotated_password_of_a_cluster_costs_no_request_and_no_hit() {
    let cluster = Cluster::with(STEADY, &user("app", ">hush-0"));
    let servers: Vec<_> = cluster.servers.iter().collect();
    rotates_a_password(&[cluster.env()], &servers, &|key| cluster.counter(key));
}

/// As Vault's database engine does: each lease has a user of its own, which is deleted at its end. Redis closes the
/// connections of a deleted user.
fn replaces_the_user(env: &Env, servers: &[&Redis], counted: &dyn Fn(&str) -> i64) {
    let mut mounted = Mounted::new("app-0:hush");
    let server = start(&[env.clone(), file("REDIS_AUTH_FILE", &mounted.path())]);
    let load = Load::start(&server, counted);
    for round in 1..=3 {
        let name = format!("app-{round}");
        let new = [&["ACL", "SETUSER", &name, "on", ">hush"][..], &ALL].concat();
        for server in servers {
            server.ask(&new);
        }
        mounted.put(&format!("{name}:hush"));
        wait_for_lines(&server, IN_USE, round);
        let old = format!("app-{}", round - 1);
        for server in servers {
            server.ask(&["ACL", "DELUSER", &old]);
        }
        thread::sleep(Duration::from_millis(100));
    }
    load.assert_all_counted(counted);
    let log = server.final_log();
    assert!(!log.contains("hush") && !log.contains("app-"), "the file is in the log:\n{log}");
}

#[test]
fn a_replaced_user_costs_no_request_and_no_hit() {
    let redis = Redis::with(&user("app-0", ">hush"));
    replaces_the_user(&redis.env(), &[&redis], &|key| redis.counter(key));
}

#[test]
fn sentinels_are_asked_with_the_new_password_after_a_rotation() {
    let sentinels = Sentinels::with(&[], Some("hush-0"));
    let mut mounted = Mounted::new("hush-0");
    let server = start(&[sentinels.env(), file("REDIS_SENTINEL_AUTH_FILE", &mounted.path())]);
    sentinels.ask_each(&["ACL", "SETUSER", "default", ">hush-1", "<hush-0"]);
    mounted.put("hush-1");
    server.wait_for_log(&["REDIS_SENTINEL_AUTH_FILE=", "changed, logging in with the new credentials"]);
    sentinels.ask_each(&["CLIENT", "KILL", "USER", "default"]);
    let counted = |key: &str| sentinels.master().counter(key);
    let load = Load::start(&server, &counted);
    // Two polls of the sentinels.
    thread::sleep(Duration::from_secs(2));
    load.assert_all_counted(&counted);
    let log = server.final_log();
    assert!(!log.contains("no node replied") && !log.contains("hush"), "{log}");
}

#[test]
fn a_refused_login_is_reported_in_the_servers_words_and_costs_no_request() {
    let redis = Redis::with(&user("app", ">hush"));
    let mut mounted = Mounted::new("app:hush");
    let server = start(&[redis.env(), file("REDIS_AUTH_FILE", &mounted.path())]);
    let counted = |key: &str| redis.counter(key);
    let load = Load::start(&server, &counted);
    mounted.put("app:hush-hush");
    server.wait_for_log(&["AUTH failed: WRONGPASS", "keep the previous login"]);
    assert!(auth_errors(&server) >= 1.0, "{:?}", server.metrics());
    // The next file is tried at once.
    redis.ask(&["ACL", "SETUSER", "app", ">hush-2"]);
    mounted.put("app:hush-2");
    wait_for_lines(&server, IN_USE, 1);
    load.assert_all_counted(&counted);
    let log = server.final_log();
    let refused = log.lines().find(|line| line.contains("WRONGPASS")).unwrap();
    assert!(refused.contains(&mounted.path().display().to_string()), "{refused}");
    assert!(!log.contains("hush"), "a secret is in the log:\n{log}");
}

/// Login failures in all metrics.
fn auth_errors(server: &Server) -> f64 {
    let metrics = server.metrics();
    let auth = metrics.iter().filter(|(name, _)| name.contains("redis") && name.contains("kind=\"auth\""));
    auth.map(|(_, value)| value).sum()
}

#[test]
fn a_file_may_appear_after_the_start() {
    let redis = Redis::with(&["--requirepass", "hush"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis");
    let env = [redis.env(), file("REDIS_AUTH_FILE", &path)].concat();
    let server = Setup::new().redis(&env).rules("d.yaml", RULES).start();
    let named = format!("REDIS_AUTH_FILE={}", path.display());
    server.wait_for_log(&["the file does not exist yet", &named, "No such file"]);
    assert!(!server.is_healthy());
    write_private(&path, "hush");
    server.wait_until_healthy();
}

#[test]
fn no_page_shows_a_part_of_the_file() {
    let redis = Redis::with(&user("app-user", ">hush"));
    let mut mounted = Mounted::new("app-user:hush");
    let admin = free_port();
    let setup = Setup::new().env("ADMIN_ADDR", &format!("127.0.0.1:{admin}")).env("LOG_LEVEL", "debug");
    let setup =
        setup.unset("REPLICA_SYNC").redis(&redis.env()).envs(&file("REDIS_AUTH_FILE", &mounted.path()));
    let server = setup.rules("d.yaml", RULES).start_healthy();
    assert!(server.ask(one("two", "v")).is_ok());
    mounted.put("app-user:hush-hush");
    server.wait_for_log(&["WRONGPASS"]);
    let pages = [
        (admin, &["/", "/api/v1/status", "/api/v1/replicas", "/api/v1/changes", "/api/v1/rules"][..]),
        (server.ports.debug, &["/", "/rlconfig", "/stats"]),
        (server.ports.metrics, &["/metrics"]),
        (server.ports.http, &["/healthcheck"]),
    ];
    for (port, paths) in pages {
        for path in paths {
            let text = http::get(port, path).text();
            assert!(!text.contains("hush") && !text.contains("app-user"), "{path}: {text}");
        }
    }
    let log = server.final_log();
    assert!(!log.contains("hush") && !log.contains("app-user"), "{log}");
}
