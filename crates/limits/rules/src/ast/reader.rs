//! Typed readers: each reads a value as the expected type, or reports a mismatch.
//!
//! The Go service parses a file twice, and either pass can reject it: first into generic maps, in which the last of several
//! equal keys replaces the others, then into its types, where each of them is read. A replaced value is not
//! [live](Spot::live): the checks of the first pass do not apply to it.

use limit::MAX_LIMIT;

use super::{
    super::yaml::{Content, Meaning, Node, NodeRef, Pair},
    Field, Given,
    keys::RawMap,
};
use text::diagnostics::{Diagnostics, Path, Place, quoted};

pub(crate) struct Reader<'f> {
    pub(super) diagnostics: &'f mut Diagnostics,
}

#[derive(Clone, Copy)]
pub(crate) struct Spot<'a> {
    pub(super) node: &'a Node,
    pub(super) place: Place,
    pub(super) path: &'a Path<'a>,
    pub(super) key: Place,
    /// The place of the alias or merge that it comes from.
    pub(super) via: Option<Place>,
    /// False if a later value of the same key replaces it.
    pub(super) live: bool,
}

impl<'a> Spot<'a> {
    pub(super) fn file(root: &'a NodeRef, path: &'a Path<'a>) -> Self {
        Self { node: &root.node, place: root.place, path, key: root.place, via: None, live: true }
    }

    pub(super) fn item(&self, link: &'a NodeRef, path: &'a Path<'a>) -> Self {
        let place = link.place;
        let via = self.via.or(link.alias());
        Self { node: &link.node, place, path, key: place, via, live: self.live }
    }

    pub(super) fn value(&self, pair: &'a Pair, path: &'a Path<'a>, live: bool) -> Self {
        let via = self.via.or(pair.merged()).or(pair.value.alias());
        Self { node: &pair.value.node, place: pair.value.place, path, key: pair.key.place, via, live }
    }

    pub(super) fn given<T>(&self, value: T) -> Field<T> {
        Field::Given(Given { value, place: self.place, key: self.key })
    }
}

impl Reader<'_> {
    pub(super) fn error(&mut self, spot: &Spot<'_>, message: impl Into<String>, help: impl Into<String>) {
        let mut help = help.into();
        if let Some(via) = spot.via {
            let joint = if help.is_empty() { "" } else { "; " };
            help = format!("{help}{joint}the value comes from the alias or merge at {via}");
        }
        let help = Some(help).filter(|help| !help.is_empty());
        self.diagnostics.error(spot.place, spot.path, message.into(), help);
    }

    pub(super) fn mismatch(&mut self, spot: &Spot<'_>, expected: &str, help: &str) {
        self.error(spot, format!("expected {expected}, got {}", kind(spot.node)), help);
    }

    /// Text as written: `007` stays `007`.
    pub(super) fn text(&mut self, spot: Spot<'_>) -> Field<String> {
        let Content::Scalar(scalar) = &spot.node.content else {
            self.mismatch(&spot, "text", "");
            return Field::Wrong;
        };
        match &scalar.meaning {
            Meaning::Null => Field::Absent,
            Meaning::Float(_) | Meaning::Large(_) if spot.live => {
                let help = format!("put it in quotes: '{}'", scalar.text.escape_debug());
                self.mismatch(&spot, "text", &help);
                Field::Wrong
            }
            Meaning::Binary(bytes) => spot.given(String::from_utf8_lossy(bytes).into_owned()),
            _ => spot.given(scalar.text.to_string()),
        }
    }

    /// A text, or a list of texts.
    pub(super) fn texts(&mut self, spot: Spot<'_>) -> Field<Vec<Field<String>>> {
        let Content::List(links) = &spot.node.content else { return spot.given(vec![self.text(spot)]) };
        if links.is_empty() {
            self.error(&spot, "this list is empty", "add an item, or remove the key");
            return Field::Wrong;
        }
        let item = |(at, link)| {
            let path = spot.path.item(at);
            let item = spot.item(link, &path);
            let text = self.text(item);
            if matches!(text, Field::Absent) {
                self.mismatch(&item, "text", "");
                return Field::Wrong;
            }
            text
        };
        spot.given(links.iter().enumerate().map(item).collect())
    }

    /// A limit. Those beyond 32 bits are named where that is wanted.
    pub(super) fn limit(&mut self, spot: Spot<'_>) -> Field<u64> {
        let Spot { place, path, .. } = spot;
        let number = self.number::<MAX_LIMIT>(spot);
        if let Some(number) = number.value().filter(|number| **number > u32::MAX.into()) {
            self.diagnostics.large_limit(place, path, *number);
        }
        number
    }

    /// An integer from 0 to `MOST`, which is below 2⁵³.
    pub(super) fn number<const MOST: u64>(&mut self, spot: Spot<'_>) -> Field<u64> {
        let number = match scalar(spot.node) {
            Some(Meaning::Null) => return Field::Absent,
            Some(Meaning::Int(number)) => u64::try_from(*number).ok(),
            // Go truncates a fraction that the first pass did not reject.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            Some(Meaning::Float(number)) if !spot.live && *number >= 0.0 => Some(*number as u64),
            _ => None,
        };
        if let Some(number) = number.filter(|number| *number <= MOST) {
            return spot.given(number);
        }
        self.mismatch(&spot, "an integer", &help_for_number(&spot, MOST));
        Field::Wrong
    }

    pub(super) fn day(&mut self, spot: Spot<'_>) -> Field<u64> {
        let day = match scalar(spot.node) {
            Some(Meaning::Null) => return Field::Absent,
            Some(Meaning::Int(day)) => u64::try_from(*day).ok(),
            _ => None,
        };
        day.map_or_else(
            || {
                self.mismatch(&spot, "a day of a month", "accepted: 1 to 31, without quotes");
                Field::Wrong
            },
            |day| spot.given(day),
        )
    }

    pub(super) fn flag(&mut self, spot: Spot<'_>) -> Field<bool> {
        match scalar(spot.node) {
            Some(Meaning::Null) => Field::Absent,
            Some(Meaning::Bool(flag)) => spot.given(*flag),
            _ => {
                let help = "write flags without quotes: true, false, yes, no, on, off";
                self.mismatch(&spot, "`true` or `false`", help);
                Field::Wrong
            }
        }
    }

    /// A list of maps.
    pub(super) fn list<M: RawMap>(&mut self, spot: Spot<'_>, items: &str, example: &str) -> Field<Vec<M>> {
        let Content::List(links) = &spot.node.content else {
            if scalar(spot.node) == Some(&Meaning::Null) {
                return Field::Absent;
            }
            let help = format!("begin each item with a dash: `{example}`");
            self.mismatch(&spot, &format!("a list of {items}"), &help);
            return Field::Wrong;
        };
        let mut maps = Vec::with_capacity(links.len());
        for (at, link) in links.iter().enumerate() {
            let path = spot.path.item(at);
            let item = spot.item(link, &path);
            if let Content::Map(pairs) = &item.node.content {
                maps.push(self.map(at, item, pairs));
            } else if spot.live || scalar(item.node) != Some(&Meaning::Null) {
                let message = format!("expected a map in this list of {items}, got {}", kind(item.node));
                self.error(&item, message, format!("write `{example}`"));
            }
        }
        spot.given(maps)
    }

    /// A map, which is this item of a list, counted from 0.
    pub(super) fn map<M: RawMap>(&mut self, index: usize, spot: Spot<'_>, pairs: &[Pair]) -> M {
        let mut map = M::at(spot.place, index);
        self.fields(spot, pairs, &mut map);
        map
    }

    /// A map that may not be null. `help` says what to write instead.
    pub(super) fn required_map<M: RawMap>(&mut self, spot: Spot<'_>, help: &str) -> Field<M> {
        if let Content::Map(pairs) = &spot.node.content {
            return spot.given(self.map(0, spot, pairs));
        }
        self.mismatch(&spot, "a map", help);
        Field::Wrong
    }
}

