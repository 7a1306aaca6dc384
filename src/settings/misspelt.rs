//! Variables of the environment that look like one of ours with a slip in it.
//!
//! A misspelt variable is the one mistake that reading by name cannot see. An environment is full of
//! names that are none of ours, so a name is suspected only when hardly anything else is likely.

use super::{reader::Warning, vars};

/// A warning for each of these names that is hardly anything but one of ours misspelt.
pub fn misspelt<'n>(names: impl IntoIterator<Item = &'n str>) -> Vec<Warning> {
    let mut warnings: Vec<_> = names
        .into_iter()
        .filter_map(|name| {
            let meant = meant_by(name)?;
            let message = format!("unknown variable, ignored; did you mean {meant}?");
            Some(Warning { variable: name.to_owned(), message })
        })
        .collect();
    warnings.sort_by(|one, other| one.variable.cmp(&other.variable));
    warnings
}

/// The variable that was probably meant by a name that is none.
fn meant_by(name: &str) -> Option<&'static str> {
    // Short names and those of one word are too near to other programs' own.
    if name.len() < 8 || !name.contains('_') {
        return None;
    }
    if vars::ALL.iter().any(|var| var.name == name) {
        return None;
    }
    let near = vars::ALL.iter().map(|var| var.name).filter(|known| known.contains('_'));
    let near = near.map(|known| (strsim::osa_distance(&plain(name), &plain(known)), known));
    let (distance, known) = near.min()?;
    (distance <= tolerance(name, known)).then_some(known)
}

/// How many slips still make it the same name: none are forgiven in a short one with another first word.
fn tolerance(name: &str, known: &str) -> usize {
    let first_word = |text: &str| text.split('_').next().map(str::to_ascii_uppercase);
    let same_family = first_word(name) == first_word(known);
    match known.len() {
        ..8 => 0,
        8..12 => usize::from(same_family),
        _ => 1 + usize::from(same_family),
    }
}

/// A name without what people vary most: its case, and where its words part.
fn plain(name: &str) -> String {
    name.chars().filter(|char| *char != '_').map(|char| char.to_ascii_uppercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        for (name, meant) in [
            ("GRPC_MAX_CONECTION_AGE", "GRPC_MAX_CONNECTION_AGE"),
            ("GRPC_MAX_CONNECTIONS_AGE", "GRPC_MAX_CONNECTION_AGE"),
            ("GPRC_MAX_CONNECTIONS", "GRPC_MAX_CONNECTIONS"),
            ("RUNTIME_APP_DIRECTORY", "RUNTIME_APPDIRECTORY"),
            ("RUNTIME_IGNORE_DOT_FILES", "RUNTIME_IGNOREDOTFILES"),
            ("RUNTIME_ROOTS", "RUNTIME_ROOT"),
            ("LOG_LEVLE", "LOG_LEVEL"),
            ("log_level", "LOG_LEVEL"),
            ("SHADOWMODE_", "SHADOW_MODE"),
            ("NEAR_LIMT_RATIO", "NEAR_LIMIT_RATIO"),
            ("GRPC_POTR", "GRPC_PORT"),
        ] {
            let warnings = misspelt([name]);
            assert_eq!(warnings.len(), 1, "{name}");
            assert_eq!(warnings[0].variable, name);
            assert!(warnings[0].message.contains(&format!("did you mean {meant}?")), "{}", warnings[0]);
        }
    }

    #[test]
    fn names_of_other_programs_are_left_alone() {
        for name in [
            "PATH",
            "HOME",
            "HOSTS",
            "POST",
            "PORTS",
            "HOSTNAME",
            "HOSTTYPE",
            "LOGNAME",
            "LOG_LEVEL_ROOT",
            "RUST_LOG",
            "USER_AGENT",
            "HTTP_PORT",
            "HTTP_HOST",
            "GRPC_TRACE",
            "GRPC_VERBOSITY",
            "GRPC_GO_LOG_SEVERITY_LEVEL",
            "XDG_RUNTIME_DIR",
            "KUBERNETES_PORT",
            "KUBERNETES_SERVICE_PORT",
            "REDIS_PORT",
            "REDIS_HOST",
            "REDIS_SERVICE_HOST",
            "RATELIMIT_PORT_8081_TCP",
            "DEBUG_COLORS",
            "DEBUG_MODE",
            "SAFE_MODE",
            "DOTNET_RUNNING_IN_CONTAINER",
            "PROMETHEUS_PORT",
            "USE_SSL",
            "LOG_FILE",
            "BACKEND_HOST",
            "POD_NAMESPACE",
            "GOMEMLIMIT",
            "LC_MESSAGES",
            "SSH_CONNECTION",
            "SHADOW_COPY",
            "M\u{fc}ll_\u{e9}\u{e9}\u{e9}",
        ] {
            assert_eq!(misspelt([name]), [], "{name}");
        }
    }

    #[test]
    fn names_that_are_right_are_left_alone() {
        assert_eq!(misspelt(vars::ALL.iter().map(|var| var.name)), []);
    }

    #[test]
    fn the_other_variables_of_the_go_service_are_left_alone() {
        let names = "GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_SERVER_TLS_CA_CERT GRPC_CLIENT_TLS_CACERT \
            GRPC_CLIENT_TLS_SAN CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_SERVER_URL \
            CONFIG_GRPC_XDS_SERVER_USE_TLS XDS_CLIENT_BACKOFF_JITTER \
            XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES REDIS_SOCKET_TYPE REDIS_TYPE REDIS_POOL_SIZE REDIS_AUTH \
            REDIS_TLS REDIS_PERSECOND REDIS_PERSECOND_URL REDIS_TIMEOUT REDIS_PIPELINE_WINDOW \
            MEMCACHE_HOST_PORT MEMCACHE_SRV STATSD_HOST STATSD_PORT USE_DOG_STATSD_MOGRIFIERS \
            STATS_FLUSH_INTERVAL TRACING_SERVICE_NAME TRACING_SAMPLING_RATE \
            OTEL_EXPORTER_OTLP_ENDPOINT";
        assert_eq!(misspelt(names.split_whitespace()), []);
    }
}
