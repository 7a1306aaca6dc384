//! The index compared with a map, and its results while it changes.

use std::{collections::HashMap, thread};

use proptest::prelude::*;

use super::*;
use crate::{
    model::{Action, expiry},
    target::entries_of_text,
};
use limit::Unit;
use rules::{CompileOptions, Entry, Matched, RuleSet, SourceFile, compile};

struct Pair(String, String);

impl Entry for Pair {
    fn key(&self) -> &str {
        &self.0
    }

    fn value(&self) -> &str {
        &self.1
    }
}

fn target(text: &str) -> Target {
    Target::new("d", entries_of_text(text).unwrap()).unwrap()
}

fn one(text: &str, action: Action) -> Override {
    Override {
        target: target(text),
        action,
        limit_name: None,
        expires: None,
        reason: "r".into(),
        by: "b".into(),
    }
}

fn limit(requests_per_unit: u64) -> Action {
    Action::Limit { requests_per_unit, unit: Unit::Minute, calendar: None }
}

fn pairs(text: &str) -> Vec<Pair> {
    let entries = entries_of_text(text).unwrap();
    let pair =
        |(key, value): (Box<str>, crate::Value)| Pair(key.into(), value.text().unwrap_or_default().into());
    entries.into_iter().map(pair).collect()
}

fn rules(text: &str) -> RuleSet {
    let file = SourceFile { name: "a.yaml".to_owned(), text: text.as_bytes().to_vec() };
    compile(&[file], CompileOptions::default()).rules.unwrap()
}

const RULES: &str = "
domain: d
descriptors:
- {key: k, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: k, value: vip, rate_limit: {unit: minute, requests_per_unit: 9}}
- {key: k, value: 'a*', rate_limit: {unit: minute, requests_per_unit: 2}}
- key: t
  descriptors:
  - {key: p, rate_limit: {unit: minute, requests_per_unit: 3}}
";

fn find(
    index: &Index,
    domain: &str,
    entries: &[Pair],
    matched: Option<&Matched<'_>>,
    second: u64,
) -> Option<Found> {
    index.view(Time::from_seconds(second))?.find(domain, entries, matched)
}

/// The action of the override that applies to a descriptor with these rules.
fn found(index: &Index, rules: &RuleSet, text: &str, second: u64) -> Option<Action> {
    let entries = pairs(text);
    let domain = rules.domain("d").unwrap();
    let matched = domain.find(&entries, &mut String::new());
    find(index, "d", &entries, matched.as_ref(), second).map(|one| one.action)
}

#[test]
fn finds_the_most_specific_override() {
    let (index, rules) = (Index::default(), rules(RULES));
    assert_eq!(found(&index, &rules, "k=x", 1), None);
    for (text, requests) in
        [("k", 1), ("k=a*", 2), ("k=x", 3), ("k=ab", 4), ("t=1,p", 5), ("t,p=1", 6), ("t,p", 7)]
    {
        index.set(&one(text, limit(requests))).unwrap();
    }
    for (text, expected) in [
        ("k=x", Some(3)),
        ("k=y", Some(1)),
        ("k=vip", None),
        ("k=ab", Some(4)),
        ("k=ac", Some(2)),
        // A request with the pattern itself as its value does not evade the override.
        ("k=a*", Some(2)),
        ("k=", Some(1)),
        ("t=1,p=2", Some(5)),
        ("t=2,p=1", Some(6)),
        ("t=1,p=1", Some(5)),
        ("t=2,p=2", Some(7)),
        ("t=1", None),
        ("other=x", None),
    ] {
        assert_eq!(found(&index, &rules, text, 1), expected.map(limit), "{text}");
    }
    index.set(&one("k=vip", Action::Block)).unwrap();
    assert_eq!(found(&index, &rules, "k=vip", 1), Some(Action::Block));
    assert_eq!(index.len(), 8);
    assert!(find(&index, "e", &pairs("k=x"), None, 1).is_none(), "another domain");
}

