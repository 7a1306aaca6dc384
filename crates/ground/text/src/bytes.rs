//! Bytes as text: callers' texts may hold bytes that are not UTF-8, because Envoy copies header values as they are.
//!
//! [`escape_into`] is injective, so no two values become one, and leaves a text that [`is_verbatim`] as it is.

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// True for a text without U+FFFD, which begins each escape: its escaped form is the text itself.
#[inline]
pub fn is_verbatim(text: &str) -> bool {
    text.is_ascii() || !text.contains(char::REPLACEMENT_CHARACTER)
}

/// Appends bytes as UTF-8: each byte of an invalid sequence, and of a U+FFFD, becomes U+FFFD and two upper-case
/// hexadecimal digits.
pub fn escape_into(bytes: &[u8], into: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        let mut parts = chunk.valid().split(char::REPLACEMENT_CHARACTER);
        into.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
        for part in parts {
            for byte in REPLACEMENT {
                escape_byte(*byte, into);
            }
            into.extend_from_slice(part.as_bytes());
        }
        for byte in chunk.invalid() {
            escape_byte(*byte, into);
        }
    }
}

fn escape_byte(byte: u8, into: &mut Vec<u8>) {
    let digit = |half: u8| if half < 10 { b'0' + half } else { b'A' + half - 10 };
    into.extend_from_slice(REPLACEMENT);
    into.extend([byte >> 4, byte & 15].map(digit));
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    fn escape(bytes: &[u8]) -> String {
        let mut escaped = Vec::new();
        escape_into(bytes, &mut escaped);
        String::from_utf8(escaped).expect("UTF-8")
    }

    /// The bytes of which this is the escaped form. That they can be found is why no two values have the same.
    fn unescape(text: &str) -> Vec<u8> {
        let mut parts = text.split(char::REPLACEMENT_CHARACTER);
        let mut bytes = parts.next().expect("the first part").as_bytes().to_vec();
        for part in parts {
            let (digits, rest) = part.split_at(2);
            assert_eq!(digits, digits.to_uppercase());
            bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
            bytes.extend_from_slice(rest.as_bytes());
        }
        bytes
    }

    #[test]
    fn escapes_each_invalid_byte_and_each_replacement_character() {
        for (bytes, escaped) in [
            (&b"caf\xe9"[..], "caf\u{fffd}E9"),
            (b"\xe2\x82", "\u{fffd}E2\u{fffd}82"),
            (b"\xe2\x82A\xff\x0f", "\u{fffd}E2\u{fffd}82A\u{fffd}FF\x0f"),
            (b"\xed\xa0\x80", "\u{fffd}ED\u{fffd}A0\u{fffd}80"),
            ("caf\u{e9}\u{fffc}\u{10ffff}\0".as_bytes(), "caf\u{e9}\u{fffc}\u{10ffff}\0"),
            ("a\u{fffd}E9".as_bytes(), "a\u{fffd}EF\u{fffd}BF\u{fffd}BDE9"),
            (b"", ""),
        ] {
            assert_eq!(escape(bytes), escaped);
        }
    }

    proptest! {
        #[test]
        fn no_two_values_have_the_same_form(
            bytes in vec(prop_oneof![any::<u8>(), select(b"\xef\xbf\xbd\xe2\x82\xf0\x9f0EBD".as_slice())], 0..24),
        ) {
            let escaped = escape(&bytes);
            prop_assert_eq!(unescape(&escaped), &*bytes);
            let is_same = std::str::from_utf8(&bytes).is_ok_and(is_verbatim);
            prop_assert_eq!(is_same, escaped.as_bytes() == bytes);
        }
    }
}
