//! Lists of variables: the table of docs/reference/settings.md and `tollgate settings`, the values in an environment for
//! `--effective`, and suggestions for misspelt names.
//!
//! Values are shown as texts, not parsed: [`Settings::read`](super::Settings::read) checks them. Secrets are masked.

use std::fmt::Write as _;

use super::{
    Settings,
    reader::{Reader, Warning},
    vars::{self, Var},
};

/// The table as Markdown: a heading and a table for each group.
pub fn markdown() -> String {
    let mut text = String::new();
    let mut group = "";
    for var in vars::ALL {
        if var.group != group {
            let gap = if group.is_empty() { "" } else { "\n" };
            group = var.group;
            // Writing to a String cannot fail.
            let _ = write!(text, "{gap}### {group}\n\n| Variable | Default | Meaning |\n|---|---|---|\n");
        }
        let default = if var.default.is_empty() { String::new() } else { format!("`{}`", var.default) };
        let _ = writeln!(text, "| `{}` | {default} | {} |", var.name, var.doc);
    }
    text
}

#[derive(Clone, Debug)]
pub struct Row {
    pub var: &'static Var,
    pub value: String,
    pub source: Source,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    Environment,
    /// The default: the variable is not set, or empty.
    Default,
    /// Other variables, or the machine: this one is not set.
    Derived,
}

/// Every variable with its value in this environment, in the order of the documentation. The settings have the derived
/// defaults, if they are valid.
pub fn effective(env: &dyn Fn(&str) -> Option<String>, settings: Option<&Settings>) -> Vec<Row> {
    let reader = Reader::new(env, &|_| false);
    let has_redis = !reader.set_with_prefix("REDIS_").is_empty();
    let derived = |var: &Var| {
        let (_, value) = settings?.derived.iter().find(|(name, _)| *name == var.name)?;
        (*value != var.default).then(|| value.clone())
    };
    let row = |&var: &&'static Var| {
        let (value, source) = match reader.raw(var).filter(|value| !value.is_empty()) {
            Some(value) => (var.shown(value).unwrap_or_else(|| "***".to_owned()), Source::Environment),
            None if var.name == vars::BACKEND_TYPE.name && has_redis => ("redis".to_owned(), Source::Derived),
            None => match derived(var) {
                Some(value) => (value, Source::Derived),
                None => (var.default.to_owned(), Source::Default),
            },
        };
        Row { var, value, source }
    };
    vars::ALL.iter().map(row).collect()
}

/// A warning for each name that is probably a misspelt variable.
///
/// A misspelt variable is never read, so no parser can report it. Most names in an environment belong to other programs;
/// only close matches are reported.
pub fn misspelt<'n>(names: impl IntoIterator<Item = &'n str>) -> Vec<Warning> {
    let warning = |name: &str| {
        let message = format!("unknown variable, ignored; did you mean {}?", nearest(name)?);
        Some(Warning { variable: name.to_owned(), message })
    };
    let mut warnings: Vec<_> = names.into_iter().filter_map(warning).collect();
    warnings.sort_by(|one, other| one.variable.cmp(&other.variable));
    warnings
}

/// The variable that an unknown name probably means.
fn nearest(name: &str) -> Option<&'static str> {
    // Short names and single words are too close to those of other programs.
    if name.len() < 8 || !name.contains('_') || vars::ALL.iter().any(|var| var.name == name) {
        return None;
    }
    let plain_name = plain(name);
    let known = vars::ALL.iter().map(|var| var.name).filter(|known| known.contains('_'));
    // The distance is at least the difference of the lengths: most names need no comparison.
    let near = known.map(|known| (plain(known), known));
    let near = near.filter(|(plain, _)| plain.len().abs_diff(plain_name.len()) <= MOST_TOLERATED);
    let (distance, known) =
        near.map(|(plain, known)| (strsim::osa_distance(&plain_name, &plain), known)).min()?;
    (distance <= tolerance(name, known)).then_some(known)
}

const MOST_TOLERATED: usize = 2;

