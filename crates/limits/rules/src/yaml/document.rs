//! From libyaml's events to the tree of the first document.
//!
//! The tree is built without recursion, on a stack of open lists and maps, so that no text can overflow the thread's stack.
//! Merges are spliced in as in yaml.v2: at the place of the `<<`, so that it replaces earlier pairs, and later pairs
//! replace it.

use std::{collections::HashMap, rc::Rc};

use libyaml_safer::EventData;

use super::{
    Collection, Content, MaxValues, Meaning, Node, NodeRef, Pair, Scalar,
    events::{Event, Events, QUOTE_STAR},
    scalar,
    text::{self, Text},
};
use ::text::diagnostics::{FileError, Place};
use faults::panics::{self, Boundary, Panicked};

#[derive(Debug)]
pub struct Document {
    /// The first document; `None` if the file is empty.
    pub root: Option<NodeRef>,
    /// Where the next document begins, which is ignored.
    pub remainder: Option<Place>,
}

impl Document {
    /// The number of values, with aliases expanded.
    pub(crate) fn values(&self) -> usize {
        let values = self.root.as_ref().map_or(0, |root| Weight::of_link(root).values);
        usize::try_from(values).unwrap_or(usize::MAX)
    }
}

/// Reads a file. The scanner panics at a tag before a comma (`[!a,b]`), which is an error in that file.
pub fn read(bytes: &[u8], max: MaxValues) -> Result<Document, FileError> {
    let mut place = None;
    let read = panics::catch(Boundary::RulesReload, || {
        panics::point("yaml_scan");
        read_text(&text::decode(bytes), max, &mut place)
    });
    read.unwrap_or_else(|Panicked| {
        let error = FileError::new("invalid YAML after this value: the YAML reader panicked");
        Err(FileError { place, ..error }.with_help(
            "put a space after a tag, and quote a text that begins with `!`; without either, please report the file",
        ))
    })
}

/// `place` becomes that of the last value.
fn read_text(text: &Text<'_>, max: MaxValues, place: &mut Option<Place>) -> Result<Document, FileError> {
    // A value takes at least one byte: a text that may have too many is checked before the tree is built, so that a file
    // which is rejected takes no memory.
    if text.allowed.len() > max.values {
        check_size(Events::new(text), max)?;
    }
    let mut events = Events::new(text);
    let mut builder = Builder { max, ..Builder::default() };
    while let Some(event) = events.next_of_document()? {
        *place = Some(event.place);
        builder.take(event)?;
    }
    if let Some(root) = &builder.root {
        Weight::of_link(root).check()?;
    }
    let document = Document { root: builder.root, remainder: events.remainder() };
    if document.values() > max.values { Err(max.exceeded()) } else { Ok(document) }
}

/// Rejects a text with too many values, or with values nested too deep.
fn check_size(mut events: Events<'_>, max: MaxValues) -> Result<(), FileError> {
    let mut room = max.values;
    let mut depth = 0_u32;
    while let Some(Event { place, data }) = events.next_of_document()? {
        match data {
            EventData::Scalar { .. } | EventData::Alias { .. } => {}
            EventData::SequenceStart { .. } | EventData::MappingStart { .. } => depth += 1,
            EventData::SequenceEnd | EventData::MappingEnd => {
                depth -= 1;
                continue;
            }
            _ => continue,
        }
        room = room.checked_sub(1).ok_or_else(|| max.exceeded())?;
        if depth > MAX_DEPTH {
            return Err(too_deep(place));
        }
    }
    Ok(())
}

#[derive(Default)]
struct Builder {
    max: MaxValues,
    open: Vec<Open>,
    anchors: HashMap<String, Anchor>,
    root: Option<NodeRef>,
    opened: usize,
    /// The complete values so far.
    values: usize,
    merged: usize,
    /// The first scalars: keys, units and other texts that are in every rule.
    scalars: HashMap<String, Rc<Node>>,
}

/// Maximum number of scalars that equal ones share, and their maximum length.
const MAX_SHARED: usize = 256;
const MAX_SHARED_BYTES: usize = 32;

struct Open {
    number: usize,
    place: Place,
    anchor: Option<String>,
    items: Items,
}

enum Items {
    List(Vec<NodeRef>),
    Map { pairs: Vec<Pair>, weight: Weight, key: Option<(NodeRef, bool)> },
}

enum Anchor {
    /// The number of a list or map that is still open: an alias in it would contain itself.
    Open(usize),
    Closed(NodeRef),
}

impl<T> Collection<T> {
    pub(super) fn new(weight: Weight, mut items: Vec<T>) -> Self {
        // Draining makes a new allocation without spare capacity; shrinking keeps the old one with most allocators.
        Self { weight, items: items.drain(..).collect() }
    }
}

