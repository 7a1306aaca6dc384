//! Characters that a text does not have, as placeholders in it.

use std::collections::HashSet;

/// Unicode's private areas, whose characters have no meaning of their own.
fn private() -> impl Iterator<Item = char> {
    ('\u{e000}'..='\u{f8ff}').chain('\u{f0000}'..='\u{ffffd}')
}

/// Private characters that none of these texts holds; none only when they hold all of 72,000.
pub(super) fn characters<'t>(texts: impl IntoIterator<Item = &'t str>) -> impl Iterator<Item = char> {
    let is_private = |c: &char| matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{ffffd}');
    let used: HashSet<char> = texts.into_iter().flat_map(str::chars).filter(is_private).collect();
    private().filter(move |character| !used.contains(character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_not_offered() {
        let first: Vec<char> = characters(["a\u{e000}", "\u{e002}"]).take(2).collect();
        assert_eq!(first, ['\u{e001}', '\u{e003}']);
        let all: String = private().collect();
        assert_eq!(characters([&*all]).next(), None);
    }
}
