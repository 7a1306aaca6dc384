//! The simulated server against a real one: the same random commands at the same times, and the same replies.
//!
//! The real server's clock stands still (Debian's `faketime`), and the test moves it.

#![expect(clippy::expect_used, reason = "tests fail by it")]

mod commands;
mod server;

use std::env;

use commands::{Generator, exists};
use fastrand::Rng;
use server::{Real, Reply, Simulated};

/// Commands of a sequence, after which both servers are emptied.
const SEQUENCE: usize = 250;
const SEQUENCES: u64 = 120;

#[test]
fn replies_to_random_commands_are_those_of_a_real_server() {
    let (mut real, mut simulated) = (Real::start(), Simulated::start());
    let seed =
        env::var("TOLLGATE_TEST_SEED").ok().map(|seed| seed.parse().expect("TOLLGATE_TEST_SEED is a number"));
    let seeds = seed.map_or(1..=SEQUENCES, |seed: u64| seed..=seed);
    let (mut commands, mut errors, mut scripts) = (0, 0, 0);
    for seed in seeds {
        let mut random = Rng::with_seed(seed);
        for words in [&[&b"FLUSHALL"[..]][..], &[b"SCRIPT", b"FLUSH"]] {
            assert_eq!(real.ask(words), simulated.ask(real.now(), words));
        }
        let mut generator = Generator::new(&mut random);
        let mut trace = Vec::new();
        for number in 0..SEQUENCE {
            if generator.random.u8(..8) == 0 {
                real.move_clock(generator.step());
                // Both remove what has expired, before the clock may be set back.
                let words = exists();
                let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
                assert_eq!(real.ask(&words), simulated.ask(real.now(), &words), "seed {seed}: existing keys");
            }
            let command = generator.next();
            let words: Vec<&[u8]> = command.iter().map(|word| &**word).collect();
            trace.push(shown(&words));
            let expected = real.ask(&words);
            let reply = simulated.ask(real.now(), &words);
            assert!(
                agree(&words, &reply, &expected),
                "seed {seed}, command {number} at {}: expected {expected}, got {reply}\nrepeat: TOLLGATE_TEST_SEED={seed}\n{}",
                real.now(),
                trace[trace.len().saturating_sub(12)..].join("\n"),
            );
            commands += 1;
            errors += u32::from(matches!(expected, Reply::Error(_)));
            scripts += u32::from(words[0].starts_with(b"EVAL"));
        }
    }
    println!("{commands} commands, {scripts} of them scripts, {errors} errors");
    assert!(seed.is_some() || errors < commands / 3, "{errors} of {commands} commands fail");
}

/// Errors agree by their first word. Sets, and hashes that are not small, have no order.
fn agree(words: &[&[u8]], reply: &Reply, expected: &Reply) -> bool {
    match (reply, expected) {
        (Reply::Error(one), Reply::Error(other)) => one.split(' ').next() == other.split(' ').next(),
        (Reply::List(_), Reply::List(_)) if [&b"SMEMBERS"[..], b"KEYS"].contains(&words[0]) => {
            reply.sorted() == expected.sorted()
        }
        (Reply::List(one), Reply::List(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| agree(words, one, other))
        }
        _ => reply == expected,
    }
}

fn shown(words: &[&[u8]]) -> String {
    let words = words
        .iter()
        .map(|word| if word.len() > 1000 { "…".to_owned() } else { word.escape_ascii().to_string() });
    words.collect::<Vec<_>>().join(" ")
}
