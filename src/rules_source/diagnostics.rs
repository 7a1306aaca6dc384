//! Errors and warnings about a directory of rules files.
//!
//! An error means that rules could not be read, so that the set is rejected. A warning means that something
//! without rules is skipped, as the Go service does too.

use std::{fmt, fs, io, path::Path};

use crate::rules::{Diagnostic, Severity};

/// The help for a directory that cannot be used.
const NAME_ANOTHER: &str = "create it, or set another: the service reads \
     RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY";

/// Checks that a path is a directory.
///
/// # Errors
/// When it is not, or cannot be looked at.
pub(super) fn check_directory(directory: &Path) -> Result<(), Diagnostic> {
    match fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(error(directory, "not a directory".to_owned(), NAME_ANOTHER)),
        Err(seen) if seen.kind() == io::ErrorKind::NotFound => Err(error(
            directory,
            format!("the directory does not exist{}", first_missing(directory).unwrap_or_default()),
            NAME_ANOTHER,
        )),
        Err(seen) => Err(unreadable_directory(directory, &seen)),
    }
}

/// The first name on the path to a directory that does not exist: most often it is misspelt.
fn first_missing(directory: &Path) -> Option<String> {
    let directory = std::path::absolute(directory).ok()?;
    let missing = directory.ancestors().find(|path| path.parent().is_some_and(Path::is_dir))?;
    if let Ok(target) = fs::read_link(missing) {
        return Some(format!(": the symlink `{}` to `{}` is broken", missing.display(), target.display()));
    }
    Some(format!(": `{}` has no `{}`", missing.parent()?.display(), missing.file_name()?.display()))
}

/// A directory that cannot be listed.
pub(super) fn unreadable_directory(directory: &Path, seen: &io::Error) -> Diagnostic {
    let message = format!("the directory cannot be listed: {seen}");
    error(directory, message, "grant the service's user access (`chmod a+rx`), or move it elsewhere")
}

/// A file that cannot be read.
pub(super) fn unreadable_file(file: &Path, seen: &io::Error) -> Diagnostic {
    let message = format!("the file cannot be read: {seen}");
    error(file, message, "grant the service's user access (`chmod a+r`), or move it elsewhere")
}

/// A file too large to be rules.
pub(super) fn too_large(file: &Path, limit: u64) -> Diagnostic {
    let message = format!("the file is larger than the limit of {limit} bytes");
    error(file, message, "split it by domain, or move it elsewhere if it holds no rules")
}

/// Files that are too large together.
pub(super) fn too_large_together(directory: &Path, limit: u64) -> Diagnostic {
    let message = format!("the files together are larger than the limit of {limit} bytes");
    error(directory, message, "keep nothing but rules files in the directory")
}

/// More files than a directory of rules holds.
pub(super) fn too_many(directory: &Path, limit: usize) -> Diagnostic {
    let message = format!("the directory has more than {limit} files and directories, at all depths");
    error(directory, message, "keep nothing but rules files in the directory, or name another")
}

/// A set of rules that made the compiler panic, or the code that prepares it for service.
pub(super) fn panicked(origin: &dyn fmt::Display) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        file: origin.to_string(),
        place: None,
        path: String::new(),
        message: "internal error: compiling the rules panicked".to_owned(),
        help: Some("please report it with the rules; the log has a backtrace".to_owned()),
    }
}

/// A symlink that leads to no file.
pub(super) fn broken_symlink(symlink: &Path, seen: &io::Error) -> Diagnostic {
    let target =
        fs::read_link(symlink).map_or_else(|_| String::new(), |to| format!(" to `{}`", to.display()));
    let message = format!("the symlink{target} is broken: {seen}; skipped");
    if seen.kind() == io::ErrorKind::PermissionDenied {
        let message = format!("the symlink{target} cannot be followed: {seen}");
        return error(symlink, message, "grant the service's user access to the directories on the path");
    }
    warning(symlink, message, "remove the symlink, or put the file where it leads")
}

/// A symlink that leads to a directory.
pub(super) fn symlink_to_directory(symlink: &Path) -> Diagnostic {
    let message = "symlink to a directory: skipped; only symlinks to files are followed";
    warning(symlink, message.to_owned(), "put the directory itself here, or symlinks to its files")
}

/// Something that is not a file.
pub(super) fn no_file(path: &Path, seen: &str) -> Diagnostic {
    let message = format!("{seen}, not a file: skipped");
    warning(path, message, "keep nothing but rules files in the directory")
}

fn error(path: &Path, message: String, help: &str) -> Diagnostic {
    diagnostic(Severity::Error, path, message, help)
}

fn warning(path: &Path, message: String, help: &str) -> Diagnostic {
    diagnostic(Severity::Warning, path, message, help)
}

fn diagnostic(severity: Severity, file: &Path, message: String, help: &str) -> Diagnostic {
    Diagnostic {
        severity,
        file: file.display().to_string(),
        place: None,
        path: String::new(),
        message,
        help: Some(help.to_owned()),
    }
}
