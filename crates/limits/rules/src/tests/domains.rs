//! The numbers of the domains of a set.

use super::super::{CompileOptions, SourceFile, compile};

#[test]
fn domains_have_dense_numbers_of_their_own() {
    let file = |name: &str| {
        let rule = "{key: k, rate_limit: {unit: day, requests_per_unit: 1}}";
        let text = format!("domain: {name}\ndescriptors: [{rule}]\n");
        SourceFile { name: format!("{name}.yaml"), text: text.into_bytes() }
    };
    let rules = compile(&["a", "b", "c"].map(file), CompileOptions::default()).rules.unwrap();
    let mut numbers: Vec<usize> = rules.domains().map(|domain| domain.index).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2]);
}

#[test]
fn a_descriptor_without_a_limit_exempts_what_it_matches() {
    let text = "
domain: d
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: user
    value: partner
  - key: user
    value: nested
    descriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 2}}]
  - key: plan
    descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}, {key: free}]
";
    let file = SourceFile { name: "d.yaml".to_owned(), text: text.into() };
    let rules = compile(&[file], CompileOptions::default()).rules.unwrap();
    let domain = rules.domain("d").unwrap();
    let exempts = |entries: &[(&str, &str)]| domain.exempts(entries, &mut String::new());
    assert!(exempts(&[("user", "partner")]), "it ends there");
    assert!(exempts(&[("user", "nested")]), "its key alone has a limit");
    assert!(exempts(&[("plan", "a"), ("free", "")]));
    assert!(!exempts(&[("user", "ann")]), "it has a limit");
    assert!(!exempts(&[("plan", "a")]), "a level is missing");
    assert!(!exempts(&[("plan", "a"), ("usr", "ann")]));
    assert!(!exempts(&[("user", "partner"), ("path", "/")]), "a level too many");
    assert!(!exempts(&[]));
}
