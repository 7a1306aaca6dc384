//! Hash tags: the part of a key in braces that decides which server of a Redis Cluster keeps it.
//!
//! `plan` encloses the keys of a rule with several limits. Callers choose values: a brace in one of them never
//! decides the server, so braces within are escaped, and `%` is, so that no two keys become one.

/// Puts all of `key` from `start` on in braces. The prefix of `prefix` bytes stands before them, unless the
/// braces that it holds itself enclose nothing: a cluster would then pass over ours.
pub(super) fn enclose(key: &mut String, start: usize, prefix: usize) {
    let prefix_at = start.saturating_sub(prefix);
    let is_empty_tag = |prefix: &str| prefix.find('{').is_some_and(|open| prefix[open..].starts_with("{}"));
    let from = if key.get(prefix_at..start).is_some_and(is_empty_tag) { prefix_at } else { start };
    let needs_escape = key.bytes().skip(from).any(|byte| matches!(byte, b'{' | b'}' | b'%'));
    if needs_escape {
        let escaped = key.split_off(from);
        key.push('{');
        for part in escaped.split_inclusive(['{', '}', '%']) {
            let (plain, escape) = match part.as_bytes().last() {
                Some(b'{') => (1, "%7B"),
                Some(b'}') => (1, "%7D"),
                Some(b'%') => (1, "%25"),
                _ => (0, ""),
            };
            key.extend([part.get(..part.len() - plain).unwrap_or_default(), escape]);
        }
    } else {
        key.insert(from, '{');
    }
    key.push('}');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn enclosed(before: &str, prefix: &str, rest: &str) -> String {
        let mut key = format!("{before}{prefix}{rest}");
        enclose(&mut key, before.len() + prefix.len(), prefix.len());
        key
    }

    #[test]
    fn all_but_the_prefix_stands_in_braces() {
        for (prefix, rest, expected) in [
            ("", "d_k_v_", "{d_k_v_}"),
            ("pre:", "d_k_v_", "pre:{d_k_v_}"),
            ("", "d_k_{x}50%_", "{d_k_%7Bx%7D50%25_}"),
            ("{one}", "d_k_{_", "{one}{d_k_%7B_}"),
            ("a{}b", "d_k_v_", "{a%7B%7Dbd_k_v_}"),
        ] {
            assert_eq!(enclosed("", prefix, rest), expected);
            assert_eq!(enclosed("other keys{}", prefix, rest), format!("other keys{{}}{expected}"));
        }
    }

    /// As Redis Cluster reads it.
    fn tag(key: &str) -> Option<&str> {
        let inner = &key[key.find('{')? + 1..];
        inner.find('}').filter(|close| *close > 0).map(|close| &inner[..close])
    }

    proptest! {
        #[test]
        fn no_two_keys_become_one_and_none_chooses_its_tag(
            prefix in "[a{}]{0,3}", one in "[ab{}%27BD_]{1,9}", other in "[ab{}%27BD_]{1,9}",
        ) {
            let keys = [&one, &other].map(|rest| enclosed("x", &prefix, rest));
            prop_assert_eq!(keys[0] == keys[1], one == other);
            let of_prefix = tag(&prefix);
            for key in &keys {
                // Whatever ends it, the keys of a group have one tag.
                let seconds = tag(&format!("{}1/1", &key[1..])).map(str::to_owned);
                prop_assert!(seconds.is_some());
                prop_assert_eq!(&seconds, &tag(&format!("{}0/60", &key[1..])).map(str::to_owned));
                if of_prefix.is_some() {
                    prop_assert_eq!(seconds.as_deref(), of_prefix);
                }
            }
            if of_prefix.is_none() {
                prop_assert_eq!(tag(&keys[0]) == tag(&keys[1]), one == other);
            }
        }
    }
}
