//! A variable's value as it may be printed: passwords and credentials are replaced by `***`.

use super::redis::masked;

/// Variables whose whole value is a secret.
const SECRETS: [&str; 7] = [
    "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "REDIS_AUTH",
    "REDIS_PERSECOND_AUTH",
    "REDIS_PERSECOND_SENTINEL_AUTH",
    "REDIS_SENTINEL_AUTH",
];

/// The value of a variable without secrets.
#[must_use]
pub fn shown(name: &str, value: &str) -> String {
    if SECRETS.contains(&name) && !value.is_empty() {
        return "***".to_owned();
    }
    // URLs may hold a login.
    if name.ends_with("_URL") || name.ends_with("_ENDPOINT") { masked(value) } else { value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::vars;

    #[test]
    fn no_variable_shows_a_secret() {
        for var in vars::ALL {
            let name = var.name;
            let is_flag = matches!(name, "LIMIT_RESPONSE_HEADERS_ENABLED" | "LIMIT_POLICY_HEADERS");
            let is_secret = ["AUTH", "HEADERS", "PASSWORD", "TOKEN"].iter().any(|word| name.ends_with(word));
            assert_eq!(shown(name, "hunter2") == "***", is_secret && !is_flag, "{name}");
            let holds_url = name.ends_with("_URL") || name.ends_with("_ENDPOINT");
            let login = shown(name, "http://user:hunter2@host:1");
            assert!(!holds_url || !login.contains("hunter2"), "{name}: {login}");
        }
        for name in SECRETS {
            assert!(vars::ALL.iter().any(|var| var.name == name), "{name}");
            assert_eq!(shown(name, ""), "");
        }
    }
}
