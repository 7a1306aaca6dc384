//! Words that docs and code, with its comments, names and messages, may not use: they read as translated, and
//! search engines do not find them. The list follows the vocabulary of the project's style guide; each entry names what
//! to write instead.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use super::root;

/// A phrase that may not come back, and its replacement. Phrases match whole words, ignoring case.
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
    ("in any case", "case-insensitive"),
    ("contradicting", "conflicting"),
    ("warns of", "warns about"),
    ("is warned of", "logs a warning"),
    ("are warned of", "log a warning"),
    ("has its rules from", "receives its rules from"),
    ("tell", "report, send, distinguish"),
    ("fate", "mapping result"),
    ("ledger", "delta tracker"),
    ("trail", "decision trace"),
    ("judge", "script call, check"),
    ("immortal", "missing TTL"),
    ("doubt", "request refresh"),
    ("keep house", "do maintenance"),
    ("keeps house", "does maintenance"),
    ("fares", "state"),
    ("whence", "from where"),
    ("accepted is", "expected"),
    ("is no glob", "invalid glob"),
    ("is no socket", "is not a socket"),
    ("is no panic", "does not panic"),
    ("whoever", "any client, any caller"),
    ("what becomes of", "the result of"),
    ("what became of", "the result of"),
    ("looks whether", "checks whether"),
    ("for good", "permanently"),
    ("for ever", "forever"),
    ("passed over", "skipped"),
    ("goes on", "continues"),
    ("came to", "resulted in"),
    ("gives back", "returns"),
    ("spoils", "affects"),
    ("without end", "forever, unbounded"),
    ("rubbish", "garbage, noise"),
    ("hardly", "few, rarely"),
    ("so many", "this many"),
    ("is asked", "receives a request"),
    ("are asked", "receive requests"),
    ("is to be", "must be"),
    ("stands in", "replaces"),
    ("stands behind", "follows"),
    ("what is left", "the rest"),
    ("brings along", "depends on, sends"),
    ("who follow", "followers"),
    ("looked at", "checked"),
    ("it says", "it reports"),
    ("begins anew", "restarts"),
    ("anew", "again"),
    ("asleep", "stopped, idle"),
    ("as fast as it goes", "closed loop"),
    ("as they come", "in this order, as they are received"),
    ("below the wire", "without gRPC"),
    ("for so long", "for this time"),
    ("give back", "return, refund"),
    ("given back", "returned, refunded"),
    ("held against", "compared with"),
    ("in turns", "alternately"),
    ("lets pass", "allows"),
    ("log of decisions", "decision log"),
    ("made out to", "issued to, for"),
    ("needed and missing", "missing"),
    ("nobody", "no client, no caller"),
    ("say no", "reject"),
    ("says no", "rejects"),
    ("stands between", "is between"),
    ("to come", "pending"),
    ("what it says", "the content"),
    ("who asks", "the caller"),
];

/// This list.
const OWN: &str = "tests/docs/words.rs";

/// Pages, manifests and scripts: files, or directories of them.
const PAGES: [&str; 22] = [
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
    ".github/release.sh",
    "tests/golden/README.md",
    "tests/run",
    "tests/soak/run",
    "tests/cost/run",
    "tests/lease/run",
    "fuzz/run",
    "fuzz/Cargo.toml",
    ".ci",
    "build.rs",
    "rust-toolchain.toml",
];

#[test]
fn docs_and_code_use_the_words_of_the_field() {
    let mut found = BTreeMap::<String, Vec<String>>::new();
    for page in PAGES {
        for path in files(page, &["md", "yaml", "yml", "toml", "json", "tpl", "txt", "svg", ""]) {
            let text = fs::read_to_string(root().join(&path)).unwrap();
            // A changelog also quotes replaced terms.
            let is_quoted = path == "CHANGELOG.md";
            let lines = text
                .lines()
                .zip(1..)
                .map(|(line, number)| (number, if is_quoted { without_code(line) } else { line.to_owned() }));
            check(&path, lines, &mut found);
        }
    }
    let code = ["src", "tests", "benches", "examples", "fuzz/src"]
        .map(|place| files(place, &["rs", "py", "sh", "lua", "js", "html", "css"]))
        .concat();
    for path in code.iter().filter(|path| *path != OWN) {
        let text = fs::read_to_string(root().join(path)).unwrap();
        // Words of names count too.
        let lines = text.lines().map(|line| line.replace('_', " "));
        check(path, (1..).zip(lines), &mut found);
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
}

/// Adds the phrases found in these lines.
fn check(
    path: &str,
    lines: impl Iterator<Item = (usize, String)>,
    found: &mut BTreeMap<String, Vec<String>>,
) {
    for (number, line) in lines {
        let line = line.to_lowercase();
        for (phrase, instead) in PHRASES {
            if contains(&line, phrase) {
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

/// The line without the text in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The file, or the files below a directory with one of these extensions; an empty one means none.
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
