//! A large import delays neither probes nor new gRPC connections.

use std::{fmt::Write as _, thread};

use super::*;

/// Enough that the commit takes the time of many probes.
const OVERRIDES: usize = 20_000;

#[test]
fn probes_and_new_grpc_connections_are_answered_during_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("overrides.jsonl");
    let setup = Setup::new().rules("shop.yaml", RULES).env("OVERRIDES_FILE", path.to_str().unwrap());
    let replica = Replica::start(setup);
    let begun = http::post(replica.admin, "/api/v1/imports", "").json();
    let import = format!("/api/v1/imports/{}", begun["import"].as_str().unwrap());
    for first in (0..OVERRIDES).step_by(10_000) {
        let lines = (first..first + 10_000).fold(String::new(), |mut lines, n| {
            writeln!(lines, r#"{{"domain":"shop","descriptor":"user=u{n}","action":"block"}}"#).unwrap();
            lines
        });
        assert_eq!(http::post(replica.admin, &import, &lines).status, 200);
    }
    let answered = thread::scope(|scope| {
        let commit = scope.spawn(|| http::send(replica.admin, "PUT", &import, &[], b"").unwrap());
        let mut answered = 0;
        while !commit.is_finished() {
            assert!(replica.server.is_healthy());
            replica.server.ask(request("shop", &[&[("client", "x")]])).unwrap();
            answered += usize::from(!commit.is_finished());
        }
        assert_eq!(commit.join().unwrap().json()["imported"], OVERRIDES);
        answered
    });
    // Before the commit begins, and after it ends, one may be answered.
    assert!(answered > 5, "{answered} answered during the commit");
    assert_eq!(replica.get("/api/v1/overrides?n=1")["total"], OVERRIDES);
}
