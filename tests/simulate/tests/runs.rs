//! The simulator from outside: its command line, its hash, and the story of a violation.

#![expect(clippy::expect_used, reason = "tests")]

use std::process::{Command, Output};

/// A replica's clock loses a fifth of a second each second, so it answers after its callers' deadlines while Redis is frozen.
const SLOW_CLOCK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/slow-clock.json");

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_simulate")).args(arguments).output().expect("the simulator runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn last_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).lines().last().expect("a line").to_owned()
}

#[test]
fn the_same_seed_gives_the_same_hash_and_another_seed_another_one() {
    let hash = |seed| {
        let output = simulate(&["--seed", seed, "--trace-hash"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        last_line(&output)
    };
    let first = hash("3");
    assert!(first.len() == 16 && first.bytes().all(|byte| byte.is_ascii_hexdigit()), "{first}");
    assert_eq!(hash("3"), first);
    assert_ne!(hash("10"), first);
}

#[test]
fn a_violation_names_its_invariant_seed_and_scenario() {
    let found = simulate(&["--plan", SLOW_CLOCK]);
    assert_eq!(found.status.code(), Some(1), "{}", text(&found));
    let last = last_line(&found);
    assert!(last.starts_with("violation: invariant=deadline seed=1 scenario=processes at="), "{last}");
    assert!(last.contains(" s: a request was answered "), "{last}");
    assert_eq!(simulate(&["--plan", SLOW_CLOCK]).stdout, found.stdout, "the story is the same");
}

#[test]
fn everything_else_that_fails_exits_with_2() {
    for arguments in [
        &["--seed", "x"][..],
        &["--seeds", "1", "--seed", "1"],
        &["--scenario", "calm"],
        &["--speed"],
        &["--plan", "no/such/file.json"],
    ] {
        assert_eq!(simulate(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
