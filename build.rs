//! Compiles the .proto files without protoc, and writes the descriptors of the rate limit API for gRPC reflection and
//! the JSON mapping.

use std::{env, error::Error, fs, path::PathBuf, process::Command};

use prost::Message;

/// The API that the service implements.
const SERVED: &str = "envoy/service/ratelimit/v3/rls.proto";

/// The APIs that it calls: the control plane's with its rules, and the collector's for spans.
const CALLED: [&str; 3] = [
    "envoy/service/discovery/v3/discovery.proto",
    "ratelimit/config/ratelimit/v3/rls_conf.proto",
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
];

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

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rustc-env=TOLLGATE_COMMIT={}", commit());
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), protox::compile([SERVED], ["proto"])?.encode_to_vec())?;
    tonic_prost_build::configure()
        .include_file("modules.rs")
        .compile_fds(protox::compile([SERVED].into_iter().chain(CALLED), ["proto"])?)?;
    Ok(())
}
