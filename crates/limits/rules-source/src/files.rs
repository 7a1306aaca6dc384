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

/// The limit of a file: about 400,000 rules.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The default limit of all files together.
pub const MAX_BYTES: u64 = 256 << 20;

/// The maximum number of reads while files keep changing; then the last result is used. The watcher detects the change
/// too, so that the next reload reads the final state.
const ATTEMPTS: u32 = 3;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RulesDir {
    pub path: PathBuf,
    /// Skip files whose names begin with a dot, as with `RUNTIME_IGNOREDOTFILES`.
    pub ignore_dot_files: bool,
    /// The limit of all files together.
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
        Self { path, ignore_dot_files, max_bytes: MAX_BYTES }
    }

    /// The same with a limit of all files together.
    pub fn at_most(self, max_bytes: u64) -> Self {
        Self { max_bytes, ..self }
    }

    pub fn read(&self) -> Reading {
        read_consistently(|| self.list(), |listing| read_files(&self.path, listing, self.max_bytes))
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

pub(super) fn read_files(directory: &Path, listing: &Listing, max_bytes: u64) -> Reading {
    let mut reading = Reading { files: Vec::new(), diagnostics: listing.diagnostics.clone() };
    let mut room = max_bytes;
    for file in &listing.files {
        match read_file(&file.path) {
            Ok(Ok(text)) => {
                let size = text.len() as u64;
                if size > room {
                    reading.diagnostics.push(diagnostics::too_large_together(directory, max_bytes));
                    break;
                }
                room -= size;
                reading.files.push(SourceFile { name: file.path.display().to_string(), text });
            }
            Ok(Err(diagnostic)) => reading.diagnostics.push(diagnostic),
            // It was removed after the listing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => reading.diagnostics.push(diagnostics::unreadable_file(&file.path, &error)),
        }
    }
    reading
}

fn read_file(path: &Path) -> io::Result<Result<Vec<u8>, Diagnostic>> {
    // Without O_NONBLOCK, opening a named pipe in place of the file would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if let Some(seen) = special(metadata.file_type()) {
        return Ok(Err(diagnostics::not_a_file(path, seen)));
    }
    read_text(path, file, metadata.len())
}

/// Reads a text of probably `size` bytes.
fn read_text(path: &Path, file: File, size: u64) -> io::Result<Result<Vec<u8>, Diagnostic>> {
    // One byte above the limit shows that there are more. The buffer is allocated once: growing would copy.
    let size = usize::try_from(size.min(MAX_FILE_BYTES)).unwrap_or_default();
    let mut text = Vec::with_capacity(size + 1);
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)?;
    let is_too_large = text.len() as u64 > MAX_FILE_BYTES;
    Ok(if is_too_large { Err(diagnostics::too_large(path, MAX_FILE_BYTES)) } else { Ok(text) })
}

impl Reading {
    /// Reads one file, pipe or device; `-` is standard input.
    pub fn of_file(path: &Path) -> Self {
        let place = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
        let mut reading = Self::default();
        match File::open(place).and_then(|file| read_text(path, file, 0)) {
            Ok(Ok(text)) => reading.files.push(SourceFile { name: path.display().to_string(), text }),
            Ok(Err(diagnostic)) => reading.diagnostics.push(diagnostic),
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
