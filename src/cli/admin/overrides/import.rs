//! `tollgate override import`: checks the whole file, sends it in pieces, and puts it in force at once.

use std::{
    fs,
    io::{self, Cursor, IsTerminal as _, Read as _, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hyper::Method;
use serde_json::json;

use super::{ImportArgs, source::Source, user};
use crate::{
    cli::{
        admin::{
            Client, Failure,
            format::{count, number, thousands, word},
            print_json, run as run_admin, with_query,
        },
        serve::Environment,
        terminal::{self, Verdict},
    },
    clock::{Clock, SystemClock},
    overrides::Override,
};

/// The text of one call. The service reads 4 MB at most, unless it is set lower.
const PIECE: usize = 512 << 10;

/// Mistakes that are printed.
const MAX_MISTAKES: usize = 20;

/// How long putting an import in force may take: all replicas read it.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Imports a file. The verdict is no when it has mistakes; then nothing has changed.
pub(super) fn run(args: &ImportArgs, environment: &Environment) -> Verdict {
    let text = match read(&args.file) {
        Ok(text) => text,
        Err(error) => {
            terminal::print_error(&format!("{}: {error}", args.file.display()));
            return Verdict::Unknown;
        }
    };
    let by = user(environment);
    let is_csv = args.csv || args.file.extension().is_some_and(|name| name.eq_ignore_ascii_case("csv"));
    let total = match check(&text, is_csv) {
        Ok(total) => total,
        Err(mistakes) => {
            for mistake in &mistakes {
                terminal::print_error(&format!("{}: {mistake}", args.file.display()));
            }
            return Verdict::No;
        }
    };
    if args.check {
        terminal::print(&format!("{}: {}: OK\n", args.file.display(), count(total, "override")));
        return Verdict::Yes;
    }
    let mut admin = args.change.admin.clone();
    admin.timeout = admin.timeout.or(Some(TIMEOUT));
    run_admin(&admin, environment, |client| send(client, args, &text, is_csv, total, by.as_deref()))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if path.as_os_str() != "-" {
        return fs::read(path);
    }
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text)?;
    Ok(text)
}

/// The number of overrides, or the mistakes of the file.
fn check(text: &[u8], is_csv: bool) -> Result<u64, Vec<String>> {
    let mut source =
        Source::new(Cursor::new(text), is_csv, SystemClock.now()).map_err(|error| vec![error])?;
    let (mut total, mut mistakes) = (0, Vec::new());
    while let Some(one) = source.next() {
        total += 1;
        mistakes.extend(one.err());
        if mistakes.len() >= MAX_MISTAKES {
            mistakes.push("and maybe more".to_owned());
            break;
        }
    }
    match total {
        _ if !mistakes.is_empty() => Err(mistakes),
        0 => Err(vec!["there is no override in it".to_owned()]),
        total => Ok(total),
    }
}

fn send(
    client: &Client,
    args: &ImportArgs,
    text: &[u8],
    is_csv: bool,
    total: u64,
    by: Option<&str>,
) -> Result<Verdict, Failure> {
    let begun = Instant::now();
    let reply = client.call(Method::POST, "/api/v1/imports", None)?;
    let path = format!("/api/v1/imports/{}", word(&reply["import"]));
    let sent = send_pieces(client, args, text, is_csv, total, by, &path);
    if let Err(failure) = sent {
        // It ends by itself where the service is not reached any more.
        let _ = client.call(Method::DELETE, &path, None);
        return Err(failure);
    }
    let reply = client.call(Method::PUT, &with_query(&path, args.change.reason_query()), None)?;
    if args.change.admin.json {
        print_json(&reply);
        return Ok(Verdict::Yes);
    }
    let seconds = begun.elapsed().as_secs_f64();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rate for people"
    )]
    let rate = (total as f64 / seconds.max(0.001)) as u64;
    terminal::print(&format!(
        "imported {} in {seconds:.1}s ({} per second); {} in force\n",
        count(number(&reply["imported"]), "override"),
        thousands(rate),
        thousands(number(&reply["total"])),
    ));
    Ok(Verdict::Yes)
}

fn send_pieces(
    client: &Client,
    args: &ImportArgs,
    text: &[u8],
    is_csv: bool,
    total: u64,
    by: Option<&str>,
    path: &str,
) -> Result<(), Failure> {
    let mut source = Source::new(Cursor::new(text), is_csv, SystemClock.now()).map_err(Failure::plain)?;
    let mut progress = Progress::new(total);
    let (mut piece, mut lines) = (String::with_capacity(PIECE + 1024), 0_u64);
    loop {
        let next = source.next().transpose().map_err(Failure::plain)?;
        if let Some(one) = &next {
            add_line(&mut piece, one, args.change.reason.as_deref(), by);
            lines += 1;
        }
        let is_end = next.is_none();
        if piece.len() >= PIECE || (is_end && !piece.is_empty()) {
            let body = Bytes::from(std::mem::take(&mut piece));
            client.send(Method::POST, path, Some(("application/x-ndjson", body)))?;
            progress.show(lines);
        }
        if is_end {
            progress.end();
            return Ok(());
        }
    }
}

fn add_line(piece: &mut String, one: &Override, reason: Option<&str>, by: Option<&str>) {
    let mut json = one.to_json();
    for (name, value) in [("reason", reason), ("by", by)] {
        if let (true, Some(value)) = (json[name].is_null(), value) {
            json[name] = json!(value);
        }
    }
    piece.push_str(&json.to_string());
    piece.push('\n');
}

