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
