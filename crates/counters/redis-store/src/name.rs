//! The name of a counter's key in Redis, which is that of the Go service, so that replicas of both share the counter.
//!
//! The counters of a rule with several limits, which the Go service does not have, are updated in one step. In a Redis
//! Cluster their common part is in braces, a hash tag, which keeps them on one server. Braces in values from callers must
//! not determine the server, so they are escaped. `%` is escaped too, so that no two keys become equal.
//!
//! Redis accepts keys of up to 512 MB, and every command contains its key. Long keys are hashed, so that callers with
//! long values do not load Redis and the network.

use std::borrow::Cow;

use super::{pipeline::HOLDS_OF, topology::slots::hash_tag};
use counters::{Batch, Check, CounterId};
use wire::hashed;

const MAX_BYTES: usize = 512;

pub(super) struct Names {
    is_cluster: bool,
    prefix: Box<str>,
    /// The number of bytes before the braces.
    before: usize,
}

impl Names {
    /// For keys with this prefix (`CACHE_KEY_PREFIX`), which precedes the braces unless it contains `{}`: a cluster ignores
    /// all braces after an empty pair.
    pub(super) fn new(prefix: &str, is_cluster: bool) -> Self {
        let has_empty_tag = prefix.split_once('{').is_some_and(|(_, behind)| behind.starts_with('}'));
        Self { is_cluster, prefix: prefix.into(), before: if has_empty_tag { 0 } else { prefix.len() } }
    }

    pub(super) fn of<'b>(&self, batch: &'b Batch, check: &Check) -> Cow<'b, str> {
        if self.is_cluster && check.limit.is_of_list {
            Cow::Owned(self.of_member(batch.key(check), batch.full_key(check)))
        } else {
            shortened(batch.key(check))
        }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key of the leases of a counter with this name. It begins with the prefix, and a cluster keeps both on one
    /// server, unless the name has a closing brace but no hash tag.
    pub(super) fn leases_of(&self, name: &str) -> String {
        if hash_tag(name.as_bytes()).len() < name.len() {
            format!("{name}:leases")
        } else {
            format!("{}{{{name}}}:leases", self.prefix)
        }
    }

    /// The Redis keys that a counter with this full key may have: by its compatible or its full key and, in a cluster,
    /// alone or in a list.
    pub(super) fn of_full_key(&self, full_key: &str) -> Vec<String> {
        let compatible = full_key.rsplit_once('#').map_or(full_key, |(key, _)| key);
        let keys = [compatible, full_key];
        let in_list = keys.iter().filter(|_| self.is_cluster).map(|key| self.of_member(key, full_key));
        keys.iter().map(|key| shortened(key).into_owned()).chain(in_list).collect()
    }

    /// The Redis key of a limit of a list, which shares its entries with the others. What follows them does not come from a
    /// caller.
    fn of_member(&self, key: &str, full_key: &str) -> String {
        let entries = CounterId::entries_of_full_key(full_key).unwrap_or(key);
        // A replica with another prefix may have reset a key.
        let (before, shared) = entries.split_at_checked(self.before).unwrap_or(("", entries));
        let rest = key.get(entries.len()..).unwrap_or_default();
        if key.len() > MAX_BYTES {
            return format!("{before}{{{}}}{}", hashed(shared), hashed(key));
        }
        let mut name = String::with_capacity(key.len() + 2);
        name.push_str(before);
        name.push('{');
        for character in shared.chars() {
            match character {
                '{' => name.push_str("%7B"),
                '}' => name.push_str("%7D"),
                '%' => name.push_str("%25"),
                other => name.push(other),
            }
        }
        name.push('}');
        name.push_str(rest);
        name
    }
}

/// The sorted set of a counter's holds, by its full key.
pub(super) fn set_of_holds(base: &str, full_key: &str) -> String {
    [base, HOLDS_OF, &shortened(full_key)].concat()
}

