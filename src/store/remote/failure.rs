//! Failures of a store's servers: a kind for metrics, and a message for the operator.
//!
//! Each networked store classifies its own error replies.

use std::fmt;

/// A failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::store) struct Failure {
    /// The label `kind` of metrics.
    pub(in crate::store) kind: Kind,
    /// The server, what was seen, and advice. Contains no secret.
    pub(in crate::store) message: String,
}

/// The kinds of failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::store) enum Kind {
    /// The name has no address.
    Resolve,
    /// The connection was refused, or there is no route.
    Connect,
    /// The TLS handshake failed.
    Tls,
    /// Authentication failed.
    Auth,
    /// `-NOPERM`: the user may not run a command, or not with a key.
    Denied,
    /// No reply within the timeout.
    Timeout,
    /// The connection was lost while replies were pending.
    Lost,
    /// The bytes received are not the protocol.
    ProtocolError,
    /// `-LOADING`: it is loading its data set.
    Loading,
    /// `-READONLY`: it is a replica; another server is the master.
    ReadOnly,
    /// `-OOM`: it is out of memory.
    OutOfMemory,
    /// `-MISCONF` or `-NOREPLICAS`: it refuses writes for now.
    WritesDisabled,
    /// `-BUSY`: a script blocks it.
    Busy,
    /// A counter's key holds something other than a number.
    NotANumber,
    /// `-MOVED` or `-ASK`: another server owns the key.
    Moved,
    /// `-CLUSTERDOWN` or `-TRYAGAIN`: no server owns the key for now.
    ClusterDown,
    /// Any other error reply.
    Other,
}

impl Kind {
    /// Every kind, in the order of its discriminants.
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

    /// The server: every message begins with the store, the address and `: `.
    pub(in crate::store) fn server(&self) -> &str {
        self.message.split(": ").next().unwrap_or_default()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
