//! `tollgate check`: tells what is wrong or suspicious in rules files, as a compiler would.
//!
//! The caller reads the directory and turns the answer into an exit code.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use crate::rules::{CompileOptions, Compiled, SourceFile, compile, render};

/// Compiles the files, writes every finding with its line of the source and a summary, and says
/// whether the files can be served.
///
/// # Errors
/// When `out` cannot be written to.
pub fn check(files: &[SourceFile], options: CompileOptions, out: &mut impl Write) -> io::Result<bool> {
    let compiled = compile(files, options);
    // A file's text is decoded once, and only where something is to be shown of it.
    let mut texts: HashMap<&str, String> = HashMap::new();
    for diagnostic in &compiled.diagnostics {
        let file = diagnostic.place.and_then(|_| files.iter().find(|file| file.name == diagnostic.file));
        let text = file.map(|file| &**texts.entry(&file.name).or_insert_with(|| file.readable()));
        writeln!(out, "{}", render(diagnostic, text))?;
    }
    writeln!(out, "{}", summary(files.len(), &compiled))?;
    Ok(compiled.rules.is_some())
}

fn summary(files: usize, compiled: &Compiled) -> String {
    let errors = compiled.diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
    let warnings = compiled.diagnostics.len() - errors;
    let files = count(files, "file");
    let Some(rules) = &compiled.rules else {
        let warnings = if warnings > 0 { format!(", {}", count(warnings, "warning")) } else { String::new() };
        return format!("{}{warnings} in {files}", count(errors, "error"));
    };
    let domains = count(rules.domains().count(), "domain");
    let verdict = if warnings > 0 { count(warnings, "warning") } else { "good".to_owned() };
    format!("{files}, {domains}, {}: {verdict}", count(rules.rule_count() as usize, "rule"))
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(files: &[(&str, &str)]) -> (bool, String) {
        let files: Vec<SourceFile> = files
            .iter()
            .map(|(name, text)| SourceFile { name: (*name).to_owned(), text: text.as_bytes().to_vec() })
            .collect();
        let mut out = Vec::new();
        let good = check(&files, CompileOptions::default(), &mut out).unwrap();
        (good, String::from_utf8(out).unwrap())
    }

    const GOOD: &str = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 1}\n";

    #[test]
    fn good_files_are_summed_up() {
        assert_eq!(checked(&[("a.yaml", GOOD)]), (true, "1 file, 1 domain, 1 rule: good\n".to_owned()));
        assert_eq!(checked(&[]), (true, "0 files, 0 domains, 0 rules: good\n".to_owned()));
    }

    #[test]
    fn a_warning_is_shown_and_the_files_can_be_served() {
        let (good, told) = checked(&[("a.yaml", GOOD), ("b.yaml", "domain: e\n")]);
        assert!(good);
        assert!(told.starts_with("warning: the domain `e` has no descriptors"), "{told}");
        assert!(told.ends_with("\n2 files, 2 domains, 1 rule: 1 warning\n"), "{told}");
    }

    #[test]
    fn an_error_is_shown_with_its_line() {
        let (good, told) =
            checked(&[("a.yaml", GOOD), ("b.yaml", "domain: e\nrules: []\n"), ("c.yaml", "- x")]);
        assert!(!good);
        let shown = "error: unknown key `rules`\n   --> b.yaml:2:1\n   |\n 2 | rules: []\n   | ^\n";
        assert!(told.starts_with(shown), "{told}");
        assert!(told.ends_with("\n2 errors in 3 files\n"), "{told}");
    }
}
