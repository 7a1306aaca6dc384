//! Which rules a descriptor of Envoy can meet.

use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};

use super::{actions::Entry, list};
use limiter::CLOSING_KEYS;
use rules::{Domain, Level, Node, Rule, RuleId};
use text::spelling::nearest;

/// The rules of a domain that descriptors can meet.
pub(super) struct Coverage<'r> {
    domain: &'r Domain,
    pub(super) reached: HashSet<RuleId>,
    /// The descriptors so far: the routes of a gateway send many that are equal.
    known: HashMap<Vec<Entry>, Rc<Met<'r>>>,
    unmet: usize,
}

/// What a descriptor meets.
#[derive(Default)]
pub(super) struct Met<'r> {
    /// The rules that some values of its entries meet.
    pub(super) rules: Vec<&'r Rule>,
    /// What to do if no value of its entries meets a rule.
    pub(super) help: Option<String>,
}

/// A report lists no more, and the help of each compares a key with all others.
const MAX_HELPED: usize = 500;

/// The farthest that a descriptor comes.
struct Search<'r> {
    is_met: bool,
    rules: Vec<&'r Rule>,
    /// The number of matched entries, and the level below them.
    deepest: (usize, &'r Level),
}

impl<'r> Coverage<'r> {
    pub(super) fn of(domain: &'r Domain) -> Self {
        Self { domain, reached: HashSet::new(), known: HashMap::new(), unmet: 0 }
    }

    /// Adds a descriptor.
    pub(super) fn add(&mut self, entries: &[Entry]) -> Rc<Met<'r>> {
        if entries.iter().any(|entry| CLOSING_KEYS.contains(&&*entry.key)) {
            return Rc::default();
        }
        if let Some(known) = self.known.get(entries) {
            return Rc::clone(known);
        }
        let mut search = Search { is_met: false, rules: Vec::new(), deepest: (0, &self.domain.root) };
        walk(&self.domain.root, entries, 0, &mut search);
        self.reached.extend(search.rules.iter().map(|rule| rule.id));
        let help = (!search.is_met).then(|| {
            self.unmet += 1;
            if self.unmet > MAX_HELPED { String::new() } else { help(entries, &search) }
        });
        let met = Rc::new(Met { rules: search.rules, help });
        self.known.insert(entries.to_vec(), Rc::clone(&met));
        met
    }
}

fn walk<'r>(level: &'r Level, entries: &[Entry], depth: usize, search: &mut Search<'r>) {
    let Some((entry, rest)) = entries.split_first() else { return };
    for node in candidates(level, entry) {
        if depth + 1 > search.deepest.0 {
            search.deepest = (depth + 1, &*node.children);
        }
        if !rest.is_empty() {
            walk(&node.children, rest, depth + 1, search);
            continue;
        }
        search.rules.extend(node.rule.as_ref());
        // A descriptor without a limit exempts its value.
        search.is_met |= node.rule.is_some() || node.children.is_empty();
    }
}

pub(super) fn nodes(level: &Level) -> impl Iterator<Item = &Node> {
    level.in_order().into_iter().map(|(_, node)| node)
}

/// The descriptors of a level that an entry can match.
fn candidates<'r>(level: &'r Level, entry: &Entry) -> Vec<&'r Node> {
    match &entry.value {
        Some(value) => {
            let step = level.step(&(&*entry.key, &**value), &mut String::new());
            step.map(|step| step.node).into_iter().collect()
        }
        None => nodes(level).filter(|node| may_match(node, &entry.key)).collect(),
    }
}

/// True if some value of this key matches the descriptor.
fn may_match(node: &Node, key: &str) -> bool {
    match node.text.split_once('*') {
        None => node.key() == key,
        Some((prefix, _)) => {
            let values = format!("{key}_");
            prefix.starts_with(&values) || values.starts_with(prefix)
        }
    }
}

fn help(entries: &[Entry], search: &Search<'_>) -> String {
    let (depth, level) = search.deepest;
    let above = notation(&entries[..depth]);
    let mut keys: Vec<&str> = nodes(level).map(Node::key).collect();
    keys.sort_unstable();
    keys.dedup();
    let below = if depth == 0 { "the domain".to_owned() } else { format!("`{above}`") };
    let Some(entry) = entries.get(depth) else {
        return format!("the rules below {below} have one more entry: {}", list(&keys));
    };
    if keys.is_empty() {
        return format!(
            "the rule for {below} has no level below: a descriptor needs the same number of entries"
        );
    }
    if keys.contains(&&*entry.key) {
        let prefix = format!("{}_", entry.key);
        let mut values: Vec<&str> =
            nodes(level).filter_map(|node| node.text.strip_prefix(&*prefix)).collect();
        values.sort_unstable();
        return format!("the rules have other values of `{}`: {}", entry.key, list(&values));
    }
    match nearest(&entry.key, keys.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`? The key must be the same in Envoy and in the rules"),
        None => format!("{below} has rules for other keys: {}", list(&keys)),
    }
}

/// The descriptor as commands take it, with `…` for a value of the request.
pub(super) fn notation(entries: &[Entry]) -> String {
    let text = |Entry { key, value }: &Entry| format!("{key}={}", value.as_deref().unwrap_or("…"));
    entries.iter().map(text).collect::<Vec<_>>().join(",").escape_debug().to_string()
}
