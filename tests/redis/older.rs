//! Counters and overrides that an older build left in Redis, with limits of 32 bits: this build continues them.

use crate::support::{
    client::{Client, request},
    clock::Clock,
    redis::Redis,
    server::Setup,
};

use super::{Code, OF_EACH_KIND, RateLimitRequest};

const STATES: &str = include_str!("older_states.txt");

const OTHERS: &str = "  - key: several
    rate_limit:
      - {unit: year, requests_per_unit: 1000}
      - {unit: month, requests_per_unit: 900, algorithm: token_bucket}
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10}}
";

/// Keys with what the older build had left of their limits.
const LEFT: [(&str, &str, u32); 7] = [
    ("fixed", "v", 683),
    ("leased", "hot", 381),
    ("sliding", "v", 683),
    ("log", "v", 683),
    ("token", "v", 683),
    ("leaky", "v", 683),
    ("several", "v", 583),
];

/// Writes a line of [`STATES`]; the script makes bytes of hex.
fn restore(redis: &Redis, line: &str) {
    let script = "local bytes = {}
        for i = 2, #ARGV do
          bytes[i - 1] = ARGV[i]:gsub('..', function(hex) return string.char(tonumber(hex, 16)) end)
        end
        redis.call(KEYS[2], KEYS[1], unpack(bytes))
        if ARGV[1] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
        return 'restored'";
    let [command, key, words @ ..] = &*line.split(' ').collect::<Vec<_>>() else { panic!("{line}") };
    let reply = redis.ask(&[&["EVAL", script, "2", key, command], words].concat());
    assert_eq!(reply.word().as_deref(), Some("restored"), "{line}");
}

fn hits(key: &str, value: &str, hits: u64) -> RateLimitRequest {
    let mut one = request("d", &[&[(key, value)]]);
    one.descriptors[0].hits_addend = Some(hits);
    one
}

fn asked(client: &Client, key: &str, value: &str, number: u64) -> (Code, u32) {
    let answer = client.ask(hits(key, value, number)).unwrap();
    (answer.overall_code(), answer.statuses[0].limit_remaining)
}

#[test]
fn states_of_an_older_build_are_continued() {
    let clock = Clock::at("2026-11-23T12:43:20Z");
    let _clock = clock.enter();
    let redis = Redis::single();
    for line in STATES.lines().filter(|line| !line.starts_with('#')) {
        restore(&redis, line);
    }
    let setup = Setup::new()
        .redis(&redis.env())
        .rules("d.yaml", &[OF_EACH_KIND, OTHERS].concat())
        .env("REPLICA_SYNC", "true");
    let server = setup.start_healthy();
    let client = server.client();
    for (key, value, left) in LEFT {
        assert_eq!(asked(&client, key, value, 0), (Code::Ok, left), "{key}");
        assert_eq!(asked(&client, key, value, 3), (Code::Ok, left - 3), "{key}");
        assert_eq!(asked(&client, key, value, u64::from(left) - 2).0, Code::OverLimit, "{key}");
    }
    // Overrides, of which one has an end.
    assert_eq!(asked(&client, "user", "ann", 1), (Code::Ok, 4));
    assert_eq!(asked(&client, "user", "bob", 1).0, Code::OverLimit);
    assert_eq!(asked(&client, "user", "carl", 1), (Code::Ok, 9));
}