fn shortened(key: &str) -> Cow<'_, str> {
    if key.len() <= MAX_BYTES { Cow::Borrowed(key) } else { Cow::Owned(hashed(key)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::topology::slots::slot;
    use counters::CounterId;

    #[test]
    fn keys_above_512_bytes_are_hashed() {
        for length in [0, 1, 511, 512] {
            let key = "x".repeat(length);
            assert!(matches!(shortened(&key), Cow::Borrowed(name) if name == key), "{length}");
        }
        let [one, other] = [513, 514].map(|length| shortened(&"x".repeat(length)).into_owned());
        assert!(one.starts_with("tollgate:") && one.len() == 73 && one != other, "{one} {other}");
        assert_eq!(shortened(&"\u{fc}".repeat(257)).len(), 73, "bytes are counted");
    }

    #[test]
    fn the_shared_part_of_a_lists_keys_is_in_braces_in_a_cluster() {
        for (prefix, key, expected) in [
            ("", "d_k_v_120/60#0.1.1.1/60", "{d_k_v_}120/60"),
            ("pre:", "pre:d_k_v_b/1000/60#4.1.1.1/60", "pre:{d_k_v_}b/1000/60"),
            ("", "d_k_{x}50%_sw/60#0.1.1.6/60", "{d_k_%7Bx%7D50%25_}sw/60"),
            ("{one}", "{one}d_k_{_0/60#5.1.1.1/60", "{one}{d_k_%7B_}0/60"),
            ("a{}b", "a{}bd_k_v_0/60#4.1.1.1/60", "{a%7B%7Dbd_k_v_}0/60"),
            (
                "",
                "d_k_a_b_0/cAmerica/New_York.1#0.1.1.3/cAmerica/New_York.1",
                "{d_k_a_b_}0/cAmerica/New_York.1",
            ),
        ] {
            let compatible = key.rsplit_once('#').unwrap().0;
            assert_eq!(Names::new(prefix, true).of_member(compatible, key), expected);
        }
        let whole = "d_k_v_120/60#0.1.1.1/60";
        assert_eq!(Names::new("", true).of_member(whole, whole), "{d_k_v_}120/60#0.1.1.1/60");
        let names = Names::new("pre:", true);
        let [one, other] = ["0/60", "0/3600"].map(|end| {
            let key = format!("pre:d_k_{}_{end}", "v".repeat(512));
            names.of_member(&key, &format!("{key}#4.1.1.512/60"))
        });
        assert!(one.starts_with("pre:{tollgate:") && one.len() < 200 && one != other, "{one} {other}");
        assert_eq!(tag(&one), tag(&other));
    }

    #[test]
    fn the_leases_of_a_counter_are_in_its_slot_and_begin_with_the_prefix() {
        for (prefix, name, expected) in [
            ("", "d_k_v_60", "{d_k_v_60}:leases"),
            ("pre:", "pre:d_k_v_60", "pre:{pre:d_k_v_60}:leases"),
            ("pre:", "pre:{d_k_v_}120/60", "pre:{d_k_v_}120/60:leases"),
            ("{one}", "{one}d_k_v_60", "{one}d_k_v_60:leases"),
            ("", "d_path_/users/{id}_60", "d_path_/users/{id}_60:leases"),
            ("", "d_k_{v_60", "{d_k_{v_60}:leases"),
        ] {
            let leases = Names::new(prefix, true).leases_of(name);
            assert_eq!(leases, expected);
            assert_eq!(slot(leases.as_bytes()), slot(name.as_bytes()), "{name}");
        }
        for name in ["d_k_v}_60", "d_k_{}_60"] {
            let leases = Names::new("", true).leases_of(name);
            assert_ne!(slot(leases.as_bytes()), slot(name.as_bytes()), "{name}");
        }
    }

    /// The hash tag, by the rules of Redis Cluster.
    fn tag(key: &str) -> Option<&str> {
        let inner = &key[key.find('{')? + 1..];
        inner.find('}').filter(|close| *close > 0).map(|close| &inner[..close])
    }

    #[test]
    fn a_counters_name_is_one_of_those_of_its_full_key() {
        let alone = limit::Limit::plain(5, limit::Unit::Minute);
        let in_list =
            limit::Limits::new([alone.clone(), limit::Limit::plain(5, limit::Unit::Second)]).unwrap();
        for (value, key_format_is_full) in
            ["v", "{v}#/60", &"v".repeat(600)].into_iter().flat_map(|value| [(value, false), (value, true)])
        {
            let mut batch = Batch::default();
            for limit in [&alone, in_list.first()] {
                let start = batch.keys().len();
                batch.keys().push_str("pre:d_k_");
                batch.keys().push_str(value);
                batch.keys().push_str("_120");
                let end = batch.keys().len();
                batch.keys().push_str("#4.1.1.1/60");
                let end = if key_format_is_full { batch.keys().len() } else { end };
                batch.push([CounterId::of_name(""); 2], start..end, limit, 0, limit::Hits::Take(1));
            }
            for is_cluster in [false, true] {
                let names = Names::new("pre:", is_cluster);
                let [alone, in_list] = [0, 1].map(|index| names.of(&batch, batch.check(index)).into_owned());
                let known = names.of_full_key(batch.full_key(batch.check(0)));
                assert!(known.contains(&alone) && known.contains(&in_list), "{known:?}");
                assert_eq!(alone == in_list, !is_cluster, "only a cluster tells them apart");
            }
        }
    }

    proptest! {
        #[test]
        fn names_are_unique_and_values_do_not_choose_the_server(
            prefix in "[a{}_]{0,3}", one in "[ab{}%27BD_]{0,9}_", other in "[ab{}%27BD_]{0,9}_",
        ) {
            let name = |rest: &str, end| {
                let key = format!("{prefix}{rest}{end}");
                let full_key = format!("{key}#{}.{}/60", prefix.len(), rest.len() - 1);
                Names::new(&prefix, true).of_member(&key, &full_key)
            };
            prop_assert_eq!(name(&one, "1/1") == name(&other, "1/1"), one == other);
            prop_assert!(name(&one, "1/1") != name(&one, "0/60"));
            let tags = [&one, &other].map(|rest| {
                let [first, second] = ["1/1", "0/60"].map(|end| tag(&name(rest, end)).map(str::to_owned));
                assert!(first.is_some() && first == second, "a group has one: {first:?} {second:?}");
                first
            });
            if let Some(of_prefix) = tag(&prefix) {
                prop_assert!(tags.iter().all(|tag| tag.as_deref() == Some(of_prefix)));
            } else {
                prop_assert_eq!(tags[0] == tags[1], one == other);
            }
        }
    }
}
