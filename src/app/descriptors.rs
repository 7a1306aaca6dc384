//! File descriptors: raises their limit, and lowers the connection limits to fit it.
//!
//! Called once by `app` at start. A process without free descriptors accepts nothing, health checks included.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

use crate::settings::Settings;

/// Descriptors for rules files, connections to the store, sinks, and the reserved connections of four HTTP ports.
const OTHERS: usize = 128;

/// Raises the soft limit to the hard one, as Go programs do, and lowers the connection limits where that is not
/// enough.
pub(super) fn fit(settings: &mut Settings) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If the system refuses, the limit stays as it is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    // None means unlimited.
    let Some(granted) = getrlimit(Resource::Nofile).current else { return };
    let granted = usize::try_from(granted).unwrap_or(usize::MAX);
    let (grpc, http) = (settings.server.max_connections, settings.http.max_connections);
    let (most_grpc, most_http) = connections(granted, grpc, http);
    settings.http.max_connections = most_http;
    settings.server.max_connections = most_grpc;
    settings.server.max_connections_per_address = settings.server.max_connections_per_address.min(most_grpc);
    if (most_grpc, most_http) != (grpc, http) {
        warn!(
            granted,
            GRPC_MAX_CONNECTIONS = most_grpc,
            HTTP_MAX_CONNECTIONS = most_http,
            "connection limits lowered: the limit of open files (RLIMIT_NOFILE) is too low for those that are set"
        );
    }
}

/// The connection limits of the gRPC port, and of each of four HTTP ports, that fit this many descriptors.
fn connections(granted: usize, grpc: usize, http: usize) -> (usize, usize) {
    let http = http.min(granted / 16).max(1);
    let left = granted.saturating_sub(OTHERS).saturating_sub(http.saturating_mul(4));
    (grpc.min(left).max(1), http)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_limits_fit_what_containers_grant() {
        assert_eq!(connections(1_048_576, 10_000, 512), (10_000, 512));
        assert_eq!(connections(65_536, 10_000, 512), (10_000, 512));
    }

    #[test]
    fn whatever_is_granted_is_not_exceeded() {
        for granted in 0..5000 {
            let (grpc, http) = connections(granted, 10_000, 512);
            assert!(grpc >= 1 && http >= 1);
            assert!(granted < 200 || grpc + 4 * http + OTHERS <= granted, "{granted}: {grpc}, {http}");
        }
    }
}
