//! Fuzz targets: every parser of input from peers or users, as a function of bytes that must not panic, and must agree
//! with an independent parser if there is one.
//!
//! Compiled only for tests and fuzzers. `tests.rs` runs each target on a bounded number of mutated seeds; `fuzz/` runs them
//! under libFuzzer, see `docs/dev/fuzzing.md`. A target of a private parser is in the parser's module.

#[cfg(test)]
mod tests;

use std::path::Path;

use exporters::tracing;
use memcached;
use metrics;
use net::{resolve, tls::pem};
use redis_store as redis;
use rules::{
    CompileOptions, SourceFile, compile,
    template::{Template, Values},
};
use rules_source::xds;
use server;
use settings::{Available, Settings};
use text::diagnostics::render;

#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and the name of its directory in `fuzz/seeds`.
    pub name: &'static str,
    pub run: fn(&[u8]),
}

pub const TARGETS: &[Target] = &[
    Target { name: "http2", run: http2::fuzz::fuzz_splits },
    Target { name: "calls", run: server::grpc::fuzz_calls },
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

pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}

/// Compiles a rules file, and renders its diagnostics.
fn rules(bytes: &[u8]) {
    // The YAML reader may panic at a tag before a comma.
    let is_tagged =
        |word: &[u8]| word.iter().position(|byte| *byte == b'!').is_some_and(|at| word[at..].contains(&b','));
    if bytes.split(u8::is_ascii_whitespace).any(is_tagged) {
        return;
    }
    let file = SourceFile { name: "a.yaml".to_owned(), text: bytes.to_vec() };
    for portable in [false, true] {
        let compiled =
            compile(std::slice::from_ref(&file), CompileOptions { portable, ..CompileOptions::default() });
        let has_errors = compiled.diagnostics.iter().any(text::diagnostics::Diagnostic::is_error);
        assert_ne!(
            compiled.rules.is_some(),
            has_errors,
            "rules are rejected if and only if there is an error"
        );
        let panicked = compiled
            .diagnostics
            .iter()
            .any(|diagnostic| diagnostic.message.contains("the YAML reader panicked"));
        assert!(!panicked, "a caught panic is a failure too");
        let source = file.readable();
        for diagnostic in compiled.diagnostics.iter().take(3) {
            assert!(!render(diagnostic, Some(&source)).is_empty());
        }
    }
}

/// Parses a body and fills in its placeholders; a JSON body stays valid JSON.
fn template(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(template) = Template::parse(&text) else { return };
    let numbers = [(7, 0, Some(3)), (0, 6, None), (u64::MAX, 1, Some(0)), (1, u64::MAX, Some(u64::MAX))];
    for (rule, unit) in [("a.b", "hour"), ("\"\\\n{}", "15 minutes"), ("0", "day"), ("u", "second")] {
        for (limit, remaining, retry_after) in numbers {
            let body =
                template.fill(&Values { limit, unit, remaining, retry_after, rule, policies: r#""a", "b""# });
            if template.kind() == rules::template::BodyKind::Json {
                assert!(serde_json::from_str::<serde_json::Value>(&body).is_ok(), "{text:?} became {body:?}");
            }
        }
    }
}

fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let pairs: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let env = |name: &str| {
        pairs.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    if let Err(problems) = Settings::read(&env, &|_: &Path| true, 2, Available::default()) {
        assert!(!problems.is_empty(), "rejected settings have an error");
    }
}

fn pem_files(bytes: &[u8]) {
    let _ = pem::certificates(bytes);
    let _ = pem::chain(bytes);
    let _ = pem::key(bytes, &tokio_rustls::rustls::crypto::ring::default_provider());
}
