//! Reads rules files for `check` and `explain`.

use std::path::PathBuf;

use clap::Args;

use super::serve::Environment;
use limit::Countable;
use rules::CompileOptions;
use rules_source::{Reading, RulesDir};

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
/// read. Either way as the service does with the settings of the environment.
pub(super) fn read(
    paths: &[PathBuf],
    args: ReadingArgs,
    environment: &Environment,
) -> Result<(Reading, CompileOptions), String> {
    let settings = environment.settings()?.0;
    let options = args.options(settings::compile_options(&settings));
    let mut directory = settings::rules_directory(&settings);
    directory.ignore_dot_files |= args.ignore_dot_files;
    if paths.is_empty() {
        return Ok((directory.read().expecting_files(&directory.path), options));
    }
    let mut all = Reading::default();
    for path in paths {
        let read = if path.is_dir() {
            RulesDir { path: path.clone(), ..directory }.read().expecting_files(path)
        } else {
            let help = "split it, or raise MEMORY_LIMIT or RULES_MAX_VALUES, of which each has 32 bytes";
            Reading::of_file(path, directory.max_bytes, help)
        };
        all.files.extend(read.files);
        all.diagnostics.extend(read.diagnostics);
    }
    Ok((all, options))
}
