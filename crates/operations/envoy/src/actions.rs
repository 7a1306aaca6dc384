//! Envoy's rate limit actions: the entry that each adds to a descriptor.

use super::tree::Value;
use text::diagnostics::Place;

/// A descriptor that Envoy may send.
#[derive(Clone, Debug)]
pub(super) struct Descriptor {
    pub(super) place: Place,
    pub(super) entries: Vec<Entry>,
    pub(super) limit: OwnLimit,
    pub(super) hits: HitsSource,
}

/// The limit that Envoy sends with a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OwnLimit {
    Absent,
    /// Written in the configuration, so the descriptor needs no rule.
    Static,
    /// Read from metadata, which a request may lack.
    OfMetadata,
}

impl OwnLimit {
    pub(super) fn read(item: Value<'_>) -> Self {
        match item.get("limit") {
            Some(limit) if limit.get("dynamic_metadata").is_some() => Self::OfMetadata,
            Some(_) => Self::Static,
            None => Self::Absent,
        }
    }
}

/// Where the number of hits of a descriptor comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HitsSource {
    /// One hit, or what the item states before the request.
    Item,
    /// The filter state [`HITS_OF_REQUEST`](super::pitfalls::HITS_OF_REQUEST).
    Request,
    /// A cost that is charged when the stream ends.
    EndOfStream,
}

impl HitsSource {
    fn read(item: Value<'_>, request_has_hits: bool) -> Self {
        let addend = item.get("hits_addend");
        let is_refund = addend.is_some_and(|addend| addend.get("is_negative_hits").is_some_and(Value::flag));
        match addend {
            None if request_has_hits => Self::Request,
            Some(_) if is_at_end(item) && !is_refund => Self::EndOfStream,
            _ => Self::Item,
        }
    }
}

/// True for an item that Envoy sends when the stream ends.
pub(super) fn is_at_end(item: Value<'_>) -> bool {
    item.get("apply_on_stream_done").is_some_and(Value::flag)
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    /// `None` for a value of the request.
    pub(super) value: Option<String>,
}

/// The entry of an action.
struct Added {
    entry: Entry,
    /// The descriptor may lack the entry.
    is_optional: bool,
}

/// The surroundings of an action that decide about values.
pub(super) struct Context<'t> {
    /// The cluster of this Envoy, `node.cluster`.
    pub(super) own_cluster: Option<&'t str>,
    /// The clusters of the route; empty if requests choose them.
    pub(super) clusters: Vec<&'t str>,
    /// The runtime flag [`FORMATTER_FLAG`] is on.
    pub(super) formats_values: bool,
    /// A filter before states the hits of the request.
    pub(super) request_has_hits: bool,
}

impl Context<'_> {
    /// True if Envoy fills in the commands in the `descriptor_value` of this action.
    fn fills_in(&self, action: &str) -> bool {
        self.formats_values || action == "remote_address_match"
    }
}

/// With this runtime flag Envoy 1.40 fills in the commands of a `descriptor_value`, such as `%REQ(x-user)%`, from the
/// request. Without it, the default, it sends their text; except in `remote_address_match`, which always fills them in.
pub(super) const FORMATTER_FLAG: &str =
    "envoy.reloadable_features.enable_formatter_for_ratelimit_action_descriptor_value";

/// The most descriptors of one item: its optional entries and weighted clusters in all combinations. Real ones have a few.
const MAX_COMBINATIONS: usize = 1000;

/// The descriptors of an item of `rate_limits`, one for each combination of optional entries, or the place and the name of
/// an action that is not known here.
pub(super) fn descriptors(
    item: Value<'_>,
    context: &Context<'_>,
) -> Result<Vec<Descriptor>, (Place, String)> {
    let limit = OwnLimit::read(item);
    let hits = HitsSource::read(item, context.request_has_hits);
    let mut built = vec![Vec::new()];
    for action in item.list("actions") {
        let choices = added(action, context)?;
        let mut next: Vec<Vec<Entry>> = Vec::new();
        for before in &built {
            for Added { entry, is_optional } in &choices {
                let mut with = before.clone();
                with.push(entry.clone());
                next.push(with);
                if *is_optional {
                    next.push(before.clone());
                }
            }
        }
        if next.len() > MAX_COMBINATIONS {
            return Err((item.place(), format!("more than {MAX_COMBINATIONS} combinations of entries")));
        }
        built = next;
    }
    let place = item.place();
    // One without entries meets no rule.
    let descriptors = built.into_iter().filter(|entries| !entries.is_empty());
    Ok(descriptors.map(|entries| Descriptor { place, entries, limit, hits }).collect())
}

