//! Compiles rules files, or the messages of a control plane, to a [`RuleSet`], or reports all errors.
//!
//! `rules_source` and the commands call it. An error in one file does not stop the checks of the others, so that one run
//! reports every error; a set is created only if there is none.

use std::collections::HashMap;

use super::{
    lower::{Lowering, Sibling},
    messages,
    model::{Domain, RuleSet},
    options::CompileOptions,
    yaml::{self, MaxValues},
};
use crate::{
    ast::{self, Field, RawFile},
    lint,
};
use faults::OnStoreFailure;
use faults::panics;
use proto::ratelimit::config::ratelimit::v3::RateLimitConfig;
use text::{
    diagnostics::{Diagnostic, Diagnostics, FileError, InputKind, Path, is_break, quoted},
    spelling::choose,
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFile {
    pub name: String,
    pub text: Vec<u8>,
}

#[derive(Debug)]
pub struct Compiled {
    /// The rules, if no diagnostic is an error.
    pub rules: Option<RuleSet>,
    pub diagnostics: Vec<Diagnostic>,
}

pub fn compile(files: &[SourceFile], options: CompileOptions) -> Compiled {
    let mut diagnostics: Vec<Diagnostics> =
        files.iter().map(|file| Diagnostics::of(&file.name, options.portable)).collect();
    for of_file in &mut diagnostics {
        of_file.strict = options.strict;
    }
    let mut room = options.max_values;
    let raw: Vec<Option<RawFile>> = files
        .iter()
        .zip(&mut diagnostics)
        .map(|(file, diagnostics)| read(file, &mut room, diagnostics))
        .collect();
    compile_ast(&raw, options, diagnostics)
}

/// Compiles the resources of a control plane in this order. Their [diagnostics](Compiled::diagnostics) name the resource
/// instead of a file, and have no lines.
pub fn compile_resources(resources: &[RateLimitConfig], options: CompileOptions) -> Compiled {
    let mut diagnostics: Vec<Diagnostics> =
        resources.iter().map(|resource| Diagnostics::of_resource(&resource.name)).collect();
    let raw: Vec<Option<RawFile>> = resources
        .iter()
        .zip(&mut diagnostics)
        .map(|(resource, diagnostics)| Some(ast::read(&messages::document(resource), diagnostics)))
        .collect();
    compile_ast(&raw, options, diagnostics)
}

fn compile_ast(
    raw: &[Option<RawFile>],
    options: CompileOptions,
    mut diagnostics: Vec<Diagnostics>,
) -> Compiled {
    panics::point("rules_compile");
    let drafts = domains(raw, options, &mut diagnostics);

    let on_store_failure: Vec<_> =
        drafts.iter().map(|draft| on_store_failure(&draft.files, &mut diagnostics)).collect();
    let mut lowering = Lowering::new(&mut diagnostics, options);
    let mut domains = hashbrown::HashMap::with_capacity(drafts.len());
    for (at, draft) in drafts.iter().enumerate() {
        let siblings = draft.siblings();
        let list = Path::File.key("descriptors");
        let root = lowering.level(&siblings, &list, &format!("{}.", draft.name));
        let on_store_failure = on_store_failure[at];
        let domain = Domain { index: at, on_store_failure, ..Domain::new(draft.name.into(), root) };
        domains.insert(domain.name.clone(), domain);
    }
    let by_id = lowering.by_id;

    for draft in &drafts {
        // Lints about an incomplete domain would be misleading.
        if !draft.files.iter().any(|(file, _)| diagnostics[*file].has_errors()) {
            lint::of_domain(&draft.files, &draft.siblings(), &mut diagnostics);
        }
    }
    let sound = !diagnostics.iter().any(Diagnostics::has_errors);
    let files = diagnostics.iter().map(|diagnostics| diagnostics.file().into()).collect();
    let diagnostics = diagnostics.into_iter().flat_map(Diagnostics::into_sorted).collect();
    Compiled { rules: sound.then(|| RuleSet { domains, by_id: by_id.into(), files }), diagnostics }
}

impl SourceFile {
    /// The text for excerpts: every line break of YAML is `\n`.
    pub fn readable(&self) -> String {
        let text = match yaml::decode(&self.text) {
            // Diagnostics are not after the first invalid character.
            text if text.is_complete() => text.allowed,
            _ => String::from_utf8_lossy(&self.text),
        };
        text.replace("\r\n", "\n").replace(is_break, "\n")
    }
}

/// Reads a file of at most `room` values.
fn read(file: &SourceFile, room: &mut usize, diagnostics: &mut Diagnostics) -> Option<RawFile> {
    let max = MaxValues {
        values: *room,
        set_by: "RULES_MAX_VALUES, for all files",
        help: "write fewer rules, or raise MEMORY_LIMIT or RULES_MAX_VALUES",
    };
    match yaml::read(&file.text, max) {
        Ok(document) => {
            *room = room.saturating_sub(document.values());
            Some(ast::read(&document, diagnostics))
        }
        Err(error) => {
            diagnostics.file_error(yaml::template(&file.text).unwrap_or(error));
            None
        }
    }
}

struct Draft<'r> {
    name: &'r str,
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

/// Groups the files by domain. A file with an invalid domain is a separate group, so that the rest of it is checked.
fn domains<'r>(
    raw: &'r [Option<RawFile>],
    options: CompileOptions,
    diagnostics: &mut [Diagnostics],
) -> Vec<Draft<'r>> {
    let mut drafts: Vec<Draft<'r>> = Vec::new();
    let mut draft_of: HashMap<&str, usize> = HashMap::new();
    for (file, raw) in raw.iter().enumerate().filter_map(|(file, raw)| Some((file, raw.as_ref()?))) {
        let name = domain_name(raw, &mut diagnostics[file]);
        if let Some(&known) = draft_of.get(name) {
            if options.merge_domains {
                drafts[known].files.push((file, raw));
                continue;
            }
            let first = diagnostics[drafts[known].files[0].0].file().to_owned();
            duplicate_domain(raw, name, &first, &mut diagnostics[file]);
        } else if !name.is_empty() {
            draft_of.insert(name, drafts.len());
        }
        drafts.push(Draft { name, files: vec![(file, raw)] });
    }
    drafts
}

