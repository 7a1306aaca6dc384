//! Messages have the same meaning as files with the same fields, and their diagnostics name the resource and the path.

use proptest::prelude::*;
use prost_types::ListValue;

use super::{
    super::{CompileOptions, Compiled, SourceFile, compile, compile_resources},
    *,
};
use limit::Countable;
use proto::ratelimit::config::ratelimit::v3::RateLimitReplace;

fn config(name: &str, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig { name: name.to_owned(), domain: domain.to_owned(), descriptors }
}

fn descriptor(key: &str, value: &str, policy: RateLimitPolicy) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        rate_limit: Some(policy),
        ..RateLimitDescriptor::default()
    }
}

fn policy(unit: i32, requests_per_unit: u32) -> RateLimitPolicy {
    RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() }
}

fn replacing(name: &str, replaced: &[&str]) -> RateLimitPolicy {
    let replaces = replaced.iter().map(|name| RateLimitReplace { name: (*name).to_owned() }).collect();
    RateLimitPolicy { name: name.to_owned(), replaces, ..policy(4, 1) }
}

fn compiled(resources: &[RateLimitConfig]) -> Compiled {
    with_options(resources, CompileOptions::default())
}

fn with_options(resources: &[RateLimitConfig], options: CompileOptions) -> Compiled {
    compile_resources(resources, options)
}

fn messages(compiled: &Compiled) -> Vec<String> {
    compiled.diagnostics.iter().map(ToString::to_string).collect()
}

fn shown(compiled: &Compiled) -> Vec<String> {
    let rules = compiled.rules.as_ref().unwrap().rules();
    let mut lines: Vec<String> = rules.iter().map(|rule| format!("{rule} {:?}", rule.metadata)).collect();
    lines.sort();
    lines
}

#[test]
fn a_tree_of_messages_is_the_tree_of_a_file() {
    let number = |number| prost_types::Value { kind: Some(Kind::NumberValue(number)) };
    let list = prost_types::Value { kind: Some(Kind::ListValue(ListValue { values: vec![number(1.0)] })) };
    let fields = [("weight".to_owned(), number(2.5)), ("of".to_owned(), list)].into();
    let tree = RateLimitDescriptor {
        key: "tenant".to_owned(),
        descriptors: vec![
            RateLimitDescriptor {
                metadata: Some(Struct { fields }),
                quota_mode: true,
                ..descriptor("path", "/a*", RateLimitPolicy { name: "n".to_owned(), ..policy(7, 5) })
            },
            RateLimitDescriptor { shadow_mode: true, ..descriptor("path", "", policy(1, 0)) },
        ],
        ..RateLimitDescriptor::default()
    };
    let free = descriptor("free", "", RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() });
    let of_messages = compiled(&[config("r", "d", vec![tree, free])]);

    let text = "domain: d\ndescriptors:\n- key: tenant\n  descriptors:\n  - key: path\n    value: /a*\n    \
        quota_mode: true\n    metadata: {weight: 2.5, of: [1]}\n    rate_limit: {unit: week, \
        requests_per_unit: 5, name: n}\n  - key: path\n    shadow_mode: true\n    rate_limit: {unit: second, \
        requests_per_unit: 0}\n- key: free\n  rate_limit: {unlimited: true}\n";
    let files = [SourceFile { name: "a".to_owned(), text: text.into() }];
    assert_eq!(shown(&of_messages), shown(&compile(&files, CompileOptions::default())));
    assert_eq!(messages(&of_messages), [""; 0]);
}

#[test]
fn reports_mistakes_by_resource_and_path() {
    let nested = |child| RateLimitDescriptor {
        descriptors: vec![descriptor("a", "", policy(4, 1)), child],
        ..descriptor("k", "v", policy(4, 1))
    };
    let accepted = "accepted (case-insensitive): second, minute, hour, day, week, month, year";
    for (child, expected) in [
        (
            descriptor("b", "", policy(9, 1)),
            format!("unknown unit `9` (at descriptors[0].descriptors[1].rate_limit.unit); {accepted}"),
        ),
        (
            descriptor("b", "", policy(0, 1)),
            "this limit has no unit (at descriptors[0].descriptors[1].rate_limit); add `unit` (second, \
             minute, hour, day, week, month, year), or `unlimited: true`"
                .to_owned(),
        ),
        (
            descriptor("b", "", RateLimitPolicy { unlimited: true, ..policy(1, 0) }),
            "a limit is either `unlimited` or has a unit (at descriptors[0].descriptors[1].rate_limit.unit); \
             remove `unit` or `unlimited`"
                .to_owned(),
        ),
        (
            descriptor("", "v", policy(1, 1)),
            "this descriptor has no key (at descriptors[0].descriptors[1]); add `key`, the name that Envoy's rate limit action sends"
                .to_owned(),
        ),
        (
            descriptor("a", "", policy(1, 1)),
            "duplicate descriptor `a`, first at descriptors[0].descriptors[0] (at \
             descriptors[0].descriptors[1]); the descriptors of a level must differ in `key` or \
             `value`"
                .to_owned(),
        ),
        (
            descriptor("b", "", replacing("own", &["x", "own"])),
            "this limit replaces `own`, which is itself (at \
             descriptors[0].descriptors[1].rate_limit.replaces[1].name); `replaces` names other limits, \
             which do not count if this one matches"
                .to_owned(),
        ),
    ] {
        let compiled = compiled(&[config("a\n", "d", vec![nested(child)])]);
        assert!(compiled.rules.is_none());
        assert_eq!(messages(&compiled), [format!("resource a\\n: error: {expected}")]);
    }
}

