//! Compiles the .proto files in Rust, so that no protoc is needed, and keeps their descriptors for
//! gRPC reflection and for the JSON mapping.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        // The server answers ShouldRateLimit below tonic; see src/server/grpc.
        .build_server(false)
        .compile_fds(files)?;
    // For themselves: reflection tells of what is served, and spans are sent.
    let spans = protox::compile(["opentelemetry/proto/collector/trace/v1/trace_service.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(spans)?;
    Ok(())
}
