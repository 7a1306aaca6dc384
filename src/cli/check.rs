//! `tollgate check`: tells what is wrong or suspicious in rules files, as a compiler would.
//!
//! [`run`] has the files found; [`check`] compiles them and writes what is to be said.

use std::{
    collections::HashMap,
    io::{self, Write},
    process::ExitCode,
};

use super::{CheckArgs, rules_files, serve::Environment};
use crate::{
    rules::{CompileOptions, Compiled, compile, render},
    rules_source::Reading,
};

/// Checks the rules of the directory that is named, or else of the one that the server would read.
/// Exits with 0 when they can be served.
#[must_use]
pub fn run(args: &CheckArgs, environment: &Environment) -> ExitCode {
    let (reading, options) = match read(args, environment) {
        Ok(read) => read,
        Err(problems) => {
            let _ = writeln!(
                io::stderr().lock(),
                "error: nothing could be checked:\n  {}",
                problems.join("\n  ")
            );
            return ExitCode::from(2);
        }
    };
    match check(&reading, options, &mut io::stdout().lock()) {
        Ok(true) => ExitCode::SUCCESS,
        // What cannot be told in full is not said to be good.
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}

fn read(args: &CheckArgs, environment: &Environment) -> Result<(Reading, CompileOptions), Vec<String>> {
    let (reading, options) = rules_files::read(args.dir.as_slice(), args.reading, environment)?;
    Ok((reading, CompileOptions { portable: args.portable, ..options }))
}

/// Compiles what was read, writes every finding with its line of the source and a summary, and says
/// whether the files can be served.
///
/// # Errors
/// When `out` cannot be written to.
pub fn check(reading: &Reading, options: CompileOptions, out: &mut impl Write) -> io::Result<bool> {
    let files = &reading.files;
    let mut compiled = compile(files, options);
    if reading.has_errors() {
        compiled.rules = None;
    }
    compiled.diagnostics.splice(0..0, reading.findings.iter().cloned());
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
    use crate::rules::SourceFile;

    fn checked(files: &[(&str, &str)]) -> (bool, String) {
        checked_by(files, CompileOptions::default())
    }

    fn checked_by(files: &[(&str, &str)], options: CompileOptions) -> (bool, String) {
        let files: Vec<SourceFile> = files
            .iter()
            .map(|(name, text)| SourceFile { name: (*name).to_owned(), text: text.as_bytes().to_vec() })
            .collect();
        let mut out = Vec::new();
        let reading = Reading { files, ..Reading::default() };
        let good = check(&reading, options, &mut out).unwrap();
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
    fn what_the_go_service_would_refuse_is_shown_to_those_who_ask() {
        let files = [("a.yaml", "on_store_failure: deny\n".to_owned() + GOOD)];
        let files = files.each_ref().map(|(name, text)| (*name, &**text));
        assert_eq!(checked(&files), (true, "1 file, 1 domain, 1 rule: good\n".to_owned()));
        let (good, told) = checked_by(&files, CompileOptions { portable: true, ..CompileOptions::default() });
        assert!(good);
        let shown = "warning: the Go service refuses `on_store_failure`\n   --> a.yaml:1:1\n   |\n \
            1 | on_store_failure: deny\n   | ^\n";
        assert!(told.starts_with(shown), "{told}");
        assert!(told.ends_with("\n1 file, 1 domain, 1 rule: 1 warning\n"), "{told}");
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
