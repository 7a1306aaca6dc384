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
    ast::{Field, Given, RawDescriptor, RawMap as _},
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
    pub(super) fn at<'a>(&self, place: Place, path: Path<'a>) -> At<'a> {
        At { file: self.file, place, path }
    }

    /// The location of this descriptor of `list` in a message about the file `seen_from`.
    pub(super) fn location(&self, diagnostics: &[Diagnostics], list: &Path<'_>, seen_from: usize) -> String {
        let own = &diagnostics[self.file];
        let at = own.location(self.raw.place, &self.raw.path(list));
        if self.file == seen_from { at } else { format!("{at} of {}", own.file()) }
    }
}

/// Where a diagnostic points.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) file: usize,
    pub(super) place: Place,
    pub(super) path: Path<'a>,
}

/// A mistake was reported.
pub(super) struct Reported;

type Lowered<T> = Result<T, Reported>;

/// Creates levels, and numbers their rules.
pub(super) struct Lowering<'f> {
    diagnostics: &'f mut [Diagnostics],
    options: CompileOptions,
    /// The descriptors with a rule, by the rule's id.
    pub(super) by_id: Vec<Arc<Node>>,
}

#[derive(Clone, Copy)]
struct Context<'a> {
    file: usize,
    path: &'a Path<'a>,
    full_key: &'a str,
}

impl<'a> Context<'a> {
    fn at(&self, place: Place) -> At<'a> {
        At { file: self.file, place, path: *self.path }
    }

    fn at_key(&self, place: Place, key: &'a str) -> At<'a> {
        At { path: self.path.key(key), ..self.at(place) }
    }
}

impl<'f> Lowering<'f> {
    pub(super) fn new(diagnostics: &'f mut [Diagnostics], options: CompileOptions) -> Self {
        Self { diagnostics, options, by_id: Vec::new() }
    }

    /// The level of these descriptors. `above` is the prefix of their full keys.
    pub(super) fn level(&mut self, siblings: &[Sibling<'_>], list: &Path<'_>, above: &str) -> Level {
        let mut first: HashMap<String, &Sibling<'_>> = HashMap::with_capacity(siblings.len());
        let mut nodes = hashbrown::HashSet::with_capacity(siblings.len());
        let mut wildcards = Vec::new();
        for sibling in siblings {
            let path = sibling.raw.path(list);
            let text = self.text(*sibling, &path);
            let full_key = format!("{above}{}", text.as_deref().unwrap_or("?"));
            let context = Context { file: sibling.file, path: &path, full_key: &full_key };
            let node = self.node(sibling.raw, text.as_deref().unwrap_or_default(), context);
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

    #[expect(clippy::cast_possible_truncation, reason = "a file has fewer than 2³² rules")]
    fn node(&mut self, raw: &RawDescriptor, text: &str, context: Context<'_>) -> Arc<Node> {
        let RawDescriptor {
            place,
            index: _,
            descriptors,
            key,
            value: _,
            rate_limit,
            shadow_mode,
            quota_mode,
            detailed_metric,
            value_to_metric,
            share_threshold,
            metadata,
            over_limit_body,
            overrides_only,
        } = raw;
        if let Some(flag) = share_threshold.given()
            && flag.value
            && !text.is_empty()
            && !text.contains('*')
        {
            let message = format!("`share_threshold` requires a wildcard, and {} has no `*`", quoted(text));
            let help =
                "add a `*` to `value`, or remove `share_threshold`: an exact value has one counter anyway";
            self.error(context.at_key(flag.place, "share_threshold"), message, help);
        }
        // An empty text is a template too: it disables the default body.
        let over_limit_body = self.parsed("over_limit_body", over_limit_body, context, |written| {
            Template::parse(written).map(Box::new).map_err(|error| (error.message, error.help))
        });
        let limits = match (rate_limit, overrides_only.is_set()) {
            (Field::Given(given), _) => {
                let path = context.path.key("rate_limit");
                let context = Context { path: &path, ..context };
                let replaces = self.replaces(&given.value, context);
                self.allowance(given, context).ok().map(|allowance| (allowance, replaces))
            }
            // A rule without a limit has those of its overrides.
            (Field::Absent, true) => Some((Allowance::Unlimited { requests_per_unit: 0 }, Box::default())),
            (Field::Absent | Field::Wrong, _) => None,
        };
        let siblings: Vec<Sibling<'_>> =
            descriptors.items().iter().map(|raw| Sibling { file: context.file, raw }).collect();
        let list = context.path.key("descriptors");
        let children = self.level(&siblings, &list, &format!("{}.", context.full_key)).into();
        let rule = limits.map(|(allowance, replaces)| Rule {
            id: RuleId(self.by_id.len() as u32),
            full_key: context.full_key.into(),
            hash: Rule::hash_of(context.full_key),
            policies: OnceLock::new(),
            allowance,
            replaces,
            shadow_mode: shadow_mode.is_set(),
            quota_mode: quota_mode.is_set(),
            overrides_only: overrides_only.is_set(),
            detailed_metric: detailed_metric.is_set(),
            metadata: metadata.value().filter(|map| !map.is_empty()).cloned().map(Arc::new),
            over_limit_body: over_limit_body.ok().flatten(),
        });
        let node = Arc::new(Node {
            text: text.into(),
            key_bytes: key.value().map_or(0, String::len),
            rule,
            value_to_metric: value_to_metric.is_set(),
            share_threshold: share_threshold.is_set(),
            children,
            origin: self.origin(*place, context.file),
        });
        self.by_id.extend(node.rule.is_some().then(|| Arc::clone(&node)));
        node
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
            self.error(sibling.at(place, *path), "this descriptor has no key", help);
        }
        raw.text()
    }

    fn duplicate(&mut self, sibling: Sibling<'_>, text: &str, first: &Sibling<'_>, list: &Path<'_>) {
        let at = first.location(self.diagnostics, list, sibling.file);
        let message = format!("duplicate descriptor {}, first at {at}", quoted(text));
        let help = "the descriptors of a level must differ in `key` or `value`";
        self.error(sibling.at(sibling.raw.place, sibling.raw.path(list)), message, help);
    }

    /// The value of a text, as `read` makes it, if it is given. Else `read` returns a message and its help.
    fn parsed<T>(
        &mut self,
        key: &str,
        field: &Field<String>,
        context: Context<'_>,
        read: impl FnOnce(&str) -> Result<T, (String, String)>,
    ) -> Lowered<Option<T>> {
        let Some(given) = valid(field)? else { return Ok(None) };
        let read = read(&given.value);
        read.map(Some).map_err(|(message, help)| self.error(context.at_key(given.place, key), message, help))
    }

    fn warning(&mut self, at: At<'_>, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics[at.file].warning(at.place, &at.path, message.into(), Some(help.into()));
    }

    fn error(&mut self, at: At<'_>, message: impl Into<String>, help: impl Into<String>) -> Reported {
        self.diagnostics[at.file].error(at.place, &at.path, message.into(), Some(help.into()));
        Reported
    }
}

fn valid<T>(field: &Field<T>) -> Lowered<Option<&Given<T>>> {
    match field {
        Field::Absent => Ok(None),
        Field::Wrong => Err(Reported),
        Field::Given(given) => Ok(Some(given)),
    }
}
