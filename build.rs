//! Passes the commit of the build to the program.

use std::{env, process::Command};

/// The commit of the build: `TOLLGATE_COMMIT` if set (images are built without the repository), else in release builds
/// that of git. Other builds have none, so that a commit does not cause a rebuild.
fn commit() -> String {
    println!("cargo:rerun-if-env-changed=TOLLGATE_COMMIT");
    if let Ok(commit) = env::var("TOLLGATE_COMMIT") {
        return commit;
    }
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    // Sources that were unpacked inside another repository do not belong to its commits.
    let is_own = is_release && git(&["rev-parse", "--show-prefix"]).is_some_and(|prefix| prefix.is_empty());
    let of_git = is_own.then(|| {
        if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
            println!("cargo:rerun-if-changed={log}");
        }
        git(&["rev-parse", "--short=12", "HEAD"])
    });
    of_git.flatten().unwrap_or_else(|| "unknown".to_owned())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=TOLLGATE_COMMIT={}", commit());
}
