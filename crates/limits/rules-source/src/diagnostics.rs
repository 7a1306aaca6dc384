//! Errors and warnings about a directory of rules files.
//!
//! An error means that rules could not be read, so that the set is rejected. A warning means that something without
//! rules is skipped, as the Go service does too.

use std::{fmt, fs, io, path::Path};

use text::diagnostics::{Diagnostic, Severity};

/// The help for a directory that cannot be used.
const USE_ANOTHER: &str = "create it, or set another: the service reads \
     RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY";

const ONLY_RULES: &str = "keep only rules files in the directory";

pub(super) fn check_directory(directory: &Path) -> Result<(), Diagnostic> {
    match fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(error(directory, "not a directory".to_owned(), USE_ANOTHER)),
        Err(seen) if matches!(seen.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(error(
                directory,
                format!("the directory does not exist{}", first_missing(directory).unwrap_or_default()),
                USE_ANOTHER,
            ))
        }
        Err(seen) => Err(unreadable_directory(directory, &seen)),
    }
}

/// The first name on the path to a directory that does not exist or is a file: usually it is misspelt.
fn first_missing(directory: &Path) -> Option<String> {
    let directory = std::path::absolute(directory).ok()?;
    let missing = directory.ancestors().find(|path| path.parent().is_some_and(Path::is_dir))?;
    if let Ok(target) = fs::read_link(missing) {
        return Some(format!(": the symlink `{}` to `{}` is broken", missing.display(), target.display()));
    }
    if missing.exists() {
        return Some(format!(": `{}` is not a directory", missing.display()));
    }
    Some(format!(": `{}` has no `{}`", missing.parent()?.display(), missing.file_name()?.display()))
}

pub(super) fn unreadable_directory(directory: &Path, seen: &io::Error) -> Diagnostic {
    let message = format!("cannot list the directory: {seen}");
    error(directory, message, "grant the service's user access (`chmod a+rx`), or move it elsewhere")
}

pub(super) fn unreadable_file(file: &Path, seen: &io::Error) -> Diagnostic {
    let message = format!("cannot read the file: {seen}");
    error(file, message, "grant the service's user access (`chmod a+r`), or move it elsewhere")
}

/// A file that was named on the command line.
pub(super) fn unreadable_argument(file: &Path, seen: &io::Error) -> Diagnostic {
    error(file, format!("cannot read the file: {seen}"), "check the path and its permissions")
}

pub(super) fn no_files(directory: &Path) -> Diagnostic {
    let help = "is it the directory that was meant, and is it mounted?";
    warning(directory, "no rules files here".to_owned(), help)
}

pub(super) fn too_large_together(file: &Path, limit: u64) -> Diagnostic {
    let message = format!("the files up to this one exceed the limit of {limit} bytes");
    let help =
        "keep only rules files here, or raise MEMORY_LIMIT or RULES_MAX_VALUES, of which each has 32 bytes";
    error(file, message, help)
}

pub(super) fn too_large(file: &Path, limit: u64, help: &str) -> Diagnostic {
    error(file, format!("the file exceeds the limit of {limit} bytes"), help)
}

pub(super) fn too_many(directory: &Path, limit: usize) -> Diagnostic {
    let message = format!("the directory has more than {limit} files and directories, at all depths");
    error(directory, message, ONLY_RULES)
}

/// A panic of the compiler, or of the code that prepares the rules for service.
pub(super) fn panicked(origin: &dyn fmt::Display) -> Diagnostic {
    let message = "internal error: compiling the rules panicked".to_owned();
    let help = "please report it with the rules; the log has a backtrace";
    diagnostic(Severity::Error, origin.to_string(), message, help)
}

/// A symlink to a missing or inaccessible file.
pub(super) fn broken_symlink(symlink: &Path, seen: &io::Error) -> Diagnostic {
    let target =
        fs::read_link(symlink).map_or_else(|_| String::new(), |to| format!(" to `{}`", to.display()));
    if seen.kind() == io::ErrorKind::PermissionDenied {
        let message = format!("cannot follow the symlink{target}: {seen}");
        return error(symlink, message, "grant the service's user access to the directories on the path");
    }
    let message = format!("the symlink{target} is broken: {seen}; skipped");
    warning(symlink, message, "remove the symlink, or create the file")
}

pub(super) fn symlink_to_directory(symlink: &Path) -> Diagnostic {
    let message = "symlink to a directory: skipped; only symlinks to files are followed";
    warning(symlink, message.to_owned(), "put the directory itself here, or symlinks to its files")
}

pub(super) fn not_a_file(path: &Path, seen: &str) -> Diagnostic {
    warning(path, format!("{seen}, not a file: skipped"), ONLY_RULES)
}

fn error(path: &Path, message: String, help: &str) -> Diagnostic {
    diagnostic(Severity::Error, path.display().to_string(), message, help)
}

fn warning(path: &Path, message: String, help: &str) -> Diagnostic {
    diagnostic(Severity::Warning, path.display().to_string(), message, help)
}

/// A diagnostic about a whole file or resource.
pub(super) fn diagnostic(
    severity: Severity,
    file: String,
    message: String,
    help: impl Into<String>,
) -> Diagnostic {
    Diagnostic { help: Some(help.into()), ..Diagnostic::of_file(severity, file, message) }
}
