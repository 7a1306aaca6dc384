//! What becomes of updates, applied one after another.

use std::sync::Arc;

use super::*;
use crate::{
    clock::ManualClock,
    proto::ratelimit::config::ratelimit::v3::{RateLimitDescriptor, RateLimitPolicy},
    rules::{CompileOptions, Severity},
};

fn limit(name: &str, domain: &str, unit: i32) -> RateLimitConfig {
    let rate_limit = Some(RateLimitPolicy { unit, requests_per_unit: 1, ..RateLimitPolicy::default() });
    let descriptor =
        RateLimitDescriptor { key: "k".to_owned(), rate_limit, ..RateLimitDescriptor::default() };
    RateLimitConfig { name: name.to_owned(), domain: domain.to_owned(), descriptors: vec![descriptor] }
}

/// Applies updates, each with its version, and gives the refusals.
fn apply(
    updates: &[(&str, &[RateLimitConfig], &[Diagnostic])],
) -> (Vec<Option<String>>, super::super::State, Arc<Source<usize>>) {
    let source = Arc::new(Source::new(CompileOptions::default(), |rules| rules.domains().count()));
    let (clock, status) = (ManualClock::default(), Status::default());
    let (applied, is_applied) = watch::channel(false);
    let server = ServerAddress::Unix("/run/xds".into());
    let session = Session::new(&source, &server, &clock, &status, applied);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let verdicts = updates.iter().map(|(version, resources, diagnostics)| {
        let update =
            Update { version, resources: resources.iter().collect(), diagnostics: diagnostics.to_vec() };
        runtime.block_on(session.apply(update)).err().map(|status| status.message)
    });
    let verdicts = verdicts.collect();
    assert_eq!(*is_applied.borrow(), !updates.is_empty());
    (verdicts, status.state(), source.clone())
}

#[test]
fn a_bad_update_is_refused_with_its_reasons_and_the_good_one_before_stays_in_force() {
    let (good, bad) = ([limit("a", "d", 1)], [limit("a", "d", 9)]);
    let (verdicts, state, source) =
        apply(&[("1", &good, &[]), ("2", &bad, &[]), ("2", &bad, &[]), ("3", &good, &[])]);
    let refusal = verdicts[1].as_deref().unwrap();
    assert!(
        refusal.starts_with("resource a: error: unknown unit `9` (at descriptors[0].rate_limit.unit)"),
        "{refusal}"
    );
    assert_eq!((&verdicts[0], &verdicts[2], &verdicts[3]), (&None, &verdicts[1], &None));
    assert_eq!((state.updates, state.refused, state.version.as_deref()), (4, 2, Some("3")));
    let reloads = source.state();
    assert_eq!((reloads.loads, reloads.errors, reloads.is_current), (2, 1, true));
    assert_eq!(source.current().unwrap().attached, 1);
}

#[test]
fn what_could_not_be_read_refuses_the_rest() {
    let diagnostic = Diagnostic {
        severity: Severity::Error,
        file: "resource 2 of the response".to_owned(),
        place: None,
        path: String::new(),
        message: "is rubbish".to_owned(),
        help: None,
    };
    let (verdicts, _, source) = apply(&[("1", &[limit("a", "d", 1)], &[diagnostic])]);
    assert_eq!(verdicts, [Some("resource 2 of the response: error: is rubbish".to_owned())]);
    assert!(source.current().is_none());
}

#[test]
fn the_order_of_resources_makes_no_difference() {
    let (a, b) = (limit("a", "d", 1), limit("b", "e", 2));
    let (_, state, source) = apply(&[("1", &[a.clone(), b.clone()], &[]), ("2", &[b, a], &[])]);
    assert_eq!(source.state().loads, 1);
    assert_eq!(state.version.as_deref(), Some("2"));
}

#[test]
fn nothing_is_a_set_without_rules() {
    let (verdicts, _, source) = apply(&[("1", &[limit("a", "d", 1)], &[]), ("2", &[], &[])]);
    assert_eq!(verdicts, [None, None]);
    assert!(source.current().unwrap().rules.is_empty());
}

#[test]
fn a_refusal_is_no_longer_than_it_is_of_use() {
    let many: Vec<_> = (0..100).map(|at| limit(&format!("r{at:03}"), &format!("d{at}"), 9)).collect();
    let (verdicts, ..) = apply(&[("1", &many, &[])]);
    let lines: Vec<_> = verdicts[0].as_ref().unwrap().lines().collect();
    assert_eq!((lines.len(), lines[20]), (21, "and more"));
}