impl Builder {
    fn take(&mut self, event: Event) -> Result<(), FileError> {
        let Event { place, data } = event;
        match data {
            EventData::Scalar { anchor, tag, value, plain_implicit, .. } => {
                let is_merge = value == "<<" && (plain_implicit || tag.as_deref() == Some(MERGE_TAG));
                let meaning = scalar::resolve(&value, tag.as_deref(), plain_implicit)
                    .map_err(|message| FileError::at(place, message))?;
                let link = NodeRef { node: self.scalar(&value, meaning), place, alias: None };
                if let Some(anchor) = anchor {
                    self.anchors.insert(anchor, Anchor::Closed(link.clone()));
                }
                self.add(link, is_merge)
            }
            EventData::Alias { anchor } => {
                let link = self.alias(&anchor, place)?;
                self.add(link, false)
            }
            EventData::SequenceStart { anchor, .. } => self.open(place, anchor, Items::List(Vec::new())),
            EventData::MappingStart { anchor, .. } => {
                self.open(place, anchor, Items::Map { pairs: Vec::new(), weight: Weight::EMPTY, key: None })
            }
            EventData::SequenceEnd | EventData::MappingEnd => self.close(),
            _ => Ok(()),
        }
    }

    fn scalar(&mut self, text: &str, meaning: Meaning) -> Rc<Node> {
        let is_same =
            |node: &&Rc<Node>| matches!(&node.content, Content::Scalar(scalar) if scalar.meaning == meaning);
        if let Some(known) = self.scalars.get(text).filter(is_same) {
            return Rc::clone(known);
        }
        let node = Rc::new(Node { content: Content::Scalar(Scalar { text: text.into(), meaning }) });
        if self.scalars.len() < MAX_SHARED && text.len() <= MAX_SHARED_BYTES {
            self.scalars.insert(text.to_owned(), Rc::clone(&node));
        }
        node
    }

    fn alias(&self, anchor: &str, place: Place) -> Result<NodeRef, FileError> {
        match self.anchors.get(anchor) {
            Some(Anchor::Closed(link)) => Ok(NodeRef { alias: Some(Box::new(place)), ..link.clone() }),
            Some(Anchor::Open(_)) => {
                Err(FileError::at(place, format!("the value of the anchor `{anchor}` contains itself")))
            }
            None => {
                let error = FileError::at(place, format!("no anchor `&{anchor}` precedes this alias"));
                Err(error.with_help(QUOTE_STAR))
            }
        }
    }

    fn open(&mut self, place: Place, anchor: Option<String>, items: Items) -> Result<(), FileError> {
        if self.open.len() >= MAX_DEPTH as usize {
            return Err(too_deep(place));
        }
        self.opened += 1;
        if let Some(anchor) = &anchor {
            self.anchors.insert(anchor.clone(), Anchor::Open(self.opened));
        }
        self.open.push(Open { number: self.opened, place, anchor, items });
        Ok(())
    }

    fn close(&mut self) -> Result<(), FileError> {
        let Some(Open { number, place, anchor, items }) = self.open.pop() else { return Ok(()) };
        let content = match items {
            Items::List(items) => Content::list(items),
            Items::Map { pairs, weight, .. } => Content::Map(Box::new(Collection::new(weight, pairs))),
        };
        let weight = Weight::of(&content);
        if weight.aliased > self.max.values as u64 {
            return Err(FileError { place: Some(place), ..self.max.exceeded() });
        }
        if weight.depth > MAX_DEPTH {
            return Err(too_deep(place));
        }
        let link = NodeRef::new(content, place);
        if let Some(anchor) = anchor {
            // An anchor of the same name within is later and stays.
            if let Some(known @ Anchor::Open(_)) = self.anchors.get_mut(&anchor)
                && matches!(known, Anchor::Open(open) if *open == number)
            {
                *known = Anchor::Closed(link.clone());
            }
        }
        self.add(link, false)
    }

    /// Adds a complete value to the innermost open list or map.
    fn add(&mut self, link: NodeRef, is_merge: bool) -> Result<(), FileError> {
        self.values += 1;
        match self.open.last_mut().map(|open| &mut open.items) {
            None => self.root = Some(link),
            Some(Items::List(items)) => items.push(link),
            Some(Items::Map { key: waiting @ None, .. }) => {
                if !matches!(link.node.content, Content::Scalar(_)) {
                    let place = link.alias().unwrap_or(link.place);
                    return Err(FileError::at(place, "a list or a map cannot be a key"));
                }
                *waiting = Some((link, is_merge));
            }
            Some(Items::Map { pairs, weight, key }) => match key.take() {
                Some((key, true)) => {
                    *weight = weight.holding(Weight::of_link(&link));
                    self.merged = self.merged.saturating_add(pairs_of(&link));
                    // A merged pair is two values, and its copy has 64 bytes.
                    if self.merged > self.max.values / 2 {
                        return Err(FileError { place: Some(key.place), ..self.max.exceeded() });
                    }
                    splice(&link, key.place, pairs)?;
                }
                Some((key, false)) => {
                    let pair = Pair { key, value: link, merged: None };
                    *weight = weight.holding(Weight::of_pair(&pair));
                    pairs.push(pair);
                }
                None => {}
            },
        }
        Ok(())
    }
}

