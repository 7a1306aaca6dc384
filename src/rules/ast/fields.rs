//! The keys of a map: which count where they stand, which do nothing, which nobody knows, and which are
//! given twice.

use std::collections::HashMap;

use super::{
    super::{
        diagnostics::quoted,
        yaml::{Content, Meaning, Pair},
    },
    keys::{Level, Standing, help_for_stray, is_of_go},
    reader::{Reader, Spot, kind},
};

impl Reader<'_> {
    /// Hands each key that counts on this level to `take`, in order, and tells of all others.
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
            match key.map(|key| (key, level.standing(key))) {
                Some((key, Standing::Counts)) => take(self, key, value),
                Some((key, Standing::CountsHereAlone)) => {
                    self.findings.unportable(value.key, &path, &quoted(key));
                    take(self, key, value);
                }
                Some((key, Standing::Idle)) if live => {
                    let has_limit = pairs.iter().any(|pair| key_text(pair) == Some("rate_limit"));
                    let lost = level.loses_limit_by(key) && !has_limit;
                    let more = if lost { ", so this descriptor has no limit" } else { "" };
                    let message = format!("`{key}` does nothing here{more}");
                    let help = level.help_for_idle(key);
                    self.findings.warning(value.key, spot.path, message, Some(help));
                    // The first reading leaves metadata alone wherever it stands.
                    if key != "metadata" {
                        self.loose(value);
                    }
                }
                Some((key, Standing::Unknown)) if live => {
                    self.key_error(&spot, pair, format!("unknown key {}", quoted(key)), level.help_for(key));
                }
                None if live => self.key_is_no_text(&spot, pair),
                _ => {}
            }
        }
    }

    /// The number of the last pair of each key. Tells of those before it, unless a merge brought them:
    /// to be written over is what a merge is for.
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
                Some(Level::Descriptor) if both_maps && key != "descriptors" => {
                    "the two are laid over each other"
                }
                _ => "the last one counts",
            };
            let message = format!("{} is given again{by} at {again}, and {what_counts}", quoted(key));
            let help = match winner.merged {
                Some(_) => "what stands last wins: put `<<` before the keys that are to win",
                None => "leave one of the two out",
            };
            self.findings.warning(pair.key.node.place, spot.path, message, Some(help.to_owned()));
        }
        last
    }

    /// What the first reading checks of a value that nobody reads.
    fn loose(&mut self, spot: Spot<'_>) {
        match &spot.node.content {
            Content::Scalar(scalar) => {
                if matches!(scalar.meaning, Meaning::Float(_) | Meaning::Large(_)) {
                    self.mismatch(
                        &spot,
                        "text, a flag or a whole number",
                        "such numbers are taken below `metadata` only",
                    );
                }
            }
            Content::List(links) => {
                for (at, link) in links.iter().enumerate() {
                    let path = spot.path.item(at);
                    let item = spot.item(link, &path);
                    if let Content::Map(pairs) = &item.node.content {
                        self.loose_map(item, pairs);
                    } else {
                        let seen = kind(item.node);
                        let message = format!("a list outside `metadata` holds maps only, this is {seen}");
                        self.error(&item, message, "");
                    }
                }
            }
            Content::Map(pairs) => self.loose_map(spot, pairs),
        }
    }

    fn loose_map(&mut self, spot: Spot<'_>, pairs: &[Pair]) {
        let last = self.last_of_each(&spot, pairs, None);
        for (at, pair) in pairs.iter().enumerate() {
            let Some(key) = key_text(pair) else {
                self.key_is_no_text(&spot, pair);
                continue;
            };
            if last[key] != at || key == "metadata" {
                continue;
            }
            let path = spot.path.key(key);
            if is_of_go(key) {
                self.loose(spot.value(pair, &path, true));
            } else {
                self.key_error(&spot, pair, format!("unknown key {}", quoted(key)), help_for_stray(key));
            }
        }
    }

    fn key_is_no_text(&mut self, spot: &Spot<'_>, pair: &Pair) {
        let message = format!("a key must be text, this is {}", kind(&pair.key.node));
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
