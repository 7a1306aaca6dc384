//! The rules files that a command is told to look at, or those that the server would read, and how to read
//! them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;

use super::serve::Environment;
use crate::{
    app,
    rules::{CompileOptions, Countable, SourceFile},
    rules_source::{Reading, RulesDir, read_dir},
};

/// How rules files are to be read.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadingArgs {
    /// Let several files share a domain, as `MERGE_DOMAIN_CONFIG` does.
    #[arg(long)]
    pub merge_domains: bool,
    /// Leave out files whose name begins with a dot, as `RUNTIME_IGNOREDOTFILES` does.
    #[arg(long)]
    pub ignore_dot_files: bool,
    /// Refuse limits that memcached cannot count, as `BACKEND_TYPE=memcache` does.
    #[arg(long)]
    pub memcached: bool,
}

impl ReadingArgs {
    /// What the files are to be read by: what the settings have, if they count, and what is asked for.
    fn options(self, set: CompileOptions) -> CompileOptions {
        CompileOptions {
            merge_domains: set.merge_domains || self.merge_domains,
            countable: if self.memcached { Countable::FixedWindows } else { set.countable },
            ..set
        }
    }
}

/// The rules files below these paths, and what they are to be read by. Without any path they are where the
/// server would look, and its settings count.
///
/// # Errors
/// What keeps them from being found, a line each.
pub(super) fn read(
    paths: &[PathBuf],
    args: ReadingArgs,
    environment: &Environment,
) -> Result<(Reading, CompileOptions), Vec<String>> {
    if !paths.is_empty() {
        let mut all = Reading::default();
        for path in paths {
            let read = if path.is_file() { read_file(path)? } else { read_dir(path, args.ignore_dot_files) };
            all.files.extend(read.files);
            all.findings.extend(read.findings);
        }
        return Ok((all, args.options(CompileOptions::default())));
    }
    let settings = environment.settings()?.0;
    let options = args.options(app::compile_options(&settings));
    let rules = settings.rules;
    let directory = RulesDir {
        root: rules.root,
        subdirectory: rules.subdirectory,
        app_directory: rules.app_directory,
        ignore_dot_files: rules.ignore_dot_files || args.ignore_dot_files,
    };
    Ok((directory.read(), options))
}

fn read_file(file: &Path) -> Result<Reading, Vec<String>> {
    let name = file.display().to_string();
    let text = fs::read(file).map_err(|error| vec![format!("{name}: the file cannot be read: {error}")])?;
    Ok(Reading { files: vec![SourceFile { name, text }], findings: Vec::new() })
}
