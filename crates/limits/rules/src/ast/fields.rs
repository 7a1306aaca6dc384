//! Reads the maps of rules files, with the errors and warnings about keys that [`keys`](super::keys) does not have there.

use std::collections::HashMap;

use super::{
    super::yaml::{Content, Meaning, Node, Pair, Scalar},
    keys::{KeyStatus, MapKind, RawMap, help_for, is_of_go},
    reader::{Reader, Spot, kind, scalar},
};
use text::diagnostics::quoted;

impl Reader<'_> {
    /// Reads the value of each valid key into `map`, in order, and reports all other keys.
    pub(super) fn fields<M: RawMap>(&mut self, spot: Spot<'_>, pairs: &[Pair], map: &mut M) {
        let last = self.last_of_each(&spot, pairs, Some(M::KIND));
        for (at, pair) in pairs.iter().enumerate() {
            let key = key_text(pair);
            let live = spot.live && key.is_none_or(|key| last[key] == at);
            let path = spot.path.key(key.unwrap_or("?"));
            let value = spot.value(pair, &path, live);
            match key.map(|key| (key, M::KIND.status(key))) {
                Some((key, KeyStatus::Valid)) => map.set(key, self, value),
                Some((key, KeyStatus::Extension)) => {
                    self.diagnostics.unportable(value.key, &path, &quoted(key));
                    map.set(key, self, value);
                }
                Some((key, KeyStatus::NoEffect)) if live => {
                    let has_limit = pairs.iter().any(|pair| key_text(pair) == Some("rate_limit"));
                    let loses_limit = M::KIND == MapKind::Descriptor && MapKind::Limit.has(key) && !has_limit;
                    let more = if loses_limit { ", so this descriptor has no limit" } else { "" };
                    let message = format!("`{key}` has no effect here{more}");
                    let help = M::KIND.help_for_no_effect(key);
                    self.diagnostics.warning(value.key, spot.path, message, Some(help));
                    // The first pass ignores metadata anywhere.
                    if key != "metadata" {
                        self.check_ignored(value);
                    }
                }
                Some((key, KeyStatus::Unknown)) if live => {
                    let help = help_for(Some(M::KIND), key);
                    self.key_error(&spot, pair, format!("unknown key {}", quoted(key)), help);
                }
                None if live => self.key_is_not_text(&spot, pairs, at),
                _ => {}
            }
        }
    }

    /// The index of the last pair of each key. Reports the earlier ones, except merged ones, which are meant to be
    /// replaced.
    pub(super) fn last_of_each<'p>(
        &mut self,
        spot: &Spot<'_>,
        pairs: &'p [Pair],
        map: Option<MapKind>,
    ) -> HashMap<&'p str, usize> {
        let mut last = HashMap::with_capacity(pairs.len());
        for (at, pair) in pairs.iter().enumerate() {
            if let Some(key) = key_text(pair) {
                last.insert(key, at);
            }
        }
        for (at, pair) in pairs.iter().enumerate().filter(|(_, pair)| pair.merged().is_none() && spot.live) {
            let Some(key) = key_text(pair).filter(|key| last[key] != at) else { continue };
            let winner = &pairs[last[key]];
            let both_maps =
                [pair, winner].iter().all(|pair| matches!(pair.value.node.content, Content::Map(_)));
            let again = winner.merged().unwrap_or(winner.key.place);
            let by = if winner.merged().is_some() { " by a merge" } else { "" };
            let outcome = match map {
                Some(MapKind::Descriptor) if both_maps && key != "descriptors" => "the two are merged",
                _ => "the last one applies",
            };
            let message = format!("{} is set again{by} at {again}, and {outcome}", quoted(key));
            let help = match winner.merged() {
                Some(_) => "put `<<` before the keys that take precedence",
                None => "remove one of the two",
            };
            self.diagnostics.warning(pair.key.place, spot.path, message, Some(help.to_owned()));
        }
        last
    }

    /// Checks an ignored value as the first pass of the Go service does.
    fn check_ignored(&mut self, spot: Spot<'_>) {
        match &spot.node.content {
            Content::Scalar(scalar) => {
                if matches!(scalar.meaning, Meaning::Float(_) | Meaning::Large(_)) {
                    self.mismatch(
                        &spot,
                        "text, a flag or an integer",
                        "such numbers are allowed only below `metadata`",
                    );
                }
            }
            Content::List(links) => {
                for (at, link) in links.iter().enumerate() {
                    let path = spot.path.item(at);
                    let item = spot.item(link, &path);
                    if let Content::Map(pairs) = &item.node.content {
                        self.check_ignored_map(item, pairs);
                    } else {
                        let seen = kind(item.node);
                        let message = format!("expected a map in this list, got {seen}");
                        self.error(&item, message, "");
                    }
                }
            }
            Content::Map(pairs) => self.check_ignored_map(spot, pairs),
        }
    }

    fn check_ignored_map(&mut self, spot: Spot<'_>, pairs: &[Pair]) {
        let last = self.last_of_each(&spot, pairs, None);
        for (at, pair) in pairs.iter().enumerate() {
            let Some(key) = key_text(pair) else {
                self.key_is_not_text(&spot, pairs, at);
                continue;
            };
            if last[key] != at || key == "metadata" {
                continue;
            }
            let path = spot.path.key(key);
            if is_of_go(key) {
                self.check_ignored(spot.value(pair, &path, true));
            } else {
                self.key_error(&spot, pair, format!("unknown key {}", quoted(key)), help_for(None, key));
            }
        }
    }

    /// True for a Kubernetes manifest, which is reported.
    pub(super) fn is_manifest(&mut self, spot: &Spot<'_>, pairs: &[Pair]) -> bool {
        let value =
            |name: &str| pairs.iter().find(|pair| key_text(pair) == Some(name)).map(|pair| &pair.value.node);
        let (Some(_), Some(kind)) = (value("apiVersion"), value("kind")) else { return false };
        let Content::Scalar(kind) = &kind.content else { return false };
        let message =
            format!("this is a Kubernetes manifest of the kind {}, not a rules file", quoted(&kind.text));
        let help = match &*kind.text {
            "ConfigMap" => "move the text of each key below `data` into a file of its own",
            _ => "a rules file has `domain` and `descriptors`",
        };
        self.error(spot, message, help);
        true
    }

    fn key_is_not_text(&mut self, spot: &Spot<'_>, pairs: &[Pair], at: usize) {
        let pair = &pairs[at];
        if let Some((number, digits)) = grouped_number(pairs, at) {
            let spot = Spot { node: &number.value.node, place: number.value.place, ..*spot };
            let message =
                format!("a number has no commas: the one in {} begins another key", quoted(&digits));
            self.error(&spot, message, format!("write {}", quoted(&digits.replace(',', ""))));
            return;
        }
        let message = format!("expected a text key, got {}", kind(&pair.key.node));
        self.key_error(spot, pair, message, "other keys are accepted only below `metadata`".to_owned());
    }

    fn key_error(&mut self, spot: &Spot<'_>, pair: &Pair, message: String, help: String) {
        let via = spot.via.or(pair.merged()).or(pair.key.alias());
        self.error(&Spot { node: &pair.key.node, place: pair.key.place, via, ..*spot }, message, help);
    }
}

