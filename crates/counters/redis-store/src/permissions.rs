//! Errors about commands and keys that the server does not allow our user.

/// True for errors about denied and unknown commands, and not about keys.
pub(super) fn is_denied(error: &str) -> bool {
    let of_command = error.starts_with("NOPERM") && !is_about_a_key(error);
    of_command || error.starts_with("ERR unknown command") || is_denied_in_script(error)
}

/// The same for a command within a script, as Redis 7 and earlier versions report it, and Valkey 9.
fn is_denied_in_script(error: &str) -> bool {
    error.contains("can't run this command")
        || error.starts_with("ERR ACL failure in script") && error.contains("permissions to run the")
        || error.contains("-NOPERM") && !is_about_a_key(error)
        || error.contains("Unknown Redis command called from")
}

/// Advice on the denial of a key: the command, and a pattern of the key without what callers send.
pub(super) fn key_advice(command: &str, key: &str) -> String {
    let command = command.to_ascii_uppercase();
    let pattern = match key.split_once(['_', ':']) {
        Some((start, _)) => format!("{start}{}*", key.get(start.len()..=start.len()).unwrap_or_default()),
        None if key.ends_with("}holds") => "{*}holds*".to_owned(),
        None => format!("{key}*"),
    };
    format!("; {command} needs the key pattern ~{pattern}: docs/reference/redis.md#permissions")
}

/// True for the denial of a key, as Redis 7.0 and later versions report it.
pub(super) fn is_about_a_key(error: &str) -> bool {
    error.contains("access one of the keys") || error.contains("access a key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_about_commands_are_denials() {
        for (error, expected) in [
            ("NOPERM this user has no permissions to run the 'expire' command", true),
            ("NOPERM this user has no permissions to run the 'expire' command or its subcommand", true),
            ("ERR unknown command 'EXPIRE', with args beginning with: 'a' '1' ", true),
            (
                "ERR The user executing the script can't run this command or subcommand script: 30f, on @user_script:1.",
                true,
            ),
            (
                "ERR Error running script (call to f_a1): @user_script:1: -NOPERM this user has no permissions",
                true,
            ),
            (
                "ERR ACL failure in script: User ann has no permissions to run the 'rpush' command script: on @user_script:42.",
                true,
            ),
            ("ERR ACL failure in script: User ann has no permissions to access the 'd_k' key", false),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", false),
            ("NOPERM No permissions to access a key", false),
            ("ERR value is not an integer or out of range", false),
            ("OOM command not allowed when used memory > 'maxmemory'.", false),
            ("MOVED 3999 127.0.0.1:6381", false),
        ] {
            assert_eq!(is_denied(error), expected, "{error}");
        }
    }

    #[test]
    fn a_denied_key_is_shown_without_what_callers_send() {
        for (key, pattern) in [
            ("d_k_secret_0", "~d_*:"),
            ("p:d_k_secret_0", "~p:*:"),
            ("{d_k_secret_}0/60", "~{d_*:"),
            ("{06S}holds", "~{*}holds*:"),
            ("tollgate:0123", "~tollgate:*:"),
        ] {
            let advice = key_advice("evalsha", key);
            assert!(advice.contains(&format!("EVALSHA needs the key pattern {pattern}")), "{advice}");
            assert!(!advice.contains("secret"), "{advice}");
        }
    }
}
