//! Reads rules files for `check` and `explain`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;

use super::serve::Environment;
use crate::{
    app,
    rules::{CompileOptions, Countable, Diagnostic, Severity, SourceFile},
    rules_source::{Reading, RulesDir},
};

#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReadingArgs {
    /// Let several files share a domain, like `MERGE_DOMAIN_CONFIG`.
    #[arg(long)]
    pub(crate) merge_domains: bool,
    /// Skip files whose name begins with a dot, like `RUNTIME_IGNOREDOTFILES`.
    #[arg(long)]
    pub(crate) ignore_dot_files: bool,
    /// Reject limits that memcached cannot count, like `BACKEND_TYPE=memcache`.
    #[arg(long)]
    pub(crate) memcached: bool,
}

impl ReadingArgs {
    /// The options of the settings with these arguments.
    fn options(self, settings: CompileOptions) -> CompileOptions {
        CompileOptions {
            merge_domains: settings.merge_domains || self.merge_domains,
            countable: if self.memcached { Countable::FixedWindows } else { settings.countable },
            ..settings
        }
    }
}

/// Reads the rules files in or below these paths, `-` being standard input; without paths, those that the service would
/// read, with its settings.
pub(super) fn read(
    paths: &[PathBuf],
    args: ReadingArgs,
    environment: &Environment,
) -> Result<(Reading, CompileOptions), String> {
    if !paths.is_empty() {
        let mut all = Reading::default();
        for path in paths {
            let directory = RulesDir { path: path.clone(), ignore_dot_files: args.ignore_dot_files };
            let read = if path.is_dir() { read_directory(&directory) } else { read_file(path) };
            all.files.extend(read.files);
            all.diagnostics.extend(read.diagnostics);
        }
        return Ok((all, args.options(CompileOptions::default())));
    }
    let settings = environment.settings()?.0;
    let options = args.options(app::compile_options(&settings));
    let rules = settings.rules;
    let ignore_dot_files = rules.ignore_dot_files || args.ignore_dot_files;
    let directory = RulesDir::new(&rules.root, &rules.subdirectory, &rules.app_directory, ignore_dot_files);
    Ok((read_directory(&directory), options))
}

/// The files of a directory. One without rules is valid, but usually it is another than was meant, or nothing is mounted
/// there.
fn read_directory(directory: &RulesDir) -> Reading {
    let mut reading = directory.read();
    if reading.files.is_empty() && !reading.has_errors() {
        let help = "is it the directory that was meant, and is it mounted?";
        reading.diagnostics.push(diagnostic(Severity::Warning, &directory.path, "no rules files here", help));
    }
    reading
}

/// A file, a pipe or standard input.
fn read_file(path: &Path) -> Reading {
    let place = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
    match fs::read(place) {
        Ok(text) => {
            let name = path.display().to_string();
            Reading { files: vec![SourceFile { name, text }], diagnostics: Vec::new() }
        }
        Err(error) => {
            let message = format!("cannot read the file: {error}");
            let help = "check the path and its permissions";
            let unread = diagnostic(Severity::Error, path, &message, help);
            Reading { files: Vec::new(), diagnostics: vec![unread] }
        }
    }
}

fn diagnostic(severity: Severity, path: &Path, message: &str, help: &str) -> Diagnostic {
    Diagnostic {
        severity,
        file: path.display().to_string(),
        place: None,
        path: String::new(),
        message: message.to_owned(),
        help: Some(help.to_owned()),
    }
}
