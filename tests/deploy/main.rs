//! The files of `deploy/`, run or checked by their own tools, and the migration page.
//!
//! `tests/run` installs the tools: Prometheus from the system, the others into `target/deploy-tools`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

mod agent_router;
mod chart;
// Pinned dependencies.
mod dependent;
mod files;
mod front;
mod gateway;
mod image;
mod istio;
mod llm;
mod migration;
mod pods;
mod prometheus;
mod rules;
mod secured;
mod supply_chain;
mod watched;

/// The manifest of Istio's guide.
const ISTIO: &str = "tests/deploy/istio.yaml";

/// A file of the project.
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A tool that `tests/run` fetches.
fn tool(name: &str) -> Command {
    let path = root().join("target/deploy-tools/bin").join(name);
    assert!(path.is_file(), "no {name} at {}: run `tests/run`, which fetches it", path.display());
    Command::new(path)
}

/// The output of a command on both streams. It runs in the root of the project and must succeed.
fn output(command: &mut Command) -> String {
    let output = command.current_dir(root()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?} ended with {}:\n{said}", output.status);
    said
}

/// The documents of a YAML text.
fn documents(text: &str) -> Vec<Value> {
    let read = |text: &str| serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{error} in:\n{text}"));
    text.split("\n---\n").map(|document| read(&format!("{document}\n"))).collect()
}

/// The objects of a directory with a `kustomization.yaml`.
fn kustomized(directory: &str) -> Vec<Value> {
    documents(&output(tool("kubectl").args(["kustomize", directory])))
}

/// The one object of a kind.
fn object<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let (first, second) = (found.next(), found.next());
    assert!(second.is_none(), "more than one {kind}");
    first.unwrap_or_else(|| panic!("no {kind}"))
}

/// The files below a directory, by their path from the root, that end in one of these.
fn files_below(directory: &str, extensions: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::from(directory)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let path = directory.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|own| extensions.iter().any(|wanted| own == *wanted)) {
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}
