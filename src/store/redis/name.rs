//! Under which name a counter is kept: its key, as in the Go service, so that its replicas and ours share it.
//!
//! Redis takes keys of up to 512 MB, and every command carries its key. A caller who chooses long values would
//! make Redis and the network pay for them, so long keys go by their hash.

use std::borrow::Cow;

use crate::store::{Batch, Check, hashed::hashed};

/// No name is longer, in bytes.
const LONGEST: usize = 512;

/// The name of a check's counter.
pub(super) fn name<'b>(batch: &'b Batch<'_>, check: &Check<'_>) -> Cow<'b, str> {
    shortened(batch.key(check))
}

fn shortened(key: &str) -> Cow<'_, str> {
    if key.len() <= LONGEST { Cow::Borrowed(key) } else { Cow::Owned(hashed(key)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_above_512_bytes_go_by_their_hash() {
        for length in [0, 1, 511, 512] {
            let key = "x".repeat(length);
            assert!(matches!(shortened(&key), Cow::Borrowed(name) if name == key), "{length}");
        }
        let [one, other] = [513, 514].map(|length| shortened(&"x".repeat(length)).into_owned());
        assert!(one.starts_with("tollgate:") && one.len() == 73 && one != other, "{one} {other}");
        assert_eq!(shortened(&"\u{fc}".repeat(257)).len(), 73, "bytes are counted");
    }
}
