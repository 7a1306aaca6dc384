//! The results of updates.

use std::sync::Arc;

use super::*;
use clock::ManualClock;
use proto::ratelimit::config::ratelimit::v3::{RateLimitDescriptor, RateLimitPolicy};
use rules::CompileOptions;
use text::diagnostics::Severity;

fn limit(name: &str, domain: &str, unit: i32) -> RateLimitConfig {
    let rate_limit = Some(RateLimitPolicy { unit, requests_per_unit: 1, ..RateLimitPolicy::default() });
    let descriptor =
        RateLimitDescriptor { key: "k".to_owned(), rate_limit, ..RateLimitDescriptor::default() };
    RateLimitConfig { name: name.to_owned(), domain: domain.to_owned(), descriptors: vec![descriptor] }
}

/// Applies updates, each with its version, and returns the rejections.
fn apply(
    updates: &[(&str, &[RateLimitConfig], &[Diagnostic])],
) -> (Vec<Option<String>>, super::super::SubscriptionState, Arc<Source<usize>>) {
    let source = Arc::new(Source::new(CompileOptions::default(), |rules| rules.domains().count()));
    let (clock, status) = (ManualClock::default(), Status::default());
    let server = ServerAddress::Unix("/run/xds".into());
    let session = Session::new(&source, &server, &clock, &status);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let rejections = updates.iter().map(|(version, resources, diagnostics)| {
        let update = Update { version, resources: resources.to_vec(), diagnostics: diagnostics.to_vec() };
        runtime.block_on(session.apply(update)).err().map(|status| status.message)
    });
    let rejections = rejections.collect();
    (rejections, status.state(), source.clone())
}

#[test]
fn rejects_an_invalid_update_with_reasons_and_keeps_the_previous_one() {
    let (good, bad) = ([limit("a", "d", 1)], [limit("a", "d", 9)]);
    let (rejections, state, source) =
        apply(&[("1", &good, &[]), ("2", &bad, &[]), ("2", &bad, &[]), ("3", &good, &[])]);
    let rejection = rejections[1].as_deref().unwrap();
    assert!(
        rejection.starts_with("resource a: error: unknown unit `9` (at descriptors[0].rate_limit.unit)"),
        "{rejection}"
    );
    assert_eq!((&rejections[0], &rejections[2], &rejections[3]), (&None, &rejections[1], &None));
    assert_eq!((state.updates, state.refused, state.version.as_deref()), (4, 2, Some("3")));
    let reloads = source.state();
    assert_eq!((reloads.loads, reloads.errors, reloads.is_current), (2, 1, true));
    assert_eq!(source.current().unwrap().attached, 1);
}

#[test]
fn an_invalid_resource_rejects_the_update() {
    let diagnostic = Diagnostic {
        severity: Severity::Error,
        file: "resource 2 of the response".to_owned(),
        place: None,
        path: String::new(),
        message: "is invalid".to_owned(),
        help: None,
    };
    let (rejections, _, source) = apply(&[("1", &[limit("a", "d", 1)], &[diagnostic])]);
    assert_eq!(rejections, [Some("resource 2 of the response: error: is invalid".to_owned())]);
    assert!(source.current().is_none());
}

#[test]
fn ignores_the_order_of_resources() {
    let (a, b) = (limit("a", "d", 1), limit("b", "e", 2));
    let (_, state, source) = apply(&[("1", &[a.clone(), b.clone()], &[]), ("2", &[b, a], &[])]);
    assert_eq!(source.state().loads, 1);
    assert_eq!(state.version.as_deref(), Some("2"));
}

#[test]
fn accepts_an_update_without_resources() {
    let (rejections, _, source) = apply(&[("1", &[limit("a", "d", 1)], &[]), ("2", &[], &[])]);
    assert_eq!(rejections, [None, None]);
    assert!(source.current().unwrap().rules.is_empty());
}

#[test]
fn a_rejection_lists_at_most_20_errors() {
    let many: Vec<_> = (0..100).map(|at| limit(&format!("r{at:03}"), &format!("d{at}"), 9)).collect();
    let (rejections, ..) = apply(&[("1", &many, &[])]);
    let lines: Vec<_> = rejections[0].as_ref().unwrap().lines().collect();
    assert_eq!((lines.len(), lines[20]), (21, "and more"));
}

#[test]
fn rejections_in_a_row_are_sent_at_most_once_a_second() {
    let (good, bad, worse) = ([limit("a", "d", 1)], [limit("a", "d", 9)], [limit("a", "d", 10)]);
    let elapsed = |updates: &[(&str, &[RateLimitConfig], &[Diagnostic])]| {
        let begun = std::time::Instant::now();
        apply(updates);
        begun.elapsed()
    };
    let again: &[_] = &[("1", &bad[..], &[][..]), ("2", &worse, &[]), ("3", &bad, &[])];
    assert!(elapsed(again) >= 2 * REPEATED_REJECTION_DELAY);
    let repaired: &[_] = &[("1", &bad[..], &[][..]), ("2", &good, &[]), ("3", &bad, &[])];
    // On a busy machine any of them may take as long.
    assert!((0..10).any(|_| elapsed(repaired) < REPEATED_REJECTION_DELAY));
}
