//! Finds what an override applies to by the rules, so that one that can meet no request is refused, with the rules and keys
//! that were probably meant. Messages have the values of the target: they are for the caller that sent it.

use super::{
    Action, Override, entry,
    target::{EVERY_DOMAIN, Scope, Target, Value},
};
use limit::{Limit, Limits};
use rules::{
    Rule, RuleSet,
    model::{Domain, Level, Node},
};
use text::{entries, shell, spelling::nearest};

/// The maximum number of rules, keys or domains in a message.
const MAX_NAMED: usize = 5;

#[derive(Debug, Default)]
pub struct Effect<'r> {
    /// The rule that requests of a descriptor match.
    pub rule: Option<&'r Rule>,
    /// Requests that were probably meant too, and are not met.
    pub warning: Option<String>,
}

/// What an override applies to by these rules. `is_recent` is true for a key of the last requests to a domain.
///
/// # Errors
/// When no request can meet the override. The message names near rules and keys, and how to set it nonetheless.
pub fn check<'r>(
    one: &Override,
    rules: &'r RuleSet,
    is_recent: impl Fn(&str) -> bool,
) -> Result<Effect<'r>, String> {
    let target = &one.target;
    let found = match target.scope() {
        Scope::Descriptor => domain_of(target, rules).and_then(|domain| of_descriptor(target, domain)),
        Scope::Entry => of_entry(target, rules, is_recent).map(|()| Effect::default()),
        Scope::Domain | Scope::StoreFailure if target.domain() == EVERY_DOMAIN => Ok(Effect::default()),
        Scope::Domain | Scope::StoreFailure => domain_of(target, rules).map(|_| Effect::default()),
    };
    let found = found.and_then(|effect| check_limits(one, effect.rule, rules).map(|()| effect));
    found.map_err(|why| format!("{why}; --force (\"force\": true) sets it nonetheless"))
}

/// Why the algorithm of a rule cannot have the limit of an override, if it is larger than it counts.
pub fn too_large(one: &Override, rule: &Rule) -> Option<String> {
    let is_named = |limit: &&Limit| one.limit_name.is_none() || limit.name == one.limit_name;
    let mut changed = rule.limits()?.iter().filter(is_named);
    let (message, help) = match one.action {
        Action::Limit { requests_per_unit, calendar: None, .. } => {
            limit::too_large(changed.next()?.algorithm.kind(), requests_per_unit)?
        }
        Action::Scale(percent) => changed.find_map(|limit| {
            limit::too_large(limit.algorithm.kind(), percent.of(limit.requests_per_unit))
        })?,
        _ => return None,
    };
    Some(format!("requests_per_unit of the rule {}: {message}; {help}", rule.full_key))
}

/// Checks that the rule of a descriptor, or some rule of an entry, has the limit that an override names, or one to scale.
fn check_limits(one: &Override, rule: Option<&Rule>, rules: &RuleSet) -> Result<(), String> {
    let is_scale = matches!(one.action, Action::Scale(_));
    if !is_scale && one.limit_name.is_none() {
        return Ok(());
    }
    let met: Vec<&Rule> = if one.target.scope() == Scope::Descriptor {
        rule.into_iter().collect()
    } else {
        let domains = rules.domains().filter(|domain| one.target.is_of_domain(&domain.name));
        domains.flat_map(Domain::rules).map(|(rule, _)| rule).collect()
    };
    let limits = || met.iter().filter_map(|rule| rule.limits()).flat_map(Limits::iter);
    let of = met
        .first()
        .filter(|_| rule.is_some())
        .map_or_else(|| one.target.plain().in_words(), |rule| format!("the rule {}", rule.full_key));
    let Some(name) = &one.limit_name else {
        return limits().next().map(|_| ()).ok_or_else(|| format!("{of} has no limit to scale"));
    };
    let mut names: Vec<&str> = limits().filter_map(|limit| limit.name.as_deref()).collect();
    if names.contains(&&**name) {
        return Ok(());
    }
    names.sort_unstable();
    names.dedup();
    let hint = match nearest(name, names.iter().copied()) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None if names.is_empty() => "none has a `name` in the rules".to_owned(),
        None => format!("names: {}", list(names)),
    };
    Err(format!("{of} has no limit with the name {:?}; {hint}", text::cut(name)))
}

fn domain_of<'r>(target: &Target, rules: &'r RuleSet) -> Result<&'r Domain, String> {
    let name = target.domain();
    rules.domain(name).ok_or_else(|| {
        let mut known: Vec<&str> = rules.domains().map(|domain| &*domain.name).collect();
        known.sort_unstable();
        let hint = match nearest(name, known.iter().copied()) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => format!("they have {}", list(known)),
        };
        format!("the rules have no domain {:?}; {hint}", text::cut(name))
    })
}

