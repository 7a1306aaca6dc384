//! Lowers the AST to the model, and reports errors that depend on several values.
//!
//! [`compile`](super::compile()) calls it for each domain. Lowering continues after an error, so that all are reported; its
//! result is dropped then. `limits` lowers a `rate_limit`.

mod holds;
mod limits;
mod schedules;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use super::{
    model::{Allowance, ByText, Level, Node, Origin, Rule, RuleId},
    options::CompileOptions,
    wildcard::{Pattern, Wildcards},
};
use crate::{
    ast::{Field, RawDescriptor},
    template::Template,
};
use text::diagnostics::{Diagnostics, InputKind, Path, Place, quoted};

/// A descriptor of a level, and the index of its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sibling<'r> {
    pub(super) file: usize,
    pub(super) raw: &'r RawDescriptor,
}

impl Sibling<'_> {
    pub(super) fn at<'a>(&self, place: Place, path: &'a Path<'a>) -> At<'a> {
        At { file: self.file, place, path }
    }

    /// The location of this descriptor of `list` in a message about the file `seen_from`.
    pub(super) fn location(&self, diagnostics: &[Diagnostics], list: &Path<'_>, seen_from: usize) -> String {
        let own = &diagnostics[self.file];
        let at = own.location(self.raw.place, &list.item(self.raw.index));
        if self.file == seen_from { at } else { format!("{at} of {}", own.file()) }
    }
}

/// Where a diagnostic points.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) file: usize,
    pub(super) place: Place,
    pub(super) path: &'a Path<'a>,
}

/// Creates levels, and numbers their rules.
pub(super) struct Lowering<'f> {
    diagnostics: &'f mut [Diagnostics],
    options: CompileOptions,
    pub(super) rule_count: u32,
}

#[derive(Clone, Copy)]
struct Context<'a> {
    file: usize,
    path: &'a Path<'a>,
    full_key: &'a str,
}

impl Context<'_> {
    fn at<'a>(&self, place: Place, path: &'a Path<'a>) -> At<'a> {
        At { file: self.file, place, path }
    }
}

impl<'f> Lowering<'f> {
    pub(super) fn new(diagnostics: &'f mut [Diagnostics], options: CompileOptions) -> Self {
        Self { diagnostics, options, rule_count: 0 }
    }

