//! Under which name a counter is kept, and on which of the servers.
//!
//! Both are as in the Go service, so that its replicas and ours share every counter that it can count. Keys
//! that memcached does not take, because they are too long or hold blanks, go by their hash.

use std::borrow::Cow;

use crate::store::remote::hashed::hashed;

/// No key that memcached takes is longer.
const MAX_KEY: usize = 250;

/// The name under which a key's counter is kept: the key itself where memcached takes it, else
/// `tollgate:` and its SHA-256.
pub(super) fn name(key: &str) -> Cow<'_, str> {
    if is_taken(key) { Cow::Borrowed(key) } else { Cow::Owned(hashed(key)) }
}

/// What the client of the Go service takes as well.
fn is_taken(key: &str) -> bool {
    (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte > b' ' && byte != 0x7f)
}

/// The place of the server that keeps a name, among so many.
pub(super) fn place(name: &str, servers: usize) -> usize {
    let checksum = usize::try_from(crc32(name.as_bytes())).unwrap_or_default();
    checksum.checked_rem(servers).unwrap_or_default()
}

/// The checksum of zip and Ethernet (CRC-32, reflected).
fn crc32(bytes: &[u8]) -> u32 {
    let with = |sum: u32, byte: &u8| {
        let [low, ..] = sum.to_le_bytes();
        (sum >> 8) ^ TABLE.get(usize::from(low ^ byte)).copied().unwrap_or_default()
    };
    !bytes.iter().fold(!0, with)
}

/// What each byte does to the checksum.
#[expect(clippy::indexing_slicing, reason = "the compiler evaluates it")]
static TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "it is a byte")]
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

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
            assert_eq!(crc32(text.as_bytes()), sum, "{text}");
        }
    }

    #[test]
    fn one_server_keeps_everything() {
        assert_eq!((place("d_k_v_120", 1), place("d_k_v_120", 0)), (0, 0));
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
            assert!(name.starts_with("tollgate:") && name.len() == 73 && is_taken(&name), "{key:?}: {name}");
        }
        let of_blank = "tollgate:36a9e7f1c95b82ffb99743e0c5c4ce95d83c9a430aac59f84ef3cbfab6145068";
        assert_eq!(name(" "), of_blank, "every version gives the same name");
    }

    proptest! {
        #[test]
        fn every_name_is_taken_and_keys_keep_apart(one in ".{0,300}", other in ".{0,300}") {
            prop_assert!(is_taken(&name(&one)));
            prop_assert_eq!(name(&one) == name(&other), one == other);
        }

        #[test]
        fn a_place_is_among_the_servers(name in ".*", servers in 1_usize..100) {
            prop_assert!(place(&name, servers) < servers);
        }
    }
}