#[test]
fn an_exact_override_needs_no_rule() {
    let index = Index::default();
    index.set(&one("unknown=x", Action::Block)).unwrap();
    index.set(&one("unknown", Action::Block)).unwrap();
    let found = |text| find(&index, "d", &pairs(text), None, 1).is_some();
    assert!(found("unknown=x"));
    assert!(!found("unknown=y"), "no rule determines the values");
}

#[test]
fn parts_of_keys_and_values_are_not_confused() {
    let index = Index::default();
    index.set(&one("a=b,c=d", Action::Block)).unwrap();
    for other in ["a=b\\,c=d", "a=bc,=d", "a=b", "a=b,c=d,e=f", "a=,c=bd", "ac=b,=d"] {
        let Ok(entries) = entries_of_text(other) else { continue };
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| Pair(key.to_string(), value.text().unwrap_or_default().into()))
            .collect();
        assert!(find(&index, "d", &entries, None, 1).is_none(), "{other}");
    }
}

#[test]
fn an_override_expires_at_its_second_and_is_swept() {
    let (index, rules) = (Index::default(), rules(RULES));
    let expires = expiry(Some("1970-01-01T00:01:40Z"), None, Time::from_seconds(1)).unwrap();
    assert_eq!(expires, Some(100));
    index.set(&Override { expires, ..one("k=x", Action::Block) }).unwrap();
    index.set(&one("k=y", Action::Allow)).unwrap();
    assert_eq!(found(&index, &rules, "k=x", 99), Some(Action::Block));
    assert_eq!(found(&index, &rules, "k=x", 100), None);
    assert_eq!(index.usage().by_action, [0, 1, 1, 0, 0]);
    assert!(index.sweep(Time::from_seconds(99)).is_empty());
    let expired = index.sweep(Time::from_micros(100_999_999));
    assert_eq!(expired, [Arc::new(Override { expires, ..one("k=x", Action::Block) })]);
    assert_eq!((index.len(), index.usage().by_action), (1, [0, 0, 1, 0, 0]));
    assert!(index.sweep(Time::from_seconds(1_000)).is_empty());
}

#[test]
fn a_draft_takes_effect_as_a_whole() {
    let (index, rules) = (Index::default(), rules(RULES));
    index.set(&one("k=old", Action::Block)).unwrap();
    let mut draft = index.draft();
    index.add_to(&mut draft, one("k=x", limit(1))).unwrap();
    index.add_to(&mut draft, one("k=x", limit(2))).unwrap();
    index.add_to(&mut draft, one("k=old", Action::Allow)).unwrap();
    assert_eq!(
        (found(&index, &rules, "k=x", 1), found(&index, &rules, "k=old", 1)),
        (None, Some(Action::Block))
    );
    index.add(&draft).unwrap();
    assert_eq!(found(&index, &rules, "k=x", 1), Some(limit(2)), "the later override replaces the earlier");
    assert_eq!((found(&index, &rules, "k=old", 1), index.len()), (Some(Action::Allow), 2));
    let mut all = index.draft();
    index.add_to(&mut all, one("k=new", Action::Shadow)).unwrap();
    index.replace(&all).unwrap();
    assert_eq!((found(&index, &rules, "k=x", 1), index.len()), (None, 1));
    index.replace(&index.draft()).unwrap();
    assert!(index.is_empty());
}

#[test]
fn combinations_of_keys_with_and_without_a_value_are_bounded() {
    let index = Index::default();
    let levels = |bits: u32| {
        let level = |at: u32| if bits >> at & 1 == 1 { format!("k{at}=v") } else { format!("k{at}") };
        (0..7).map(level).collect::<Vec<_>>().join(",")
    };
    for bits in 0..64 {
        index.set(&one(&levels(bits), Action::Block)).unwrap();
    }
    let error = index.set(&one(&levels(64), Action::Block)).unwrap_err();
    assert!(error.contains("more than 64 different combinations of keys"), "{error}");
    index.set(&Override { expires: Some(9), ..one(&levels(7), Action::Allow) }).unwrap();
    assert_eq!(index.sweep(Time::from_seconds(9)).len(), 1);
    index.set(&one(&levels(64), Action::Block)).unwrap();
}