fn of_entry(target: &Target, rules: &RuleSet, is_recent: impl Fn(&str) -> bool) -> Result<(), String> {
    let key = target.entry().map_or("", |(key, _)| key);
    let domains: Vec<&Domain> = match target.domain() {
        EVERY_DOMAIN => rules.domains().collect(),
        _ => vec![domain_of(target, rules)?],
    };
    let mut known = Vec::new();
    for domain in domains {
        domain.root.for_each_node(&mut |node| known.push(node.key().to_owned()));
    }
    if known.iter().any(|known| *known == *key) || is_recent(key) {
        return Ok(());
    }
    known.sort_unstable();
    known.dedup();
    let hint = match nearest(key, known.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => format!("keys of rules: {}", list(known.iter().map(String::as_str).collect())),
    };
    Err(format!("no rule and no recent request has the key {:?}; {hint}", text::cut(key)))
}

fn of_descriptor<'r>(target: &Target, domain: &'r Domain) -> Result<Effect<'r>, String> {
    let network = target.entries().iter().find_map(|(key, value)| match value {
        Value::Exact(text) if entry::is_network(text) => Some((key, text)),
        _ => None,
    });
    if let Some((key, network)) = network {
        return Err(format!(
            "{key}={network} is one value, and no address is equal to a network; {}",
            by_entry(target, key, network)
        ));
    }
    let mut level = &domain.root;
    let mut last = None;
    for (key, value) in target.entries() {
        let Some(node) = node(level, key, value) else { return Err(unmatched(target, domain, level, key)) };
        (last, level) = (Some(node), &*node.children);
    }
    let is_exact = target.entries().iter().all(|(_, value)| !value.is_of_rule());
    match last.and_then(|node| node.rule.as_ref()) {
        Some(rule) => Ok(Effect { rule: Some(rule), warning: narrow(target, domain) }),
        // The rules exempt this descriptor, and the override limits it.
        None if is_exact && level.is_empty() => Ok(Effect::default()),
        None => {
            let below = level.in_order().into_iter().map(|(_, node)| &*node.text).collect();
            let more = if level.is_empty() {
                String::new()
            } else {
                format!(", but descriptors below it: {}", list(below))
            };
            let shown = target.plain();
            Err(format!("{shown}: the descriptor of the rules has no limit{more}{}", advice(target)))
        }
    }
}

/// Why no rule matches a descriptor: on this level, none has the entry with this key.
fn unmatched(target: &Target, domain: &Domain, level: &Level, key: &str) -> String {
    let with_key = rules_with(domain, key);
    let hint = if with_key.is_empty() {
        let here = level.in_order().into_iter().map(|(_, node)| node);
        let keys: Vec<&str> = here.flat_map(|node| [node.key(), &*node.text]).collect();
        let meant = nearest(key, keys).map(|meant| format!("; did you mean {meant:?}?"));
        let all = rules_with(domain, "");
        meant.unwrap_or_else(|| format!("; rules of {}: {}", domain.name, list(all)))
    } else {
        format!("; rules with the key {key}: {}", list(with_key))
    };
    format!("no rule matches {}{hint}{}", target.plain().descriptor(), advice(target))
}

/// The sentence about an override by entry, if the descriptor has one exact value.
fn advice(target: &Target) -> String {
    match target.entries() {
        [(key, Value::Exact(value))] => format!("; {}", by_entry(target, key, value)),
        _ => String::new(),
    }
}

fn by_entry(target: &Target, key: &str, value: &str) -> String {
    let entry = entries::write(std::iter::once((key, Some(value))));
    let [domain, entry] = [target.domain(), &entry].map(shell::quoted);
    format!("`tollgate override set {domain} --entry={entry}` applies to every descriptor that has it")
}

/// The warning about rules that have the only entry of a target among others.
fn narrow(target: &Target, domain: &Domain) -> Option<String> {
    let [(key, Value::Exact(value))] = target.entries() else { return None };
    let mut deeper = Vec::new();
    for (_, node) in domain.root.in_order() {
        collect(&node.children, key, node.key() == &**key, &mut deeper);
    }
    let advice = by_entry(target, key, value);
    (!deeper.is_empty())
        .then(|| format!("descriptors with more entries are not met, as those of {}; {advice}", list(deeper)))
}

/// The full keys of the rules with this key on some level; all rules for an empty key.
fn rules_with<'r>(domain: &'r Domain, key: &str) -> Vec<&'r str> {
    let mut found = Vec::new();
    collect(&domain.root, key, key.is_empty(), &mut found);
    found
}

