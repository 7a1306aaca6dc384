//! The planted defects of `tests/simulate/plants`: `tests/simulate/run --plants` builds them.

#![expect(clippy::expect_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The name of each patch, and the patch.
fn patches() -> Vec<(String, PathBuf)> {
    let files = fs::read_dir(root().join("tests/simulate/plants")).expect("the directory");
    let patches: Vec<_> = files
        .map(|file| file.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .map(|path| (path.file_stem().expect("a name").to_string_lossy().into_owned(), path))
        .collect();
    assert!(!patches.is_empty());
    patches
}

#[test]
fn every_patch_applies_to_the_tree() {
    for (name, patch) in patches() {
        let mut git = Command::new("git");
        // Without a repository, git applies a patch to the directory in which it runs.
        git.args(["apply", "--check", "--numstat"])
            .arg(&patch)
            .current_dir(root())
            .env("GIT_DIR", "/dev/null");
        let output = git.output().expect("git runs");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!output.stdout.is_empty(), "{name} changes nothing");
    }
}

#[test]
fn the_page_lists_every_patch_with_its_first_line() {
    let page = fs::read_to_string(root().join("docs/dev/simulation.md")).expect("the page");
    for (name, patch) in patches() {
        let text = fs::read_to_string(&patch).expect("text");
        let (what, rest) = text.split_once(".\n").expect("a sentence");
        assert!(
            rest.starts_with("finds: --"),
            "{name}: the second line has the arguments of the run that finds it"
        );
        assert!(
            page.contains(&format!("\n| `{name}` | {what} | ")),
            "docs/dev/simulation.md: {name}: {what}"
        );
    }
    let (_, rest) = page.split_once("<!-- plants -->").expect("a table");
    let (table, _) = rest.split_once("<!-- /plants -->").expect("its end");
    assert_eq!(table.matches("\n| `").count(), patches().len(), "docs/dev/simulation.md lists only these");
}
