//! Finds the rule that an override applies to, so that setting an override warns about a mistyped key.

use super::model::{Target, Value};
use rules::{Rule, RuleSet, model::Level, nearest};

/// The rule that requests of a target match.
pub fn rule<'r>(target: &Target, rules: &'r RuleSet) -> Result<&'r Rule, String> {
    let Some(domain) = rules.domain(target.domain()) else {
        let known = rules.domains().map(|domain| &*domain.name);
        let hint = nearest(target.domain(), known).map(|meant| format!("; did you mean {meant:?}?"));
        return Err(format!(
            "the rules have no domain {:?}, so the override has no effect{}",
            target.domain(),
            hint.unwrap_or_default()
        ));
    };
    let is_exact = target.entries().iter().all(|(_, value)| !value.is_of_rule());
    let effect = if is_exact { "applies without a rule" } else { "has no effect" };
    let mut level = &domain.root;
    let mut last = None;
    for (key, value) in target.entries() {
        let Some(node) = node(level, key, value) else {
            let known: Vec<&str> = level.in_order().iter().map(|(_, node)| &*node.text).collect();
            let hint = nearest(key, known.iter().copied()).map(|meant| format!("; did you mean {meant:?}?"));
            let entry = value.text().map_or_else(|| key.to_string(), |value| format!("{key}={value}"));
            return Err(format!(
                "no rule matches {entry}, so the override {effect}{}",
                hint.unwrap_or_default()
            ));
        };
        (last, level) = (Some(node), &node.children);
    }
    let rule = last.and_then(|node| node.rule.as_ref());
    rule.ok_or_else(|| format!("the matching descriptor has no limit, so the override {effect}"))
}

fn node<'r>(level: &'r Level, key: &str, value: &Value) -> Option<&'r rules::model::Node> {
    let text = match value {
        Value::Exact(value) => {
            return level.step(&(key, &**value), &mut String::new()).map(|step| step.node);
        }
        Value::Any => key.to_owned(),
        Value::Pattern(pattern) => format!("{key}_{pattern}"),
    };
    level.in_order().into_iter().map(|(_, node)| node).find(|node| *node.text == *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::entries_of_text;
    use rules::{CompileOptions, SourceFile, compile};

    #[test]
    fn finds_the_rule_or_the_reason_why_none_matches() {
        let text = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests_per_unit: 1}}\n\
            - {key: path, value: '/a/*', rate_limit: {unit: day, requests_per_unit: 1}}\n\
            - key: t\n  descriptors: [{key: p, rate_limit: {unit: day, requests_per_unit: 1}}]\n";
        let file = SourceFile { name: "a".to_owned(), text: text.as_bytes().to_vec() };
        let rules = compile(&[file], CompileOptions::default()).rules.unwrap();
        let applies = |domain, text| {
            let target = Target::new(domain, entries_of_text(text).unwrap()).unwrap();
            rule(&target, &rules).map(|rule| rule.full_key.to_string())
        };
        for (text, expected) in [
            ("user=ann", "shop.user"),
            ("user", "shop.user"),
            ("path=/a/*", "shop.path_/a/*"),
            ("path=/a/b", "shop.path_/a/*"),
            ("t=1,p", "shop.t.p"),
            ("t,p=2", "shop.t.p"),
        ] {
            assert_eq!(applies("shop", text).as_deref(), Ok(expected), "{text}");
        }
        for (domain, text, expected) in [
            ("shpo", "user=ann", "no domain \"shpo\", so the override has no effect; did you mean \"shop\"?"),
            ("shop", "usr", "no rule matches usr, so the override has no effect; did you mean \"user\"?"),
            (
                "shop",
                "usr=ann",
                "no rule matches usr=ann, so the override applies without a rule; did you mean \"user\"?",
            ),
            ("shop", "path", "no rule matches path, so the override has no effect"),
            ("shop", "path=/b/*", "no rule matches path=/b/*, so the override has no effect"),
            ("shop", "t", "has no limit, so the override has no effect"),
            ("shop", "user=ann,x=1", "no rule matches x=1, so the override applies without a rule"),
        ] {
            let error = applies(domain, text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