#[test]
fn long_values_and_many_reasons_are_kept() {
    let index = Index::default();
    let mut all = Vec::new();
    for n in 0..600_usize {
        let value = "v".repeat(n * 7 % 4000);
        let reason = format!("ticket {n}");
        all.push(Override { reason: reason.into(), ..one(&format!("k={n}{value}"), Action::Block) });
    }
    for one in &all {
        index.set(one).unwrap();
    }
    for expected in &all {
        assert_eq!(index.get(&expected.target).as_deref(), Some(expected));
    }
    assert_eq!(index.len(), 600);
    for one in all.iter().step_by(2) {
        assert!(index.remove(&one.target) && !index.remove(&one.target));
    }
    let left = index.checkpoint();
    assert!(left.all().all(|one| all.contains(one)));
    assert_eq!(left.all().count(), 300);
}

#[test]
fn concurrent_changes_are_all_kept() {
    let index = Index::default();
    thread::scope(|scope| {
        for thread in 0..4 {
            let index = &index;
            scope.spawn(move || {
                for n in 0..200 {
                    index.set(&one(&format!("k{n}={thread}"), Action::Block)).unwrap();
                }
            });
        }
    });
    assert_eq!(index.len(), 800);
}

/// A change of the index and of the map that is its model.
#[derive(Clone, Debug)]
enum Change {
    Set(u8, u8, u32),
    Remove(u8, u8),
    Sweep(u32),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..3_u8, 0..6_u8, 0..20_u32).prop_map(|(key, value, end)| Change::Set(key, value, end)),
        (0..3_u8, 0..6_u8).prop_map(|(key, value)| Change::Remove(key, value)),
        (0..20_u32).prop_map(Change::Sweep),
    ]
}

proptest! {
    #[test]
    fn equals_a_map(changes in prop::collection::vec(change(), 0..60), second in 0..20_u64) {
        let index = Index::default();
        let mut model: HashMap<String, Override> = HashMap::new();
        for change in changes {
            match change {
                Change::Set(key, value, end) => {
                    let text = format!("k{key}={value}");
                    let one = Override { expires: (end > 0).then_some(end), ..one(&text, limit(u64::from(end) << 21)) };
                    index.set(&one).unwrap();
                    model.insert(text, one);
                }
                Change::Remove(key, value) => {
                    let text = format!("k{key}={value}");
                    prop_assert_eq!(index.remove(&target(&text)), model.remove(&text).is_some());
                }
                Change::Sweep(second) => {
                    let before = model.len();
                    model.retain(|_, one| one.expires.is_none_or(|end| end > second));
                    prop_assert_eq!(index.sweep(Time::from_seconds(second.into())).len(), before - model.len());
                }
            }
            prop_assert_eq!(index.len(), model.len());
        }
        for (text, one) in &model {
            let found = find(&index, "d", &pairs(text), None, second);
            let expected = (!one.is_over(Time::from_seconds(second))).then_some(one.action);
            prop_assert_eq!(found.map(|one| one.action), expected);
            let kept = index.get(&one.target);
            prop_assert_eq!(kept.as_deref(), Some(one));
        }
        let sum: u64 = index.usage().by_action.iter().sum();
        prop_assert_eq!(sum, model.len() as u64);
    }

    #[test]
    fn a_printed_descriptor_reads_back(
        entries in prop::collection::vec(("[ab=,\\\\]{1,5}", prop::option::of("[ab=,*\\\\]{0,5}")), 1..4),
    ) {
        let entries: Vec<_> =
            entries.iter().map(|(key, value)| (key.as_str().into(), crate::Value::new(value.as_deref()))).collect();
        let target = Target::new("d", entries).unwrap();
        let read = entries_of_text(&target.plain().descriptor()).unwrap();
        prop_assert_eq!(read.as_slice(), target.entries());
    }
}

fn by_entry(domain: &str, text: &str, action: Action) -> Override {
    let target = Target::of_entry(domain, entries_of_text(text).unwrap()).unwrap();
    Override { target, action, limit_name: None, expires: None, reason: "r".into(), by: "b".into() }
}

