//! Checks every import below `src/` against the table in `ARCHITECTURE.md`.

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

/// The code of a file, without its tests and comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Every path that begins with `crate::`, up to its second segment, also in a group of imports.
fn used_paths(text: &str) -> BTreeSet<String> {
    let from_crate = paths(text).into_iter().filter(|path| path[0] == "crate");
    from_crate.map(|path| path[1..].iter().take(2).cloned().collect::<Vec<_>>().join("/")).collect()
}

/// Every path that code names by `crate`, `self` or `super`, as its segments; groups of imports are written out.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = ["crate::", "self::", "super::"].iter().filter_map(|root| rest.find(root)).min() {
        let (before, path) = rest.split_at(at);
        // `pub(in crate::a)` limits visibility, and uses nothing.
        let is_path = !before
            .ends_with(|letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':')
            && !before.ends_with("pub(in ");
        rest = if is_path { collect_paths(&[], path, &mut found) } else { &path[1..] };
    }
    found
}

/// Adds the paths of the import that begins here, below `parent`; returns the text after it.
fn collect_paths<'t>(parent: &[String], text: &'t str, found: &mut Vec<Vec<String>>) -> &'t str {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let mut rest = group.trim_start();
        while !rest.is_empty() && !rest.starts_with('}') {
            rest = collect_paths(parent, rest, found);
            // The end of a name that is renamed, or of a generic argument.
            rest = rest.trim_start_matches(|letter| !matches!(letter, ',' | '}'));
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    let (segment, rest) = text.split_at(end);
    let path: Vec<String> = parent.iter().cloned().chain([segment.to_owned()]).collect();
    match rest.strip_prefix("::") {
        Some(below) if below.starts_with(|first: char| first.is_alphabetic() || "_{".contains(first)) => {
            collect_paths(&path, below, found)
        }
        _ => {
            found.push(path);
            rest
        }
    }
}

/// The module of a file, as its segments; `None` for tests and binaries.
fn module(path: &Path) -> Option<Vec<String>> {
    let within = path.strip_prefix("src").unwrap().with_extension("");
    let mut segments: Vec<String> = within.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if segments.iter().any(|part| part == "tests" || part == "main") {
        return None;
    }
    if segments.last().is_some_and(|last| last == "mod" || last == "lib") {
        segments.pop();
    }
    Some(segments)
}

/// The file of each module, without its tests and comments.
fn modules() -> BTreeMap<Vec<String>, String> {
    let mut files = Vec::new();
    sources(Path::new("src"), &mut files);
    files.iter().filter_map(|path| Some((module(path)?, code(path)))).collect()
}

/// Two files that import each other cannot be understood or changed separately. A parent and a child may: a `mod.rs`
/// names its children, and has the types that they share.
#[test]
fn no_two_files_import_each_other() {
    let modules = modules();
    let resolve = |module: &[String], path: &[String]| {
        let ups = path.iter().take_while(|segment| *segment == "super").count();
        let (base, names) = match path[0].as_str() {
            "crate" => (&[][..], &path[1..]),
            "self" => (module, &path[1..]),
            _ => (&module[..module.len() - ups], &path[ups..]),
        };
        let full = [base, names].concat();
        (0..=full.len())
            .rev()
            .map(|length| full[..length].to_vec())
            .find(|prefix| modules.contains_key(prefix))
    };
    let imports: BTreeSet<(Vec<String>, Vec<String>)> = modules
        .iter()
        .flat_map(|(module, text)| {
            let used = paths(text).into_iter().filter_map(|path| resolve(module, &path));
            used.map(|used| (module.clone(), used)).collect::<Vec<_>>()
        })
        .collect();
    assert!(imports.len() > 500, "only {} imports were found", imports.len());
    let is_family = |one: &[String], other: &[String]| one.starts_with(other) || other.starts_with(one);
    let mutual: Vec<String> = imports
        .iter()
        .filter(|(one, other)| one < other && !is_family(one, other))
        .filter(|(one, other)| imports.contains(&(other.clone(), one.clone())))
        .map(|(one, other)| format!("{} and {}", one.join("::"), other.join("::")))
        .collect();
    assert!(mutual.is_empty(), "these import each other:\n{}", mutual.join("\n"));
}

#[test]
fn modules_use_only_what_the_architecture_allows() {
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
        let text = code(&path);
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
fn imports_in_groups_are_found() {
    let text = "use crate::{a::{b::{x, y}, c as z}, d,\n e::F};\nuse crate::g; crate::h::i() + crate::j::k::l();\npub(in crate::m) fn n() {}";
    let used = used_paths(text).into_iter().collect::<Vec<_>>();
    assert_eq!(used, ["a/b", "a/c", "d", "e/F", "g", "h/i", "j/k"]);
    let text = "use super::{super::a::B, c as d};\nself::e::f::<g::H>(&super::super::I)";
    let used: Vec<String> = paths(text).iter().map(|path| path.join("::")).collect();
    assert_eq!(used, ["super::super::a::B", "super::c", "self::e::f", "super::super::I"]);
}
