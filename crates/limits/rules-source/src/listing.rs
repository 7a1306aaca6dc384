//! Lists the rules files of a directory, without reading them.
//!
//! A [`Listing`] is taken before a read, to find the files; after it, to check that nothing changed meanwhile; and twice
//! a second, to detect changes. It has the metadata of each file, so that equal listings mean equal content.
//!
//! Entries that a volume adds for itself are skipped. A Kubernetes volume has its content in a directory
//! `..2026_01_02…`, a symlink `..data` to that directory, and a symlink into `..data` for each name of its top level:
//! `a.yaml`, but also `team`, if the volume has `team/a.yaml`.

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
use text::diagnostics::Diagnostic;

/// The limit of files and directories, whatever the memory: the watcher lists all of them twice a second. It also keeps a
/// variable that is set to `/` from reading the whole machine.
pub(super) const MAX_ENTRIES: usize = 65_536;

#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct Listing {
    /// The rules files, in the order in which they are read.
    pub(super) files: Vec<Listed>,
    /// Their directories, including the outermost one.
    pub(super) directories: Vec<PathBuf>,
    /// Entries that could not be listed, and those that are not rules files.
    pub(super) diagnostics: Vec<Diagnostic>,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) struct Listed {
    pub(super) path: PathBuf,
    stamp: Stamp,
}

/// The metadata that changes with the content or the permissions of a file: device, inode, size, and the times of the
/// last modification and change.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl Listing {
    /// Lists `directory` and everything below it, up to `max_entries` files and directories.
    pub(super) fn of(directory: &Path, ignore_dot_files: bool, max_entries: usize) -> Self {
        let mut listing = Self::default();
        if let Err(diagnostic) = diagnostics::check_directory(directory) {
            listing.diagnostics.push(diagnostic);
            return listing;
        }
        let mut ahead = vec![directory.to_owned()];
        let mut room = 0..max_entries;
        while let Some(next) = ahead.pop() {
            let unreadable = |error: &io::Error| diagnostics::unreadable_directory(&next, error);
            let entries = fs::read_dir(&next).map(Some).or_else(|error| match error.kind() {
                // It was removed meanwhile.
                io::ErrorKind::NotFound => Ok(None),
                _ => Err(error),
            });
            listing.diagnostics.extend(entries.as_ref().err().map(unreadable));
            for entry in entries.ok().flatten().into_iter().flatten() {
                if room.next().is_none() {
                    // The directory order decides which entries were seen, so none is used.
                    let diagnostics = vec![diagnostics::too_many(directory, max_entries)];
                    return Self { files: Vec::new(), directories: vec![directory.to_owned()], diagnostics };
                }
                match entry {
                    Ok(entry) if ignore_dot_files && entry.file_name().as_bytes().starts_with(b".") => {}
                    Ok(entry) => listing.add(&entry, &mut ahead),
                    Err(error) => listing.diagnostics.push(unreadable(&error)),
                }
            }
            listing.directories.push(next);
        }
        listing.files.sort_by_cached_key(|file| {
            (go_name(file.path.strip_prefix(directory).unwrap_or(&file.path)), file.path.clone())
        });
        listing.directories.sort_unstable();
        listing.diagnostics.sort_by(|one, other| one.file.cmp(&other.file));
        listing
    }

    fn add(&mut self, entry: &DirEntry, ahead: &mut Vec<PathBuf>) {
        let path = entry.path();
        let is_internal = is_internal_to_a_volume(&entry.file_name());
        let own = match entry.metadata() {
            Ok(own) => own,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.diagnostics.push(diagnostics::unreadable_file(&path, &error)),
        };
        let is_symlink = own.is_symlink();
        let metadata = match if is_symlink { fs::metadata(&path) } else { Ok(own) } {
            Ok(metadata) => metadata,
            Err(_) if is_internal => return,
            Err(error) => return self.diagnostics.push(diagnostics::broken_symlink(&path, &error)),
        };
        if metadata.is_dir() {
            if is_symlink && !is_internal && !leads_into_a_volume(&path) {
                self.diagnostics.push(diagnostics::symlink_to_directory(&path));
            } else if !is_internal {
                ahead.push(path);
            }
        } else if let Some(seen) = special(metadata.file_type()) {
            self.diagnostics.push(diagnostics::not_a_file(&path, seen));
        } else {
            self.files.push(Listed { path, stamp: stamp(&metadata) });
        }
    }
}

/// `..data`, `..data_tmp` and `..2026_01_02…` of a Kubernetes volume, and `lost+found` of ext4. Only directories with
/// such a name are internal: a file may be named `..a.yaml`.
fn is_internal_to_a_volume(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"..") || name == "lost+found"
}

/// True if a symlink leads into a `..` directory beside it, whose content has no other name.
fn leads_into_a_volume(symlink: &Path) -> bool {
    let (Some(parent), Ok(target)) = (symlink.parent(), symlink.canonicalize()) else { return false };
    let Ok(parent) = parent.canonicalize() else { return false };
    let within =
        target.strip_prefix(parent).ok().and_then(|within| within.iter().next().map(OsStr::as_bytes));
    within.is_some_and(|first| first.starts_with(b".."))
}

/// The kind of an entry; `None` for a regular file.
pub(super) fn special(kind: FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_file() => None,
        kind if kind.is_fifo() => Some("a named pipe"),
        kind if kind.is_socket() => Some("a socket"),
        kind if kind.is_dir() => Some("a directory"),
        _ => Some("a device"),
    }
}

/// The Go service's name for a file, by which it sorts: the path below the directory with a dot for each slash.
fn go_name(below: &Path) -> OsString {
    below.iter().collect::<Vec<_>>().join(OsStr::new("."))
}

fn stamp(metadata: &Metadata) -> Stamp {
    let modified = (metadata.mtime(), metadata.mtime_nsec());
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    (metadata.dev(), metadata.ino(), metadata.size(), modified, changed)
}
