//! The commands that the pages name in passing or in blocks without output: the program accepts their arguments, and those that
//! change a service at run time change it.

use std::{collections::BTreeSet, process::Command};

use support::markdown::spans;

use super::{BINARY, blocks, pages, read, words};
use support::{ports::free_port, server::Setup};

/// Commands that ask the admin API or read files: none of them serves, writes, or counts at another port.
const ASKED: [&str; 11] = [
    "check", "counter", "changes", "domain", "explain", "hold", "override", "refusals", "replay", "status",
    "top",
];

/// Rules that every target of `docs/reference/overrides.md` meets.
const RULES: &str = "
domain: shop
descriptors:
  - {key: customer, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: user_agent, rate_limit: {unit: minute, requests_per_unit: 100}}
";
const BUDGET: &str = "
domain: budget
descriptors:
  - {key: tenant, rate_limit: {unit: month, requests_per_unit: 100}}
";

#[test]
fn the_program_accepts_the_arguments_of_every_command_named() {
    let mut seen = BTreeSet::new();
    let mut refused = Vec::new();
    for page in pages() {
        let text = read(&page);
        for command in typed(&text).into_iter().chain(spans(&text)) {
            let Some(arguments) = arguments(&command) else { continue };
            if seen.insert(arguments.clone()) {
                // Nothing listens there, so that no service of this machine is asked.
                let output =
                    Command::new(BINARY).args(&arguments).env("ADMIN_ADDR", "127.0.0.1:1").output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                if is_of_arguments(&said) {
                    refused.push(format!("{page}: `{command}`: {said}"));
                }
            }
        }
    }
    assert!(seen.len() > 40, "{seen:?}");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// Whether an error is about arguments. A sentence may leave out the positional ones, and the value of its last option.
fn is_of_arguments(said: &str) -> bool {
    let lacks_option = || said.lines().any(|line| line.starts_with("  --"));
    let is_short =
        said.contains("were not provided") && !lacks_option() || said.contains("a value is required");
    // The usage follows the errors of arguments only.
    said.contains("Usage: ") && !is_short
}

#[test]
fn every_change_shown_is_made() {
    let admin = format!("127.0.0.1:{}", free_port());
    let setup = Setup::new().rules("shop.yaml", RULES).rules("budget.yaml", BUDGET);
    let _server = setup.env("ADMIN_ADDR", &admin).start();
    let mut changes = 0;
    for page in ["docs/reference/overrides.md", "docs/reference/runbook.md", "docs/guide/incident.md"] {
        for command in typed(&read(page)) {
            let Some(arguments) = arguments(&command) else { continue };
            // The file of an import is not on the page.
            if !["override", "domain", "counter"].contains(&&*arguments[0]) || arguments[1] == "import" {
                continue;
            }
            let output = Command::new(BINARY).args(&arguments).env("ADMIN_ADDR", &admin).output().unwrap();
            assert!(output.status.success(), "{page}: {command}: {output:?}");
            changes += 1;
        }
    }
    assert!(changes > 15, "{changes}");
}

/// The lines of the page's shell blocks.
fn typed(text: &str) -> Vec<String> {
    let shells = blocks(text).into_iter().filter(|block| block.is("sh") || block.is("shell-session"));
    let lines = shells
        .flat_map(|block| block.text.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>());
    lines.map(|line| line.trim_start_matches("$ ").to_owned()).collect()
}

/// The arguments of a command of [`ASKED`] that has no placeholder such as `…` or `set|clear`.
fn arguments(command: &str) -> Option<Vec<String>> {
    let (command, _) = command.split_once(" #").unwrap_or((command, ""));
    let arguments = words(&command.strip_prefix("tollgate ")?.replace('"', "'"));
    let is_whole = !command.contains(['…', '|', '[', '>', '&']);
    // A group of commands, or a command that lacks what the sentence is not about.
    let is_name =
        arguments.len() == 1 || arguments.len() == 2 && ["counter", "hold"].contains(&&*arguments[0]);
    let waits = arguments.iter().any(|word| word == "--follow");
    let is_asked = arguments.first().is_some_and(|first| ASKED.contains(&&**first));
    (is_asked && is_whole && !is_name && !waits).then_some(arguments)
}
