//! What goes wrong with a server of counters, by kind, and in words that name its address and no secret.
//!
//! Made by the stores across a network; each has its own way to tell an answer's kind, and what to do about it.

use std::fmt;

/// What went wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::store) struct Failure {
    /// By this it is counted.
    pub(in crate::store) kind: Kind,
    /// Which server, what was seen, what to do about it.
    pub(in crate::store) message: String,
}

/// The kinds of failure, as the metric's label names them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::store) enum Kind {
    /// The name has no address.
    Resolve,
    /// Nobody listens, or the way there is barred.
    Connect,
    /// The TLS handshake failed.
    Tls,
    /// The log-in was refused.
    Auth,
    /// `-NOPERM`: the user may not run a command, or not with a key.
    Denied,
    /// No answer came in time.
    Timeout,
    /// The connection ended while something was awaited.
    Lost,
    /// What came is not its language.
    ProtocolError,
    /// `-LOADING`: it reads its data set.
    Loading,
    /// `-READONLY`: it is a replica, so that another is the master now.
    ReadOnly,
    /// `-OOM`: it is out of memory.
    OutOfMemory,
    /// `-MISCONF` or `-NOREPLICAS`: it takes no writes for now.
    WritesDisabled,
    /// `-BUSY`: a script keeps it from all else.
    Busy,
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
    pub(in crate::store) const ALL: [Self; 17] = [
        Self::Resolve,
        Self::Connect,
        Self::Tls,
        Self::Auth,
        Self::Denied,
        Self::Timeout,
        Self::Lost,
        Self::ProtocolError,
        Self::Loading,
        Self::ReadOnly,
        Self::OutOfMemory,
        Self::WritesDisabled,
        Self::Busy,
        Self::NotANumber,
        Self::Moved,
        Self::ClusterDown,
        Self::Other,
    ];

    /// The value of the label `kind`.
    pub(in crate::store) const fn name(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Auth => "auth",
            Self::Denied => "denied",
            Self::Timeout => "timeout",
            Self::Lost => "connection_lost",
            Self::ProtocolError => "garbage",
            Self::Loading => "loading",
            Self::ReadOnly => "readonly",
            Self::OutOfMemory => "out_of_memory",
            Self::WritesDisabled => "writes_disabled",
            Self::Busy => "busy",
            Self::NotANumber => "not_a_number",
            Self::Moved => "moved",
            Self::ClusterDown => "cluster_down",
            Self::Other => "error",
        }
    }
}

impl Failure {
    pub(in crate::store) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Which server failed: every message begins with the store and the address, and `: `.
    pub(in crate::store) fn server(&self) -> &str {
        self.message.split(": ").next().unwrap_or_default()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