/// The domain of a file. Reports a missing one, and returns an empty text.
fn domain_name<'r>(raw: &'r RawFile, diagnostics: &mut Diagnostics) -> &'r str {
    let name = raw.domain.value().map_or("", String::as_str);
    if name.is_empty() && !raw.domain.is_wrong() {
        let kind = diagnostics.kind;
        let action = match kind {
            InputKind::File => "begin the file with `domain: NAME`",
            InputKind::Resource => "give it a `domain`",
        };
        let place = raw.domain.place().unwrap_or(raw.place);
        let error = FileError::at(place, format!("the {} has no domain", kind.name()));
        let help = format!("{action}, the domain of Envoy's rate limit filter");
        diagnostics.file_error(error.with_help(help));
    }
    name
}

fn duplicate_domain(raw: &RawFile, name: &str, first: &str, diagnostics: &mut Diagnostics) {
    let Field::Given(domain) = &raw.domain else { return };
    let message = format!("the domain {} is already defined in {first}", quoted(name));
    let help = format!(
        "put its descriptors into one {}, or set MERGE_DOMAIN_CONFIG=true to merge several",
        diagnostics.kind.name()
    );
    diagnostics.error(domain.place, &Path::File.key("domain"), message, Some(help));
}

/// The failure policy of the files of a domain. Reports unknown policies, and files whose policies differ: the result must
/// not depend on their order.
fn on_store_failure(files: &[(usize, &RawFile)], diagnostics: &mut [Diagnostics]) -> Option<OnStoreFailure> {
    let path = Path::File.key("on_store_failure");
    let mut first = None;
    for (file, raw) in files {
        let Some(given) = raw.on_store_failure.given() else { continue };
        let policy = choose("`on_store_failure`", &given.value, &OnStoreFailure::ALL, OnStoreFailure::name);
        let policy = match policy {
            Ok(policy) => policy,
            Err((message, help)) => {
                diagnostics[*file].error(given.place, &path, message, Some(help));
                continue;
            }
        };
        let (known, known_file, place) = *first.get_or_insert((policy, *file, given.place));
        if known != policy {
            let elsewhere = diagnostics[known_file].file();
            let message = format!(
                "this file sets `{}`, but {elsewhere} sets `{}` at {place}",
                policy.name(),
                known.name()
            );
            let help = "set the same value in all files of a domain, or in one of them".to_owned();
            diagnostics[*file].error(given.place, &path, message, Some(help));
        }
    }
    first.map(|(policy, ..)| policy)
}
