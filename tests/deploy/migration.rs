//! The page about moving from the Go service: its commands are typed as they stand, with a service on the usual
//! ports in the part of the Go one.

use std::{fs, process::Command};

use crate::support::server::BINARY;

use super::{output, read, root};

const PAGE: &str = "docs/migration.md";

#[test]
fn the_commands_of_the_page_do_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("rules")).unwrap();
    fs::write(dir.path().join("rules/shop.yaml"), blocks("yaml rules/shop.yaml").concat()).unwrap();
    // Jobs are numbered as in the shell of whoever types; a pod or an image is not to be had here.
    let typed = blocks("sh").into_iter().filter(|block| !block.starts_with("docker "));
    fs::write(dir.path().join("typed"), format!("set -em\n{}\nwait %1\n", typed.collect::<String>()))
        .unwrap();
    let script = root().join("tests/deploy/typed.sh");
    let said = output(Command::new(script).arg(BINARY).arg(dir.path()));

    let remaining: Vec<_> = said.lines().filter_map(|line| line.split_once(": OK, ")).collect();
    let remaining: Vec<_> = remaining.iter().map(|(_, rest)| &rest[..1]).collect();
    assert_eq!(remaining, ["2", "1", "0"], "{said}");
    assert_eq!(said.matches("shop_client_id_migration_").count(), 1, "one key: {said}");
}

/// The fenced blocks of the page that have this behind their fence.
fn blocks(info: &str) -> Vec<String> {
    let page = read(PAGE);
    let found = page.split("\n```").skip(1).step_by(2);
    found
        .filter_map(|block| block.strip_prefix(info)?.strip_prefix('\n'))
        .map(|text| format!("{text}\n"))
        .collect()
}
