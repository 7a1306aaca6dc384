//! Pipes that are not read: neither the log nor the decision log blocks requests, pages or the shutdown.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::Command,
    time::Duration,
};

use support::{
    PATIENCE,
    client::request,
    eventually, holds,
    server::{BINARY, Server, Setup},
};

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

/// Decides requests, serves pages, and ends at SIGTERM.
fn assert_works(mut server: Server) {
    for _ in 0..20 {
        server.ask(request("d", &[&[("k", "v")]])).unwrap();
    }
    assert!(server.is_healthy());
    assert!(server.metrics().contains_key("tollgate_log_lines_dropped_total"));
    server.process.signal("TERM");
    assert!(server.process.wait(PATIENCE).expect("it ends").success());
}

/// A named pipe.
pub(crate) fn pipe(dir: &Path) -> String {
    let path = dir.join("pipe").to_str().unwrap().to_owned();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Opens a pipe and fills it.
pub(crate) fn filled(path: &str) -> File {
    let mut pipe =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    loop {
        match pipe.write(&[b'.'; 4096]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return pipe,
            Err(error) => panic!("{path}: {error}"),
        }
    }
}

/// The service with a pipe in place of this descriptor.
pub(crate) fn with_output(descriptor: u8, path: &str) -> Setup {
    let run = format!("exec \"$0\" {descriptor}>\"$1\"");
    Setup::new().rules("d.yaml", RULES).program(Path::new("/bin/sh"), &["-c", &run, BINARY, path])
}

#[test]
fn a_standard_error_that_is_not_read_blocks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = pipe(dir.path());
    let _unread = filled(&path);
    assert_works(with_output(2, &path).env("LOG_LEVEL", "info").start());
}

#[test]
fn lines_are_written_when_standard_error_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = pipe(dir.path());
    let mut unread = filled(&path);
    let server = with_output(2, &path).env("LOG_LEVEL", "info").start();
    let mut seen = Vec::new();
    eventually("the lines arrive", || {
        let mut some = vec![0; 65_536];
        let read = unread.read(&mut some).unwrap_or_default();
        seen.extend_from_slice(&some[..read]);
        let text = String::from_utf8_lossy(&seen).into_owned();
        holds(["starting", "rules loaded", "listening"].iter().all(|line| text.contains(line)), || text)
    });
    assert_works(server);
}

#[test]
fn a_decision_log_that_is_not_read_blocks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = pipe(dir.path());
    // Opening it blocks until it has a reader.
    let to_file = Setup::new().rules("d.yaml", RULES).env("DECISION_LOG_FILE", &path);
    assert_works(to_file.env("DECISION_LOG", "sampled:1").start());

    let _unread = filled(&path);
    let server = with_output(1, &path).env("DECISION_LOG", "sampled:1").start();
    server.ask(request("d", &[&[("k", "v")]])).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_works(server);
}
