//! What can be wrong with a directory of rules files, in words.
//!
//! An error stands for rules that could not be read: the set is not served without them. A warning
//! stands for what holds no rules, and what the Go service passes over as well.

use std::{fmt, fs, io, path::Path};

use super::trail;
use crate::rules::{Diagnostic, Severity};

/// What to do about a directory that cannot be used, whoever named it.
const NAME_ANOTHER: &str = "create it, or name another: the server reads the directory \
     RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY";

/// Says why a directory cannot hold rules files, if it cannot.
pub(super) fn check_directory(directory: &Path) -> Result<(), Diagnostic> {
    match fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => {
            Err(error(directory, "is no directory, so it holds no rules files".to_owned(), NAME_ANOTHER))
        }
        Err(seen) if seen.kind() == io::ErrorKind::NotFound => Err(error(
            directory,
            format!("the directory does not exist{}", whats_there(directory)),
            NAME_ANOTHER,
        )),
        Err(seen) => Err(unreadable_directory(directory, &seen)),
    }
}

/// How far the way to a missing directory leads: most often one name is misspelt.
fn whats_there(directory: &Path) -> String {
    match trail::follow(directory).steps.last() {
        Some(missing) => format!(": `{}` holds no `{}`", missing.directory.display(), missing.name.display()),
        None => String::new(),
    }
}

/// A directory that cannot be listed.
pub(super) fn unreadable_directory(directory: &Path, seen: &io::Error) -> Diagnostic {
    let message = format!("the directory cannot be listed: {seen}");
    error(directory, message, "let the service's user list it (`chmod a+rx`), or move it elsewhere")
}

/// A file that cannot be read.
pub(super) fn unreadable_file(file: &Path, seen: &io::Error) -> Diagnostic {
    let message = format!("the file cannot be read: {seen}");
    error(file, message, "let the service's user read it (`chmod a+r`), or move it elsewhere")
}

/// A file too large to be rules.
pub(super) fn too_large(file: &Path, limit: u64) -> Diagnostic {
    let message = format!("the file is longer than {limit} bytes, the most that is read of one");
    error(file, message, "split it by domain, or move it elsewhere if it holds no rules")
}

/// Files that are too large together.
pub(super) fn too_large_together(directory: &Path, limit: u64) -> Diagnostic {
    let message = format!("the files are too large together; up to {limit} bytes are read");
    error(directory, message, "keep nothing but rules files in the directory")
}

/// More files than a directory of rules holds.
pub(super) fn too_many(directory: &Path, limit: usize) -> Diagnostic {
    let message = format!("the directory holds more than {limit} files and directories, at all depths");
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
    let message = format!("the symlink{target} leads nowhere ({seen}), so it is passed over");
    if seen.kind() == io::ErrorKind::PermissionDenied {
        let message = format!("the symlink{target} cannot be followed: {seen}");
        return error(symlink, message, "let the service's user go through the directories on the way");
    }
    warning(symlink, message, "remove the symlink, or put the file where it leads")
}

/// A symlink that leads to a directory.
pub(super) fn symlink_to_directory(symlink: &Path) -> Diagnostic {
    let message = "the symlink leads to a directory; only those to files are followed, so it is passed over";
    warning(symlink, message.to_owned(), "put the directory itself here, or symlinks to its files")
}

/// Something that is no file.
pub(super) fn no_file(path: &Path, seen: &str) -> Diagnostic {
    let message = format!("is {seen}, not a file, so it is passed over");
    warning(path, message, "keep nothing but rules files in the directory")
}

fn error(path: &Path, message: String, help: &str) -> Diagnostic {
    finding(Severity::Error, path, message, help)
}

fn warning(path: &Path, message: String, help: &str) -> Diagnostic {
    finding(Severity::Warning, path, message, help)
}

fn finding(severity: Severity, file: &Path, message: String, help: &str) -> Diagnostic {
    Diagnostic {
        severity,
        file: file.display().to_string(),
        place: None,
        path: String::new(),
        message,
        help: Some(help.to_owned()),
    }
}
