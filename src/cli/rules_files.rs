//! The rules files that `check` and `explain` read, and how they read them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;

use super::serve::Environment;
use crate::{
    app,
    rules::{CompileOptions, Countable, SourceFile},
    rules_source::{Reading, RulesDir},
};

/// How rules files are read.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadingArgs {
    /// Let several files share a domain, like `MERGE_DOMAIN_CONFIG`.
    #[arg(long)]
    pub merge_domains: bool,
    /// Skip files whose name begins with a dot, like `RUNTIME_IGNOREDOTFILES`.
    #[arg(long)]
    pub ignore_dot_files: bool,
    /// Refuse limits that memcached cannot count, like `BACKEND_TYPE=memcache`.
    #[arg(long)]
    pub memcached: bool,
}

impl ReadingArgs {
    /// The options of the settings, extended by these arguments.
    fn options(self, settings: CompileOptions) -> CompileOptions {
        CompileOptions {
            merge_domains: settings.merge_domains || self.merge_domains,
            countable: if self.memcached { Countable::FixedWindows } else { settings.countable },
            ..settings
        }
    }
}

/// Reads the rules files in or below these paths. Without any path, reads those that the service would
/// read, with its settings.
///
/// # Errors
/// The reasons why there is nothing to read, a line each.
pub(super) fn read(
    paths: &[PathBuf],
    args: ReadingArgs,
    environment: &Environment,
) -> Result<(Reading, CompileOptions), Vec<String>> {
    if !paths.is_empty() {
        let mut all = Reading::default();
        for path in paths {
            let directory = RulesDir { path: path.clone(), ignore_dot_files: args.ignore_dot_files };
            let read = if path.is_file() { read_file(path)? } else { directory.read() };
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
    Ok((directory.read(), options))
}

fn read_file(file: &Path) -> Result<Reading, Vec<String>> {
    let name = file.display().to_string();
    let text = fs::read(file).map_err(|error| vec![format!("{name}: {error}")])?;
    Ok(Reading { files: vec![SourceFile { name, text }], diagnostics: Vec::new() })
}
