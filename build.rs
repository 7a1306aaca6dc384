//! Compiles the .proto files in Rust, so that no protoc is needed, and writes the descriptors of the service's own API for
//! gRPC reflection and the JSON mapping. Sets the commit of the build.

use std::{env, error::Error, fs, path::PathBuf, process::Command};

use prost::Message;

/// The service's own API.
const SERVED: &str = "envoy/service/ratelimit/v3/rls.proto";

/// The APIs of which it is a client: a control plane with its rules, and a collector of spans.
const CLIENTS: [&str; 3] = [
    "envoy/service/discovery/v3/discovery.proto",
    "ratelimit/config/ratelimit/v3/rls_conf.proto",
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
];

/// The commit: `TOLLGATE_COMMIT` if it is set, since an image is built without the repository; else, in a release build,
/// that of git. Other builds have none, so that a commit does not rebuild them.
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
    // Sources unpacked inside another repository are not of its commits.
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
        .compile_fds(protox::compile([SERVED].into_iter().chain(CLIENTS), ["proto"])?)?;
    Ok(())
}
