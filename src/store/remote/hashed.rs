//! Names by hash, for keys that a server is not to be given as they are: `tollgate:` and the key's SHA-256.
//!
//! Both stores across a network use them, each for keys of its own. Every key ends its domain with `_`, which
//! these names do not hold, so no key that is kept as it is equals one of them.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};

/// The name of a key that is kept by its hash. Every version gives the same.
pub(in crate::store) fn hashed(key: &str) -> String {
    let mut name = "tollgate:".to_owned();
    for byte in digest(&SHA256, key.as_bytes()).as_ref() {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}
