//! `tollgate replay`: logs, reports, exit codes, and that its decisions are those of a live service.

mod live;
mod schedules;

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use support::{process::assert_exit, server::BINARY};

/// Rules and logs in a directory.
struct Files(tempfile::TempDir);

impl Files {
    /// Rules of 2 and of 4 requests a minute for each user.
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        for (name, limit) in [("strict", 2), ("loose", 4)] {
            let rules = format!(
                "domain: shop\ndescriptors:\n- key: user\n  rate_limit: {{unit: minute, requests_per_unit: {limit}}}\n\
                 - key: unused\n  rate_limit: {{unit: hour, requests_per_unit: 1}}\n"
            );
            files.put(&format!("{name}/shop.yaml"), rules.as_bytes());
        }
        files
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Compresses with the tool, into a file of this name.
    fn zstd(&self, name: &str, bytes: &[u8]) -> Vec<u8> {
        let (plain, compressed) = (self.put("plain", bytes), self.0.path().join(name));
        let status = Command::new("zstd").args(["-q", "-f", "-o"]).arg(&compressed).arg(plain).status();
        assert!(status.expect("zstd is installed").success());
        fs::read(compressed).unwrap()
    }

    fn replay(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = Command::new(BINARY);
        command.arg("replay").args(args).current_dir(self.0.path());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // The program may end without reading all.
        let _ = stdin.write_all(input);
        drop(stdin);
        child.wait_with_output().unwrap()
    }

