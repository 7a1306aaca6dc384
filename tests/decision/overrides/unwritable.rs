//! Files on a disk that is full or read-only: the service starts with the overrides that it can read, serves, says so,
//! and refuses changes until it can write them. No file has a part of a line.

use std::{fs, path::Path};

use serde_json::Value;

use super::{RULES, Replica};
use support::{
    eventually, holds, http,
    server::{BINARY, Setup},
};

const BLOCK: &str = r#"{"domain":"shop","descriptor":"client=bob","action":"block"}"#;

/// A disk of 64 KiB in a mount namespace of the service, with an override of `client=ann` and this state.
fn with_disk(dir: &Path, state: &str) -> Setup {
    let script = format!(
        "mount -t tmpfs -o size=64k tmpfs \"$1\" && cd \"$1\" &&
         echo '{{\"domain\":\"shop\",\"descriptor\":\"client=ann\",\"action\":\"block\"}}' >overrides && {state}; cd / && exec \"$0\""
    );
    let dir = dir.to_str().unwrap();
    let args = ["--map-root-user", "--mount", "sh", "-c", &script, BINARY, dir];
    let logs = [("DECISION_LOG", "sampled:1".to_owned()), ("DECISION_LOG_FILE", format!("{dir}/decisions"))];
    let setup = Setup::new().rules("shop.yaml", RULES).program(Path::new("unshare"), &args);
    let setup = setup.env("OVERRIDES_FILE", &format!("{dir}/overrides")).env("REQUEST_LOG", "all");
    logs.iter().fold(setup.env("REQUEST_LOG_FILE", &format!("{dir}/requests")), |setup, (name, value)| {
        setup.env(name, value)
    })
}

const FULL: &str = "head -c 1M /dev/zero >filler 2>/dev/null";
const READ_ONLY: &str = "mount -o remount,ro \"$1\"";

/// The service decides by its override, and refuses another one with this reason.
fn refuses_changes(replica: &Replica, why: &str) {
    assert!(replica.is_blocked("ann") && !replica.is_blocked("bob"));
    let headers = [("content-type", "application/json")];
    for _ in 0..3 {
        let answer =
            http::send(replica.admin, "POST", "/api/v1/overrides", &headers, BLOCK.as_bytes()).unwrap();
        assert!(answer.status == 503 && answer.text().contains(why), "{} {}", answer.status, answer.text());
    }
    assert!(replica.tollgate_any(&["override", "remove", "shop", "client=ann"]).contains(why));
    assert!(replica.is_blocked("ann") && !replica.is_blocked("bob"));
    let status = replica.get("/api/v1/status");
    assert!(status["overrides"]["failure"].as_str().is_some_and(|failure| failure.contains(why)), "{status}");
    assert!(replica.tollgate_any(&["status"]).contains("overrides cannot be changed"));
    replica.server.wait_for_log(&["cannot write OVERRIDES_FILE", why]);
}

#[test]
fn a_read_only_disk_refuses_changes_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Replica::with_program(with_disk(dir.path(), READ_ONLY));
    refuses_changes(&replica, "Read-only file system");
    let log = replica.server.final_log();
    assert_eq!(log.matches("cannot write OVERRIDES_FILE").count(), 1, "{log}");
}

#[test]
fn a_full_disk_refuses_changes_until_it_has_room() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Replica::with_program(with_disk(dir.path(), FULL));
    refuses_changes(&replica, "No space left");
    for number in 0..50 {
        replica.ask("client", &number.to_string());
    }
    // The disk of the service, as this process sees it.
    let disk = format!("/proc/{}/root{}", replica.server.process.id(), dir.path().display());
    replica.server.wait_for_log(&["cannot write the decision log", "cannot write the request log"]);
    fs::remove_file(format!("{disk}/filler")).unwrap();
    replica.tollgate(&["override", "set", "shop", "client=bob", "--block"]);
    assert!(replica.is_blocked("bob"));
    assert!(replica.get("/api/v1/status")["overrides"]["failure"].is_null());
    replica.server.wait_for_log(&["can be written again"]);
    eventually("the logs are written again", || {
        replica.ask("client", "last");
        let read = |name: &str| fs::read_to_string(format!("{disk}/{name}")).unwrap_or_default();
        let all = ["decisions", "requests", "overrides", "overrides.changes"].map(read);
        for line in all.iter().flat_map(|text| text.lines()) {
            let line: Result<Value, _> = serde_json::from_str(line);
            line.unwrap_or_else(|error| panic!("{error}: a part of a line in {all:?}"));
        }
        let is_written = all[..2].iter().all(|text| text.contains("last"));
        holds(is_written && all[2].contains("bob") && all[3].contains("bob"), || format!("{all:?}"))
    });
}

#[test]
fn a_directory_that_does_not_exist_is_a_mistake() {
    let setup = Setup::new().rules("shop.yaml", RULES).env("OVERRIDES_FILE", "/no/such/file");
    let log = setup.refused();
    assert!(log.contains("OVERRIDES_FILE: /no/such/file: cannot write"), "{log}");
}