fn effect(index: &Index, domain: &str, text: &str, second: u64) -> Option<(String, Option<String>)> {
    let found = find(index, domain, &pairs(text), None, second)?;
    Some((found.effect(), found.is_apart().then(|| found.target.plain().to_string())))
}

#[test]
fn an_entry_is_met_at_any_place_by_the_longest_match() {
    let index = Index::default();
    for (domain, text, action) in [
        ("d", "ip=10.0.0.0/8", Action::Block),
        ("d", "ip=10.1.0.0/16", Action::Allow),
        ("d", "ip=10.1.1.1", Action::Shadow),
        ("*", "ip=10.1.1.1", Action::Block),
        ("*", "ip=10.2.0.0/16", limit(7)),
        ("d", "ip=2001:db8::/32", Action::Block),
        ("d", "path=/a*", Action::Allow),
        ("d", "path=/a/b*", Action::Block),
        ("d", "path=/a/b", limit(3)),
    ] {
        index.set(&by_entry(domain, text, action)).unwrap();
    }
    for (text, expected) in [
        ("ip=10.9.9.9", Some("block by d --entry ip=10.0.0.0/8")),
        ("x=1,ip=10.9.9.9,y=2", Some("block by d --entry ip=10.0.0.0/8")),
        ("ip=10.1.9.9", Some("allow by d --entry ip=10.1.0.0/16")),
        ("ip=::ffff:10.1.9.9", Some("allow by d --entry ip=10.1.0.0/16")),
        ("ip=10.1.1.1", Some("shadow by d --entry ip=10.1.1.1")),
        ("ip=10.2.1.1", Some("limit 7 per minute by * --entry ip=10.2.0.0/16")),
        ("ip=11.0.0.0", None),
        ("ip=10.0.0.0/8", None),
        ("pi=10.9.9.9", None),
        ("ip=2001:DB8::1", Some("block by d --entry ip=2001:db8::/32")),
        ("path=/a", Some("allow by d --entry path=/a*")),
        ("path=/a/bc", Some("block by d --entry path=/a/b*")),
        ("path=/a/b", Some("limit 3 per minute by d --entry path=/a/b")),
        ("path=/b", None),
        ("path=/a/x,ip=10.9.9.9", Some("block by d --entry ip=10.0.0.0/8")),
        ("path=/a/b,ip=10.1.9.9", Some("allow by d --entry ip=10.1.0.0/16")),
        ("path=/a/b,ip=10.2.0.1", Some("limit 3 per minute by d --entry path=/a/b")),
        ("ip=10.2.0.1,path=/a/b", Some("limit 7 per minute by * --entry ip=10.2.0.0/16")),
        ("ip=10.1.1.1,path=/a/b", Some("limit 3 per minute by d --entry path=/a/b")),
    ] {
        let found = effect(&index, "d", text, 1).map(|(action, by)| format!("{action} by {}", by.unwrap()));
        assert_eq!(found.as_deref(), expected, "{text}");
    }
    assert_eq!(effect(&index, "e", "ip=10.9.9.9", 1), None, "another domain");
    assert_eq!(effect(&index, "e", "ip=10.1.1.1", 1).unwrap().0, "block", "all domains");
}

#[test]
fn an_override_by_entry_expires_and_gives_way_to_a_shorter_match() {
    let index = Index::default();
    index.set(&by_entry("d", "ip=10.0.0.0/8", Action::Block)).unwrap();
    let ending = Override { expires: Some(10), ..by_entry("d", "ip=10.1.0.0/16", Action::Allow) };
    index.set(&ending).unwrap();
    assert_eq!(effect(&index, "d", "ip=10.1.1.1", 9).unwrap().0, "allow");
    assert_eq!(effect(&index, "d", "ip=10.1.1.1", 10).unwrap().0, "block");
    assert_eq!(index.sweep(Time::from_seconds(10)), [Arc::new(ending)]);
    assert!(index.remove(&by_entry("d", "ip=10.3.3.3/8", Action::Block).target), "another spelling");
    assert_eq!((index.len(), effect(&index, "d", "ip=10.1.1.1", 9)), (0, None));
}