    fn report(&self, args: &[&str], input: &[u8]) -> Value {
        let output = self.replay(&[args, &["--json"]].concat(), input);
        assert_exit(&output, 0, &[]);
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn line(second: f64, user: &str) -> String {
    let (minute, second) = (Duration::from_secs_f64(second).as_secs() / 60, second % 60.0);
    format!(
        "{{\"time\":\"2026-11-01T00:{minute:02}:{second:06.3}Z\",\"domain\":\"shop\",\"descriptors\":[{{\"entries\":[{{\"key\":\"user\",\"value\":\"{user}\"}}],\"hits\":1}}]}}\n"
    )
}

/// Six requests of ann and three of bob in one minute, and one of each in the next.
fn log() -> String {
    let mut text = String::new();
    for second in 0..6 {
        text += &line(f64::from(second), "ann");
    }
    for second in 6..9 {
        text += &line(f64::from(second), "bob");
    }
    text + &line(61.0, "ann") + &line(61.0, "bob")
}

const COMPARE: [&str; 4] = ["--rules", "strict", "--against", "loose"];

#[test]
fn the_report_compares_two_sets_of_rules() {
    let files = Files::new();
    files.put("log.jsonl", log().as_bytes());
    let report = files.report(&[&["log.jsonl"], &COMPARE[..], &["--suggest", "50%"]].concat(), b"");
    let counts = ["requests", "admitted", "refused", "newly_refused", "newly_allowed"];
    assert_eq!(counts.map(|name| report[name].as_u64().unwrap()), [11, 6, 5, 3, 0]);
    let rule = &report["rules"][0];
    assert_eq!(
        (&rule["rule"], &rule["line"], &rule["requests"]),
        (&json!("shop.user"), &json!(3), &json!(11))
    );
    let limit = &rule["limits"][0];
    assert_eq!(limit["use"], json!({"keys": 2, "keys_over": 2, "p50": 3, "p99": 6, "p99.9": 6, "most": 6}));
    assert_eq!((&limit["requests_per_unit"], &limit["suggested"]), (&json!(2), &json!(3)));
    assert_eq!(report["unmet"], json!(["shop.unused"]));
    let keys = &report["newly_refused_keys"];
    assert_eq!(
        keys[0],
        json!({"rule": "shop.user", "descriptor": "user=ann", "requests": 2,
            "first": "2026-11-01T00:00:02.000Z", "last": "2026-11-01T00:00:03.000Z"})
    );
    assert_eq!((&keys[1]["descriptor"], &keys[1]["requests"]), (&json!("user=bob"), &json!(1)));
    // The other way round the same requests are newly allowed.
    let report = files.report(&["log.jsonl", "--rules", "loose", "--against", "strict"], b"");
    assert_eq!(counts.map(|name| report[name].as_u64().unwrap()), [11, 9, 2, 0, 3]);
    assert_eq!(report["newly_allowed_keys"][0]["descriptor"], "user=ann");
    // Without other rules everything refused is new.
    let report = files.report(&["log.jsonl", "--rules", "strict"], b"");
    assert_eq!(counts.map(|name| report[name].as_u64().unwrap()), [11, 6, 5, 5, 0]);
    let window = ["--from", "2026-11-01T00:00:02Z", "--to", "2026-11-01T00:01:01Z"];
    let report = files.report(&[&["log.jsonl", "--rules", "strict"], &window[..]].concat(), b"");
    assert_eq!((&report["requests"], &report["refused"]), (&json!(7), &json!(3)));
}

#[test]
fn the_exit_code_is_that_of_the_share() {
    let files = Files::new();
    files.put("log.jsonl", log().as_bytes());
    let run = |more: &[&str]| files.replay(&[&["log.jsonl"], &COMPARE[..], more].concat(), b"");
    // 3 of 11 are newly refused.
    assert_exit(
        &run(&["--fail-above", "27.3%"]),
        0,
        &["11 requests, 5 refused (45 %), 3 newly refused (27 %)"],
    );
    assert_exit(
        &run(&["--fail-above", "27.2%"]),
        1,
        &["more than 27.2% of the requests would be newly refused"],
    );
    assert_exit(&run(&["--fail-above", "0.1%", "--json"]), 1, &["\"newly_refused\": 3"]);
    let github = run(&["--fail-above", "0.1%", "--format", "github"]);
    assert_exit(
        &github,
        1,
        &["::warning file=strict/shop.yaml,line=3::shop.user: 3 requests newly refused (27 %25)"],
    );
    assert_exit(&github, 1, &["::error title=tollgate replay::more than 0.1%25 of the requests"]);
    assert_exit(&run(&["--fail-above", "0.1"]), 2, &["expected a percentage"]);
    assert_exit(&run(&["--from", "noon"]), 2, &["expected a time such as"]);
}

#[test]
fn what_cannot_be_read_has_its_file_and_line() {
    let files = Files::new();
    let good = line(0.0, "ann");
    let cut = good.strip_suffix("]}\n").unwrap();
    for (log, place) in [
        (format!("{good}{good}{cut}"), "log.jsonl:3: the line is cut at column"),
        (format!("{good}\n\nnonsense\n{good}"), "log.jsonl:4: column 2: expected"),
        (format!("{good}{{\"missing\":1}}\n{{}}\n"), "log.jsonl:3: time: missing"),
        (
            format!("{good}{{\"code\":\"ok\",\"decided_by\":\"counter\"}}\n"),
            "log.jsonl:2: this is a line of the decision log",
        ),
    ] {
        files.put("log.jsonl", log.as_bytes());
        let output = files.replay(&["log.jsonl", "--rules", "strict", "--json"], b"");
        assert_exit(&output, 2, &[place]);
        assert!(output.stdout.is_empty(), "{output:?}");
        let github = files.replay(&["log.jsonl", "--rules", "strict", "--format", "github"], b"");
        let (name, rest) = place.split_once(':').unwrap();
        let line = rest.split(':').next().unwrap();
        assert_exit(&github, 2, &[&format!("::error file={name},line={line}::")]);
    }
    assert_exit(&files.replay(&["gone.jsonl", "--rules", "strict"], b""), 2, &["gone.jsonl: cannot be read"]);
    assert_exit(&files.replay(&["strict", "--rules", "strict"], b""), 2, &["strict: is a directory"]);
    files.put("bad/shop.yaml", b"domain: shop\ndescriptors: [{kye: k}]\n");
    assert_exit(&files.replay(&["-", "--rules", "bad"], good.as_bytes()), 2, &["shop.yaml:2:"]);
    let compressed = gzip(log().repeat(100).as_bytes());
    let by_zstd = files.zstd("whole", log().repeat(100).as_bytes());
    for (name, bytes, message) in [
        ("log.gz", &compressed[..compressed.len() - 10], "log.gz:1"),
        ("head.gz", &compressed[..5], "head.gz:1: cannot be read"),
        ("log.zst", &by_zstd[..by_zstd.len() - 10], "the zstd data is cut or damaged"),
        ("head.zst", &by_zstd[..5], "head.zst:1: cannot be read: the zstd data is cut or damaged"),
        ("behind.zst", &[&by_zstd[..], b"garbage"].concat(), "the zstd data is cut or damaged"),
        ("binary", b"\0\x01\x02\xff\xfe", "binary:1: column 1"),
        ("zeros", &[0; 1000], "zeros:1: column 1"),
    ] {
        files.put(name, bytes);
        let output = files.replay(&[name, "--rules", "strict", "--json"], b"");
        assert_exit(&output, 2, &[message]);
        assert!(output.stdout.is_empty(), "{name}: {output:?}");
    }
    // A line that never ends is not read into memory.
    let endless = [good.as_bytes(), &vec![b'x'; 17 << 20]].concat();
    let output = files.replay(&["-", "--rules", "strict"], &endless);
    assert_exit(&output, 2, &["-:2: the line is longer than 16777216 bytes"]);
}

#[test]
fn a_byte_order_mark_and_bytes_that_are_no_utf_8_end_no_log() {
    let files = Files::new();
    let good = line(0.0, "ann");
    let (before, after) = good.split_once("ann").unwrap();
    let latin = [before.as_bytes(), b"\xe9ric", after.as_bytes()].concat();
    files.put("log.jsonl", &["\u{feff}".as_bytes(), good.as_bytes(), &latin, good.as_bytes()].concat());
    let output = files.replay(&["log.jsonl", "--rules", "strict", "--json"], b"");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report["requests"], 3, "{report}");
}

#[test]
fn arguments_that_would_mislead_are_refused() {
    let files = Files::new();
    files.put("log.jsonl", log().as_bytes());
    fs::create_dir(files.0.path().join("none")).unwrap();
    let noon = "2026-11-01T12:00:00Z";
    for (args, message) in [
        (&["log.jsonl", "--rules", "none"][..], "none has no rules"),
        (&["log.jsonl", "--rules", "strict", "--against", "none"], "none has no rules"),
        (&["log.jsonl", "--rules", "gone"], "gone"),
        (&["log.jsonl", "--rules", "strict", "--from", noon, "--to", noon], "--from is not before --to"),
        (&["-", "-", "--rules", "strict"], "can be only one of the logs"),
        (&["log.jsonl"], "--rules"),
        (&["--rules", "strict"], "LOG"),
        (&["log.jsonl", "--rules", "strict", "--json", "--format", "text"], "cannot be used with"),
        (&["log.jsonl", "--rules", "strict", "--access-log-format", "%START_TIME%"], "--descriptor"),
    ] {
        let output = files.replay(args, b"");
        assert_exit(&output, 2, &[message]);
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    // Nothing in the time is no error.
    for args in [&["log.jsonl", "--from", noon][..], &["/dev/null"]] {
        let output = files.replay(&[args, &["--rules", "strict", "--fail-above", "0%"]].concat(), b"");
        assert_exit(&output, 0, &["warning: the logs have no request in this time"]);
    }
}

#[test]
fn logs_may_come_from_a_pipe() {
    let files = Files::new();
    let fifo = files.0.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let lines: String = (0..20_000).map(|number| line(f64::from(number) / 10.0, "ann")).collect();
    let writer = std::thread::spawn(move || fs::write(fifo, lines).unwrap());
    let report = files.report(&["fifo", "--rules", "strict"], b"");
    writer.join().unwrap();
    assert_eq!(report["requests"], 20_000);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn logs_may_be_compressed_and_several() {
    let files = Files::new();
    let text = log();
    let (first, second) = text.split_at(text.len() / 2 + text[text.len() / 2..].find('\n').unwrap() + 1);
    files.put("a.gz", &[gzip(first.as_bytes()), gzip(second.as_bytes())].concat());
    let frames = [files.zstd("one.zst", first.as_bytes()), files.zstd("two.zst", second.as_bytes())].concat();
    files.put("b.zst", &frames);
    files.put("one.jsonl", first.as_bytes());
    files.put("two.jsonl", second.as_bytes());
    for logs in [&["a.gz"][..], &["b.zst"], &["one.jsonl", "two.jsonl"], &["two.jsonl", "one.jsonl"], &["-"]]
    {
        let report = files.report(&[logs, &["--rules", "strict"]].concat(), text.as_bytes());
        assert_eq!((&report["requests"], &report["refused"]), (&json!(11), &json!(5)), "{logs:?}");
    }
}

#[test]
fn slightly_unordered_lines_are_sorted_and_others_counted() {
    let files = Files::new();
    let lines = [20.0, 11.0, 25.0, 15.5, 40.0, 39.0, 70.0, 2.0, 71.0].map(|second| line(second, "ann"));
    let report = files.report(&["-", "--rules", "loose"], lines.concat().as_bytes());
    // Everything is read before the first decision, so even the oldest line is in time.
    assert_eq!((&report["requests"], &report["logs"]["late"]), (&json!(9), &json!(0)));
    // 40,000 lines are several blocks.
    let mut text = String::new();
    for number in 0..40_000 {
        text += &line(f64::from(number) / 100.0, &format!("u{number}"));
    }
    text += &lines[7];
    let output = files.replay(&["-", "--rules", "loose"], text.as_bytes());
    assert_exit(&output, 0, &["40,000 requests", "1 line is more than 10 s older", "the first at -:40001"]);
}

#[test]
fn the_share_of_a_log_sampled_by_request_is_unknown() {
    let files = Files::new();
    for (head, text) in [
        ("{\"sample\":{\"by\":\"request\",\"rate\":0.1}}\n", "the logs have a sample of the requests"),
        ("{\"missing\":3}\n", "3 requests are missing from the logs"),
    ] {
        let log = format!("{head}{}", log());
        let output = files.replay(&["-", "--rules", "strict", "--fail-above", "1%"], log.as_bytes());
        assert_exit(&output, 2, &[text]);
        assert_exit(&files.replay(&["-", "--rules", "strict"], log.as_bytes()), 0, &["keys look less used"]);
    }
    let by_key = format!("{{\"sample\":{{\"by\":\"key\",\"rate\":0.1}}}}\n{}", log());
    assert_exit(&files.replay(&["-", "--rules", "strict", "--fail-above", "1%"], by_key.as_bytes()), 1, &[]);
}

#[test]
fn access_logs_of_envoy_are_replayed() {
    let files = Files::new();
    let descriptors =
        ["--domain", "shop", "--descriptor", "user=%REQ(X-USER)%", "--descriptor", "path=%REQ(:PATH)%"];
    let args = [&["-", "--rules", "strict"], &descriptors[..]].concat();
    let json = |second, user| {
        format!("{{\"start_time\":\"2026-11-01T00:00:{second:02}Z\",\"path\":\"/\",\"x-user\":{user}}}\n")
    };
    let log: String = (0..4).map(|second| json(second, "\"ann\"")).chain([json(5, "null")]).collect();
    let report = files.report(&args, log.as_bytes());
    assert_eq!((&report["requests"], &report["refused"]), (&json!(5), &json!(2)));
    let by_user = &args[..args.len() - 2];
    let report = files.report(by_user, log.as_bytes());
    assert_eq!((&report["requests"], &report["logs"]["without_descriptors"]), (&json!(4), &json!(1)));
    let text = ["0", "1", "2"].map(|second| format!("2026-11-01T00:00:0{second}Z|ann\n")).concat();
    let format = ["--access-log-format", "%START_TIME%|%REQ(X-USER)%"];
    let report = files.report(&[by_user, &format].concat(), text.as_bytes());
    let other = ["--access-log-format", "%START_TIME%|%PROTOCOL%"];
    let warning = "warning: 3 descriptors dropped, since the log does not have %REQ(X-USER)%";
    assert_exit(&files.replay(&[by_user, &other].concat(), text.as_bytes()), 0, &[warning]);
    assert_eq!((&report["requests"], &report["refused"]), (&json!(3), &json!(1)));
    assert_exit(
        &files.replay(by_user, text.as_bytes()),
        2,
        &["-:1: column 1: expected \"[\" of the log's format"],
    );
    assert_exit(&files.replay(&["-", "--rules", "strict", "--domain", "shop"], b""), 2, &["--descriptor"]);
}

#[test]
fn the_page_is_one_file_that_shows_texts_of_callers_as_texts() {
    let files = Files::new();
    let log = log() + &line(62.0, "<script>").repeat(3);
    let page = files.0.path().join("report.html");
    let args = ["-", "--html", page.to_str().unwrap(), "--suggest", "1%"];
    assert_exit(&files.replay(&[&args[..], &COMPARE].concat(), log.as_bytes()), 0, &["14 requests"]);
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("user=&lt;script&gt;") && html.contains("shop.unused"), "{html}");
    for outside in ["<script", "http://", "https://", "src=", "href=", "url("] {
        assert!(!html.contains(outside), "{outside}: {html}");
    }
    assert_exit(
        &files.replay(&["-", "--rules", "strict", "--html", "/nowhere/x.html"], b""),
        2,
        &["cannot write"],
    );
}

/// A million lines, and what a Python script makes of fixed windows.
#[test]
fn another_program_computes_the_same_outcome() {
    let files = Files::new();
    files.put(
        "strict/shop.yaml",
        b"domain: shop\ndescriptors:\n- key: user\n  rate_limit: {unit: minute, requests_per_unit: 20}\n",
    );
    files.put(
        "loose/shop.yaml",
        b"domain: shop\ndescriptors:\n- key: user\n  rate_limit: {unit: hour, requests_per_unit: 300}\n",
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/operations/replay/windows.py");
    let log = files.0.path().join("million.jsonl");
    let output = Command::new("python3").arg(script).arg(&log).output().unwrap();
    assert_exit(&output, 0, &[]);
    let expected: Value = serde_json::from_slice(&output.stdout).unwrap();
    let report = files.report(&[&["million.jsonl"], &COMPARE[..]].concat(), b"");
    for name in ["requests", "refused", "newly_refused", "newly_allowed"] {
        assert!(expected[name].as_u64() > Some(1000), "{expected}");
        assert_eq!(report[name], expected[name], "{name}");
    }
    let top = &report["newly_refused_keys"][0];
    assert_eq!((&top["descriptor"], &top["requests"]), (&expected["top"][0], &expected["top"][1]));
    let mut shown = String::new();
    writeln!(shown, "{}", report["rules"][0]["limits"][0]["use"]).unwrap();
    assert_eq!(report["rules"][0]["limits"][0]["use"]["most"], expected["most"], "{shown}");
}