/// The largest edit distance of a misspelt name, at most [`MOST_TOLERATED`]: 0 for a short one with another first word.
fn tolerance(name: &str, known: &str) -> usize {
    let first_word = |text: &str| text.split('_').next().map(str::to_ascii_uppercase);
    let same_family = first_word(name) == first_word(known);
    match known.len() {
        ..8 => 0,
        8..12 => usize::from(same_family),
        _ => 1 + usize::from(same_family),
    }
}

/// A name in upper case and without underscores, whose place is misremembered most often.
fn plain(name: &str) -> String {
    name.chars().filter(|char| *char != '_').map(|char| char.to_ascii_uppercase()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn row(set: &[(&str, &str)], name: &str) -> Row {
        let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        effective(&env, None).into_iter().find(|row| row.var.name == name).unwrap()
    }

    #[test]
    fn lists_every_variable_once_in_the_order_of_the_table() {
        let names: Vec<_> = effective(&|_| None, None).iter().map(|row| row.var.name).collect();
        assert_eq!(names, vars::ALL.iter().map(|var| var.name).collect::<Vec<_>>());
    }

    #[test]
    fn names_the_source_of_each_value() {
        for (set, name, value, source) in [
            (&[][..], "PORT", "8080", Source::Default),
            (&[("PORT", "")], "PORT", "8080", Source::Default),
            (&[("PORT", "8080")], "PORT", "8080", Source::Environment),
            (&[("PORT", "abc")], "PORT", "abc", Source::Environment),
            (&[], "BACKEND_TYPE", "memory", Source::Default),
            (&[("REDIS_URL", "redis:6379")], "BACKEND_TYPE", "redis", Source::Derived),
            (
                &[("REDIS_URL", "redis:6379"), ("BACKEND_TYPE", "memory")],
                "BACKEND_TYPE",
                "memory",
                Source::Environment,
            ),
        ] {
            let row = row(set, name);
            assert_eq!((&*row.value, row.source), (value, source), "{set:?} {name}");
        }
    }

    #[test]
    fn masks_secrets() {
        for (name, value) in [
            ("REDIS_URL", "redis://user:hunter2@redis:6379"),
            ("REDIS_PERSECOND_URL", "redis://user:hunter2@redis:6379"),
            ("REDIS_AUTH", "user:hunter2"),
            ("REDIS_SENTINEL_AUTH", "hunter2"),
            ("REDIS_PERSECOND_AUTH", "hunter2"),
            ("REDIS_PERSECOND_SENTINEL_AUTH", "hunter2"),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "authorization:hunter2"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hunter2"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=hunter2"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://user:hunter2@collector:4318"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector:4318?key=hunter2"),
        ] {
            let row = row(&[(name, value)], name);
            assert!(!row.value.contains("hunter2") && row.value.contains("***"), "{name}: {}", row.value);
            assert_eq!(row.source, Source::Environment);
        }
    }

    #[test]
    fn every_variable_is_in_the_table_once() {
        let names: BTreeSet<_> = vars::ALL.iter().map(|var| var.name).collect();
        assert_eq!(names.len(), vars::ALL.len());
    }

    #[test]
    fn every_variable_is_one_row_of_three_cells() {
        let text = markdown();
        for var in vars::ALL {
            let row = text.lines().find(|line| line.starts_with(&format!("| `{}` |", var.name)));
            assert_eq!(row.map(|row| row.matches('|').count()), Some(4), "{}", var.name);
        }
    }

    #[test]
    fn a_group_has_one_heading() {
        let text = markdown();
        for var in vars::ALL {
            let heading = format!("### {}", var.group);
            assert_eq!(text.lines().filter(|line| **line == heading).count(), 1, "{heading}");
        }
    }

    #[test]
    fn descriptions_end_with_a_period() {
        for var in vars::ALL {
            assert!(var.doc.ends_with('.'), "{}: {}", var.name, var.doc);
            assert!(!var.doc.contains("  "), "{}: {}", var.name, var.doc);
        }
    }

    #[test]
    fn recognises_misspelt_names() {
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
    fn ignores_names_of_other_programs() {
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
    fn ignores_names_of_variables() {
        assert_eq!(misspelt(vars::ALL.iter().map(|var| var.name)), []);
    }

    #[test]
    fn ignores_the_other_variables_of_the_go_service() {
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