/// The entries of which an action adds one.
fn added(action: Value<'_>, context: &Context<'_>) -> Result<Vec<Added>, (Place, String)> {
    let unknown = |what: &str| (action.place(), what.to_owned());
    let (name, fields) =
        action.fields().find(|(name, _)| *name != "@type").ok_or_else(|| unknown("an action is empty"))?;
    let text = |field: &str| fields.get(field).and_then(Value::text);
    let key = |default: &str| text("descriptor_key").unwrap_or(default).to_owned();
    let snake = snake_case(name);
    let is_of_request = |value: &&str| context.fills_in(&snake) && has_command(value);
    let constant = || {
        let value = text("descriptor_value").filter(|value| !is_of_request(value))?;
        Some(if context.fills_in(&snake) { value.replace("%%", "%") } else { value.to_owned() })
    };
    let typed = fields.get("typed_config");
    let added = |key: String, value: Option<String>| {
        let fields = typed.unwrap_or(fields);
        let is_optional =
            ["skip_if_absent", "skip_if_error"].iter().any(|name| fields.get(name).is_some_and(Value::flag));
        vec![Added { entry: Entry { key, value }, is_optional }]
    };
    Ok(match &*snake {
        "generic_key" => added(key("generic_key"), constant()),
        "header_value_match" => added(key("header_match"), constant()),
        "query_parameter_value_match" => added(key("query_match"), constant()),
        "remote_address_match" => added(key("remote_address_match"), constant()),
        "remote_address" => added("remote_address".to_owned(), None),
        "masked_remote_address" => added("masked_remote_address".to_owned(), None),
        "source_cluster" => added("source_cluster".to_owned(), context.own_cluster.map(str::to_owned)),
        "destination_cluster" => {
            let key = || "destination_cluster".to_owned();
            if context.clusters.is_empty() {
                added(key(), None)
            } else {
                let clusters = context.clusters.iter();
                clusters.flat_map(|cluster| added(key(), Some((*cluster).to_owned()))).collect()
            }
        }
        "request_headers" | "query_parameters" | "dynamic_metadata" | "metadata" => {
            let key = text("descriptor_key")
                .ok_or_else(|| unknown(&format!("`{snake}` without a `descriptor_key`")))?;
            added(key.to_owned(), None)
        }
        // Expressions and claims have a key of their own; the key of a matching input is the name of the extension.
        "extension" => {
            let own = typed.and_then(|typed| typed.get("descriptor_key")).and_then(Value::text);
            let name = || text("name").filter(|_| typed.is_some_and(|typed| typed.is("Input")));
            let key = own.or_else(name).ok_or_else(|| unknown("an extension"))?;
            added(key.to_owned(), None)
        }
        _ => return Err(unknown(&format!("`{snake}`"))),
    })
}

/// The `descriptor_value` of an action with commands that Envoy does not fill in.
pub(super) fn literal_commands<'t>(action: Value<'t>, context: &Context<'_>) -> Option<Value<'t>> {
    let (name, fields) = action.fields().find(|(name, _)| *name != "@type")?;
    let value = fields.get("descriptor_value")?;
    (!context.fills_in(&snake_case(name)) && has_command(value.text()?)).then_some(value)
}

/// True for a text with a command, such as `%REQ(x-user)%`. `%%` stands for a percent sign.
pub(super) fn has_command(text: &str) -> bool {
    text.replace("%%", "").split_once('%').is_some_and(|(_, rest)| rest.contains('%'))
}

fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