#[test]
fn a_descriptor_and_its_entries_are_compared_by_action() {
    let index = Index::default();
    index.set(&one("ip=10.0.0.1", Action::Allow)).unwrap();
    index.set(&by_entry("d", "ip=10.0.0.0/8", Action::Block)).unwrap();
    assert_eq!(effect(&index, "d", "ip=10.0.0.1", 1).unwrap().0, "block");
    index.set(&by_entry("d", "ip=10.0.0.0/8", limit(1))).unwrap();
    assert_eq!(effect(&index, "d", "ip=10.0.0.1", 1), Some(("allow".to_owned(), None)));
    let blocked = |expires| Override { expires, ..one("ip=10.0.0.1", Action::Block) };
    index.set(&blocked(Some(50))).unwrap();
    index.set(&Override { expires: Some(90), ..by_entry("d", "ip=10.0.0.1", Action::Block) }).unwrap();
    let end = || find(&index, "d", &pairs("ip=10.0.0.1"), None, 1).unwrap().expires;
    assert_eq!(end(), Some(90), "the block that ends later");
    index.set(&blocked(None)).unwrap();
    assert_eq!(end(), None);
}

#[test]
fn stored_overrides_read_back() {
    let stored = by_entry("shop", "ip=10.1.2.3/8", Action::Block).to_stored();
    assert_eq!(stored["domain"], "*entry@shop");
    assert_eq!(stored["descriptor"], serde_json::json!([{"key": "ip", "value": "10.0.0.0/8"}]));
    let mut switch = serde_json::json!({"domain": "shop", "on_store_failure": "local", "reason": "r"});
    for policy in faults::OnStoreFailure::ALL {
        switch["on_store_failure"] = policy.name().into();
        let one = Override::switch_from_json(&switch, Time::default()).unwrap();
        let read = Override::from_stored(&one.to_stored()).unwrap();
        assert_eq!((&read, read.on_store_failure()), (&one, Some(policy)));
        assert_eq!(one.to_json()["on_store_failure"], policy.name());
    }
}

