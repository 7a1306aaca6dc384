//! What goes wrong with a Redis, by kind, and in words that name its address and no secret.

use std::fmt;

/// What went wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    /// By this it is counted.
    pub(super) kind: Kind,
    /// Which server, what was seen, what to do about it.
    pub(super) message: String,
}

/// The kinds of failure, as the metric's label names them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kind {
    /// The name has no address.
    Resolve,
    /// Nobody listens, or the way there is barred.
    Connect,
    /// The TLS handshake failed.
    Tls,
    /// The log-in was refused.
    Auth,
    /// No answer came in time.
    Timeout,
    /// The connection ended while something was awaited.
    Lost,
    /// What came is not the language of Redis.
    Garbage,
    /// `-LOADING`: it reads its data set.
    Loading,
    /// `-READONLY`: it is a replica, so that another is the master now.
    ReadOnly,
    /// `-OOM`: it is out of memory.
    OutOfMemory,
    /// A counter holds something else than a number.
    NotANumber,
    /// `-MOVED` or `-ASK`: another server owns the key.
    Moved,
    /// `-CLUSTERDOWN` or `-TRYAGAIN`: nobody owns the key for now.
    ClusterDown,
    /// Any other error that it answered.
    Other,
}

impl Kind {
    /// Every kind, each at its own number.
    pub(super) const ALL: [Self; 14] = [
        Self::Resolve,
        Self::Connect,
        Self::Tls,
        Self::Auth,
        Self::Timeout,
        Self::Lost,
        Self::Garbage,
        Self::Loading,
        Self::ReadOnly,
        Self::OutOfMemory,
        Self::NotANumber,
        Self::Moved,
        Self::ClusterDown,
        Self::Other,
    ];

    /// The value of the label `kind`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Auth => "auth",
            Self::Timeout => "timeout",
            Self::Lost => "connection_lost",
            Self::Garbage => "garbage",
            Self::Loading => "loading",
            Self::ReadOnly => "readonly",
            Self::OutOfMemory => "out_of_memory",
            Self::NotANumber => "not_a_number",
            Self::Moved => "moved",
            Self::ClusterDown => "cluster_down",
            Self::Other => "error",
        }
    }

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

impl Failure {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Which server failed: every message begins with `redis ADDRESS: `.
    pub(super) fn server(&self) -> &str {
        self.message.split(": ").next().unwrap_or_default()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
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
