//! Words that user-facing text may not use: they read as translated, and search engines do not find them. The list
//! follows the vocabulary of the project's style guide; each entry names what to write instead.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use super::root;

/// A phrase that may not come back, and its replacement. Phrases match whole words, in any case.
const PHRASES: &[(&str, &str)] = &[
    ("told", "received, reported, configured"),
    ("telling", "reporting"),
    ("tells", "shows, reports, names"),
    ("whole again", "resets in"),
    ("nobody listens", "connection refused"),
    ("nobody asks", "no requests"),
    ("makes no sense", "is invalid"),
    ("make no sense", "are invalid"),
    ("is none of", "unknown"),
    ("is no directory", "is not a directory"),
    ("is no file", "is not a file"),
    ("is no variable", "unknown variable"),
    ("is no number", "is not a number"),
    ("told to end", "received SIGTERM"),
    ("not healthy any more", "draining"),
    ("is asked again", "breaker closed"),
    ("asked in vain", "unreachable"),
    ("stands on this level", "duplicate descriptor"),
    ("indent with blanks", "indent with spaces"),
    ("stand without quotes", "remove the quotes"),
    ("numbers stand", "remove the quotes"),
    ("nothing takes", "no descriptor matches"),
    ("by the limit", "limit \"NAME\""),
    ("is met by", "matches"),
    ("no rule is met", "no rule matches"),
    ("would be told", "would receive"),
    ("a refusal would say", "over-limit response"),
    ("served on", "keeping previous rules"),
    ("serve on", "stay in force"),
    ("serves on", "stays in force"),
    ("turned away", "rejected"),
    ("turns away", "rejects"),
    ("as many as may be", "reached"),
    ("and the like", "similar, suppressed"),
    ("and_the_like", "suppressed"),
    ("the number of the like", "suppressed"),
    ("to come again", "Retry-After"),
    ("whose child", "parent span"),
    ("what is wanted", "expected"),
    ("what it tells", "meaning"),
    ("lane", "connection"),
    ("lanes", "connections"),
    ("seat", "worker index"),
    ("seats", "worker indexes"),
    ("fleet", "server pool"),
    ("bundle", "pipeline"),
    ("bundles", "pipelines"),
    ("goes by the name", "is named"),
    ("hears", "receives"),
    ("heard", "received"),
    ("passes by all of it", "costs one branch"),
    ("is warned of", "logs a warning"),
    ("are warned of", "log a warning"),
    ("has its rules from", "receives its rules from"),
];

/// Files and directories that are still to be rewritten, each with the phrases that it may use until then. Entries
/// are only ever removed.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    ("src/net/tls", &["is no file"]),
    ("src/settings/redis", &["nobody listens"]),
    ("src/store/memcached", &["tells"]),
    ("src/store/redis", &["is asked again", "nobody listens", "tells"]),
    ("src/store/remote", &["nobody listens"]),
];

/// Where user-facing text is, besides the strings of `src`.
const PAGES: [&str; 12] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "Cargo.toml",
    "deny.toml",
    "docs",
    "deploy",
    "config",
    ".github",
    "tests/golden/README.md",
];

#[test]
fn user_facing_text_uses_the_words_of_the_field() {
    let mut found = BTreeMap::<String, Vec<String>>::new();
    for page in PAGES {
        for path in files(page, &["md", "yaml", "yml", "toml", "json", "tpl", "txt", "svg", ""]) {
            let text = fs::read_to_string(root().join(&path)).unwrap();
            // A changelog also quotes what was replaced.
            let is_quoted = path == "CHANGELOG.md";
            let lines = text
                .lines()
                .zip(1..)
                .map(|(line, number)| (number, if is_quoted { without_code(line) } else { line.to_owned() }));
            check(&path, lines, &mut found);
        }
    }
    for path in files("src", &["rs"]).iter().filter(|path| !is_test(path)) {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        check(path, strings(product, path.starts_with("src/cli")).into_iter(), &mut found);
    }
    let mut report = String::new();
    for (path, lines) in &found {
        // Writing to a String cannot fail.
        let _ = writeln!(report, "{path}\n{}", lines.join("\n"));
    }
    assert!(found.is_empty(), "words of the left column of tests/docs/words.rs:\n{report}");
}

