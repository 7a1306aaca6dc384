//! Targets for fuzzers: every parser of what a peer or a user sends, each as a function of bytes that must not
//! panic, and must agree with an independent reader where there is one.
//!
//! Compiled for tests and for fuzzers only. `tests.rs` runs each target on damaged seeds, a bounded number of
//! them; `fuzz/` runs them under libFuzzer for as long as one likes, see `docs/fuzzing.md`. A module keeps its
//! target beside what it tests, as it is private to it.

#[cfg(test)]
mod tests;

use std::path::Path;

use crate::{
    limiter::template::{Template, Values},
    net::{resolve, tls::pem},
    rules::{CompileOptions, SourceFile, compile, render},
    rules_source::xds,
    server,
    settings::Settings,
    store::{memcached, redis},
    telemetry::{metrics, tracing},
};

/// One parser.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its directory of seeds in `fuzz/seeds`.
    pub name: &'static str,
    /// What it does with an input.
    pub run: fn(&[u8]),
}

/// All parsers.
pub const TARGETS: &[Target] = &[
    Target { name: "http2", run: server::grpc::fuzz_http2 },
    Target { name: "request", run: server::wire::fuzz },
    Target { name: "json", run: server::http::json::fuzz },
    Target { name: "grpc_timeout", run: server::grpc::fuzz_timeout },
    Target { name: "trace_headers", run: tracing::fuzz_headers },
    Target { name: "rules", run: rules },
    Target { name: "xds", run: xds::fuzz },
    Target { name: "resp", run: redis::fuzz_resp },
    Target { name: "memcached", run: memcached::fuzz_reply },
    Target { name: "dns", run: resolve::fuzz_dns },
    Target { name: "resolv_conf", run: resolve::fuzz_resolv_conf },
    Target { name: "template", run: template },
    Target { name: "mapper", run: metrics::mapper::fuzz },
    Target { name: "settings", run: settings },
    Target { name: "pem", run: pem_files },
];

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}

/// A rules file is compiled, and what is wrong with it is shown.
fn rules(bytes: &[u8]) {
    let file = SourceFile { name: "a.yaml".to_owned(), text: bytes.to_vec() };
    for portable in [false, true] {
        let compiled =
            compile(std::slice::from_ref(&file), CompileOptions { portable, ..CompileOptions::default() });
        let has_errors = compiled.diagnostics.iter().any(crate::rules::Diagnostic::is_error);
        assert_ne!(compiled.rules.is_some(), has_errors, "a set is refused exactly for an error");
        let panicked = compiled.diagnostics.iter().any(|found| found.message.starts_with("internal error: "));
        assert!(!panicked, "a panic is caught where rules are read, and is one all the same");
        let source = file.readable();
        for diagnostic in compiled.diagnostics.iter().take(3) {
            assert!(!render(diagnostic, Some(&source)).is_empty());
        }
    }
}

/// A body is read and filled in; one that is JSON stays JSON.
fn template(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(template) = Template::parse(&text) else { return };
    let numbers = [(7, 0, Some(3)), (0, 6, None), (u32::MAX, 1, Some(0)), (1, u32::MAX, Some(u64::MAX))];
    for (rule, unit) in [("a.b", "hour"), ("\"\\\n{}", "15 minutes"), ("0", "day"), ("u", "second")] {
        for (limit, remaining, retry_after) in numbers {
            let body = template.fill(&Values { limit, unit, remaining, retry_after, rule });
            if template.kind() == crate::limiter::template::Kind::Json {
                assert!(serde_json::from_str::<serde_json::Value>(&body).is_ok(), "{text:?} became {body:?}");
            }
        }
    }
}

/// Lines of `NAME=value` as the environment; a value may be anything.
fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let pairs: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let env = |name: &str| {
        pairs.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    if let Err(problems) = Settings::read(&env, &|_: &Path| true, 2) {
        assert!(!problems.is_empty(), "settings are refused for a reason");
    }
}

/// Certificates and keys.
fn pem_files(bytes: &[u8]) {
    let _ = pem::certificates(bytes);
    let _ = pem::chain(bytes);
    let _ = pem::key(bytes, &tokio_rustls::rustls::crypto::ring::default_provider());
}
