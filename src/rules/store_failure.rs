//! What a domain's files ask for while its counters cannot be reached (`on_store_failure`).
//!
//! Called by [`compile`](super::compile()) for each domain. The service's own settings decide for domains
//! whose files say nothing.

use super::{
    diagnostics::{Diagnostics, Path, quoted},
    model::OnStoreFailure,
    spelling::nearest,
};
use crate::rules::ast::RawFile;

const KEY: &str = "on_store_failure";

/// What the files of a domain, given by their number, ask for together. Tells of a value that nobody
/// knows, and of two files that do not agree: which of them counts must not hang on their order.
pub(super) fn of_domain(files: &[(usize, &RawFile)], findings: &mut [Diagnostics]) -> Option<OnStoreFailure> {
    let mut first = None;
    for (file, raw) in files {
        let Some(given) = raw.on_store_failure.given() else { continue };
        let path = Path::File.key(KEY);
        let Some(asked) = OnStoreFailure::from_name(&given.value) else {
            let message = format!("{} is nothing that `{KEY}` can be", quoted(&given.value));
            findings[*file].error(given.place, &path, message, Some(help_for(&given.value)));
            continue;
        };
        let (known, known_file, place) = *first.get_or_insert((asked, *file, given.place));
        if known != asked {
            let elsewhere = findings[known_file].file();
            let message = format!(
                "this file asks for `{}`, and {elsewhere} for `{}` at {place}",
                asked.name(),
                known.name()
            );
            let help = "all files of a domain say the same, or one of them says it for all".to_owned();
            findings[*file].error(given.place, &path, message, Some(help));
        }
    }
    first.map(|(asked, ..)| asked)
}

fn help_for(written: &str) -> String {
    let names = OnStoreFailure::ALL.map(OnStoreFailure::name);
    let accepted = format!("accepted, in any case: {}", names.join(", "));
    match nearest(written.trim(), names) {
        Some(meant) => format!("did you mean `{meant}`? {accepted}"),
        None => accepted,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{CompileOptions, Compiled, Countable, SourceFile, compile},
        *,
    };

    fn compiled(tops: &[&str], options: CompileOptions) -> Compiled {
        let file = |(at, top): (usize, &&str)| {
            let descriptor = format!("{{key: k{at}, rate_limit: {{unit: day, requests_per_unit: 1}}}}");
            let text = format!("domain: d\n{top}\ndescriptors: [{descriptor}]\n");
            SourceFile { name: format!("{at}.yaml"), text: text.into_bytes() }
        };
        compile(&tops.iter().enumerate().map(file).collect::<Vec<_>>(), options)
    }

    fn told(compiled: &Compiled) -> Vec<String> {
        compiled.diagnostics.iter().map(ToString::to_string).collect()
    }

    const MERGING: CompileOptions = CompileOptions {
        merge_domains: true,
        portable: false,
        countable: Countable::Everything,
        max_values: usize::MAX,
    };

    #[test]
    fn a_domain_has_what_its_files_ask_for() {
        for (tops, expected) in [
            (&[""][..], None),
            (&["on_store_failure: error"], Some(OnStoreFailure::Error)),
            (&["on_store_failure: Allow"], Some(OnStoreFailure::Allow)),
            (&["on_store_failure: 'DENY'"], Some(OnStoreFailure::Deny)),
            (&["on_store_failure: ~"], None),
            (&["on_store_failure: &x local", ""], Some(OnStoreFailure::Local)),
            (&["", "on_store_failure: local", "on_store_failure: LOCAL"], Some(OnStoreFailure::Local)),
            (&["<<: {on_store_failure: deny}"], Some(OnStoreFailure::Deny)),
        ] {
            let compiled = compiled(tops, MERGING);
            assert_eq!(told(&compiled), [""; 0], "{tops:?}");
            let rules = compiled.rules.unwrap();
            assert_eq!(rules.domain("d").unwrap().on_store_failure, expected, "{tops:?}");
        }
    }

    #[test]
    fn what_nobody_can_do_is_refused_with_its_place() {
        let accepted = "accepted, in any case: error, allow, deny, local";
        for (top, expected) in [
            ("on_store_failure: alow", format!("`alow` is nothing that `{KEY}` can be (at {KEY}); help")),
            ("on_store_failure: ''", format!("`` is nothing that `{KEY}` can be (at {KEY}); {accepted}")),
            ("on_store_failure: yes", format!("`yes` is nothing that `{KEY}` can be (at {KEY}); {accepted}")),
            ("on_store_failure: 1.5", "text is expected here, this is the number `1.5`".to_owned()),
            ("on_store_failure: [deny]", "text is expected here, this is a list".to_owned()),
        ] {
            let compiled = compiled(&[top], CompileOptions::default());
            let expected = expected.replace("help", &format!("did you mean `allow`? {accepted}"));
            let told = told(&compiled);
            assert!(told.len() == 1 && told[0].starts_with("0.yaml:2:19: error: "), "{told:?}");
            assert!(told[0].contains(&expected), "{told:?} has no {expected:?}");
            assert!(compiled.rules.is_none());
        }
    }

    #[test]
    fn files_that_do_not_agree_are_refused_with_both_places() {
        let tops = ["# none", "on_store_failure: allow", "on_store_failure:  deny"];
        let told = told(&compiled(&tops, MERGING));
        let expected = "2.yaml:2:20: error: this file asks for `deny`, and 1.yaml for `allow` at line 2, column 19 \
            (at on_store_failure); all files of a domain say the same, or one of them says it for all";
        assert_eq!(told, [expected]);
    }

    #[test]
    fn elsewhere_than_at_the_top_it_is_an_unknown_key() {
        for within in ["- {key: k, on_store_failure: deny}", "- {key: k, name: {on_store_failure: deny}}"] {
            let text = format!("domain: d\ndescriptors:\n{within}\n");
            let file = SourceFile { name: "a.yaml".to_owned(), text: text.into_bytes() };
            let told = told(&compile(&[file], CompileOptions::default()));
            let expected = "error: unknown key `on_store_failure`";
            let found = told.iter().find(|told| told.contains(expected)).unwrap();
            assert!(found.ends_with("; it belongs at the top of the file"), "{found}");
        }
    }

    #[test]
    fn the_go_service_would_refuse_it() {
        let portable = CompileOptions { portable: true, ..MERGING };
        let compiled = compiled(&["on_store_failure: deny", ""], portable);
        let expected = "0.yaml:2:1: warning: the Go service refuses `on_store_failure` (at on_store_failure); \
            leave it out of files that the Go service is to read as well";
        assert_eq!(told(&compiled), [expected]);
        assert!(compiled.rules.is_some());
    }
}