    /// The level of these descriptors. `above` is the prefix of their full keys.
    pub(super) fn level(&mut self, siblings: &[Sibling<'_>], list: &Path<'_>, above: &str) -> Level {
        let mut first: HashMap<String, &Sibling<'_>> = HashMap::with_capacity(siblings.len());
        let mut nodes = hashbrown::HashSet::with_capacity(siblings.len());
        let mut wildcards = Vec::new();
        for sibling in siblings {
            let path = list.item(sibling.raw.index);
            let text = self.text(*sibling, &path);
            let full_key = format!("{above}{}", text.as_deref().unwrap_or("?"));
            let context = Context { file: sibling.file, path: &path, full_key: &full_key };
            let node = Arc::new(self.node(sibling.raw, text.as_deref().unwrap_or_default(), context));
            let Some(text) = text else { continue };
            if let Some(first) = first.get(&text) {
                self.duplicate(*sibling, &text, first, list);
                continue;
            }
            first.insert(text, sibling);
            if node.text.contains('*') {
                wildcards.push((Pattern::new(&node.text), Arc::clone(&node)));
            }
            nodes.insert(ByText(node));
        }
        let longest = nodes.iter().map(|ByText(node)| node.text.len()).max().unwrap_or_default();
        Level { nodes, longest, wildcards: Wildcards::new(wildcards) }
    }

    fn node(&mut self, raw: &RawDescriptor, text: &str, context: Context<'_>) -> Node {
        self.check_share_threshold(raw, text, context);
        let rule = self.rule(raw, context);
        let children: Vec<Sibling<'_>> =
            raw.descriptors.items().iter().map(|raw| Sibling { file: context.file, raw }).collect();
        let list = context.path.key("descriptors");
        Node {
            text: text.into(),
            key_bytes: raw.key.value().map_or(0, String::len),
            rule,
            value_to_metric: raw.value_to_metric.is_set(),
            share_threshold: raw.share_threshold.is_set(),
            children: self.level(&children, &list, &format!("{}.", context.full_key)).into(),
            origin: self.origin(raw.place, context.file),
        }
    }

    /// The place of a descriptor. Resources of a control plane have none.
    fn origin(&self, place: Place, file: usize) -> Option<Origin> {
        let is_file = self.diagnostics.get(file)?.kind == InputKind::File;
        is_file.then_some(Origin { file: u32::try_from(file).ok()?, line: place.line })
    }

    /// The text that requests are compared with. Reports a missing key.
    fn text(&mut self, sibling: Sibling<'_>, path: &Path<'_>) -> Option<String> {
        let raw = sibling.raw;
        if raw.key.value().is_none_or(String::is_empty) && !raw.key.is_wrong() {
            let place = raw.key.place().unwrap_or(raw.place);
            let help = "add `key`, the name that Envoy's rate limit action sends";
            self.error(sibling.at(place, path), "this descriptor has no key", help);
        }
        raw.text()
    }

    fn duplicate(&mut self, sibling: Sibling<'_>, text: &str, first: &Sibling<'_>, list: &Path<'_>) {
        let at = first.location(self.diagnostics, list, sibling.file);
        let message = format!("duplicate descriptor {}, first at {at}", quoted(text));
        let help = "the descriptors of a level must differ in `key` or `value`";
        self.error(sibling.at(sibling.raw.place, &list.item(sibling.raw.index)), message, help);
    }

    fn check_share_threshold(&mut self, raw: &RawDescriptor, text: &str, context: Context<'_>) {
        let Field::Given(flag) = &raw.share_threshold else { return };
        if flag.value && !text.is_empty() && !text.contains('*') {
            let message = format!("`share_threshold` requires a wildcard, and {} has no `*`", quoted(text));
            let help =
                "add a `*` to `value`, or remove `share_threshold`: an exact value has one counter anyway";
            self.error(context.at(flag.place, &context.path.key("share_threshold")), message, help);
        }
    }

    fn rule(&mut self, raw: &RawDescriptor, context: Context<'_>) -> Option<Rule> {
        let diagnostics = &mut self.diagnostics[context.file];
        let over_limit_body = over_limit_body(&raw.over_limit_body, context.path, diagnostics);
        let path = context.path.key("rate_limit");
        let within = Context { path: &path, ..context };
        let overrides_only = raw.overrides_only.is_set();
        let (replaces, allowance) = match &raw.rate_limit {
            Field::Given(given) => (self.replaces(&given.value, within), self.allowance(given, within).ok()?),
            // A rule without a limit has those of its overrides.
            Field::Absent if overrides_only => {
                (Box::default(), Allowance::Unlimited { requests_per_unit: 0 })
            }
            Field::Absent | Field::Wrong => return None,
        };
        let id = RuleId(self.rule_count);
        self.rule_count += 1;
        Some(Rule {
            id,
            full_key: context.full_key.into(),
            hash: Rule::hash_of(context.full_key),
            policies: OnceLock::new(),
            allowance,
            replaces,
            shadow_mode: raw.shadow_mode.is_set(),
            quota_mode: raw.quota_mode.is_set(),
            overrides_only,
            detailed_metric: raw.detailed_metric.is_set(),
            metadata: raw.metadata.value().filter(|map| !map.is_empty()).cloned().map(Arc::new),
            over_limit_body,
        })
    }

    fn warning(&mut self, at: At<'_>, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics[at.file].warning(at.place, at.path, message.into(), Some(help.into()));
    }

    fn error(&mut self, at: At<'_>, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics[at.file].error(at.place, at.path, message.into(), Some(help.into()));
    }
}

/// The body of a rule's over-limit responses. An empty text is a template too: it disables the default body.
fn over_limit_body(
    raw: &Field<String>,
    path: &Path<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<Box<Template>> {
    let given = raw.given()?;
    match Template::parse(&given.value) {
        Ok(template) => Some(Box::new(template)),
        Err(error) => {
            diagnostics.error(given.place, &path.key("over_limit_body"), error.message, Some(error.help));
            None
        }
    }
}
