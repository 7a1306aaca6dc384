//! From shapes to the model, and the errors that only show when values are seen together.
//!
//! Called by [`compile`](super::compile()) for each domain. Lowering goes on after an error, so that all
//! are told; what it makes is thrown away then.

use std::{collections::HashMap, sync::Arc};

use super::{
    diagnostic::Place,
    findings::{Findings, Path, quoted},
    limit::{Limit, Unit},
    model::{Allowance, Level, Node, Rule, RuleId},
    over_limit_body,
    quota_policy::QuotaPolicy,
    shapes::{Field, Given, RawDescriptor, RawLimit, RawReplaces},
    spelling::nearest,
    wildcard::{Pattern, Wildcards},
};

/// A descriptor of a level, and the number of the file that it comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sibling<'r> {
    pub(super) file: usize,
    pub(super) raw: &'r RawDescriptor,
}

/// Makes levels, numbering their rules.
pub(super) struct Lowering<'f> {
    findings: &'f mut [Findings],
    rule_count: u32,
}

/// What is known of a descriptor while its parts are lowered.
#[derive(Clone, Copy)]
struct Context<'a> {
    file: usize,
    path: &'a Path<'a>,
    full_key: &'a str,
}

impl<'f> Lowering<'f> {
    pub(super) fn new(findings: &'f mut [Findings]) -> Self {
        Self { findings, rule_count: 0 }
    }

    /// How many rules have been made.
    pub(super) fn rule_count(&self) -> u32 {
        self.rule_count
    }