#[test]
fn a_resource_has_exactly_one_domain() {
    let limits = || vec![descriptor("k", "", policy(4, 1))];
    let compiled =
        compiled(&[config("", "", limits()), config("a", "d", limits()), config("b", "d", limits())]);
    assert_eq!(
        messages(&compiled),
        [
            "a resource without a name: error: the resource has no domain; give it a `domain`, the domain \
             of Envoy's rate limit filter",
            "resource b: error: the domain `d` is already defined in resource a (at domain); put its \
             descriptors into one resource, or set MERGE_DOMAIN_CONFIG=true to merge several",
        ]
    );
}

#[test]
fn limits_of_messages_are_fixed_windows() {
    let options = CompileOptions { countable: Countable::FixedWindows, ..CompileOptions::default() };
    for unit in Unit::ALL {
        let resource = config("r", "d", vec![descriptor("k", "", policy(unit as i32, 5))]);
        let compiled = with_options(&[resource], options);
        assert_eq!((messages(&compiled), compiled.rules.is_some()), (vec![], true), "{unit}");
    }
}

#[test]
fn resources_of_one_domain_are_merged_if_enabled() {
    let merging = CompileOptions { merge_domains: true, ..CompileOptions::default() };
    let one =
        |name: &str, key: &str, value: &str| config(name, "d", vec![descriptor(key, value, policy(4, 1))]);
    assert_eq!(shown(&with_options(&[one("a", "k", ""), one("b", "m", "")], merging)).len(), 2);
    let twice = with_options(&[one("a", "k", ""), one("b", "k", "")], merging);
    assert!(messages(&twice)[0].contains("duplicate descriptor `k`, first at descriptors[0] of resource a"));
    let hidden = with_options(&[one("a", "k", ""), one("b", "k", "*")], merging);
    assert!(
        messages(&hidden)[0].starts_with(
            "resource a: warning: this descriptor is unreachable: `k_*` at descriptors[0] of resource b \
             matches every value of `k` (at descriptors[0])"
        ),
        "{:?}",
        messages(&hidden)
    );
}

#[test]
fn warns_about_fields_without_an_effect() {
    let unlimited = RateLimitPolicy { unlimited: true, name: "n".to_owned(), ..policy(0, 7) };
    let compiled =
        compiled(&[config("a", "d", vec![descriptor("k", "", unlimited)]), config("b", "e", Vec::new())]);
    assert!(compiled.rules.is_some());
    assert_eq!(
        messages(&compiled),
        [
            "resource a: warning: `requests_per_unit` has no effect with `unlimited: true` (at \
             descriptors[0].rate_limit); remove one of the two",
            "resource a: warning: `name` has no effect with `unlimited: true` (at \
             descriptors[0].rate_limit); remove one of the two",
            "resource b: warning: the domain `e` has no descriptors here, so the resource has no effect (at \
             domain)",
        ]
    );
}

fn any_policy() -> impl Strategy<Value = Option<RateLimitPolicy>> {
    let parts = (-1..9, 0..3_u32, any::<bool>(), "[ab]?", prop::collection::vec("[ab]?", 0..3));
    prop::option::of(parts.prop_map(|(unit, requests_per_unit, unlimited, name, replaced)| {
        let replaced: Vec<&str> = replaced.iter().map(String::as_str).collect();
        RateLimitPolicy { unit, requests_per_unit, unlimited, ..replacing(&name, &replaced) }
    }))
}

fn any_descriptor() -> impl Strategy<Value = RateLimitDescriptor> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let leaf = ("[km*]?", "[v*]{0,2}", any_policy(), flags).prop_map(|(key, value, rate_limit, flags)| {
        let (shadow_mode, quota_mode, detailed_metric) = flags;
        RateLimitDescriptor {
            key,
            value,
            rate_limit,
            shadow_mode,
            quota_mode,
            detailed_metric,
            ..RateLimitDescriptor::default()
        }
    });
    leaf.prop_recursive(3, 12, 3, |inner| {
        (inner.clone(), prop::collection::vec(inner, 0..3))
            .prop_map(|(descriptor, descriptors)| RateLimitDescriptor { descriptors, ..descriptor })
    })
}

proptest! {
    #[test]
    fn any_resources_compile_or_have_an_error_that_names_a_resource(
        trees in prop::collection::vec(("[de]?", prop::collection::vec(any_descriptor(), 0..4)), 0..4),
        merge_domains: bool,
    ) {
        let resources: Vec<_> =
            trees.into_iter().map(|(domain, descriptors)| config("r", &domain, descriptors)).collect();
        let compiled = with_options(&resources, CompileOptions { merge_domains, ..CompileOptions::default() });
        let errors = compiled.diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
        prop_assert_eq!(compiled.rules.is_none(), errors > 0);
        for diagnostic in &compiled.diagnostics {
            prop_assert_eq!((&*diagnostic.file, diagnostic.place), ("resource r", None));
        }
    }
}
