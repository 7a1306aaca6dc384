//! Compiles the .proto files in Rust, so that no protoc is needed, and keeps the descriptors of what the
//! service answers for gRPC reflection and for the JSON mapping.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

/// What the service answers.
const SERVED: &str = "envoy/service/ratelimit/v3/rls.proto";

/// What it asks a control plane, the rules that it is told, and what it sends to a collector of spans.
const ASKED: [&str; 3] = [
    "envoy/service/discovery/v3/discovery.proto",
    "ratelimit/config/ratelimit/v3/rls_conf.proto",
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), protox::compile([SERVED], ["proto"])?.encode_to_vec())?;
    tonic_prost_build::configure()
        .compile_fds(protox::compile([SERVED].into_iter().chain(ASKED), ["proto"])?)?;
    Ok(())
}
