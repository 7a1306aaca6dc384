//! Keeps a fault where it happened.
//!
//! [`panics`]: a panic costs the request, the connection or the task that it interrupts, and is logged and counted.
//! [`mutex`]: locks that such a panic does not poison. [`log_throttle`]: a fault that repeats does not fill the log.
//! [`files`]: a path in a setting that names a pipe or a device blocks no thread. [`periodic`]: a flush that hangs blocks
//! only its own thread. [`OnStoreFailure`]: what a request gets whose counters cannot be reached.
#![cfg_attr(not(test), deny(clippy::string_slice))]

pub mod files;
pub mod log_throttle;
pub mod mutex;
pub mod panics;
pub mod periodic;

text::named! {
    /// The policy for a request whose counters cannot be reached.
    #[derive(Default)]
    pub enum OnStoreFailure {
        #[default]
        Error = "error",
        Allow = "allow",
        Deny = "deny",
        Local = "local",
        Share = "share",
    }
}
