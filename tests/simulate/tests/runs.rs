//! The simulator from outside: its command line, its hash, and seeds that once failed.

#![expect(clippy::expect_used, reason = "tests")]

use std::{
    path::Path,
    process::{Command, Output},
};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The simulator of the profile of this test.
fn here(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_simulate")).args(arguments).output().expect("the simulator runs")
}

/// The script, which builds the simulator with optimisation and with defects.
fn script(arguments: &[&str]) -> Output {
    Command::new(root().join("tests/simulate/run")).args(arguments).output().expect("the script runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn last_line(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", text(output));
    String::from_utf8_lossy(&output.stdout).lines().last().expect("a hash").to_owned()
}

#[test]
fn the_same_seed_gives_the_same_hash_in_every_profile_and_another_seed_another_one() {
    for (seed, scenario) in [("1", "mixed"), ("2", "divided"), ("3", "processes")] {
        let arguments = ["--seed", seed, "--scenario", scenario, "--trace-hash"];
        let hash = last_line(&script(&arguments));
        assert!(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
        assert_eq!(last_line(&here(&arguments)), hash, "seed {seed}, {scenario}");
        assert_ne!(last_line(&script(&["--seed", "4", "--scenario", scenario, "--trace-hash"])), hash);
    }
}

#[test]
fn a_violation_names_its_invariant_seed_and_scenario() {
    let found = script(&["--seeds", "20", "--plant", "refund-to-lease"]);
    assert_eq!(found.status.code(), Some(1), "{}", text(&found));
    let last = String::from_utf8_lossy(&found.stdout).lines().last().expect("a violation").to_owned();
    for word in ["violation: ", "invariant=", "seed=", "scenario="] {
        assert!(last.contains(word), "{last}");
    }
    let again = script(&["--seeds", "20", "--plant", "refund-to-lease"]);
    assert_eq!(again.stdout, found.stdout, "the story is the same");
}

#[test]
fn everything_else_that_fails_exits_with_2() {
    for arguments in [
        &["--seed", "x"][..],
        &["--seeds", "1", "--seed", "1"],
        &["--scenario", "calm"],
        &["--plant", "weeds"],
        &["--speed"],
        &["--plan", "no/such/file.json"],
    ] {
        assert_eq!(here(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let without = here(&["--seed", "1", "--plant", "refund-to-lease"]);
    assert_eq!(without.status.code(), Some(2), "a build without defects plants none");
}

/// The plans of docs/simulation.md, whose defects are fixed, and the latest seeds.
#[test]
fn plans_that_failed_pass() {
    let directory = root().join("tests/simulate/regressions");
    for file in std::fs::read_dir(&directory).expect("the directory") {
        let path = file.expect("a file").path();
        let plan = path.to_str().expect("text");
        let passed = script(&["--plan", plan]);
        assert_eq!(passed.status.code(), Some(0), "{plan}: {}", text(&passed));
    }
    for seed in ["1486", "1750", "1840", "2038", "3106", "3237", "4469", "5221", "15885", "17012"] {
        let passed = script(&["--seed", seed]);
        assert_eq!(passed.status.code(), Some(0), "seed {seed}: {}", text(&passed));
    }
}

#[test]
fn the_page_lists_every_plant() {
    let page = std::fs::read_to_string(root().join("docs/simulation.md")).expect("the page");
    let listed = script(&["--list-plants"]);
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(names.lines().count() >= 12, "{names}");
    for name in names.lines() {
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not in docs/simulation.md");
    }
}

/// The program and its crates are built without the feature, and the feature does not compile without debug assertions.
#[test]
fn no_release_has_plants() {
    let mut tree = Command::new(env!("CARGO"));
    tree.args([
        "tree",
        "--package",
        "tollgate",
        "--edges",
        "normal,build,features",
        "--offline",
        "--invert",
        "plants",
    ]);
    let output = tree.current_dir(root()).output().expect("cargo runs");
    let tree = text(&output);
    assert!(output.status.success() && tree.contains("plants v"), "{tree}");
    assert!(!tree.contains("planted"), "{tree}");
    let source = std::fs::read_to_string(root().join("crates/ground/plants/src/lib.rs")).expect("the crate");
    let guard = "#[cfg(all(feature = \"planted\", not(debug_assertions)))]\ncompile_error!";
    assert!(source.contains(guard), "the feature must not compile without debug assertions");
}
