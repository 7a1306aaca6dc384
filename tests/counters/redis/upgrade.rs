//! A rolling upgrade: replicas on one Redis are replaced one by one, in the suite by the same build, and by
//! `tests/upgrade/run` from an older one.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use support::{
    client::{descriptor, request},
    clock::Clock,
    eventually, holds, http,
    ports::free_port,
    redis::Redis,
    server::{BINARY, Server, Setup},
};

use super::{Code, OF_EACH_KIND, RateLimitRequest};

const OTHERS: &str = "  - key: several
    rate_limit:
      - {unit: year, requests_per_unit: 1000}
      - {unit: year, unit_multiplier: 2, requests_per_unit: 2000, algorithm: sliding_window}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 10}}
";

/// Keys whose counters are exact.
const EXACT: [&str; 6] = ["fixed", "sliding", "log", "token", "leaky", "several"];

struct Replica {
    server: Server,
    admin: u16,
    program: PathBuf,
}

fn hits(key: &str, value: &str, hits: u64) -> RateLimitRequest {
    let mut one = descriptor(&[(key, value)]);
    one.hits_addend = Some(hits);
    RateLimitRequest { descriptors: vec![one], ..request("d", &[]) }
}

impl Replica {
    fn start(program: &Path, redis: &Redis) -> Self {
        let admin = free_port();
        let setup = Setup::new()
            .program(program, &[])
            .redis(&redis.env())
            .rules("d.yaml", &[OF_EACH_KIND, OTHERS].concat());
        let setup = setup.env("REPLICA_SYNC", "true").env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000");
        let server = setup.env("ADMIN_ADDR", &format!("127.0.0.1:{admin}")).start_healthy();
        Self { server, admin, program: program.to_owned() }
    }

    fn ask(&self, key: &str, value: &str, number: u64) -> (Code, u32) {
        let answer = self.server.ask(hits(key, value, number)).unwrap();
        (answer.overall_code(), answer.statuses[0].limit_remaining)
    }

    /// Runs a command of this replica's own binary.
    fn tollgate(&self, args: &[&str]) {
        let mut command = Command::new(&self.program);
        Clock::current().apply(&mut command);
        let admin = format!("127.0.0.1:{}", self.admin);
        let output = command.args(args).args(["--admin", &admin]).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{} {args:?}: {output:?}", self.program.display());
    }

    fn wait_for(&self, what: &str, key: &str, value: &str, expected: Code) {
        eventually(what, || {
            let seen = self.ask(key, value, 0).0;
            holds(seen == expected, || format!("{seen:?} at {}", self.program.display()))
        });
    }
}

/// What the replicas together have counted and admitted.
struct Upgrade {
    round: u32,
    left: u32,
    leased: usize,
}

impl Upgrade {
    /// Each replica counts on, and what one sets takes effect at the other.
    fn serves(&mut self, [one, other]: [&Replica; 2]) {
        self.round += 1;
        for replica in [one, other, one] {
            self.left -= 7;
            for key in EXACT {
                assert_eq!(replica.ask(key, "v", 7), (Code::Ok, self.left), "{key}, round {}", self.round);
            }
        }
        for _ in 0..100 {
            for replica in [one, other] {
                self.leased += usize::from(replica.ask("leased", "hot", 1).0 == Code::Ok);
            }
        }
        for (writer, reader) in [(one, other), (other, one)] {
            let value = format!("u{}-{}", self.round, writer.admin);
            let target = format!("user={value}");
            writer.tollgate(&["override", "set", "d", &target, "--block"]);
            reader.wait_for("blocked", "user", &value, Code::OverLimit);
            reader.tollgate(&["override", "remove", "d", &target]);
            writer.wait_for("no longer blocked", "user", &value, Code::Ok);
            // A counter that both have in their caches of keys over the limit.
            for replica in [writer, reader] {
                replica.ask("user", &value, 20);
                assert_eq!(replica.ask("user", &value, 1).0, Code::OverLimit);
            }
            writer.tollgate(&["counter", "reset", "d", &target]);
            for replica in [reader, writer] {
                replica.wait_for("reset", "user", &value, Code::Ok);
            }
        }
    }
}

#[test]
fn replicas_of_an_older_build_are_replaced_one_by_one() {
    let older = env::var_os("TOLLGATE_OLDER_BINARY").map_or_else(|| BINARY.into(), PathBuf::from);
    let clock = Clock::at("2026-11-23T12:43:20Z");
    let _clock = clock.enter();
    let redis = Redis::single();
    let start = |program: &Path| Replica::start(program, &redis);
    let (first, second) = (start(&older), start(&older));
    let mut upgrade = Upgrade { round: 0, left: 1000, leased: 0 };
    first.tollgate(&["override", "set", "d", "user=whale", "--limit", "100/year"]);
    second.wait_for("an override of before", "user", "whale", Code::Ok);
    assert_eq!(second.ask("user", "whale", 50), (Code::Ok, 50));
    upgrade.serves([&first, &second]);

    drop(first.server.final_log());
    let first = start(Path::new(BINARY));
    upgrade.serves([&first, &second]);
    // The older build keeps what it cannot read, and applies it to no request.
    first.tollgate(&["override", "set", "d", "--entry", "ip=10.0.0.0/8", "--block", "--force"]);
    first.wait_for("blocked by entry", "ip", "10.0.0.1", Code::OverLimit);
    second.tollgate(&["override", "set", "d", "user=other", "--limit", "200/year"]);
    upgrade.serves([&second, &first]);
    eventually("the status has both replicas", || {
        let replicas = http::get(first.admin, "/api/v1/status").json()["replicas"].take();
        holds(replicas.as_array().is_some_and(|all| all.len() == 2), || replicas.to_string())
    });

    drop(second.server.final_log());
    let second = start(Path::new(BINARY));
    second.wait_for("blocked by entry", "ip", "10.0.0.1", Code::OverLimit);
    upgrade.serves([&first, &second]);
    for replica in [&first, &second] {
        assert_eq!(replica.ask("user", "whale", 0), (Code::Ok, 50), "an override of before");
        assert_eq!(replica.ask("user", "other", 0), (Code::Ok, 200), "an override of the older build");
    }
    assert_eq!(redis.counter("d_fixed_v_1766016000"), i64::from(1000 - upgrade.left));
    eventually("the whole leased limit is admitted", || {
        for replica in [&first, &second] {
            upgrade.leased += usize::from(replica.ask("leased", "hot", 1).0 == Code::Ok);
        }
        holds(upgrade.leased == 1000, || format!("{} of 1000", upgrade.leased))
    });
    for _ in 0..50 {
        for replica in [&first, &second] {
            assert_eq!(replica.ask("leased", "hot", 1).0, Code::OverLimit);
        }
    }
}
