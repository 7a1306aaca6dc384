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

/// The first segment of every path that begins with `crate::`, also in a group of imports.
fn used_modules(text: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 1;
            let mut item = String::new();
            for letter in group.chars() {
                match letter {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 1 => {
                        used.insert(first_segment(&item));
                        item.clear();
                        continue;
                    }
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
                item.push(letter);
            }
            used.insert(first_segment(&item));
        } else {
            used.insert(first_segment(rest));
        }
    }
    used.remove("");
    used
}

fn first_segment(path: &str) -> String {
    path.trim_start().chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
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
        let room = within.iter().next().unwrap().to_string_lossy().into_owned();
        // A room within a room may have a row of its own.
        let rooms = within.ancestors().map(|within| within.to_string_lossy().into_owned());
        let module = rooms.into_iter().find(|row| table.contains_key(row)).unwrap_or_else(|| room.clone());
        if module == "lib" || module == "main" || path.ends_with("tests.rs") {
            continue;
        }
        let Some(layer) = table.get(&module) else {
            broken.push(format!("{}: the table has no row for {module}", path.display()));
            continue;
        };
        let text = program(&path);
        let code = |line: &&str| !line.trim_start().starts_with("//");
        let text = text.lines().filter(code).collect::<Vec<_>>().join(
            "
",
        );
        for used in used_modules(&text).into_iter().filter(|used| *used != room) {
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
fn imports_are_read_out_of_groups_too() {
    let text = "use crate::{a::{b, c}, d,\n e::F};\nuse crate::g; crate::h::i()";
    assert_eq!(used_modules(text).into_iter().collect::<Vec<_>>(), ["a", "d", "e", "g", "h"]);
}
