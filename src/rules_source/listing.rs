//! Which files of a directory are rules files, without reading them.
//!
//! A [`Listing`] is taken before a read, to know what to read; after it, to know that nothing changed
//! meanwhile; and twice a second, to notice changes. It has the metadata of each file, so that equal listings
//! mean equal content.
//!
//! Entries that a volume adds for itself are skipped. A Kubernetes volume keeps its content in a directory
//! `..2026_01_02…`, to which the symlink `..data` leads, and puts a symlink into `..data` for each name
//! of its top level: `a.yaml`, but also `team`, when the volume holds `team/a.yaml`.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirEntry, FileType, Metadata},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use super::diagnostics;
use crate::rules::Diagnostic;

/// The limit of files and directories. A directory with more is hardly one of rules: this keeps a variable set
/// to `/` from reading the machine.
const MAX_ENTRIES: usize = 65_536;

/// The rules files below a directory.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct Listing {
    /// The rules files, in the order in which they are read.
    pub(super) files: Vec<Listed>,
    /// The directories that hold them, the outermost among them.
    pub(super) directories: Vec<PathBuf>,
    /// What could not be listed, and what is not a rules file.
    pub(super) diagnostics: Vec<Diagnostic>,
    /// How many more entries fit the limit.
    room: usize,
    /// There were more.
    is_full: bool,
}

/// A rules file.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Listed {
    /// Its path below the directory with a dot for each slash: the Go service's name for it, by which
    /// it has its place among the others.
    order: Vec<u8>,
    /// Where it is read.
    pub(super) path: PathBuf,
    stamp: Stamp,
}

/// The metadata of a file that changes with its content or its readability.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A directory still to be listed, with its path below the outermost one.
struct Ahead {
    path: PathBuf,
    below: PathBuf,
}

impl Listing {
    /// Lists `directory` and all below it.
    pub(super) fn of(directory: &Path, ignore_dot_files: bool) -> Self {
        Self::bounded(directory, ignore_dot_files, MAX_ENTRIES)
    }

    /// As [`of`](Self::of), with another bound than [`MAX_ENTRIES`].
    pub(super) fn bounded(directory: &Path, ignore_dot_files: bool, room: usize) -> Self {
        let mut listing = Self { room, ..Self::default() };
        if let Err(diagnostic) = diagnostics::check_directory(directory) {
            listing.diagnostics.push(diagnostic);
            return listing;
        }
        let mut ahead = vec![Ahead { path: directory.to_owned(), below: PathBuf::new() }];
        while let Some(next) = ahead.pop() {
            listing.look_into(&next, ignore_dot_files, &mut ahead);
            listing.directories.push(next.path);
        }
        if listing.is_full {
            // Which entries were seen is chance.
            listing = Self { directories: vec![directory.to_owned()], ..Self::default() };
            listing.diagnostics.push(diagnostics::too_many(directory, room));
        }
        listing.files.sort_unstable();
        listing.directories.sort_unstable();
        listing.diagnostics.sort_by(|one, other| one.file.cmp(&other.file));
        listing
    }

    fn look_into(&mut self, directory: &Ahead, ignore_dot_files: bool, ahead: &mut Vec<Ahead>) {
        let entries = match fs::read_dir(&directory.path) {
            Ok(entries) => entries,
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                return self.diagnostics.push(diagnostics::unreadable_directory(&directory.path, &error));
            }
        };
        for entry in entries {
            if self.room == 0 {
                self.is_full = true;
                return ahead.clear();
            }
            self.room = self.room.saturating_sub(1);
            match entry {
                Ok(entry) if ignore_dot_files && entry.file_name().as_bytes().starts_with(b".") => {}
                Ok(entry) => self.look_at(&entry, &directory.below, ahead),
                Err(error) => {
                    self.diagnostics.push(diagnostics::unreadable_directory(&directory.path, &error));
                }
            }
        }
    }

    fn look_at(&mut self, entry: &DirEntry, below: &Path, ahead: &mut Vec<Ahead>) {
        let (path, name) = (entry.path(), entry.file_name());
        let below = below.join(&name);
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.diagnostics.push(diagnostics::unreadable_file(&path, &error)),
        };
        if metadata.is_symlink() {
            self.look_behind(path, &name, below, ahead);
        } else if metadata.is_dir() {
            if !is_added_by_a_volume(&name) {
                ahead.push(Ahead { path, below });
            }
        } else {
            self.take_file(path, &below, &metadata);
        }
    }

    fn look_behind(&mut self, symlink: PathBuf, name: &OsStr, below: PathBuf, ahead: &mut Vec<Ahead>) {
        let added_by_a_volume = is_added_by_a_volume(name);
        match fs::metadata(&symlink) {
            Ok(metadata) if metadata.is_dir() => {
                if leads_into_a_volume(&symlink) && !added_by_a_volume {
                    ahead.push(Ahead { path: symlink, below });
                } else if !added_by_a_volume {
                    self.diagnostics.push(diagnostics::symlink_to_directory(&symlink));
                }
            }
            Ok(metadata) => self.take_file(symlink, &below, &metadata),
            Err(_) if added_by_a_volume => {}
            Err(error) => self.diagnostics.push(diagnostics::broken_symlink(&symlink, &error)),
        }
    }

    fn take_file(&mut self, path: PathBuf, below: &Path, metadata: &Metadata) {
        match special(metadata.file_type()) {
            Some(seen) => self.diagnostics.push(diagnostics::no_file(&path, seen)),
            None => self.files.push(Listed { order: order(below), path, stamp: Stamp::of(metadata) }),
        }
    }
}

/// `..data`, `..data_tmp` and `..2026_01_02…` of a Kubernetes volume, and the directory that ext4 puts on
/// each volume. The names count for directories only: a file may be called `..a.yaml`.
fn is_added_by_a_volume(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"..") || name == "lost+found"
}

/// True when a symlink leads into a `..` directory beside it, whose content has no other name.
fn leads_into_a_volume(symlink: &Path) -> bool {
    let (Some(parent), Ok(target)) = (symlink.parent(), symlink.canonicalize()) else { return false };
    let Ok(parent) = parent.canonicalize() else { return false };
    let within =
        target.strip_prefix(parent).ok().and_then(|within| within.iter().next().map(OsStr::as_bytes));
    within.is_some_and(|first| first.starts_with(b".."))
}

/// What a path is that is neither a file nor a directory.
pub(super) fn special(kind: FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_file() => None,
        kind if kind.is_fifo() => Some("a named pipe"),
        kind if kind.is_socket() => Some("a socket"),
        kind if kind.is_dir() => Some("a directory"),
        _ => Some("a device"),
    }
}

fn order(below: &Path) -> Vec<u8> {
    let mut joined = OsString::new();
    for (at, name) in below.iter().enumerate() {
        joined.push(if at == 0 { "" } else { "." });
        joined.push(name);
    }
    joined.as_bytes().to_vec()
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
