//! Whether the servers accept writes, for health checks with `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`.
//!
//! A replica, a server out of memory and one that refuses writes all accept connections and reads. So `pool` sends each
//! server a probe per second, and `backend` one on each new connection: `INCRBY` with an argument that is not a number.
//! Redis checks permissions, slot, memory, persistence, replicas and role before a command reads its arguments, so the
//! reply shows whether a count would be accepted, and no key is created, changed or replicated.

use std::{collections::HashMap, sync::Mutex};

use super::{
    failure::{self, FailureKind},
    permissions,
    resp::{self, Reply},
    topology::KeyOwners,
};
use faults::mutex::lock;
use net::ServerAddress;

/// The keys that are tried per server of a cluster. One with a tenth of its share of the slots is missed once in 600
/// times; then only clients see that it refuses writes.
const TRIES: usize = 64;

#[derive(Default)]
pub(super) struct WriteCheck {
    /// The servers that accepted their last probe, or own no key for one.
    accepting: Mutex<Vec<ServerAddress>>,
}

impl WriteCheck {
    /// A key for each server.
    pub(super) fn keys(servers: &KeyOwners) -> HashMap<ServerAddress, String> {
        let mut keys = HashMap::new();
        let count = servers.masters.len();
        for number in 0..count * TRIES {
            let key = format!("tollgate:health:{number}");
            if let Some(owner) = servers.owner(key.as_bytes()).and_then(|owner| servers.masters.get(owner)) {
                keys.entry(owner.clone()).or_insert(key);
            }
            if keys.len() == count {
                break;
            }
        }
        keys
    }

    /// Sends a server's probe, if there is a key for it.
    pub(super) fn probe(
        &self,
        server: &ServerAddress,
        keys: &HashMap<ServerAddress, String>,
        send: impl FnOnce(&str),
    ) {
        match keys.get(server) {
            Some(key) => send(key),
            None => self.record(server, true),
        }
    }

    pub(super) fn record(&self, server: &ServerAddress, accepts: bool) {
        let mut accepting = lock(&self.accepting);
        accepting.retain(|known| known != server);
        if accepts {
            accepting.push(server.clone());
        }
    }

    pub(super) fn keep_only(&self, servers: &[ServerAddress]) {
        lock(&self.accepting).retain(|known| servers.contains(known));
    }

    pub(super) fn all_accept(&self, servers: &[ServerAddress]) -> bool {
        let accepting = lock(&self.accepting);
        servers.iter().all(|server| accepting.contains(server))
    }
}

pub(super) fn write_probe(key: &[u8], into: &mut Vec<u8>) {
    resp::write_command(into, &[b"INCRBY", key, b"x"]);
}

/// The server's refusal, if the reply to a probe is one. A server that accepts the write rejects the argument.
pub(super) fn refusal(reply: Reply) -> Result<(), String> {
    let Reply::Error(error) = reply else { return Ok(()) };
    match failure::kind_of_reply(&error) {
        FailureKind::NotANumber => Ok(()),
        // The user may have access to other keys.
        FailureKind::Denied if !permissions::is_denied(&error) => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_rejection_of_the_argument_means_that_a_write_is_accepted() {
        for (error, accepts) in [
            ("ERR value is not an integer or out of range", true),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", true),
            ("NOPERM No permissions to access a key", true),
            ("NOPERM this user has no permissions to run the 'incrby' command", false),
            ("ERR unknown command 'INCRBY', with args beginning with: 'd_0'", false),
            ("READONLY You can't write against a read only replica.", false),
            ("OOM command not allowed when used memory > 'maxmemory'.", false),
            ("NOREPLICAS Not enough good replicas to write.", false),
            ("MISCONF Redis is configured to save RDB snapshots", false),
            ("CLUSTERDOWN Hash slot not served", false),
            ("LOADING Redis is loading the dataset in memory", false),
            ("upstream failure", false),
        ] {
            assert_eq!(refusal(Reply::Error(error.to_owned())).is_ok(), accepts, "{error}");
        }
    }
}