/// The pair of a number like `{requests_per_unit: 10,000}`, and the number as written, if this key is one of its groups of
/// digits.
fn grouped_number(pairs: &[Pair], at: usize) -> Option<(&Pair, String)> {
    let digits = |node: &Node| match &node.content {
        Content::Scalar(Scalar { text, meaning: Meaning::Int(_) })
            if text.bytes().all(|b| b.is_ascii_digit()) =>
        {
            Some(text.clone())
        }
        _ => None,
    };
    let is_group = |pair: &Pair| {
        scalar(&pair.value.node) == Some(&Meaning::Null)
            && digits(&pair.key.node).is_some_and(|digits| digits.len() == 3)
    };
    let first = pairs[..=at].iter().rposition(|pair| !is_group(pair)).filter(|first| *first < at)?;
    let groups = pairs[first + 1..].iter().take_while(|pair| is_group(pair));
    let written: Vec<_> = groups.filter_map(|pair| digits(&pair.key.node)).collect();
    Some((&pairs[first], format!("{},{}", digits(&pairs[first].value.node)?, written.join(","))))
}

fn key_text(pair: &Pair) -> Option<&str> {
    match &pair.key.node.content {
        Content::Scalar(scalar) => match &scalar.meaning {
            Meaning::Text => Some(&scalar.text),
            Meaning::Binary(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        },
        _ => None,
    }
}
