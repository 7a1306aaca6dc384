//! Holds every import below `src/` against the table in `ARCHITECTURE.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

struct Layer {
    may_use: BTreeSet<String>,
    stays_free_of: Vec<String>,
}

fn table() -> BTreeMap<String, Layer> {
    let page = fs::read_to_string("ARCHITECTURE.md").unwrap();
    let rows = page.lines().skip_while(|line| !line.starts_with("| module | may use |")).skip(2);
    let words = |cell: &str| {
        cell.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect::<Vec<_>>()
    };
    rows.take_while(|line| line.starts_with('|'))
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
            let layer =
                Layer { may_use: words(cells[1]).into_iter().collect(), stays_free_of: words(cells[2]) };
            (cells[0].trim().to_owned(), layer)
        })
        .collect()
}

fn sources(below: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What stands before the tests of a file.
fn program(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned()
}

/// Every path that begins with `crate::`, up to its second segment, also in a group of imports.
fn used_paths(text: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        // `pub(in crate::a)` says who may see an item, and uses nothing.
        if !text[..at].ends_with("pub(in ") {
            collect_paths("", &text[at + "crate::".len()..], &mut used);
        }
    }
    used
}

/// Adds what the import that begins here uses, below `parent`; returns what follows it.
fn collect_paths<'t>(parent: &str, text: &'t str, used: &mut BTreeSet<String>) -> &'t str {
    let mut rest = text.trim_start();
    if let Some(group) = rest.strip_prefix('{') {
        rest = group.trim_start();
        while !rest.is_empty() && !rest.starts_with('}') {
            rest = collect_paths(parent, rest, used).trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
    let (segment, after) = rest.split_at(end);
    let path = if parent.is_empty() { segment.to_owned() } else { format!("{parent}/{segment}") };
    if parent.is_empty()
        && let Some(below) = after.strip_prefix("::")
    {
        return collect_paths(&path, below, used);
    }
    if !segment.is_empty() {
        used.insert(path);
    }
    // The end of this import: what it renames or names further is below the second segment.
    let mut depth = 0_usize;
    let end = after.find(|letter: char| {
        let over = depth == 0 && matches!(letter, ',' | ';' | '}');
        depth = match letter {
            '{' => depth + 1,
            '}' => depth.saturating_sub(1),
            _ => depth,
        };
        over
    });
    &after[end.unwrap_or(after.len())..]
}

#[test]
fn modules_use_only_what_the_architecture_lets_them() {
    let table = table();
    let mut files = Vec::new();
    sources(Path::new("src"), &mut files);
    let mut broken = Vec::new();
    let mut seen = BTreeSet::new();
    for path in files {
        let within = path.strip_prefix("src").unwrap().with_extension("");
        // Part of a module may have a row of its own.
        let row = |within: &Path| {
            let named = within.ancestors().map(|part| part.to_string_lossy().into_owned());
            named.into_iter().find(|part| table.contains_key(part))
        };
        let first = within.iter().next().unwrap().to_string_lossy().into_owned();
        let module = row(&within).unwrap_or_else(|| first.clone());
        if module == "lib"
            || module == "main"
            || path.ends_with("tests.rs")
            || within.iter().any(|part| part == "tests")
        {
            continue;
        }
        let Some(layer) = table.get(&module) else {
            broken.push(format!("{}: the table has no row for {module}", path.display()));
            continue;
        };
        let text = program(&path);
        let code = |line: &&str| !line.trim_start().starts_with("//");
        let text = text.lines().filter(code).collect::<Vec<_>>().join("\n");
        let used = used_paths(&text).into_iter().map(|path| row(Path::new(&path)).unwrap_or(path));
        for used in used.collect::<BTreeSet<_>>().into_iter().filter(|used| *used != module) {
            if !layer.may_use.contains(&used) {
                broken.push(format!("{}: {module} may not use {used}", path.display()));
            }
        }
        for absent in &layer.stays_free_of {
            if text.contains(&format!("{absent}::")) {
                broken.push(format!("{}: {module} stays free of {absent}", path.display()));
            }
        }
        seen.insert(module);
    }
    let stale: Vec<_> = table.keys().filter(|module| !seen.contains(*module)).collect();
    assert!(stale.is_empty(), "the table has rows for modules that do not exist: {stale:?}");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_paths_that_pages_for_contributors_name_exist() {
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = fs::read_to_string(page).unwrap();
        let code = text.split('`').skip(1).step_by(2);
        let is_path = |code: &&str| {
            ["src/", "tests/", "docs/", "benches/", ".ci/"].iter().any(|root| code.starts_with(root))
        };
        let is_pattern = |path: &&str| path.contains('*');
        let paths =
            code.filter(is_path).filter_map(|path| path.split(' ').next()).filter(|path| !is_pattern(path));
        let missing: Vec<_> = paths.filter(|path| !Path::new(path).exists()).collect();
        assert!(missing.is_empty(), "{page} names what does not exist: {missing:?}");
    }
}

#[test]
fn imports_are_read_out_of_groups_too() {
    let text = "use crate::{a::{b::{x, y}, c as z}, d,\n e::F};\nuse crate::g; crate::h::i() + crate::j::k::l();\npub(in crate::m) fn n() {}";
    let used = used_paths(text).into_iter().collect::<Vec<_>>();
    assert_eq!(used, ["a/b", "a/c", "d", "e/F", "g", "h/i", "j/k"]);
}
