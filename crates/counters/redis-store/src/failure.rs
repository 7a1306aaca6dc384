//! Error replies of Redis: their kinds, and advice.

use super::{permissions, resp::UNEXPECTED};
pub(super) use wire::failure::{Failure, FailureKind};

/// What to do about failures of this kind.
pub(super) const fn hint(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Auth => "; check REDIS_AUTH",
        FailureKind::Denied => {
            "; the user lacks a permission, or the server the command: docs/reference/redis.md#permissions"
        }
        FailureKind::WritesDisabled => "; writes are disabled: see its log",
        FailureKind::Busy => "; a script runs for too long: see SCRIPT KILL",
        FailureKind::Loading => "; it is loading its data, will retry",
        FailureKind::ReadOnly => "; it is a replica: configure the master, or its sentinels",
        FailureKind::OutOfMemory => "; give it more memory (maxmemory), or a policy that evicts",
        FailureKind::NotANumber => {
            "; another program uses these keys: set CACHE_KEY_PREFIX, or use another database"
        }
        FailureKind::ClusterDown => "; part of the cluster has no master",
        _ => "",
    }
}

/// An error reply without the words of an unknown command, which servers repeat: one may be a password, or a key with values
/// of callers.
pub(super) fn without_words(error: &str) -> &str {
    error.split(", with args").next().unwrap_or_default()
}

pub(super) fn kind_of_reply(error: &str) -> FailureKind {
    // Before Redis 7 an error within a script follows its location.
    let inner = error.strip_prefix("ERR Error running script").and_then(|text| text.rsplit_once(": -"));
    let error = inner.map_or(error, |(_, inner)| inner);
    match error.split([' ', ':']).next().unwrap_or_default() {
        "LOADING" | "MASTERDOWN" => FailureKind::Loading,
        "READONLY" => FailureKind::ReadOnly,
        "OOM" => FailureKind::OutOfMemory,
        "MOVED" | "ASK" => FailureKind::Moved,
        "CLUSTERDOWN" | "TRYAGAIN" => FailureKind::ClusterDown,
        "NOAUTH" | "WRONGPASS" => FailureKind::Auth,
        "NOPERM" => FailureKind::Denied,
        "MISCONF" | "NOREPLICAS" => FailureKind::WritesDisabled,
        "BUSY" => FailureKind::Busy,
        UNEXPECTED => FailureKind::ProtocolError,
        _ if permissions::is_denied(error) => FailureKind::Denied,
        "WRONGTYPE" => FailureKind::NotANumber,
        _ if error.contains("not an integer") => FailureKind::NotANumber,
        _ => FailureKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_replies_are_distinguished() {
        for (error, kind) in [
            ("LOADING Redis is loading the dataset in memory", FailureKind::Loading),
            ("READONLY You can't write against a read only replica.", FailureKind::ReadOnly),
            ("OOM command not allowed when used memory > 'maxmemory'.", FailureKind::OutOfMemory),
            ("MOVED 3999 127.0.0.1:6381", FailureKind::Moved),
            ("ERR value is not an integer or out of range", FailureKind::NotANumber),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", FailureKind::NotANumber),
            (
                "ERR Error running script (call to f_a1): @user_script:9: @user_script: 9: -READONLY You can't write.",
                FailureKind::ReadOnly,
            ),
            ("ERR unknown command 'INCRBY', with args beginning with: 'a'", FailureKind::Denied),
            ("NOPERM this user has no permissions to run the 'expire' command", FailureKind::Denied),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                FailureKind::Denied,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 30f, on @user_script:1.",
                FailureKind::Denied,
            ),
            (
                "ERR ACL failure in script: User ann has no permissions to run the 'rpush' command script: on @user_script:42.",
                FailureKind::Denied,
            ),
            ("NOAUTH Authentication required.", FailureKind::Auth),
            (
                "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist on disk.",
                FailureKind::WritesDisabled,
            ),
            ("NOREPLICAS Not enough good replicas to write.", FailureKind::WritesDisabled),
            (
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                FailureKind::Busy,
            ),
            ("unexpected-reply: expected an integer, received an array", FailureKind::ProtocolError),
            ("ERR syntax error", FailureKind::Other),
            ("", FailureKind::Other),
        ] {
            assert_eq!(kind_of_reply(error), kind, "{error}");
        }
    }
}
