//! Compiles the .proto files without protoc, and writes the descriptors of the rate limit API for gRPC reflection and
//! the JSON mapping.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

/// The APIs that the service implements.
const SERVED: [&str; 3] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/service/rate_limit_quota/v3/rlqs.proto",
    "kuadrant/service/ratelimit/v1/ratelimit.proto",
];

/// The APIs that it calls: the control plane's with its rules, and the collector's for spans.
const CALLED: [&str; 3] = [
    "envoy/service/discovery/v3/discovery.proto",
    "ratelimit/config/ratelimit/v3/rls_conf.proto",
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
];

/// The .proto files lie at the top of the repository.
const PROTO: &str = "../../../proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), protox::compile(SERVED, [PROTO])?.encode_to_vec())?;
    tonic_prost_build::configure()
        .include_file("modules.rs")
        .compile_fds(protox::compile(SERVED.into_iter().chain(CALLED), [PROTO])?)?;
    Ok(())
}
