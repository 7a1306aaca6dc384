//! What the errors that a Redis answers mean, and what to do about them.

pub(super) use crate::store::failure::{Failure, Kind};

impl Kind {
    /// What to do about an error of this kind, where that helps.
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::Auth => "; look at REDIS_AUTH",
            Self::Loading => "; it reads its data and is asked again when it has",
            Self::ReadOnly => "; a replica took its place, or it is one: name the master, or its sentinels",
            Self::OutOfMemory => "; give it more memory (maxmemory), or a policy that evicts",
            Self::NotANumber => {
                "; something else writes under these keys: use CACHE_KEY_PREFIX or another database"
            }
            Self::ClusterDown => "; a part of the cluster has no master",
            _ => "",
        }
    }

    /// The kind of an error that Redis answered.
    pub(super) fn of_answer(error: &str) -> Self {
        // What went wrong within a script is told behind where, by servers before Redis 7.
        let inner = error.strip_prefix("ERR Error running script").and_then(|told| told.rsplit_once(": -"));
        let error = inner.map_or(error, |(_, inner)| inner);
        match error.split(' ').next().unwrap_or_default() {
            "LOADING" | "MASTERDOWN" => Self::Loading,
            "READONLY" => Self::ReadOnly,
            "OOM" => Self::OutOfMemory,
            "MOVED" | "ASK" => Self::Moved,
            "CLUSTERDOWN" | "TRYAGAIN" => Self::ClusterDown,
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Self::Auth,
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
    fn answers_are_told_apart() {
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
            ("ERR unknown command", Kind::Other),
            ("", Kind::Other),
        ] {
            assert_eq!(Kind::of_answer(error), kind, "{error}");
        }
    }
}