/// What to write in place of what is no integer from 0 to `most`.
fn help_for_number(spot: &Spot<'_>, most: u64) -> String {
    let accepted = format!("accepted: 0 to {most}");
    let Content::Scalar(scalar) = &spot.node.content else { return accepted };
    let is_limit = matches!(spot.path, Path::Key(_, "requests_per_unit"));
    // An item of `schedule` has no unit of its own.
    let has_unit = is_limit && !matches!(spot.path, Path::Key(Path::Item(Path::Key(_, "schedule"), _), _));
    match scalar.meaning {
        Meaning::Text => {
            let plain = scalar.text.replace(['_', ',', ' ', '\''], "");
            match plain.parse::<u64>() {
                Ok(_) if plain == scalar.text.replace('_', "") => {
                    "remove the quotes: 10, 1_000, 0x10".to_owned()
                }
                Ok(_) => format!("write `{plain}`"),
                Err(_) => accepted,
            }
        }
        Meaning::Int(..0) if is_limit => {
            "a limit cannot be negative: 0 allows no request, and `unlimited: true` allows all".to_owned()
        }
        Meaning::Float(number) => match fraction(number) {
            Some((whole, 1)) => format!("write `{whole}`"),
            Some((requests, units)) if has_unit => format!(
                "{number} per unit is {requests} per {units} units: `requests_per_unit: {requests}, unit_multiplier: {units}`"
            ),
            _ => accepted,
        },
        _ => accepted,
    }
}

/// A number as a fraction with the smallest denominator, up to a thousand.
fn fraction(number: f64) -> Option<(u64, u32)> {
    (1..=1000).find_map(|below: u32| {
        let above = number * f64::from(below);
        let is_whole = (1.0..9e15).contains(&above) && (above - above.round()).abs() < 1e-9 * above;
        // It is whole, positive, and below 2⁵³.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
        is_whole.then(|| (above.round() as u64, below))
    })
}

pub(super) fn scalar(node: &Node) -> Option<&Meaning> {
    match &node.content {
        Content::Scalar(scalar) => Some(&scalar.meaning),
        Content::List(_) | Content::Map(_) => None,
    }
}

pub(super) fn kind(node: &Node) -> String {
    let Content::Scalar(scalar) = &node.content else {
        return if matches!(node.content, Content::List(_)) { "a list" } else { "a map" }.to_owned();
    };
    let text = quoted(&scalar.text);
    match scalar.meaning {
        Meaning::Null => "nothing".to_owned(),
        Meaning::Bool(_) => format!("the flag {text}"),
        Meaning::Int(_) | Meaning::Large(_) | Meaning::Float(_) => format!("the number {text}"),
        Meaning::Text | Meaning::Binary(_) => format!("the text {text}"),
    }
}