    /// The level that these descriptors make. `above` is what the full keys on it begin with.
    pub(super) fn level(&mut self, siblings: &[Sibling<'_>], list: &Path<'_>, above: &str) -> Level {
        let mut first: HashMap<String, (usize, Place)> = HashMap::with_capacity(siblings.len());
        let mut nodes = hashbrown::HashMap::with_capacity(siblings.len());
        let mut wildcards = Vec::new();
        for sibling in siblings {
            let path = list.item(sibling.raw.index);
            let text = self.text(*sibling, &path);
            let full_key = format!("{above}{}", text.as_deref().unwrap_or("?"));
            let context = Context { file: sibling.file, path: &path, full_key: &full_key };
            let node = Arc::new(self.node(sibling.raw, text.as_deref().unwrap_or_default(), context));
            let Some(text) = text else { continue };
            if let Some((file, place)) = first.get(&text) {
                let first = (self.findings[*file].file().to_owned(), *place);
                self.twice(*sibling, &text, &first, &path);
                continue;
            }
            first.insert(text, (sibling.file, sibling.raw.place));
            if node.text.contains('*') {
                wildcards.push((Pattern::new(&node.text), Arc::clone(&node)));
            }
            nodes.insert(node.text.clone(), node);
        }
        Level { nodes, wildcards: Wildcards::new(wildcards) }
    }

    fn node(&mut self, raw: &RawDescriptor, text: &str, context: Context<'_>) -> Node {
        self.check_share_threshold(raw, text, context);
        let rule = self.rule(raw, context);
        let children: Vec<Sibling<'_>> =
            raw.descriptors.items().iter().map(|raw| Sibling { file: context.file, raw }).collect();
        let list = context.path.key("descriptors");
        Node {
            text: text.into(),
            rule,
            value_to_metric: raw.value_to_metric.is_set(),
            share_threshold: raw.share_threshold.is_set(),
            children: self.level(&children, &list, &format!("{}.", context.full_key)),
        }
    }

    /// What requests are compared with. Tells when there is no key.
    fn text(&mut self, sibling: Sibling<'_>, path: &Path<'_>) -> Option<String> {
        let raw = sibling.raw;
        if raw.key.value().is_none_or(String::is_empty) && !raw.key.is_wrong() {
            let place = raw.key.given().map_or(raw.place, |given| given.place);
            let help = "every descriptor needs `key`, the name that Envoy's rate limit action sends";
            self.error(sibling.file, place, path, "this descriptor has no key".to_owned(), help);
        }
        raw.text()
    }

    fn twice(&mut self, sibling: Sibling<'_>, text: &str, first: &(String, Place), path: &Path<'_>) {
        let (file, place) = first;
        let elsewhere =
            if self.findings[sibling.file].file() == file { String::new() } else { format!(" of {file}") };
        let message = format!("{} stands on this level already, at {place}{elsewhere}", quoted(text));
        let help = "descriptors are told apart by `key`, or `key_value` where they have a value";
        self.error(sibling.file, sibling.raw.place, path, message, help);
    }

    fn check_share_threshold(&mut self, raw: &RawDescriptor, text: &str, context: Context<'_>) {
        let Field::Given(flag) = &raw.share_threshold else { return };
        if flag.value && !text.is_empty() && !text.contains('*') {
            let message = format!("`share_threshold` needs a wildcard, and {} has no `*`", quoted(text));
            let help =
                "give `value` a `*`, or leave `share_threshold` out: an exact value has one counter anyway";
            self.error(context.file, flag.place, &context.path.key("share_threshold"), message, help);
        }
    }

    fn rule(&mut self, raw: &RawDescriptor, context: Context<'_>) -> Option<Rule> {
        let findings = &mut self.findings[context.file];
        let over_limit_body = over_limit_body::read(&raw.over_limit_body, context.path, findings);
        let limit = raw.rate_limit.given()?;
        let path = context.path.key("rate_limit");
        let within = Context { path: &path, ..context };
        let replaces = self.replaces(&limit.value, within);
        let allowance = self.allowance(limit, within)?;
        let id = RuleId(self.rule_count);
        self.rule_count += 1;
        Some(Rule {
            id,
            full_key: context.full_key.into(),
            policies: QuotaPolicy::of_rule(context.full_key, &allowance),
            allowance,
            replaces,
            shadow_mode: raw.shadow_mode.is_set(),
            quota_mode: raw.quota_mode.is_set(),
            detailed_metric: raw.detailed_metric.is_set(),
            metadata: raw.metadata.value().filter(|map| !map.is_empty()).cloned().map(Arc::new),
            over_limit_body,
        })
    }

    fn allowance(&mut self, given: &Given<Box<RawLimit>>, context: Context<'_>) -> Option<Allowance> {
        let limit = &given.value;
        if limit.unit.is_wrong() || limit.unlimited.is_wrong() {
            return None;
        }
        let written = limit.unit.value().map_or("", String::as_str);
        let unit = Unit::from_name(written);
        let place = limit.unit.given().map_or(given.place, |unit| unit.place);
        let path = context.path.key("unit");
        let requests_per_unit = limit.requests_per_unit.value().copied().unwrap_or(0);
        match (limit.unlimited.is_set(), unit) {
            (true, None) => Some(Allowance::Unlimited { requests_per_unit }),
            (true, Some(_)) => {
                let message = "a limit is either `unlimited` or has a unit".to_owned();
                self.error(context.file, place, &path, message, "leave `unit` out, or `unlimited`");
                None
            }
            (false, Some(unit)) => {
                let name =
                    limit.name.value().filter(|name| !name.is_empty()).map(|name| name.as_str().into());
                Some(Allowance::Limited(Limit::plain(requests_per_unit, unit).named(name).into()))
            }
            (false, None) if written.is_empty() => {
                let help = format!("give it `unit` ({}), or `unlimited: true`", units());
                self.error(context.file, place, context.path, "this limit has no unit".to_owned(), &help);
                None
            }
            (false, None) => {
                let help = help_for_unit(written);
                self.error(context.file, place, &path, format!("unknown unit {}", quoted(written)), &help);
                None
            }
        }
    }

    fn replaces(&mut self, limit: &RawLimit, context: Context<'_>) -> Box<[Box<str>]> {
        let own_name = limit.name.value().filter(|name| !name.is_empty());
        let list = context.path.key("replaces");
        let mut names = Vec::new();
        for (at, RawReplaces { place, name }) in limit.replaces.items().iter().enumerate() {
            let path = list.item(at);
            match name {
                Field::Given(name) if Some(&name.value) == own_name => {
                    let message = format!("this limit replaces {}, which is itself", quoted(&name.value));
                    let help = "`replaces` names other limits, which do not count when this one is met";
                    self.error(context.file, name.place, &path.key("name"), message, help);
                }
                Field::Given(name) if !name.value.is_empty() => names.push(name.value.as_str().into()),
                Field::Wrong => {}
                Field::Given(_) | Field::Absent => {
                    let message = "this item names no limit to replace".to_owned();
                    self.error(
                        context.file,
                        *place,
                        &path,
                        message,
                        "give it `name`, the name of another limit",
                    );
                }
            }
        }
        names.into()
    }

    fn error(&mut self, file: usize, place: Place, path: &Path<'_>, message: String, help: &str) {
        self.findings[file].error(place, path, message, Some(help.to_owned()));
    }
}

fn units() -> String {
    Unit::ALL.map(|unit| unit.name().to_ascii_lowercase()).join(", ")
}

fn help_for_unit(written: &str) -> String {
    let accepted = format!("accepted, in any case: {}", units());
    match nearest(written.trim(), Unit::ALL.map(Unit::name)) {
        Some(meant) => format!("did you mean `{}`? {accepted}", meant.to_ascii_lowercase()),
        None => accepted,
    }
}