#[test]
fn a_phrase_is_found_as_whole_words_only() {
    assert!(contains("it was told so", "told") && contains("(told)", "told"));
    assert!(!contains("untold", "told") && !contains("a planet", "lane") && !contains("x-lane_id", "lane"));
    let text =
        "fn told() { /* told */ let a = \"one \\\" told\"; } // told\nlet b = r#\"told\"#; let c = '\"';";
    assert_eq!(strings(text, false), [(1, "one \\\" told".to_owned()), (2, "told".to_owned())]);
    assert_eq!(strings("/// told\nfn a() {}", true), [(1, " told".to_owned())]);
}

/// Adds the phrases found in these lines, unless an exception allows them.
fn check(
    path: &str,
    lines: impl Iterator<Item = (usize, String)>,
    found: &mut BTreeMap<String, Vec<String>>,
) {
    let is_allowed = |phrase: &str| {
        EXCEPTIONS.iter().any(|(place, allowed)| path.starts_with(place) && allowed.contains(&phrase))
    };
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let line = line.to_lowercase();
        for (phrase, instead) in PHRASES {
            if contains(&line, phrase) && !is_allowed(phrase) {
                let shown = format!("  {number}: {phrase:?} (use: {instead}): {}", line.trim());
                found.entry(path.to_owned()).or_default().push(shown);
            }
        }
    }
}

/// Whether the phrase occurs as whole words in a line in lower case.
fn contains(line: &str, phrase: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(phrase).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(is_word);
        let after = line[at + phrase.len()..].chars().next().is_some_and(is_word);
        !before && !after
    })
}

/// The line without what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The string literals of Rust source with their lines, and its doc comments where those are shown as help.
fn strings(source: &str, has_help: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let (mut rest, mut line, mut counted) = (source, 1, source);
    while let Some(first) = rest.chars().next() {
        line += counted[..counted.len() - rest.len()].matches('\n').count();
        counted = rest;
        let raw_hashes =
            rest.strip_prefix('r').map(|behind| behind.len() - behind.trim_start_matches('#').len());
        if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            if has_help && let Some(help) = rest[..end].strip_prefix("///") {
                found.push((line, help.to_owned()));
            }
            rest = &rest[end..];
        } else if rest.starts_with("/*") {
            rest = rest.split_once("*/").map_or("", |(_, behind)| behind);
        } else if let Some(hashes) = raw_hashes.filter(|hashes| rest[1 + hashes..].starts_with('"')) {
            let end = format!("\"{}", "#".repeat(hashes));
            let (text, behind) = rest[hashes + 2..].split_once(&end).unwrap_or((&rest[hashes + 2..], ""));
            found.extend(text.lines().zip(line..).map(|(text, line)| (line, text.to_owned())));
            rest = behind;
        } else if first == '"' {
            let mut is_escaped = false;
            let end = rest[1..].find(|character| {
                let ends = character == '"' && !is_escaped;
                is_escaped = character == '\\' && !is_escaped;
                ends
            });
            let text = &rest[1..=end.unwrap_or(rest.len() - 2)];
            found.extend(text.lines().zip(line..).map(|(text, line)| (line, text.to_owned())));
            rest = &rest[text.len() + 2..];
        } else if let Some(behind) = rest.strip_prefix("'\"'").or_else(|| rest.strip_prefix("'\\''")) {
            rest = behind;
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    found
}

fn is_test(path: &str) -> bool {
    path.ends_with("tests.rs") || path.contains("/tests/") || path.starts_with("src/fuzz")
}

/// A file, or those below a directory that end in one of these; an empty one stands for none.
fn files(place: &str, extensions: &[&str]) -> Vec<String> {
    let path = root().join(place);
    if path.is_file() {
        return vec![place.to_owned()];
    }
    let mut found: Vec<_> = fs::read_dir(path)
        .unwrap()
        .flat_map(|entry| {
            let entry = format!("{place}/{}", entry.unwrap().file_name().to_str().unwrap());
            let extension = Path::new(&entry).extension().and_then(|own| own.to_str()).unwrap_or_default();
            let is_taken = root().join(&entry).is_dir() || extensions.contains(&extension);
            if is_taken { files(&entry, extensions) } else { Vec::new() }
        })
        .collect();
    found.sort();
    found
}
