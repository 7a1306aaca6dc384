//! Reads the rules files of a directory, with blocking I/O, for the watcher's thread and `tollgate check`.
//!
//! [`RulesDir`] is the directory, [`Reading`] its files with errors and warnings. `listing` selects the files, and the
//! compiler interprets them.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Component, Path, PathBuf},
};

use super::{
    diagnostics,
    listing::{Listing, MAX_ENTRIES, special},
};
use rules::SourceFile;
use text::diagnostics::Diagnostic;

/// The maximum number of reads while files keep changing; then the last result is used. The watcher detects the change
/// too, so that the next reload reads the final state.
const ATTEMPTS: u32 = 3;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RulesDir {
    pub path: PathBuf,
    /// Skip files whose names begin with a dot, as with `RUNTIME_IGNOREDOTFILES`.
    pub ignore_dot_files: bool,
    /// The maximum size of all files together.
    pub max_bytes: u64,
}

#[derive(PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// The files that could be read, in the order of their names.
    pub files: Vec<SourceFile>,
    /// Errors of files that could not be read, and warnings about skipped entries.
    pub diagnostics: Vec<Diagnostic>,
}

impl RulesDir {
    /// The directory in `RUNTIME_ROOT`, `RUNTIME_SUBDIRECTORY` and `RUNTIME_APPDIRECTORY`, joined as the Go service joins
    /// them: a part with a leading slash is still below the root, and `..` removes the name before it, even if that is a
    /// symlink.
    pub fn new(root: &Path, subdirectory: &str, app_directory: &str, ignore_dot_files: bool) -> Self {
        let mut parts = vec![root.as_os_str(), subdirectory.as_ref(), app_directory.as_ref()];
        parts.retain(|part| !part.is_empty());
        let mut path = PathBuf::new();
        for component in Path::new(&parts.join(OsStr::new("/"))).components() {
            match component {
                Component::CurDir => {}
                Component::ParentDir if path.file_name().is_some() => {
                    path.pop();
                }
                Component::ParentDir if path.has_root() => {}
                component => path.push(component),
            }
        }
        if path.as_os_str().is_empty() {
            path.push(".");
        }
        Self { path, ignore_dot_files, max_bytes: u64::MAX }
    }

    /// The same directory with a maximum size of all files together; `new` sets none.
    pub fn at_most(self, max_bytes: u64) -> Self {
        Self { max_bytes, ..self }
    }

    pub fn read(&self) -> Reading {
        read_consistently(|| self.list(), |listing| read_files(listing, self.max_bytes))
    }

    pub(super) fn list(&self) -> Listing {
        Listing::of(&self.path, self.ignore_dot_files, MAX_ENTRIES)
    }
}

/// Reads until nothing changed during the read, so that no set mixes old and new files when all are replaced at once, as
/// in a Kubernetes volume.
pub(super) fn read_consistently(
    list: impl Fn() -> Listing,
    mut read: impl FnMut(&Listing) -> Reading,
) -> Reading {
    let mut listing = list();
    for _ in 1..ATTEMPTS {
        let reading = read(&listing);
        let after = list();
        if after == listing {
            return reading;
        }
        listing = after;
    }
    read(&listing)
}

pub(super) fn read_files(listing: &Listing, max_bytes: u64) -> Reading {
    let mut reading = Reading { files: Vec::new(), diagnostics: listing.diagnostics.clone() };
    let mut room = max_bytes;
    let mut is_full = false;
    for file in &listing.files {
        match read_file(&file.path, room) {
            Ok(FileContent::Text(text)) => {
                room = room.saturating_sub(text.len() as u64);
                reading.files.push(SourceFile { name: file.path.display().to_string(), text });
            }
            Ok(FileContent::Special(seen)) => {
                reading.diagnostics.push(diagnostics::not_a_file(&file.path, seen));
            }
            // One report is enough: most files after it have no room either.
            Ok(FileContent::TooLarge) if is_full => {}
            Ok(FileContent::TooLarge) => {
                is_full = true;
                reading.diagnostics.push(diagnostics::too_large_together(&file.path, max_bytes));
            }
            // It was removed after the listing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => reading.diagnostics.push(diagnostics::unreadable_file(&file.path, &error)),
        }
    }
    reading
}

enum FileContent {
    Text(Vec<u8>),
    /// Neither a file nor a directory: what it is.
    Special(&'static str),
    TooLarge,
}

/// Reads a file of at most `room` bytes.
fn read_file(path: &Path, room: u64) -> io::Result<FileContent> {
    // Without O_NONBLOCK, opening a named pipe in place of the file would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if let Some(seen) = special(metadata.file_type()) {
        return Ok(FileContent::Special(seen));
    }
    read_text(file, metadata.len(), room)
}

/// Reads a text of probably `size` bytes, and at most `room`.
fn read_text(file: File, size: u64, room: u64) -> io::Result<FileContent> {
    if size > room {
        return Ok(FileContent::TooLarge);
    }
    // One byte above the limit shows that there are more. The buffer is allocated once: growing would copy.
    let mut text = Vec::with_capacity(usize::try_from(size).unwrap_or_default().saturating_add(1));
    file.take(room.saturating_add(1)).read_to_end(&mut text)?;
    Ok(if text.len() as u64 > room { FileContent::TooLarge } else { FileContent::Text(text) })
}

impl Reading {
    /// Reads one file, pipe or device of at most `max_bytes`; `-` is standard input. `help` says what to do about a larger one.
    pub fn of_file(path: &Path, max_bytes: u64, help: &str) -> Self {
        let place = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
        let mut reading = Self::default();
        match File::open(place).and_then(|file| read_text(file, 0, max_bytes)) {
            Ok(FileContent::Text(text)) => {
                reading.files.push(SourceFile { name: path.display().to_string(), text });
            }
            Ok(FileContent::Special(seen)) => reading.diagnostics.push(diagnostics::not_a_file(path, seen)),
            Ok(FileContent::TooLarge) => {
                reading.diagnostics.push(diagnostics::too_large(path, max_bytes, help));
            }
            Err(error) => reading.diagnostics.push(diagnostics::unreadable_argument(path, &error)),
        }
        reading
    }

    /// Warns about a directory without rules files, which is usually another than was meant, or not mounted.
    pub fn expecting_files(mut self, directory: &Path) -> Self {
        if self.files.is_empty() && !self.has_errors() {
            self.diagnostics.push(diagnostics::no_files(directory));
        }
        self
    }

    /// True if rules may be missing.
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(Diagnostic::is_error)
    }

    pub(super) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.files.iter().for_each(|file| (&file.name, &file.text).hash(&mut hasher));
        hasher.finish()
    }
}
