//! A counter's key in memcached, and the server that owns it.
//!
//! Both are as in the Go service, so its replicas and ours share every counter that it supports. Keys that memcached
//! does not accept, because they are too long or contain spaces, are hashed.

use std::borrow::Cow;

use crate::store::remote::hashed;

/// The longest key that memcached accepts.
const MAX_KEY: usize = 250;

/// The key in memcached: the counter's key if memcached accepts it, else its hash.
pub(super) fn name(key: &str) -> Cow<'_, str> {
    if is_accepted(key) { Cow::Borrowed(key) } else { Cow::Owned(hashed(key)) }
}

/// The rule of the Go service's client.
fn is_accepted(key: &str) -> bool {
    (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte > b' ' && byte != 0x7f)
}

/// The index of the server that owns a key, among so many.
pub(super) fn server_index(name: &str, servers: usize) -> usize {
    let checksum = usize::try_from(crc32fast::hash(name.as_bytes())).unwrap_or_default();
    checksum.checked_rem(servers).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn checksums_are_those_of_zip() {
        for (text, sum) in [
            ("", 0),
            ("123456789", 0xcbf4_3926),
            ("The quick brown fox jumps over the lazy dog", 0x414f_a339),
        ] {
            assert_eq!(crc32fast::hash(text.as_bytes()), sum, "{text}");
        }
    }

    #[test]
    fn one_server_keeps_everything() {
        assert_eq!((server_index("d_k_v_120", 1), server_index("d_k_v_120", 0)), (0, 0));
    }

    #[test]
    fn what_memcached_takes_is_kept_as_it_is() {
        for key in ["d_k_v_120", "d_\u{fc}_\u{4f60}_120", &"x".repeat(250)] {
            assert_eq!(name(key), key);
        }
    }

    #[test]
    fn what_it_does_not_take_goes_by_its_hash() {
        let long = "x".repeat(251);
        for key in ["a b", "a\r\nflush_all\r\n", "a\u{7f}", "\0", "", &long] {
            let name = name(key);
            assert!(
                name.starts_with("tollgate:") && name.len() == 73 && is_accepted(&name),
                "{key:?}: {name}"
            );
        }
        let of_blank = "tollgate:36a9e7f1c95b82ffb99743e0c5c4ce95d83c9a430aac59f84ef3cbfab6145068";
        assert_eq!(name(" "), of_blank, "every version gives the same name");
    }

    proptest! {
        #[test]
        fn every_name_is_taken_and_keys_keep_apart(one in ".{0,300}", other in ".{0,300}") {
            prop_assert!(is_accepted(&name(&one)));
            prop_assert_eq!(name(&one) == name(&other), one == other);
        }

        #[test]
        fn a_place_is_among_the_servers(name in ".*", servers in 1_usize..100) {
            prop_assert!(server_index(&name, servers) < servers);
        }
    }
}