const MERGE_TAG: &str = "tag:yaml.org,2002:merge";

/// The number of pairs that [`splice`] appends.
fn pairs_of(link: &NodeRef) -> usize {
    let of_map = |link: &NodeRef| match &link.node.content {
        Content::Map(pairs) => pairs.len(),
        _ => 0,
    };
    match &link.node.content {
        Content::List(maps) => maps.iter().map(of_map).sum(),
        _ => of_map(link),
    }
}

/// Appends the pairs of a merged map, or of a list of maps, the first of which takes precedence.
fn splice(link: &NodeRef, merge: Place, pairs: &mut Vec<Pair>) -> Result<(), FileError> {
    let mut splice_map = |link: &NodeRef| {
        let Content::Map(merged) = &link.node.content else { return Err(not_a_map(link)) };
        pairs.extend(merged.iter().cloned().map(|pair| Pair { merged: Some(Box::new(merge)), ..pair }));
        Ok(())
    };
    match &link.node.content {
        Content::List(maps) if link.alias.is_none() => maps.iter().rev().try_for_each(splice_map),
        _ => splice_map(link),
    }
}

fn not_a_map(link: &NodeRef) -> FileError {
    let place = link.alias().unwrap_or(link.place);
    FileError::at(place, "expected a map or a list of maps after `<<`")
        .with_help("write the alias of a map (`<<: *name`) or a list of aliases (`<<: [*one, *two]`)")
}

fn too_deep(place: Place) -> FileError {
    FileError::at(place, format!("lists and maps are nested more than {MAX_DEPTH} levels deep"))
}

/// Maximum depth of lists and maps, with aliases expanded. Readers of the tree recurse; this is far below what a thread's
/// stack allows. The bound of the Go service is 10,000.
const MAX_DEPTH: u32 = 250;

/// The size of a value, itself included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    pub(super) depth: u32,
    pub(super) values: u64,
    aliased: u64,
}

impl Weight {
    const SCALAR: Self = Self { depth: 0, values: 1, aliased: 0 };

    const EMPTY: Self = Self { depth: 1, ..Self::SCALAR };

    pub(super) fn of_list(items: &[NodeRef]) -> Self {
        items.iter().fold(Self::EMPTY, |sum, item| sum.holding(Self::of_link(item)))
    }

    pub(super) fn of_map(pairs: &[Pair]) -> Self {
        pairs.iter().fold(Self::EMPTY, |sum, pair| sum.holding(Self::of_pair(pair)))
    }

    fn holding(self, inner: Self) -> Self {
        Self {
            depth: self.depth.max(inner.depth + 1),
            values: self.values.saturating_add(inner.values),
            aliased: self.aliased.saturating_add(inner.aliased),
        }
    }

    fn of(content: &Content) -> Self {
        match content {
            Content::Scalar(_) => Self::SCALAR,
            Content::List(items) => items.weight,
            Content::Map(pairs) => pairs.weight,
        }
    }

    /// A use of a value: yaml.v2 counts an alias, and each of its values again.
    fn of_link(link: &NodeRef) -> Self {
        let weight = Self::of(&link.node.content);
        if link.alias.is_none() {
            return weight;
        }
        Self { values: weight.values.saturating_add(1), aliased: weight.values, ..weight }
    }

    fn of_pair(pair: &Pair) -> Self {
        let key = Self::of_link(&pair.key);
        let value = Self::of_link(&pair.value);
        // A key is on the level of its value, not above it.
        Self { depth: value.depth, ..key.holding(value) }
    }

    /// Rejects a document most of whose values come from aliases, as yaml.v2 does.
    fn check(self) -> Result<(), FileError> {
        // The exact shares are yaml.v2's; counts are well below 2^53.
        #[allow(clippy::cast_precision_loss)]
        let values = self.values as f64;
        let aliased = self.aliased as f64;
        let allowed = 0.99 - 0.89 * ((values - 400_000.0) / 3_600_000.0).clamp(0.0, 1.0);
        if self.aliased > 100 && self.values > 1_000 && aliased / values > allowed {
            return Err(too_much_aliasing());
        }
        Ok(())
    }
}

fn too_much_aliasing() -> FileError {
    FileError::new("the aliases of this file expand to too many values")
        .with_help("use fewer aliases within aliases")
}
