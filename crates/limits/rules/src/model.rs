//! The compiled rules: valid by construction and immutable.
//!
//! [`compile()`](super::compile()) creates them; [`matcher`](super::matcher) finds the rule for a request; all others only
//! read them.

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    sync::{Arc, LazyLock, OnceLock},
};

use hashbrown::{HashMap, HashSet};
use siphasher::sip::SipHasher13;

use super::{
    quota_policy::QuotaPolicy,
    wildcard::{Pattern, Wildcards},
};
use crate::template::Template;
use faults::OnStoreFailure;
use limit::{Limit, Limits};

/// All loaded rules. A reload replaces the set; nothing edits it. A copy shares the descriptors.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    pub(super) domains: HashMap<Box<str>, Domain>,
    /// The descriptors with a rule, by the rule's id.
    pub(super) by_id: Box<[Arc<Node>]>,
    /// The names of the files, by the index in [`Origin`].
    pub(super) files: Box<[Box<str>]>,
}

/// The line of a rules file on which a descriptor begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    pub(super) file: u32,
    /// The line, counted from 1.
    pub(super) line: u32,
}

#[derive(Clone, Debug)]
pub struct Domain {
    pub name: Box<str>,
    /// Its number within the set, dense from 0: the index in parallel tables.
    pub index: usize,
    pub root: Level,
    /// A rule replaces a limit, so the descriptors of a request may affect each other.
    pub has_replaces: bool,
    pub on_store_failure: Option<OnStoreFailure>,
}

/// The descriptors that one entry of a request is matched against.
#[derive(Clone, Debug, Default)]
pub struct Level {
    pub(super) nodes: HashSet<ByText>,
    /// The length of the longest text in `nodes`.
    pub(super) longest: usize,
    /// Descriptors whose text has a `*`, in the order of the file.
    pub(super) wildcards: Wildcards<Arc<Node>>,
}

/// A descriptor that is found by its text: `key_value`, or a bare `key`.
#[derive(Clone, Debug)]
pub(super) struct ByText(pub(super) Arc<Node>);

/// The descriptors below one. Most have none, and take no memory for them.
#[derive(Debug, Default)]
pub struct Children(Option<Box<Level>>);

/// One descriptor of a rules file: a node of the tree, with or without a rule.
#[derive(Debug)]
pub struct Node {
    /// `key`, or `key_value`, which may be a pattern.
    pub text: Box<str>,
    /// The length of its key.
    pub(super) key_bytes: usize,
    pub rule: Option<Rule>,
    /// Metric names have the request's value for this level.
    pub value_to_metric: bool,
    /// All values that match this wildcard share one counter.
    pub share_threshold: bool,
    pub children: Children,
    /// Where it is defined; `None` for a resource of a control plane, which has no lines.
    pub origin: Option<Origin>,
}

/// The number of a rule within its set, dense from 0: the index in parallel tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RuleId(pub u32);

/// A limit, or an exemption, of a descriptor.
#[derive(Debug)]
pub struct Rule {
    /// Its number within the set.
    pub id: RuleId,
    /// The domain and the texts of each level, joined by dots: its name in metrics and `/rlconfig`.
    pub full_key: Arc<str>,
    /// The hash of its full key: the same after a reload.
    pub hash: u16,
    pub allowance: Allowance,
    /// Names of limits that are not evaluated when this rule matches in the same request.
    pub replaces: Box<[Box<str>]>,
    /// Counted and reported, but never over limit.
    pub shadow_mode: bool,
    /// Over limit only if every quota of the request is.
    pub quota_mode: bool,
    /// Limits only requests that have an override.
    pub overrides_only: bool,
    /// Metric names have the request's keys and values.
    pub detailed_metric: bool,
    /// Sent to Envoy if the descriptor is allowed.
    pub metadata: Option<Arc<Metadata>>,
    pub(super) policies: OnceLock<Box<[QuotaPolicy]>>,
    /// The body of its over-limit responses; an empty one disables the default body.
    pub over_limit_body: Option<Box<Template>>,
}

#[derive(Debug)]
pub enum Allowance {
    Unlimited {
        /// `requests_per_unit` of the file, for `/rlconfig`.
        requests_per_unit: u64,
    },
    Limited(Limits),
}

/// A map of any values, in a rule's `metadata` and in dynamic metadata.
pub type Metadata = BTreeMap<String, Value>;

/// A value of [`Metadata`], in the types of protobuf's `Struct`.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    Map(Metadata),
}

impl RuleSet {
    #[expect(clippy::expect_used, reason = "an id is valid in its own set")]
    #[inline]
    pub fn rule(&self, id: RuleId) -> &Rule {
        self.by_id[id.0 as usize].rule.as_ref().expect("the table has only descriptors with a rule")
    }

