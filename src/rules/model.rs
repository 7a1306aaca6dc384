//! The rules as the service relies on them: valid by construction, never changed once made.
//!
//! [`compile()`](super::compile()) makes them from files; [`matcher`](super::matcher) finds the rule for a
//! request; everything else only reads them.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::{collections::BTreeMap, fmt, sync::Arc};

use hashbrown::HashMap;

use super::{
    limit::Limits,
    quota_policy::QuotaPolicy,
    wildcard::{Pattern, Wildcards},
};
use crate::limiter::template::Template;

/// All loaded rules. Replaced whole, never edited.
#[derive(Debug, Default)]
pub struct RuleSet {
    /// The domains by name.
    pub(super) domains: HashMap<Box<str>, Domain>,
    /// How many rules carry a limit; their ids run from 0 to this.
    pub(super) rule_count: u32,
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    /// As requests name it.
    pub name: Box<str>,
    /// The first level of its rules.
    pub root: Level,
    /// Some rule replaces a limit, so that a request's descriptors may bear upon each other.
    pub has_replaces: bool,
    /// What becomes of its requests while their counters cannot be reached, if its files say so.
    pub on_store_failure: Option<OnStoreFailure>,
}

/// What becomes of a request whose counters cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OnStoreFailure {
    /// It is answered with an error.
    Error,
    /// It passes.
    Allow,
    /// It is refused.
    Deny,
    /// This process counts it by itself.
    Local,
}

/// The rules that one entry of a request's descriptor is held against.
#[derive(Debug, Default)]
pub struct Level {
    /// By the text that is looked up: `key_value`, or a bare `key`.
    pub(super) nodes: HashMap<Box<str>, Arc<Node>>,
    /// Those whose text holds a `*`, in the order of the file.
    pub(super) wildcards: Wildcards<Arc<Node>>,
}

/// One descriptor of a rules file: a step in the tree, with a rule on it or without.
#[derive(Debug)]
pub struct Node {
    /// `key`, or `key_value`: the text it is found by, and the pattern of a wildcard.
    pub text: Box<str>,
    /// What the file asks to be limited here, if anything.
    pub rule: Option<Rule>,
    /// Metrics name the request's own value for this level.
    pub value_to_metric: bool,
    /// All values that match this wildcard share one counter.
    pub share_threshold: bool,
    /// The next level.
    pub children: Level,
}

/// The number of a rule within its set, dense from 0: what parallel tables are indexed by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RuleId(pub u32);

/// A limit, or the lifting of one, where the file puts it.
#[derive(Debug)]
pub struct Rule {
    /// Its number within the set.
    pub id: RuleId,
    /// The domain and each level's text, joined by dots: what metrics and `/rlconfig` call it.
    pub full_key: Box<str>,
    /// What it allows.
    pub allowance: Allowance,
    /// Names of limits that are not evaluated when this rule is met in the same request.
    pub replaces: Box<[Box<str>]>,
    /// Counted and told as any limit, but never refused.
    pub shadow_mode: bool,
    /// Refuses only when every quota of the request is spent.
    pub quota_mode: bool,
    /// Metrics name the request's own keys and values.
    pub detailed_metric: bool,
    /// Told to Envoy when the descriptor passes.
    pub metadata: Option<Arc<Metadata>>,
    /// Its limits as a header tells them, in their order.
    pub policies: Box<[QuotaPolicy]>,
    /// The body of its refusals; an empty one asks for none, whatever the settings say.
    pub over_limit_body: Option<Box<Template>>,
}

/// What a rule allows.
#[derive(Debug)]
pub enum Allowance {
    /// Everything, uncounted. The number is what the file says all the same, for `/rlconfig`.
    Unlimited {
        /// `requests_per_unit` as written; nothing is held against it.
        requests_per_unit: u32,
    },
    /// As much as every one of these allows.
    Limited(Limits),
}

/// A map of anything, as a rule's `metadata` and an answer's dynamic metadata hold it.
pub type Metadata = BTreeMap<String, Value>;

/// A value of [`Metadata`], in the types that protobuf's `Struct` knows.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// Any number.
    Number(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// A map.
    Map(Metadata),
}

impl RuleSet {
    /// The domain of this name.
    #[must_use]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// All domains, in no particular order.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values()
    }

    /// True when no domain is loaded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// How many rules carry a limit.
    #[must_use]
    pub fn rule_count(&self) -> u32 {
        self.rule_count
    }

    /// Every rule that carries a limit, in no particular order.
    #[must_use]
    pub fn rules(&self) -> Vec<&Rule> {
        let mut rules = Vec::with_capacity(self.rule_count as usize);
        for domain in self.domains.values() {
            domain.root.collect(&mut rules);
        }
        rules
    }
}

impl Domain {
    /// A domain of these rules.
    #[must_use]
    pub fn new(name: Box<str>, root: Level) -> Self {
        let mut rules = Vec::new();
        root.collect(&mut rules);
        let has_replaces = rules.iter().any(|rule| !rule.replaces.is_empty());
        Self { name, root, has_replaces, on_store_failure: None }
    }
}

impl OnStoreFailure {
    /// Everything that a file may ask for.
    pub const ALL: [Self; 4] = [Self::Error, Self::Allow, Self::Deny, Self::Local];

    /// As files write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
        }
    }

    /// What goes by this name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(name))
    }
}

impl Level {
    fn collect<'r>(&'r self, into: &mut Vec<&'r Rule>) {
        for node in self.nodes.values() {
            into.extend(&node.rule);
            node.children.collect(into);
        }
    }

    /// What stands here: first the wildcards in the order in which they are tried, each with its pattern,
    /// then the rest by its text.
    #[must_use]
    pub fn in_order(&self) -> Vec<(Option<&Pattern>, &Node)> {
        let wildcards = self.wildcards.iter().map(|(pattern, node)| (Some(pattern), &**node));
        let mut others: Vec<&Node> = self.nodes.values().map(|node| &**node).collect();
        others.retain(|node| !node.text.contains('*'));
        others.sort_unstable_by(|one, other| one.text.cmp(&other.text));
        wildcards.chain(others.into_iter().map(|node| (None, node))).collect()
    }

    /// True when no rule stands here, so that a request's descriptor must end one level above.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

impl Rule {
    /// The limits, unless everything is allowed.
    #[must_use]
    pub fn limits(&self) -> Option<&Limits> {
        match &self.allowance {
            Allowance::Limited(limits) => Some(limits),
            Allowance::Unlimited { .. } => None,
        }
    }
}

/// As a line of `/rlconfig`: what the Go service knows as it tells it, and behind that what it does not.
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
        for (at, limit) in self.limits().into_iter().flat_map(Limits::iter).enumerate() {
            if at > 0 {
                write!(f, ", and unit={} requests_per_unit={}", limit.unit, limit.requests_per_unit)?;
            }
            limit.tell_what_is_not_plain(f)?;
        }
        Ok(())
    }
}
