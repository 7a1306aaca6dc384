//! Which directories the watcher watches, and which events there concern the rules.
//!
//! Three kinds of directory matter. Those of the rules files, with everything in them. Those that hold a
//! name on the way to the rules directory, each for that one name: it may be a symlink that is swapped,
//! as `RUNTIME_ROOT` is at a release, or a directory that is removed and made again, or one that is not
//! there yet. And those on the way to a file that is a symlink, as all files of a Kubernetes volume are.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use notify::{
    Event, EventKind,
    event::{AccessKind, AccessMode},
};

use super::{listing::Listing, trail};

/// The directories to watch, free of symlinks, since that is how events name them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Interest {
    directories: BTreeMap<PathBuf, Names>,
}

/// What matters in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Names {
    All,
    Only(BTreeSet<OsString>),
}

impl Interest {
    /// What there is to watch for the sake of `directory`, in which `listing` was found.
    pub(super) fn of(directory: &Path, listing: &Listing) -> Self {
        let mut interest = Self::default();
        for path in listing.symlinks.iter().map(PathBuf::as_path).chain([directory]) {
            for trail::Step { directory, name } in trail::follow(path).steps {
                interest.add_name(directory, name);
            }
        }
        for directory in &listing.directories {
            // One that is gone has left a name behind that is missing on the way.
            if let Ok(directory) = directory.canonicalize() {
                interest.directories.insert(directory, Names::All);
            }
        }
        interest
    }

    fn add_name(&mut self, directory: PathBuf, name: OsString) {
        let names = self.directories.entry(directory).or_insert_with(|| Names::Only(BTreeSet::new()));
        if let Names::Only(names) = names {
            names.insert(name);
        }
    }

    /// The directories to watch.
    pub(super) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.directories.keys().map(PathBuf::as_path)
    }

    /// True when an event may mean that the rules are others now.
    pub(super) fn concerns(&self, event: &Event) -> bool {
        let is_told_by_reading = matches!(
            event.kind,
            EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write)
        );
        // An event without a path tells that others were lost.
        !is_told_by_reading && (event.paths.is_empty() || event.paths.iter().any(|path| self.includes(path)))
    }

    fn includes(&self, path: &Path) -> bool {
        let is_one_of_its_names = || {
            let names = path.parent().and_then(|parent| self.directories.get(parent));
            names.zip(path.file_name()).is_some_and(|(names, name)| names.include(name))
        };
        self.directories.contains_key(path) || is_one_of_its_names()
    }
}

impl Names {
    fn include(&self, name: &OsStr) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use notify::event::{CreateKind, Flag, MetadataKind, ModifyKind};

    use super::*;

    fn created(path: PathBuf) -> Event {
        Event::new(EventKind::Create(CreateKind::Any)).add_path(path)
    }

    #[test]
    fn only_names_on_the_way_count_outside_of_the_rules_directory() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("releases/1/config/deep")).unwrap();
        symlink("releases/1", root.join("current")).unwrap();
        fs::write(root.join("shared.yaml"), "").unwrap();
        let config = root.join("current/config");
        symlink("../../../shared.yaml", config.join("a.yaml")).unwrap();

        let interest = Interest::of(&config, &Listing::of(&config, false));

        for (path, concerns) in [
            ("current", true),
            ("releases/1/config/new.yaml", true),
            ("releases/1/config/deep/new.yaml", true),
            ("shared.yaml", true),
            ("releases/1", true),
            ("releases/2", false),
            ("releases/1/other", false),
            ("other.yaml", false),
        ] {
            assert_eq!(interest.concerns(&created(root.join(path))), concerns, "{path}: {interest:#?}");
        }
    }

    #[test]
    fn reading_does_not_concern_the_rules_and_lost_events_do() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let interest = Interest::of(&root, &Listing::of(&root, false));
        let access = |kind| Event::new(EventKind::Access(kind)).add_path(root.join("a.yaml"));
        assert!(!interest.concerns(&access(AccessKind::Open(AccessMode::Any))));
        assert!(!interest.concerns(&access(AccessKind::Close(AccessMode::Read))));
        assert!(interest.concerns(&access(AccessKind::Close(AccessMode::Write))));
        let chmod = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
        assert!(interest.concerns(&Event::new(chmod).add_path(root.join("a.yaml"))));
        assert!(interest.concerns(&Event::new(EventKind::Other).set_flag(Flag::Rescan)));
    }
}