    #[inline]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// All domains, in no particular order.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values()
    }

    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    pub fn origin(&self, node: &Node) -> Option<(&str, u32)> {
        let Origin { file, line } = node.origin?;
        Some((self.files.get(file as usize)?, line))
    }

    /// The limits whose counters begin anew with these rules in place of others: [`Limits::begin_anew`].
    pub fn begin_anew(&self, before: &Self, in_cluster: bool) -> Vec<(&Rule, &Limit)> {
        let known: HashMap<&str, &Limits> =
            before.rules().into_iter().filter_map(|rule| Some((&*rule.full_key, rule.limits()?))).collect();
        let mut anew = Vec::new();
        for rule in self.rules() {
            if let (Some(before), Some(after)) = (known.get(&*rule.full_key), rule.limits()) {
                let limits = before.begin_anew(after, in_cluster);
                anew.extend(limits.into_iter().map(|limit| (rule, limit)));
            }
        }
        anew
    }

    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| &**file)
    }

    #[expect(clippy::cast_possible_truncation, reason = "each rule has an id of 32 bits")]
    pub fn rule_count(&self) -> u32 {
        self.by_id.len() as u32
    }

    /// Every rule, by its id.
    pub fn rules(&self) -> Vec<&Rule> {
        self.by_id.iter().filter_map(|node| node.rule.as_ref()).collect()
    }

    /// Whether one of the limits holds.
    pub fn hold(&self) -> bool {
        let holds = |limits: &Limits| limits.iter().any(|limit| limit.holds);
        self.rules().into_iter().filter_map(Rule::limits).any(holds)
    }
}

impl Domain {
    /// Every rule of the domain, and whether its name in metrics is always its full key, without values of requests.
    pub fn rules(&self) -> Vec<(&Rule, bool)> {
        let mut rules = Vec::new();
        self.root.collect(true, &mut rules);
        rules
    }

    pub fn new(name: Box<str>, root: Level) -> Self {
        let mut rules = Vec::new();
        root.collect(true, &mut rules);
        let has_replaces = rules.iter().any(|(rule, _)| !rule.replaces.is_empty());
        Self { name, index: 0, root, has_replaces, on_store_failure: None }
    }
}

impl Level {
    fn collect<'r>(&'r self, has_fixed_name: bool, into: &mut Vec<(&'r Rule, bool)>) {
        for ByText(node) in &self.nodes {
            let has_fixed_name = has_fixed_name && !node.value_to_metric;
            into.extend(node.rule.as_ref().map(|rule| (rule, has_fixed_name && !rule.detailed_metric)));
            node.children.collect(has_fixed_name, into);
        }
    }

    /// The descriptors: first the wildcards with their patterns, in the order in which they are tried, then the others
    /// sorted by text.
    pub fn in_order(&self) -> Vec<(Option<&Pattern>, &Node)> {
        let wildcards = self.wildcards.iter().map(|(pattern, node)| (Some(pattern), &**node));
        let mut others: Vec<&Node> = self.nodes.iter().map(|ByText(node)| &**node).collect();
        others.retain(|node| !node.text.contains('*'));
        others.sort_unstable_by(|one, other| one.text.cmp(&other.text));
        wildcards.chain(others.into_iter().map(|node| (None, node))).collect()
    }

    pub fn for_each_node(&self, visit: &mut dyn FnMut(&Node)) {
        for ByText(node) in &self.nodes {
            visit(node);
            node.children.for_each_node(visit);
        }
    }

    /// The descriptor with this text: `key`, or `key_value` as it is written.
    #[inline]
    pub fn named(&self, text: &str) -> Option<&Node> {
        self.nodes.get(text).map(|ByText(node)| &**node)
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

impl Borrow<str> for ByText {
    fn borrow(&self) -> &str {
        &self.0.text
    }
}

impl Hash for ByText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text.hash(state);
    }
}

impl PartialEq for ByText {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for ByText {}

impl From<Level> for Children {
    fn from(level: Level) -> Self {
        Self((!level.is_empty()).then(|| Box::new(level)))
    }
}

impl Deref for Children {
    type Target = Level;

    fn deref(&self) -> &Level {
        static NONE: LazyLock<Level> = LazyLock::new(Level::default);
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl Node {
    /// The key, which begins its text.
    #[inline]
    pub fn key(&self) -> &str {
        self.text.get(..self.key_bytes).unwrap_or(&self.text)
    }
}

impl Rule {
    pub fn hash_of(full_key: &str) -> u16 {
        let [low, high, ..] = SipHasher13::new().hash(full_key.as_bytes()).to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Its limits in the `RateLimit-Policy` header, in order. Formatted for the first response that has them.
    pub fn policies(&self) -> &[QuotaPolicy] {
        self.policies.get_or_init(|| {
            self.limits().map(|limits| QuotaPolicy::of_rule(&self.full_key, limits)).unwrap_or_default()
        })
    }

    #[inline]
    pub fn limits(&self) -> Option<&Limits> {
        match &self.allowance {
            Allowance::Limited(limits) => Some(limits),
            Allowance::Unlimited { .. } => None,
        }
    }
}

/// A line of `/rlconfig`: the fields of the Go service in its format, then extensions.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, requests) = match &self.allowance {
            Allowance::Limited(limits) => (limits.first().unit.name(), limits.first().requests_per_unit),
            Allowance::Unlimited { requests_per_unit } => ("UNKNOWN", *requests_per_unit),
        };
        write!(
            f,
            "{}: unit={unit} requests_per_unit={requests}, shadow_mode: {}, quota_mode: {}",
            self.full_key, self.shadow_mode, self.quota_mode
        )?;
        for (index, limit) in self.limits().into_iter().flat_map(Limits::iter).enumerate() {
            if index > 0 {
                write!(f, ", and unit={} requests_per_unit={}", limit.unit, limit.requests_per_unit)?;
            }
            limit.write_extras(f)?;
        }
        if self.overrides_only {
            f.write_str(", overrides_only: true")?;
        }
        Ok(())
    }
}
