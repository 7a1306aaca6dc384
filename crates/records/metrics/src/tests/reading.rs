//! Parses a page as Prometheus does.

use std::collections::BTreeMap;

/// The samples of a page by name and labels, read by the rules of the text format.
pub(super) fn parse(page: &str) -> BTreeMap<(String, Vec<(String, String)>), f64> {
    let mut samples = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let mut labels = Vec::new();
        let mut rest = rest.strip_prefix('{').unwrap_or(rest);
        while let Some((label, quoted)) = rest.split_once("=\"").filter(|_| !rest.starts_with(' ')) {
            let (value, after) = unquote(quoted);
            labels.push((label.trim_start_matches(',').to_owned(), value));
            rest = after.strip_prefix('}').unwrap_or(after);
        }
        let old = samples.insert((name.to_owned(), labels), rest.trim().parse().unwrap());
        assert_eq!(old, None, "duplicate series: {line}");
    }
    samples
}

/// A label's value up to its closing quote, and what follows.
fn unquote(quoted: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.push(match chars.next().unwrap().1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    panic!("no closing quote in {quoted}");
}
