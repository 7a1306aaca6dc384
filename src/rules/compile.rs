//! From the texts of rules files, or the messages of a control plane, to one [`RuleSet`], or to everything
//! that is wrong with them.
//!
//! Called by whoever has rules: the source that publishes them, and `tollgate check`. A file that
//! cannot be read does not keep the others from being checked, so that one run tells of every mistake;
//! a set is only made when there is none.

use std::collections::HashMap;

use super::{
    countable::Countable,
    diagnostic::{Diagnostic, is_break},
    diagnostics::{Diagnostics, Kind, Path, quoted},
    lower::{Lowering, Sibling},
    messages,
    model::{Domain, RuleSet},
    store_failure,
    yaml::{self, Fault, Most},
};
use crate::rules::{
    ast::{self, Field, RawFile},
    lint,
};
use crate::{
    panics::{self, Boundary, Panicked},
    proto::ratelimit::config::ratelimit::v3::RateLimitConfig,
};

/// A rules file as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFile {
    /// As findings call it.
    pub name: String,
    /// Its bytes.
    pub text: Vec<u8>,
}

/// What the rules are to be read by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompileOptions {
    /// Several files may share a domain, and their descriptors join (`MERGE_DOMAIN_CONFIG`).
    pub merge_domains: bool,
    /// Warn of what the Go service would refuse.
    pub portable: bool,
    /// What the limits may ask for, where they are to be counted.
    pub countable: Countable,
    /// Values in all files together, aliases written out (`RULES_MAX_VALUES`).
    pub max_values: usize,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            merge_domains: false,
            portable: false,
            countable: Countable::default(),
            max_values: DEFAULT_MAX_VALUES,
        }
    }
}

/// The default of `RULES_MAX_VALUES`. A rule has about nine values, and a value takes up to half a kilobyte
/// while rules are compiled: this is 55,000 rules, five times what a large installation has, and 250 MB.
const DEFAULT_MAX_VALUES: usize = 500_000;

/// What came of a set of files.
#[derive(Debug)]
pub struct Compiled {
    /// The rules, exactly when no diagnostic is an error.
    pub rules: Option<RuleSet>,
    /// Errors and warnings, by file in the order given, then by place.
    pub diagnostics: Vec<Diagnostic>,
}

/// Compiles rules files, given in the order in which they are to be read.
#[must_use]
pub fn compile(files: &[SourceFile], options: CompileOptions) -> Compiled {
    let mut findings: Vec<Diagnostics> =
        files.iter().map(|file| Diagnostics::of(&file.name, options.portable)).collect();
    let mut room = options.max_values;
    let raw: Vec<Option<RawFile>> = files
        .iter()
        .zip(&mut findings)
        .map(|(file, findings)| read_or_fault(file, &mut room, findings))
        .collect();
    compile_shapes(&raw, options, findings)
}

/// Compiles the resources of a control plane, given in the order in which they are to be read. Their
/// [diagnostics](Compiled::diagnostics) name the resource in place of a file, and have no lines.
#[must_use]
pub fn compile_resources(resources: &[&RateLimitConfig], options: CompileOptions) -> Compiled {
    let findings = resources.iter().map(|resource| Diagnostics::of_resource(&resource.name)).collect();
    let raw: Vec<Option<RawFile>> = resources.iter().map(|resource| Some(messages::read(resource))).collect();
    compile_shapes(&raw, options, findings)
}

/// Reads a file. One on which the YAML scanner panics is as wrong as any other, and named.
fn read_or_fault(file: &SourceFile, room: &mut usize, findings: &mut Diagnostics) -> Option<RawFile> {
    let read = panics::catch(Boundary::RulesReload, || {
        panics::point("yaml_scan");
        read(file, room, findings)
    });
    read.unwrap_or_else(|Panicked| {
        findings.fault(Fault {
            place: None,
            message: "internal error: reading the file panicked".to_owned(),
            help: Some("please report it with the file; the log has a backtrace".to_owned()),
        });
        None
    })
}

