//! `tollgate status`, `top` and `refusals`: their output and their exit codes.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    process::{Command, Stdio},
    thread,
};

use serde_json::Value;

use support::{
    eventually,
    process::{assert_exit, printed},
    server::BINARY,
};

use super::{Admin, tollgate};

#[test]
fn refusals_are_printed_in_order_and_followed() {
    let admin = Admin::start();
    assert_exit(&admin.run(&["refusals"]), 1, &["no refusals"]);
    admin.ask("ann", 3);
    admin.ask("bob", 3);
    let output = admin.run(&["refusals"]);
    assert_exit(
        &output,
        0,
        &[
            "shop user=ann 1 refusal\n  over 2 per hour, retry after ",
            "rule shop.user /",
            "/shop.yaml:3",
            "this replica",
        ],
    );
    let text = printed(&output);
    assert!(text.find("user=ann") < text.find("user=bob"), "the newest comes last, as in a log: {text}");
    let one = admin.run(&["refusals", "--descriptor", "user=bob"]);
    assert_exit(&one, 0, &["user=bob"]);
    assert!(!printed(&one).contains("user=ann"));
    let same = admin.run(&["refusals", "shop", "user=bob"]);
    assert_eq!(printed(&same), printed(&one));
    assert_exit(&admin.run(&["refusals", "other"]), 1, &["no refusals"]);

    let address = format!("127.0.0.1:{}", admin.port);
    let mut following = Command::new(BINARY)
        .args(["refusals", "--follow", "--json", "--admin", &address])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next = || {
        let line: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
        line["descriptor"][0]["value"].as_str().unwrap().to_owned()
    };
    assert_eq!([next(), next()], ["ann", "bob"]);
    admin.ask("carl", 4);
    assert_eq!([next(), next()], ["carl", "carl"]);
    following.kill().unwrap();
    following.wait().unwrap();
}

#[test]
fn following_ends_when_its_reader_is_gone() {
    let admin = Admin::start();
    admin.ask("ann", 3);
    let mut command = Command::new(BINARY);
    command.args(["refusals", "--follow", "--admin", &format!("127.0.0.1:{}", admin.port)]);
    let mut following = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("user=ann"));
    drop(lines);
    let status = eventually("it ends", || {
        admin.ask("bob", 3);
        following.try_wait().unwrap().ok_or_else(String::new)
    });
    assert!(status.success(), "{status}");
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let admin = Admin::start();
    admin.ask("ann", 3);
    let address = format!("127.0.0.1:{}", admin.port);
    let rules = admin.server.rules_dir();
    for args in [
        &["override", "list", "--csv", "--admin", &address][..],
        &["refusals", "--follow", "--admin", &address],
        &["status", "--json", "--admin", &address],
        &["check", rules.to_str().unwrap()],
        &["settings"],
        &["man"],
        &["schema"],
        &["completions", "bash"],
        &["--help"],
        &["--version"],
        &["help", "check"],
        &["override", "set", "--help"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(BINARY).args(args).stdout(full).output().unwrap();
        assert_exit(&output, 2, &["cannot write to standard output: No space left on device"]);
    }
}

/// The address of an HTTP server that returns the same to every request.
fn returning(head: &str, body: &'static str) -> String {
    let reply = format!("{head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(reply.as_bytes());
        }
    });
    address
}

#[test]
fn replies_of_another_service_are_errors_with_advice() {
    for (head, body) in [
        ("HTTP/1.1 200 OK", "[]"),
        ("HTTP/1.1 200 OK", "null"),
        ("HTTP/1.1 200 OK", "\"text\""),
        ("HTTP/1.1 200 OK", "<html>"),
        ("HTTP/1.1 500 Internal Server Error", "[]"),
        ("HTTP/1.1 404 Not Found", "\u{1b}[2J\u{7}"),
    ] {
        let address = returning(head, body);
        for args in [
            &["status"][..],
            &["top"],
            &["refusals", "--follow"],
            &["override", "list"],
            &["override", "set", "d", "k=v", "--block"],
            &["counter", "get", "d", "k=v"],
        ] {
            let output = tollgate(&[args, &["--admin", &address]].concat(), &[]);
            assert_exit(&output, 2, &["is that the admin API?"]);
            assert!(!printed(&output).contains(['\u{1b}', '\u{7}']), "{args:?}: {output:?}");
        }
    }
}

#[test]
fn an_unreachable_service_is_an_error_with_advice() {
    for command in ["status", "top", "refusals"] {
        let output = tollgate(&[command, "--admin", "127.0.0.1:1"], &[]);
        assert_exit(
            &output,
            2,
            &["cannot reach the admin API at http://127.0.0.1:1", "--admin sets another address"],
        );
    }
    let admin = Admin::start();
    let http = format!("127.0.0.1:{}", admin.server.ports.http);
    assert_exit(&tollgate(&["status", "--admin", &http], &[]), 2, &["404", "is that the admin API?"]);
    assert_exit(&tollgate(&["status", "--admin", "ftp://a:1"], &[]), 2, &["expected http://host:port"]);
    assert_exit(
        &tollgate(&["status"], &[("ADMIN_ADDR", "off")]),
        2,
        &["no admin address: ADMIN_ADDR=\"off\""],
    );
}

#[test]
fn control_characters_of_callers_are_escaped_on_terminals() {
    let admin = Admin::start();
    let evil = "evil\u{1b}[2J\u{9b}31m\r\nshop.user  user=mallory\u{202e}\u{7}";
    assert_eq!(admin.ask(evil, 5), 3);
    let address = format!("127.0.0.1:{}", admin.port);
    // As on a terminal: escape codes are not removed.
    let run = |args: &[&str]| tollgate(&[args, &["--admin", &address]].concat(), &[("CLICOLOR_FORCE", "1")]);
    let shown = r"user=evil\u{1b}[2J\u{9b}31m\r\nshop.user  user=mallory\u{202e}\u{7}";
    let set =
        ["override", "set", "shop", shown, "--block", "--reason", "its\u{1b}]0;title\u{7}\n2026 INFO fine"];
    assert_exit(&run(&set), 0, &["rule shop.user"]);
    for args in [
        &["top"][..],
        &["refusals"],
        &["override", "list"],
        &["counter", "get", "shop", shown],
        &["override", "remove", "shop", shown],
    ] {
        let output = run(args);
        assert_exit(&output, 0, &[shown]);
        let text = printed(&output);
        assert!(
            ![
                "\u{1b}[2J",
                "\u{1b}]",
                "\u{9b}",
                "\u{7}",
                "\r",
                "\u{202e}",
                "\n2026",
                "\nshop.user  user=mallory"
            ]
            .iter()
            .any(|sequence| text.contains(sequence)),
            "{}",
            text.escape_debug()
        );
    }
    // The commands accept the notation that they print: it was this caller's counter.
    let json: Value = serde_json::from_slice(&run(&["top", "--json"]).stdout).unwrap();
    assert_eq!(json["keys"][0]["descriptor"][0]["value"], evil);
    assert_exit(&run(&["counter", "reset", "shop", shown]), 0, &["reset 1 counter"]);
    assert_eq!(admin.ask(evil, 2), 0);
}
