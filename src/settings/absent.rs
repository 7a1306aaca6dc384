//! Settings of the Go service that this version does not have, and what becomes of them.
//!
//! What would weaken a deployment if it were passed over is refused; the rest is warned of. Each of
//! these lines goes when its feature comes.

use super::{parse::Refusal, reader::Reader, vars};

/// Looks for what this version lacks.
pub(super) fn check(reader: &mut Reader<'_>) {
    reader.parsed(vars::CONFIG_TYPE, |text| match text {
        "FILE" => Ok(()),
        _ => Err(Refusal::new("FILE").with_hint(match text {
            "GRPC_XDS_SOTW" => "this version reads rules from files only: unset it and mount the rules",
            _ => "write it in capitals, or unset it",
        })),
    });
    for var in [
        vars::USE_STATSD,
        vars::USE_DOG_STATSD,
        vars::PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS,
        vars::TRACING_ENABLED,
    ] {
        if reader.flag(var) {
            reader.warn(var, "does nothing in this version");
        }
    }
    for var in [vars::EXTRA_TAGS, vars::PROMETHEUS_MAPPER_YAML] {
        if reader.is_set(var) {
            reader.warn(var, "does nothing in this version; metrics have their default names and labels");
        }
    }
}
