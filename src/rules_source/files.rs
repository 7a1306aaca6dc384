//! Reads the rules files of a directory: plain, blocking I/O, for the watcher's thread and `tollgate check`.
//!
//! [`RulesDir`] is the directory, [`Reading`] its files with errors and warnings. `listing` decides which files
//! count, and the compiler reads them.

use std::{
    fs::OpenOptions,
    hash::Hasher,
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::{Component, Path, PathBuf},
};

use siphasher::sip::SipHasher13;

use super::{
    Digest, diagnostics,
    listing::{Listing, special},
};
use crate::rules::{Diagnostic, Severity, SourceFile};

/// The limit of one file: some 400,000 rules.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The limit of all files together.
const MAX_BYTES: u64 = 256 << 20;

/// How often files that change while they are read are read again before the result is used. The watcher
/// notices the change too, so that the next reload reads the final state.
const ATTEMPTS: u32 = 3;

/// Where the rules files are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RulesDir {
    /// `RUNTIME_ROOT`.
    pub root: PathBuf,
    /// `RUNTIME_SUBDIRECTORY`.
    pub subdirectory: String,
    /// `RUNTIME_APPDIRECTORY`.
    pub app_directory: String,
    /// `RUNTIME_IGNOREDOTFILES`.
    pub ignore_dot_files: bool,
}

/// The rules files of a directory.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// The files that could be read, in the order of their names.
    pub files: Vec<SourceFile>,
    /// What could not be read, and what was skipped.
    pub diagnostics: Vec<Diagnostic>,
}

impl RulesDir {
    /// The directory of the rules files, joined as the Go service joins it: a slash at the start of a
    /// part does not lead away from the root, and `..` is taken by the letter.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let parts = [&self.root, Path::new(&self.subdirectory), Path::new(&self.app_directory)];
        let mut path = PathBuf::new();
        for component in parts.iter().enumerate().flat_map(|(at, part)| {
            part.components().filter(move |component| at == 0 || *component != Component::RootDir)
        }) {
            match component {
                Component::CurDir => {}
                Component::ParentDir if path.file_name().is_some() => {
                    path.pop();
                }
                Component::ParentDir if path.has_root() => {}
                component => path.push(component),
            }
        }
        if path.as_os_str().is_empty() { PathBuf::from(".") } else { path }
    }

    /// Reads every rules file.
    #[must_use]
    pub fn read(&self) -> Reading {
        read_dir(&self.path(), self.ignore_dot_files)
    }

    /// The listing of the directory.
    pub(super) fn list(&self) -> Listing {
        Listing::of(&self.path(), self.ignore_dot_files)
    }
}

/// Reads every rules file of `directory`.
#[must_use]
pub fn read_dir(directory: &Path, ignore_dot_files: bool) -> Reading {
    read_at_rest(|| Listing::of(directory, ignore_dot_files), |listing| read_files(directory, listing))
}

/// Reads until nothing changed meanwhile, so that no set mixes old and new files when all are replaced at once,
/// as in a Kubernetes volume.
pub(super) fn read_at_rest(list: impl Fn() -> Listing, mut read: impl FnMut(&Listing) -> Reading) -> Reading {
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

pub(super) fn read_files(directory: &Path, listing: &Listing) -> Reading {
    let mut reading = Reading { files: Vec::new(), diagnostics: listing.diagnostics.clone() };
    let mut room = MAX_BYTES;
    for file in &listing.files {
        match read_file(&file.path) {
            Ok(Content::Text(text)) => {
                let size = text.len() as u64;
                if size > room {
                    reading.diagnostics.push(diagnostics::too_large_together(directory, MAX_BYTES));
                    break;
                }
                room = room.saturating_sub(size);
                reading.files.push(SourceFile { name: file.path.display().to_string(), text });
            }
            Ok(Content::TooLarge) => {
                reading.diagnostics.push(diagnostics::too_large(&file.path, MAX_FILE_BYTES));
            }
            Ok(Content::Special(seen)) => reading.diagnostics.push(diagnostics::no_file(&file.path, seen)),
            // It was listed and is gone since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => reading.diagnostics.push(diagnostics::unreadable_file(&file.path, &error)),
        }
    }
    reading
}

enum Content {
    Text(Vec<u8>),
    TooLarge,
    Special(&'static str),
}

fn read_file(path: &Path) -> io::Result<Content> {
    // Without O_NONBLOCK, opening a named pipe in place of the file would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if let Some(seen) = special(metadata.file_type()) {
        return Ok(Content::Special(seen));
    }
    // One byte above the limit shows that there is more. The buffer is allocated once: growing would copy.
    let size = usize::try_from(metadata.len().min(MAX_FILE_BYTES)).unwrap_or_default();
    let mut text = Vec::with_capacity(size.saturating_add(1));
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)?;
    Ok(if text.len() as u64 > MAX_FILE_BYTES { Content::TooLarge } else { Content::Text(text) })
}

impl Reading {
    /// True when rules may be missing.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// The digest by which two readings of `directory` are compared.
    pub(super) fn digest(&self, directory: &RulesDir) -> Digest {
        (self.hash(&directory.path()), self.diagnostics.clone())
    }

    /// A hash of the files' names below `directory` and of their texts.
    pub(super) fn hash(&self, directory: &Path) -> u64 {
        let mut hasher = SipHasher13::new();
        for file in &self.files {
            let path = Path::new(&file.name);
            let name = path.strip_prefix(directory).unwrap_or(path).as_os_str().as_bytes();
            for part in [name, &file.text] {
                // The length first, so that no text can pass for the next file's name.
                hasher.write(&(part.len() as u64).to_le_bytes());
                hasher.write(part);
            }
        }
        hasher.finish()
    }
}
