//! Error replies of Redis: their kinds, and advice.

use super::{permissions, resp::UNEXPECTED};
pub(super) use crate::remote::failure::{Failure, FailureKind};

impl FailureKind {
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::Auth => "; check REDIS_AUTH",
            Self::Denied => {
                "; the user lacks a permission, or the server the command: docs/redis.md#permissions"
            }
            Self::WritesDisabled => "; writes are disabled: see its log",
            Self::Busy => "; a script runs for too long: see SCRIPT KILL",
            Self::Loading => "; it is loading its data, will retry",
            Self::ReadOnly => "; it is a replica: configure the master, or its sentinels",
            Self::OutOfMemory => "; give it more memory (maxmemory), or a policy that evicts",
            Self::NotANumber => {
                "; another program uses these keys: set CACHE_KEY_PREFIX, or use another database"
            }
            Self::ClusterDown => "; part of the cluster has no master",
            _ => "",
        }
    }

    pub(super) fn of_reply(error: &str) -> Self {
        // Before Redis 7 an error within a script follows its location.
        let inner = error.strip_prefix("ERR Error running script").and_then(|text| text.rsplit_once(": -"));
        let error = inner.map_or(error, |(_, inner)| inner);
        match error.split([' ', ':']).next().unwrap_or_default() {
            "LOADING" | "MASTERDOWN" => Self::Loading,
            "READONLY" => Self::ReadOnly,
            "OOM" => Self::OutOfMemory,
            "MOVED" | "ASK" => Self::Moved,
            "CLUSTERDOWN" | "TRYAGAIN" => Self::ClusterDown,
            "NOAUTH" | "WRONGPASS" => Self::Auth,
            "NOPERM" => Self::Denied,
            "MISCONF" | "NOREPLICAS" => Self::WritesDisabled,
            "BUSY" => Self::Busy,
            UNEXPECTED => Self::ProtocolError,
            _ if permissions::is_denied(error) => Self::Denied,
            "WRONGTYPE" => Self::NotANumber,
            _ if error.contains("not an integer") => Self::NotANumber,
            _ => Self::Other,
        }
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
            assert_eq!(FailureKind::of_reply(error), kind, "{error}");
        }
    }
}
