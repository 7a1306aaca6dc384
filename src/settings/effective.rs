//! The value of every variable in one environment, for `tollgate settings --effective`.
//!
//! Shows texts, not parsed values: [`Settings::read`](super::Settings::read) checks them. Secrets are masked.

use super::{
    reader::Reader,
    vars::{self, Var},
};

/// One variable as this environment gives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The variable's name.
    pub name: &'static str,
    /// The value in effect, with secrets masked.
    pub value: String,
    /// The default from the table of variables.
    pub default: &'static str,
    /// Where the value comes from.
    pub source: Source,
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The variable is set.
    Environment,
    /// The variable is not set, or empty where only its default makes sense.
    Default,
    /// The variable is not set, and others decide.
    Derived,
}

impl Source {
    /// The source in one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Default => "default",
            Self::Derived => "derived",
        }
    }
}

/// Every variable with its value in this environment, in the order of the documentation.
#[must_use]
pub fn effective(env: &dyn Fn(&str) -> Option<String>) -> Vec<Row> {
    let reader = Reader::new(env);
    let has_redis = !reader.set_with_prefix("REDIS_").is_empty();
    let row = |&var: &&'static Var| {
        let (value, source) = match reader.raw(var).filter(|value| !value.is_empty()) {
            Some(value) => (var.shown(value).unwrap_or_else(|| "***".to_owned()), Source::Environment),
            None if var.name == vars::BACKEND_TYPE.name && has_redis => ("redis".to_owned(), Source::Derived),
            None => (var.default.to_owned(), Source::Default),
        };
        Row { name: var.name, value, default: var.default, source }
    };
    vars::ALL.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(set: &[(&str, &str)], name: &str) -> Row {
        let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        effective(&env).into_iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn lists_every_variable_once_in_the_order_of_the_table() {
        let names: Vec<_> = effective(&|_| None).iter().map(|row| row.name).collect();
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
}