#[test]
fn switches_are_of_a_domain_or_of_all_and_this_process_has_its_own() {
    let index = Index::default();
    let switch = |text: &str| {
        Override::switch_from_json(&serde_json::from_str(text).unwrap(), Time::default()).unwrap()
    };
    let state = |domain: &str| {
        let view = index.view(Time::from_seconds(1));
        let action = view.as_ref().and_then(|view| view.switch(domain)).map(|found| found.action.name());
        (action, view.and_then(|view| view.on_store_failure(domain)).map(faults::OnStoreFailure::name))
    };
    assert_eq!(state("d"), (None, None));
    index.set(&switch(r#"{"domain":"*","action":"shadow"}"#)).unwrap();
    index.set(&switch(r#"{"domain":"d","on_store_failure":"deny"}"#)).unwrap();
    assert_eq!((state("d"), state("e")), ((Some("shadow"), Some("deny")), (Some("shadow"), None)));
    index.set(&switch(r#"{"domain":"d","action":"allow"}"#)).unwrap();
    index.switch_here(switch(r#"{"domain":"d","on_store_failure":"allow"}"#));
    assert_eq!((state("d"), index.len(), index.switches().len()), ((Some("allow"), Some("allow")), 3, 3));
    index.replace(&index.draft()).unwrap();
    let left = (state("d"), index.len(), index.is_empty());
    assert_eq!(left, ((None, Some("allow")), 0, true), "what is read from Redis leaves it");
    assert_eq!(index.clear_here("d").len(), 1);
    assert_eq!((state("d"), index.is_empty()), ((None, None), true));
    assert_eq!(index.usage().by_action, [0; 5]);
}

fn any_value() -> impl Strategy<Value = String> {
    let address = |bits: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 | bits & 0x3).to_string();
    prop_oneof![
        (0..4_u32).prop_map(address),
        (0..4_u32).prop_map(move |bits| format!("::ffff:{}", address(bits))),
        (0..4_u32).prop_map(move |bits| format!("{}:80", address(bits))),
        (0..4_u32).prop_map(|bits| format!("2001:db8::{bits}")),
        "[12a:.]{0,5}",
    ]
}

fn any_pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..4_u32, 24..=32_u32).prop_map(|(bits, length)| format!("10.0.0.{bits}/{length}")),
        (0..4_u32, 0..=8_u32).prop_map(|(bits, length)| format!("10.0.0.{bits}/{length}")),
        (0..4_u32, 0..=128_u32).prop_map(|(bits, length)| format!("2001:db8::{bits}/{length}")),
        any_value(),
        any_value().prop_map(|value| value + "*"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The longest match by trying every override.
    #[test]
    fn equals_a_search_of_all_entries(
        all in prop::collection::vec((any_pattern(), any::<bool>(), 0..3_u32), 0..40), values in prop::collection::vec(any_value(), 10),
    ) {
        let index = Index::default();
        let mut known = HashMap::new();
        for (number, (pattern, is_of_all, end)) in all.iter().enumerate() {
            let domain = if *is_of_all { "*" } else { "d" };
            let entries = vec![("k".into(), crate::Value::new(Some(pattern)))];
            let target = Target::of_entry(domain, entries).unwrap();
            let expires = (*end > 0).then_some(*end);
            let action = limit(u64::try_from(number).unwrap());
            let one = Override { target, action, limit_name: None, expires, reason: "".into(), by: "".into() };
            index.set(&one).unwrap();
            known.insert(one.target.clone(), one);
        }
        for value in values {
            let meets = |one: &&Override| {
                let (_, pattern) = one.target.entry().unwrap();
                crate::entry::matches(pattern, Some(&value)) && !one.ended(1)
            };
            let rank = |one: &&Override| {
                let (_, pattern) = one.target.entry().unwrap();
                let length = match crate::entry::Pattern::of(pattern) {
                    crate::entry::Pattern::Exact(_) => (3, 0),
                    crate::entry::Pattern::Network(net) => (2, usize::from(net.prefix_len())),
                    crate::entry::Pattern::Prefix(prefix) => (1, prefix.len()),
                };
                (length, one.target.domain() == "d")
            };
            let expected = known.values().filter(meets).max_by_key(rank).map(|one| one.action);
            let found = find(&index, "d", &[Pair("k".to_owned(), value.clone())], None, 1);
            prop_assert_eq!(found.map(|found| found.action), expected, "{}", value);
        }
    }
}

#[test]
fn the_identifier_of_a_hidden_override_needs_the_key() {
    let ann = target("k=ann");
    for values in [KeyValues::Plain, KeyValues::Hashed] {
        assert_eq!(Index::default().showing(values).shown_id(&ann), ann.id());
    }
    let [one, other] = [(); 2].map(|()| Index::default().showing(KeyValues::Hidden));
    let shown = one.shown_id(&ann);
    assert_eq!((shown.len(), one.shown_id(&ann)), (20, shown.clone()));
    assert!(![ann.id(), other.shown_id(&ann), one.shown_id(&target("k=bob"))].contains(&shown));
    let key = one.new_id_key().unwrap();
    for index in [&one, &other] {
        index.set_id_key(&key);
    }
    assert_eq!(one.shown_id(&ann), other.shown_id(&ann));
    assert_ne!(one.shown_id(&ann), shown);
}

#[test]
fn a_value_is_printed_by_the_setting_alone() {
    let one = Override { target: target("k=ann,l=a*,m"), ..one("k", Action::Block) };
    assert!(!format!("{one:?}").contains("ann"), "{one:?}");
    for (values, expected) in [
        (KeyValues::Plain, "d k=ann,l=a*,m"),
        (KeyValues::Hashed, "d k=sha256:49915e0d7d4b402e,l=a*,m"),
        (KeyValues::Hidden, "d k=***,l=a*,m"),
    ] {
        assert_eq!(one.target.shown(values).to_string(), expected);
    }
    let network = Target::of_entry("d", entries_of_text("ip=10.0.0.0/8").unwrap()).unwrap();
    assert_eq!(network.shown(KeyValues::Hidden).in_words(), "d, every descriptor with ip=10.0.0.0/8");
}
