//! The migration page: its commands are run unchanged, with a service on the usual ports in the role of the Go
//! service.

use std::{
    fs,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use support::server::BINARY;

use super::{output, read, root};

const PAGE: &str = "docs/guide/migrate.md";

#[test]
fn the_commands_of_the_page_have_the_documented_results() {
    // Counters restart at the full hour; if one passes, the commands are run again.
    let said = loop {
        let begun = hour();
        let said = run_all();
        if hour() == begun {
            break said;
        }
    };
    let remaining: Vec<_> = said.lines().filter_map(|line| line.split_once(": OK, ")).collect();
    let remaining: Vec<_> = remaining.iter().map(|(_, rest)| &rest[..1]).collect();
    assert_eq!(remaining, ["2", "1", "0"], "{said}");
    assert_eq!(said.matches("shop_client_id_migration_").count(), 1, "one key: {said}");
}

/// Runs the commands of the page, except those that need a container engine, and returns their output.
fn run_all() -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("rules")).unwrap();
    fs::write(dir.path().join("rules/shop.yaml"), blocks("yaml rules/shop.yaml").concat()).unwrap();
    let typed: String = blocks("sh").into_iter().filter(|block| !block.starts_with("docker ")).collect();
    // With job control, as in an interactive shell.
    fs::write(dir.path().join("typed"), format!("set -em\n{typed}\nwait %1\n")).unwrap();
    output(Command::new(root().join("tests/deploy/typed.sh")).arg(BINARY).arg(dir.path()))
}

fn hour() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3600
}

/// The fenced blocks of the page with this info string.
fn blocks(info: &str) -> Vec<String> {
    let page = read(PAGE);
    let found = page.split("\n```").skip(1).step_by(2);
    found
        .filter_map(|block| block.strip_prefix(info)?.strip_prefix('\n'))
        .map(|text| format!("{text}\n"))
        .collect()
}
