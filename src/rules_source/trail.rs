//! The way to a path, one name at a time: which directories hold the names that lead there.
//!
//! Any of those names may be a symlink that is swapped, or be missing as yet. Whoever watches each
//! directory for its one name learns of every change of the way, and of nothing else. The way is walked
//! as the system walks it; this only tells of it, reading and errors are left to others.

use std::{
    ffi::OsString,
    fs,
    path::{Component, Path, PathBuf},
};

/// As many symlinks as Linux follows on one path before it calls them a loop.
const MAX_SYMLINKS: usize = 40;

/// The way to a path.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Trail {
    /// Each name on the way with the directory that holds it, free of symlinks. The last is the one at
    /// which the way ends, found or missing.
    pub(super) steps: Vec<Step>,
    /// What the path leads to, free of symlinks; none when it leads nowhere.
    pub(super) end: Option<PathBuf>,
}

/// One name that is looked up on the way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// The directory that holds the name.
    pub(super) directory: PathBuf,
    /// The name.
    pub(super) name: OsString,
}

/// Follows `path` as far as it leads.
pub(super) fn follow(path: &Path) -> Trail {
    let mut trail = Trail { steps: Vec::new(), end: None };
    let Ok(absolute) = std::path::absolute(path) else { return trail };
    let mut at = PathBuf::new();
    let mut ahead = Vec::new();
    push_reversed(&mut ahead, &absolute);
    let mut symlinks = 0_usize;
    while let Some(next) = ahead.pop() {
        let name = match next {
            Ahead::Start(start) => {
                at = start;
                continue;
            }
            // `at` is free of symlinks, so that its last name is its place in the directory above.
            Ahead::Up => {
                at.pop();
                continue;
            }
            Ahead::Down(name) => name,
        };
        let here = at.join(&name);
        trail.steps.push(Step { directory: at.clone(), name });
        let Ok(metadata) = fs::symlink_metadata(&here) else { return trail };
        if !metadata.is_symlink() {
            at = here;
            continue;
        }
        symlinks = symlinks.saturating_add(1);
        let Ok(target) = fs::read_link(&here) else { return trail };
        if symlinks > MAX_SYMLINKS {
            return trail;
        }
        push_reversed(&mut ahead, &target);
    }
    trail.end = Some(at);
    trail
}

/// What is still to be walked.
enum Ahead {
    Start(PathBuf),
    Up,
    Down(OsString),
}

/// Puts the names of `path` on the stack, so that the first is taken first.
fn push_reversed(ahead: &mut Vec<Ahead>, path: &Path) {
    ahead.extend(path.components().rev().filter_map(|component| match component {
        Component::Prefix(_) | Component::RootDir => Some(Ahead::Start(component.as_os_str().into())),
        Component::CurDir => None,
        Component::ParentDir => Some(Ahead::Up),
        Component::Normal(name) => Some(Ahead::Down(name.to_owned())),
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    /// The names that are looked up below `root`, each with its directory, relative to it.
    fn below(root: &Path, trail: &Trail) -> Vec<(String, String)> {
        let relative = |step: &Step| {
            let directory = step.directory.strip_prefix(root).ok()?;
            Some((directory.display().to_string(), step.name.to_string_lossy().into_owned()))
        };
        trail.steps.iter().filter_map(relative).collect()
    }

    fn pair(directory: &str, name: &str) -> (String, String) {
        (directory.to_owned(), name.to_owned())
    }

    #[test]
    fn every_symlink_on_the_way_is_a_step_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("releases/7/config")).unwrap();
        fs::create_dir(root.join("srv")).unwrap();
        symlink("../releases/./7", root.join("srv/current")).unwrap();
        symlink(root.join("srv"), root.join("data")).unwrap();

        let trail = follow(&root.join("data/current/config"));

        assert_eq!(trail.end, Some(root.join("releases/7/config")));
        let expected = [
            pair("", "data"),
            pair("", "srv"),
            pair("srv", "current"),
            pair("", "releases"),
            pair("releases", "7"),
            pair("releases/7", "config"),
        ];
        assert_eq!(below(&root, &trail), expected);
    }

    #[test]
    fn a_missing_name_ends_the_way_in_the_directory_that_lacks_it() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let trail = follow(&root.join("not/yet/there"));
        assert_eq!(trail.end, None);
        assert_eq!(below(&root, &trail), [pair("", "not")]);
    }

    #[test]
    fn a_loop_of_symlinks_leads_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        symlink("b", root.join("a")).unwrap();
        symlink("a", root.join("b")).unwrap();
        let trail = follow(&root.join("a"));
        assert_eq!(trail.end, None);
        assert!(below(&root, &trail).contains(&pair("", "b")));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn leads_where_the_system_leads(
            links in prop::collection::vec(("[abcd]", "(\\./|\\.\\./)?[abcd](/[abcd]|/\\.\\.)?"), 0..6),
            asked in "[abcd](/[abcd]|/\\.\\./[abcd]){0,3}",
        ) {
            let root = tempfile::tempdir().unwrap();
            let root = root.path().canonicalize().unwrap();
            fs::create_dir_all(root.join("a/b/c")).unwrap();
            for (at, (name, target)) in links.iter().enumerate() {
                let place = [root.clone(), root.join("a"), root.join("a/b")];
                // A name that is taken stays as it is.
                let _ = symlink(target, place[at % 3].join(name));
            }
            let path = root.join(asked);
            prop_assert_eq!(follow(&path).end, path.canonicalize().ok());
        }
    }
}
