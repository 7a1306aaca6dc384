//! Failures of a store's servers: a kind for metrics, and a message for the operator.
//!
//! Each networked store classifies its own error replies.

use std::fmt;

use counters::StoreError;
use metrics::FailureReason;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The label `kind` of metrics.
    pub kind: FailureKind,
    /// The store, the server's address and `: `, then what was seen, and advice. Contains no secret.
    pub message: String,
    /// The command that the user may not run.
    pub denied: Option<&'static str>,
}

text::named! {
    pub enum FailureKind {
        Resolve = "resolve",
        Connect = "connect",
        Tls = "tls",
        Auth = "auth",
        /// `-NOPERM`: the user lacks the permission for a command or a key.
        Denied = "denied",
        Timeout = "timeout",
        Lost = "connection_lost",
        ProtocolError = "garbage",
        /// `-LOADING`: it is loading its data set.
        Loading = "loading",
        /// `-READONLY`: it is a replica; another server is the master.
        ReadOnly = "readonly",
        /// `-OOM`: it is out of memory.
        OutOfMemory = "out_of_memory",
        /// `-MISCONF` or `-NOREPLICAS`: writes are disabled.
        WritesDisabled = "writes_disabled",
        /// `-BUSY`: a script blocks it.
        Busy = "busy",
        /// A counter's key holds something other than a number.
        NotANumber = "not_a_number",
        /// `-MOVED` or `-ASK`: another server owns the key.
        Moved = "moved",
        /// `-CLUSTERDOWN` or `-TRYAGAIN`: currently no server owns the key.
        ClusterDown = "cluster_down",
        Other = "error",
    }
}

impl Failure {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), denied: None }
    }

    pub fn to_error(&self, reason: FailureReason) -> StoreError {
        StoreError::new(reason, self.message.as_str())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
