//! What operators see of several replicas that share a Redis, and of one that lost its store.

mod changes;
mod outage;
mod publishers;
mod replicas;
mod traffic;

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::admin::{Admin, setup};
use support::{
    client::request,
    eventually, holds, http,
    process::{assert_exit, printed},
    redis::Redis,
    server::{BINARY, Setup},
};

/// Starts a replica with these variables.
fn replica(redis: &Redis, variables: &[(&str, &str)]) -> Admin {
    let (setup, port) = setup();
    let setup = setup.redis(&redis.env()).env("REPLICA_SYNC", "true").env("LOG_LEVEL", "info");
    let setup = variables.iter().fold(setup, |setup: Setup, (name, value)| setup.env(name, value));
    let server = setup.start_healthy();
    Admin { server, port }
}

/// A command on a replica, whose output has this many columns.
fn run_in(admin: &Admin, columns: &str, args: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    let command = command.args(args).args(["--admin", &format!("127.0.0.1:{}", admin.port)]);
    command.env("COLUMNS", columns).stdin(Stdio::null()).output().unwrap()
}

fn widest(output: &Output) -> usize {
    printed(output).lines().map(|line| line.chars().count()).max().unwrap_or_default()
}

#[test]
fn columns_are_obeyed_in_pipes() {
    let (setup, port) = setup();
    let admin = Admin { server: setup.env("STORE_FAILURE_POLICY", "error").start(), port };
    admin.ask(&"x".repeat(1000), 4);
    admin.ask("ann", 4);
    for columns in ["20", "40", "80", "120"] {
        for command in [&["top"][..], &["refusals"], &["status"], &["top", "--by", "allowed"]] {
            let output = run_in(&admin, columns, command);
            assert_exit(&output, 0, &[]);
            assert!(widest(&output) <= columns.parse().unwrap(), "{command:?}: {}", printed(&output));
        }
    }
    assert!(widest(&run_in(&admin, "", &["refusals"])) > 500, "nothing is cut in a pipe without COLUMNS");
}

#[test]
fn reading_and_resetting_a_counter_agree_on_exit_codes_and_words() {
    let admin = Admin::start();
    for command in ["get", "reset"] {
        let none = admin.run(&["counter", command, "shop", "nothing=1"]);
        assert_exit(&none, 1, &["shop nothing=1: ", "no limit applies"]);
        assert_exit(&admin.run(&["counter", command, "shop", "user=ann"]), 0, &["shop user=ann"]);
        assert_exit(&admin.run(&["counter", command, "shop", "user"]), 2, &["user has no value"]);
    }
}

#[test]
fn a_block_reads_blocked_until_its_end() {
    let admin = Admin::start();
    let block = ["override", "set", "shop", "user=ann", "--block"];
    assert_exit(&admin.run(&[&block[..], &["--for", "1h"]].concat()), 0, &[]);
    assert_eq!(admin.ask("ann", 1), 1);
    assert_exit(&admin.run(&["refusals"]), 0, &["blocked until 20"]);
    assert_exit(&admin.run(&block), 0, &[]);
    assert_eq!(admin.ask("ann", 1), 1);
    assert_exit(&admin.run(&["refusals"]), 0, &["blocked until the override is removed"]);
}
