//! Every variable for people: the table of docs/settings.md and `tollgate settings`, and with `--effective` the value
//! of each in one environment.
//!
//! Values are shown as texts, not parsed: [`Settings::read`](super::Settings::read) checks them. Secrets are masked.

use std::fmt::Write as _;

use super::{
    reader::Reader,
    vars::{self, Var},
};

/// The table as Markdown: a heading and a table for each group.
#[must_use]
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
    use std::collections::BTreeSet;

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

    #[test]
    fn no_variable_stands_in_the_table_twice() {
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
    fn sentences_end() {
        for var in vars::ALL {
            assert!(var.doc.ends_with('.'), "{}: {}", var.name, var.doc);
            assert!(!var.doc.contains("  "), "{}: {}", var.name, var.doc);
        }
    }
}