fn collect<'r>(level: &'r Level, key: &str, has_key: bool, into: &mut Vec<&'r str>) {
    for (_, node) in level.in_order() {
        let has_key = has_key || node.key() == key;
        into.extend(node.rule.as_ref().filter(|_| has_key).map(|rule| &*rule.full_key));
        collect(&node.children, key, has_key, into);
    }
}

/// The first names of a list, and how many there are more.
fn list(names: Vec<&str>) -> String {
    let more = names.len().saturating_sub(MAX_NAMED);
    let text = names.into_iter().take(MAX_NAMED).collect::<Vec<_>>().join(", ");
    match (more, text.is_empty()) {
        (_, true) => "none".to_owned(),
        (0, _) => text,
        _ => format!("{text} and {more} more"),
    }
}

fn node<'r>(level: &'r Level, key: &str, value: &Value) -> Option<&'r Node> {
    match value {
        Value::Exact(value) => level.step(&(key, &**value), &mut String::new()).map(|step| step.node),
        Value::Any => level.named(key),
        Value::Pattern(pattern) => level.named(&format!("{key}_{pattern}")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Percent, target::entries_of_text};
    use limit::Unit;
    use rules::{CompileOptions, SourceFile, compile};

    const RULES: &str = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests_per_unit: 1}}\n\
        - {key: path, value: '/a/*', rate_limit: {unit: day, requests_per_unit: 1}}\n\
        - {key: exempt, value: x}\n\
        - {key: address, rate_limit: {unit: day, requests_per_unit: 1}}\n\
        - key: t\n  descriptors: [{key: address, rate_limit: {unit: day, requests_per_unit: 1}}]\n\
        - key: p\n  descriptors: [{key: remote_address, rate_limit: {unit: day, requests_per_unit: 1}}]\n";

    fn with(target: Target, action: Action, limit_name: Option<&str>) -> Override {
        let [reason, by] = ["", ""].map(Box::from);
        Override { target, action, limit_name: limit_name.map(Arc::from), expires: None, reason, by }
    }

    fn block(target: Target) -> Override {
        with(target, Action::Block, None)
    }

    fn rules() -> RuleSet {
        let file = SourceFile { name: "a".to_owned(), text: RULES.as_bytes().to_vec() };
        compile(&[file], CompileOptions::default()).rules.unwrap()
    }

    #[test]
    fn finds_the_rule_or_the_reason_why_none_matches() {
        let rules = rules();
        let applies = |domain, text| {
            let target = Target::new(domain, entries_of_text(text).unwrap()).unwrap();
            let effect = check(&block(target), &rules, |_| true);
            effect.map(|effect| {
                (effect.rule.map(|rule| rule.full_key.to_string()), effect.warning.unwrap_or_default())
            })
        };
        for (text, expected) in [
            ("user=ann", Some("shop.user")),
            ("user", Some("shop.user")),
            ("path=/a/*", Some("shop.path_/a/*")),
            ("path=/a/b", Some("shop.path_/a/*")),
            ("t=1,address", Some("shop.t.address")),
            ("t,address=2", Some("shop.t.address")),
            ("exempt=x", None),
        ] {
            let (rule, warning) = applies("shop", text).unwrap();
            assert_eq!((rule.as_deref(), &*warning), (expected, ""), "{text}");
        }
        let (_, warning) = applies("shop", "address=9.9.9.9").unwrap();
        assert!(warning.contains("as those of shop.t.address"), "{warning}");
        assert!(warning.contains("override set shop --entry=address=9.9.9.9` applies"), "{warning}");
        for (domain, text, expected) in [
            ("shpo", "user=ann", "no domain \"shpo\"; did you mean \"shop\"?"),
            ("x", "user=ann", "no domain \"x\"; they have shop;"),
            ("shop", "usr", "no rule matches usr; did you mean \"user\"?;"),
            (
                "shop",
                "usr=ann",
                "no rule matches usr=ann; did you mean \"user\"?; `tollgate override set shop --entry=usr=ann`",
            ),
            (
                "shop",
                "remote_address=9.9.9.9",
                "rules with the key remote_address: shop.p.remote_address; `tollgate override set shop --entry=remote_address=9.9.9.9`",
            ),
            (
                "shop",
                "address=10.0.0.0/8",
                "no address is equal to a network; `tollgate override set shop --entry=address=10.0.0.0/8`",
            ),
            ("shop", "usr=a'b;c", r"`tollgate override set shop --entry='usr=a'\''b;c'`"),
            ("shop", "zzzzz", "no rule matches zzzzz; rules of shop: shop.path_/a/*, shop.address"),
            ("shop", "path", "no rule matches path; rules with the key path: shop.path_/a/*; --force"),
            ("shop", "path=/b/*", "no rule matches path=/b/*"),
            ("shop", "t", "has no limit, but descriptors below it: address;"),
            ("shop", "exempt", "no rule matches exempt"),
            ("shop", "user=ann,x=1", "no rule matches user=ann,x=1"),
        ] {
            let error = applies(domain, text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_limit_is_at_most_what_the_algorithm_of_its_rule_counts() {
        let text = "domain: shop\ndescriptors:\n\
            - {key: user, rate_limit: {unit: day, requests_per_unit: 1, algorithm: token_bucket}}\n";
        let file = SourceFile { name: "a".to_owned(), text: text.as_bytes().to_vec() };
        let rules = compile(&[file], CompileOptions::default()).rules.unwrap();
        let rule = rules.rules()[0];
        let limit = |requests_per_unit| {
            let action = Action::Limit { requests_per_unit, unit: Unit::Day, calendar: None };
            with(Target::new("shop", entries_of_text("user").unwrap()).unwrap(), action, None)
        };
        let action = |action| Override { action, ..limit(1) };
        assert_eq!(too_large(&limit(4_294_967_295), rule), None);
        let expected = "requests_per_unit of the rule shop.user: a `token_bucket` of 4294967296 is too large; \
            accepted: 0 to 4294967295; `fixed_window` counts up to 9007199254740991";
        assert_eq!(too_large(&limit(4_294_967_296), rule).as_deref(), Some(expected));
        assert_eq!(too_large(&action(Action::Block), rule), None);
        assert_eq!(too_large(&action(Action::Scale(Percent::parse("10000%").unwrap())), rule), None);
    }

    #[test]
    fn a_named_limit_must_be_one_of_the_rule() {
        let text = "domain: shop\ndescriptors:\n- key: user\n  rate_limit:\n\
            \x20 - {name: burst, unit: second, requests_per_unit: 20}\n  - {name: quota, unit: day, requests_per_unit: 5000}\n\
            - {key: plain, rate_limit: {unit: day, requests_per_unit: 1}}\n\
            - {key: free, rate_limit: {unlimited: true}}\n";
        let file = SourceFile { name: "a".to_owned(), text: text.as_bytes().to_vec() };
        let rules = compile(&[file], CompileOptions::default()).rules.unwrap();
        let scale = Action::Scale(Percent::parse("50%").unwrap());
        let applies = |entry, text, name| {
            let entries = entries_of_text(text).unwrap();
            let target = if entry { Target::of_entry("shop", entries) } else { Target::new("shop", entries) };
            check(&with(target.unwrap(), scale, name), &rules, |_| true).map(drop)
        };
        for (entry, text, name) in [
            (false, "user=ann", Some("burst")),
            (false, "user", Some("quota")),
            (false, "user=ann", None),
            (false, "plain=x", None),
            (true, "user=ann", Some("burst")),
            (true, "free=1", None),
        ] {
            assert_eq!(applies(entry, text, name), Ok(()), "{text} {name:?}");
        }
        for (entry, text, name, expected) in [
            (
                false,
                "user=ann",
                Some("brust"),
                "the rule shop.user has no limit with the name \"brust\"; did you mean \"burst\"?",
            ),
            (false, "user", Some("zzzzz"), "names: burst, quota; --force"),
            (
                false,
                "plain=x",
                Some("burst"),
                "shop.plain has no limit with the name \"burst\"; none has a `name`",
            ),
            (true, "user=ann", Some("zzzzz"), "shop, every descriptor with user=ann has no limit with"),
            (false, "free=1", None, "the rule shop.free has no limit to scale"),
        ] {
            let error = applies(entry, text, name).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn an_entry_needs_a_rule_or_a_recent_request_with_its_key() {
        let rules = rules();
        let applies = |domain, text, recent: &str| {
            let target = Target::of_entry(domain, entries_of_text(text).unwrap()).unwrap();
            check(&block(target), &rules, |key| key == recent).map(drop)
        };
        for (domain, text) in
            [("shop", "remote_address=9.9.9.9"), ("*", "path=x"), ("shop", "exempt=y"), ("shop", "recent=1")]
        {
            assert_eq!(applies(domain, text, "recent"), Ok(()), "{text}");
        }
        for (domain, text, expected) in [
            (
                "shop",
                "remote_adress=9.9.9.9",
                "no rule and no recent request has the key \"remote_adress\"; did you mean \"remote_address\"?;",
            ),
            ("shop", "remote=address", "no rule and no recent request has the key \"remote\""),
            ("*", "zzz=1", "keys of rules: address, exempt, p, path, remote_address and 2 more"),
            ("shpo", "user=1", "no domain \"shpo\""),
        ] {
            let error = applies(domain, text, "").unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