fn compile_shapes(
    raw: &[Option<RawFile>],
    options: CompileOptions,
    mut findings: Vec<Diagnostics>,
) -> Compiled {
    panics::point("rules_compile");
    let drafts = domains(raw, options, &mut findings);

    let on_store_failure: Vec<_> =
        drafts.iter().map(|draft| store_failure::of_domain(&draft.files, &mut findings)).collect();
    let mut lowering = Lowering::new(&mut findings, options.countable);
    let mut domains = hashbrown::HashMap::with_capacity(drafts.len());
    for (at, draft) in drafts.iter().enumerate() {
        let siblings = draft.siblings();
        let list = Path::File.key("descriptors");
        let root = lowering.level(&siblings, &list, &format!("{}.", draft.name));
        let on_store_failure = on_store_failure[at];
        let domain = Domain { on_store_failure, ..Domain::new(draft.name.into(), root) };
        domains.insert(domain.name.clone(), domain);
    }
    let rule_count = lowering.rule_count();

    for draft in &drafts {
        // Suspicions about a domain of which a part is missing would mislead.
        if !draft.files.iter().any(|(file, _)| findings[*file].has_errors()) {
            lint::of_domain(&draft.files, &draft.siblings(), &mut findings);
        }
    }
    let sound = !findings.iter().any(Diagnostics::has_errors);
    let files = findings.iter().map(|findings| findings.file().into()).collect();
    let diagnostics = findings.into_iter().flat_map(Diagnostics::into_sorted).collect();
    Compiled { rules: sound.then_some(RuleSet { domains, rule_count, files }), diagnostics }
}

impl SourceFile {
    /// The text for showing a line of it: every break that YAML counts as one is `\n`, whatever it was.
    #[must_use]
    pub fn readable(&self) -> String {
        let text = match yaml::decode(&self.text) {
            // Diagnostics stand at or before the first character that is not allowed.
            Ok(text) if text.is_whole() => text.allowed,
            _ => String::from_utf8_lossy(&self.text),
        };
        text.replace("\r\n", "\n").replace(is_break, "\n")
    }
}

/// Reads a file that may hold as many values as there is `room` for.
fn read(file: &SourceFile, room: &mut usize, findings: &mut Diagnostics) -> Option<RawFile> {
    let most = Most { values: *room, set_by: "RULES_MAX_VALUES bounds those of all files" };
    match yaml::read(&file.text, most) {
        Ok(document) => {
            *room = room.saturating_sub(document.values());
            Some(ast::read(&document, findings))
        }
        Err(fault) => {
            findings.fault(fault);
            None
        }
    }
}

/// The files that make one domain.
struct Draft<'r> {
    name: &'r str,
    /// By their number, in order.
    files: Vec<(usize, &'r RawFile)>,
}

impl<'r> Draft<'r> {
    fn siblings(&self) -> Vec<Sibling<'r>> {
        let of_file = |(file, raw): &(usize, &'r RawFile)| {
            let file = *file;
            raw.descriptors.items().iter().map(move |raw| Sibling { file, raw })
        };
        self.files.iter().flat_map(of_file).collect()
    }
}

/// Deals the files out to their domains. A file whose domain is at fault stands alone, so that the
/// rest of it is checked all the same.
fn domains<'r>(
    raw: &'r [Option<RawFile>],
    options: CompileOptions,
    findings: &mut [Diagnostics],
) -> Vec<Draft<'r>> {
    let mut drafts: Vec<Draft<'r>> = Vec::new();
    let mut draft_of: HashMap<&str, usize> = HashMap::new();
    for (file, raw) in raw.iter().enumerate().filter_map(|(file, raw)| Some((file, raw.as_ref()?))) {
        let name = domain_name(raw, &mut findings[file]);
        if let Some(&known) = draft_of.get(name) {
            if options.merge_domains {
                drafts[known].files.push((file, raw));
                continue;
            }
            let first = findings[drafts[known].files[0].0].file().to_owned();
            domain_again(raw, name, &first, &mut findings[file]);
        } else if !name.is_empty() {
            draft_of.insert(name, drafts.len());
        }
        drafts.push(Draft { name, files: vec![(file, raw)] });
    }
    drafts
}

/// The file's domain; empty when there is none, which is told.
fn domain_name<'r>(raw: &'r RawFile, findings: &mut Diagnostics) -> &'r str {
    let name = raw.domain.value().map_or("", String::as_str);
    if name.is_empty() && !raw.domain.is_wrong() {
        let place = raw.domain.given().map(|given| given.place).or(raw.place);
        let kind = findings.kind();
        let message = match place {
            Some(_) => format!("the {kind} names no domain"),
            None => format!("the {kind} is empty, and a rules {kind} must name a domain"),
        };
        let what = match kind {
            Kind::File => "begin the file with `domain: NAME`",
            Kind::Resource => "give it a `domain`",
        };
        let help = Some(format!("{what}, the name by which Envoy's filter asks"));
        findings.fault(Fault { place, message, help });
    }
    name
}

fn domain_again(raw: &RawFile, name: &str, first: &str, findings: &mut Diagnostics) {
    let Field::Given(domain) = &raw.domain else { return };
    let message = format!("the domain {} is already defined in {first}", quoted(name));
    let help = format!(
        "put its descriptors into one {}, or set MERGE_DOMAIN_CONFIG=true to join those of several",
        findings.kind()
    );
    findings.error(domain.place, &Path::File.key("domain"), message, Some(help));
}