/// A bar on the terminal's last line; nothing where standard error is none.
struct Progress {
    total: u64,
    begun: Instant,
    is_shown: bool,
}

impl Progress {
    fn new(total: u64) -> Self {
        Self { total, begun: Instant::now(), is_shown: io::stderr().is_terminal() }
    }

    fn show(&mut self, done: u64) {
        if self.is_shown {
            let line = bar(done, self.total, self.begun.elapsed());
            // There is no other place to report to.
            let _ = write!(io::stderr(), "\r{line}");
        }
    }

    fn end(&self) {
        if self.is_shown {
            let _ = writeln!(io::stderr());
        }
    }
}

/// `[#####     ]  50 %  500,000 of 1,000,000, 81,000/s`
fn bar(done: u64, total: u64, elapsed: Duration) -> String {
    const WIDTH: u64 = 20;
    let part = |of: u64| (done.min(total).saturating_mul(of)).checked_div(total).unwrap_or(of);
    let filled = usize::try_from(part(WIDTH)).unwrap_or_default();
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = done.saturating_mul(1000) / millis;
    format!(
        "[{:<20}] {:>3} %  {} of {}, {}/s",
        "#".repeat(filled),
        part(100),
        thousands(done),
        thousands(total),
        thousands(rate)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_grows_with_what_is_done() {
        let second = Duration::from_secs(2);
        assert_eq!(bar(0, 1_000_000, second), "[                    ]   0 %  0 of 1,000,000, 0/s");
        assert_eq!(
            bar(500_000, 1_000_000, second),
            "[##########          ]  50 %  500,000 of 1,000,000, 250,000/s"
        );
        assert_eq!(bar(7, 7, Duration::ZERO), "[####################] 100 %  7 of 7, 7,000/s");
    }

    #[test]
    fn every_mistake_of_a_file_has_its_line() {
        let json = r#"{"domain": "d", "descriptor": "k=a", "action": "block"}"#;
        let checked = check(format!("{json}\n\n{{}}\n{json}\nx\n").as_bytes(), false);
        let mistakes = checked.unwrap_err();
        assert_eq!(mistakes.len(), 2, "{mistakes:?}");
        assert!(mistakes[0].starts_with("line 3: domain is missing"), "{mistakes:?}");
        assert!(mistakes[1].starts_with("line 5: invalid JSON"), "{mistakes:?}");
        assert_eq!(check(format!("{json}\n{json}\n").as_bytes(), false), Ok(2));
        assert_eq!(check(b"\n", false), Err(vec!["there is no override in it".to_owned()]));
        let header = "domain,descriptor,action,requests_per_unit,unit\n";
        let good = format!("{header}d,\"k=a,l=b\",limit,5,hour\nd,k,block,,\n");
        assert_eq!(check(good.as_bytes(), true), Ok(2));
        let bad = format!("{header}d,k=a,limit,5\nd,k=a,limit,5,our\nd,k=a,limit,-5,hour\nd,\"k=\n");
        let mistakes = check(bad.as_bytes(), true).unwrap_err();
        assert!(mistakes[0].starts_with("line 2: expected 5 cells, got 4"), "{mistakes:?}");
        assert!(mistakes[1].starts_with("line 3: unit: unknown unit \"our\""), "{mistakes:?}");
        assert!(mistakes[2].starts_with("line 4: requests_per_unit: expected an integer"), "{mistakes:?}");
        let header = check(b"domain,descriptor,acton\n", true).unwrap_err();
        assert!(
            header[0].starts_with("line 1: unknown column \"acton\"; did you mean \"action\"?"),
            "{header:?}"
        );
        assert!(check(&[b'{', 0xff, b'\n'], false).is_err());
        for (text, expected) in [
            (&b"\xef\xbb\xbf{}\r\n"[..], "line 1: domain is missing"),
            (
                b"{\"domain\": \"d\", \"descriptor\": \"k=\xff\"}",
                "line 1: stream did not contain valid UTF-8",
            ),
        ] {
            let mistakes = check(text, false).unwrap_err();
            assert!(mistakes[0].starts_with(expected), "{mistakes:?}");
        }
        assert_eq!(check(format!("\u{feff}{json}\r\n{json}\r\n").as_bytes(), false), Ok(2));
        for end in ["\n", "\r\n"] {
            let header =
                ["\u{feff}domain,descriptor,action", "d,k,block", "d,\"k=", "x\",block", "d,k,bloc", ""];
            let mistakes = check(header.join(end).as_bytes(), true).unwrap_err();
            assert_eq!(mistakes.len(), 1, "{mistakes:?}");
            assert!(mistakes[0].starts_with("line 5: action: unknown action"), "{mistakes:?}");
            let latin = [&b"domain,descriptor,action"[..], end.as_bytes(), b"d,k=\xe9,block", end.as_bytes()];
            let expected = vec!["line 2: the text is not UTF-8; save the file as UTF-8".to_owned()];
            assert_eq!(check(&latin.concat(), true), Err(expected));
        }
        assert!(check(b"\xff\xfed\0", true).unwrap_err()[0].starts_with("line 1: the text is not UTF-8"));
        let many = "x\n".repeat(100);
        assert_eq!(check(many.as_bytes(), false).unwrap_err().len(), MAX_MISTAKES + 1);
    }
}
