//! The keys of a map: valid, without effect, unknown, or duplicate.

use std::collections::HashMap;

use super::{
    super::{
        diagnostics::quoted,
        yaml::{Content, Meaning, Pair},
    },
    keys::{KeyStatus, Level, help_for_stray, is_of_go},
    reader::{Reader, Spot, kind},
};

impl Reader<'_> {
    /// Passes each key that is valid on this level to `take`, in order, and reports all others.
    pub(super) fn fields(
        &mut self,
        spot: Spot<'_>,
        pairs: &[Pair],
        level: Level,
        take: &mut dyn FnMut(&mut Self, &str, Spot<'_>),
    ) {
        let last = self.last_of_each(&spot, pairs, Some(level));
        for (at, pair) in pairs.iter().enumerate() {
            let key = key_text(pair);
            let live = spot.live && key.is_none_or(|key| last[key] == at);
            let path = spot.path.key(key.unwrap_or("?"));
            let value = spot.value(pair, &path, live);
            match key.map(|key| (key, level.status(key))) {
                Some((key, KeyStatus::Valid)) => take(self, key, value),
                Some((key, KeyStatus::Extension)) => {
                    self.diagnostics.unportable(value.key, &path, &quoted(key));
                    take(self, key, value);
                }
                Some((key, KeyStatus::NoEffect)) if live => {
                    let has_limit = pairs.iter().any(|pair| key_text(pair) == Some("rate_limit"));
                    let lost = level.loses_limit_by(key) && !has_limit;
                    let more = if lost { ", so this descriptor has no limit" } else { "" };
                    let message = format!("`{key}` has no effect here{more}");
                    let help = level.help_for_no_effect(key);
                    self.diagnostics.warning(value.key, spot.path, message, Some(help));
                    // The first reading ignores metadata anywhere.
                    if key != "metadata" {
                        self.check_ignored(value);
                    }
                }
                Some((key, KeyStatus::Unknown)) if live => {
                    self.key_error(&spot, pair, format!("unknown key {}", quoted(key)), level.help_for(key));
                }
                None if live => self.key_is_not_text(&spot, pair),
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
        level: Option<Level>,
    ) -> HashMap<&'p str, usize> {
        let mut last = HashMap::with_capacity(pairs.len());
        for (at, pair) in pairs.iter().enumerate() {
            if let Some(key) = key_text(pair) {
                last.insert(key, at);
            }
        }
        for (at, pair) in pairs.iter().enumerate().filter(|(_, pair)| pair.merged.is_none() && spot.live) {
            let Some(key) = key_text(pair).filter(|key| last[key] != at) else { continue };
            let winner = &pairs[last[key]];
            let both_maps =
                [pair, winner].iter().all(|pair| matches!(pair.value.node.content, Content::Map(_)));
            let again = winner.merged.unwrap_or(winner.key.node.place);
            let by = if winner.merged.is_some() { " by a merge" } else { "" };
            let what_counts = match level {
                Some(Level::Descriptor) if both_maps && key != "descriptors" => "the two are merged",
                _ => "the last one counts",
            };
            let message = format!("{} is given again{by} at {again}, and {what_counts}", quoted(key));
            let help = match winner.merged {
                Some(_) => "the last value wins: put `<<` before the keys that should win",
                None => "remove one of the two",
            };
            self.diagnostics.warning(pair.key.node.place, spot.path, message, Some(help.to_owned()));
        }
        last
    }

    /// The checks of the first reading on a value that is ignored.
    fn check_ignored(&mut self, spot: Spot<'_>) {
        match &spot.node.content {
            Content::Scalar(scalar) => {
                if matches!(scalar.meaning, Meaning::Float(_) | Meaning::Large(_)) {
                    self.mismatch(
                        &spot,
                        "text, a flag or a whole number",
                        "such numbers are allowed below `metadata` only",
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
                self.key_is_not_text(&spot, pair);
                continue;
            };
            if last[key] != at || key == "metadata" {
                continue;
            }
            let path = spot.path.key(key);
            if is_of_go(key) {
                self.check_ignored(spot.value(pair, &path, true));
            } else {
                self.key_error(&spot, pair, format!("unknown key {}", quoted(key)), help_for_stray(key));
            }
        }
    }

    fn key_is_not_text(&mut self, spot: &Spot<'_>, pair: &Pair) {
        let message = format!("expected a text key, got {}", kind(&pair.key.node));
        self.key_error(spot, pair, message, "only below `metadata` other keys are accepted".to_owned());
    }

    fn key_error(&mut self, spot: &Spot<'_>, pair: &Pair, message: String, help: String) {
        let via = spot.via.or(pair.merged).or(pair.key.alias);
        self.error(&Spot { node: &pair.key.node, via, ..*spot }, message, help);
    }
}

/// The text of a key; none when it is of another type.
pub(super) fn key_text(pair: &Pair) -> Option<&str> {
    match &pair.key.node.content {
        Content::Scalar(scalar) => match &scalar.meaning {
            Meaning::Text => Some(&scalar.text),
            Meaning::Binary(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        },
        _ => None,
    }
}
