//! A stand-in that knows a file's domain and nothing else; the compiler takes its place.

use super::{
    diagnostic::{Diagnostic, Severity},
    model::{Domain, Level, RuleSet},
};

/// A rules file as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFile {
    /// What diagnostics call it.
    pub name: String,
    /// Its content.
    pub text: Vec<u8>,
}

/// What can be set about compiling.
#[derive(Clone, Copy, Default, Debug)]
pub struct CompileOptions {
    /// Files of one domain are joined instead of refused.
    pub merge_domains: bool,
}

/// What came of compiling.
#[derive(Debug)]
pub struct Compiled {
    /// The rules, unless a file holds an error.
    pub rules: Option<RuleSet>,
    /// All that was found.
    pub diagnostics: Vec<Diagnostic>,
}

/// Makes rules from files.
#[must_use]
pub fn compile(files: &[SourceFile], options: CompileOptions) -> Compiled {
    let mut rules = RuleSet::default();
    let mut diagnostics = Vec::new();
    for file in files {
        let text = String::from_utf8_lossy(&file.text);
        let domain = text.lines().next().and_then(|line| line.strip_prefix("domain: ")).map(str::trim);
        match domain.filter(|name| options.merge_domains || rules.domain(name).is_none()) {
            Some(name) => {
                let domain = Domain { name: name.into(), root: Level::default() };
                rules.domains.insert(name.into(), domain);
            }
            None => diagnostics.push(Diagnostic {
                severity: Severity::Error,
                file: file.name.clone(),
                place: None,
                path: String::new(),
                message: "the domain is missing or stands in two files".to_owned(),
                help: None,
            }),
        }
    }
    Compiled { rules: diagnostics.is_empty().then_some(rules), diagnostics }
}
