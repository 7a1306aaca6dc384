//! Error replies of Redis: their kinds, and advice.

use super::{permissions, resp::UNEXPECTED};
pub(super) use crate::remote::failure::{Failure, Kind};

impl Kind {
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::Auth => "; check REDIS_AUTH",
            Self::Denied => {
                "; the user lacks a permission (ACL SETUSER), or the server the command (rename-command)"
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
            ("LOADING Redis is loading the dataset in memory", Kind::Loading),
            ("READONLY You can't write against a read only replica.", Kind::ReadOnly),
            ("OOM command not allowed when used memory > 'maxmemory'.", Kind::OutOfMemory),
            ("MOVED 3999 127.0.0.1:6381", Kind::Moved),
            ("ERR value is not an integer or out of range", Kind::NotANumber),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Kind::NotANumber),
            (
                "ERR Error running script (call to f_a1): @user_script:9: @user_script: 9: -READONLY You can't write.",
                Kind::ReadOnly,
            ),
            ("ERR unknown command 'INCRBY', with args beginning with: 'a'", Kind::Denied),
            ("NOPERM this user has no permissions to run the 'expire' command", Kind::Denied),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", Kind::Denied),
            (
                "ERR The user executing the script can't run this command or subcommand script: 30f, on @user_script:1.",
                Kind::Denied,
            ),
            ("NOAUTH Authentication required.", Kind::Auth),
            (
                "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist on disk.",
                Kind::WritesDisabled,
            ),
            ("NOREPLICAS Not enough good replicas to write.", Kind::WritesDisabled),
            (
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                Kind::Busy,
            ),
            ("unexpected-reply: expected an integer, received an array", Kind::ProtocolError),
            ("ERR syntax error", Kind::Other),
            ("", Kind::Other),
        ] {
            assert_eq!(Kind::of_reply(error), kind, "{error}");
        }
    }
}
