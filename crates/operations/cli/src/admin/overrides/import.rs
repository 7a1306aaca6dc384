//! `tollgate override import`: checks the whole file, sends it in pieces, and puts it in force at once.

use std::{
    fs,
    io::{self, Cursor, IsTerminal as _, Read as _, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hyper::Method;

use super::{ImportArgs, source::Source, user};
use crate::{
    admin::{Client, Reply, with_query},
    serve::Environment,
    terminal::{self, Failure, Verdict, count},
};
use api::{ImportAborted, ImportBegun, ImportLength, Imported};
use clock::{Clock, SystemClock};
use overrides::Input;
use serde_json::{Value, json};
use text::thousands;

/// The size of one call, without its last line. The service accepts 2 MiB, and lines of 1 MiB.
const PIECE: usize = 512 << 10;

/// The maximum number of errors that are printed.
const MAX_ERRORS: usize = 20;

/// The default timeout, for the commit of an import: all replicas read it.
const TIMEOUT: Duration = Duration::from_secs(300);

#[derive(PartialEq, Eq, Debug)]
struct Import {
    /// Each with the number of overrides up to its end.
    pieces: Vec<(String, u64)>,
    total: u64,
}

/// Imports a file. There is no verdict if it has errors; then nothing has changed.
pub(super) fn run(args: &ImportArgs, environment: &Environment) -> Result<Verdict, Failure> {
    let file = args.file.display();
    let text = read(&args.file).map_err(|error| format!("{file}: {error}"))?;
    let is_csv = args.csv || args.file.extension().is_some_and(|name| name.eq_ignore_ascii_case("csv"));
    let import = match Import::read(
        &text,
        is_csv,
        args.force,
        args.change.reason.as_deref(),
        user(environment).as_deref(),
    ) {
        Ok(import) => import,
        Err(errors) => {
            for error in errors {
                terminal::print_error(format!("{file}: {error}"));
            }
            return Ok(Verdict::Unknown);
        }
    };
    drop(text);
    if args.check {
        let text = || format!("{file}: {}: OK\n", count(import.total, "override"));
        args.change.admin.print(&json!({"checked": import.total}), text);
        return Ok(Verdict::Yes);
    }
    let mut admin = args.change.admin.clone();
    admin.timeout = admin.timeout.or(Some(TIMEOUT));
    import.send(&Client::new(&admin, environment)?, args).or_else(Failure::verdict)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if path.as_os_str() != "-" {
        return fs::read(path);
    }
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text)?;
    Ok(text)
}

impl Import {
    /// Reads a file, or returns its errors. Overrides without a reason or an author get these.
    fn read(
        text: &[u8],
        is_csv: bool,
        force: bool,
        reason: Option<&str>,
        by: Option<&str>,
    ) -> Result<Self, Vec<String>> {
        let mut source =
            Source::new(Cursor::new(text), is_csv, SystemClock.now()).map_err(|error| vec![error])?;
        let (mut import, mut errors) = (Self { pieces: Vec::new(), total: 0 }, Vec::new());
        while let Some(one) = source.next() {
            match one {
                Ok(one) => import.add(&Input { force: one.force || force, ..one }, reason, by),
                Err(error) => errors.push(error),
            }
            if errors.len() >= MAX_ERRORS {
                errors.push("further lines were not checked".to_owned());
                break;
            }
        }
        match import.total {
            _ if !errors.is_empty() => Err(errors),
            0 => Err(vec!["the file has no overrides".to_owned()]),
            _ => Ok(import),
        }
    }

    fn add(&mut self, input: &Input, reason: Option<&str>, by: Option<&str>) {
        let mut json = input.one.to_json();
        if !input.is_exported {
            // The identifier marks an override that a service has accepted before.
            json["id"] = Value::Null;
        }
        if input.force {
            json["force"] = true.into();
        }
        for (name, value) in [("reason", reason), ("by", by)] {
            if let (true, Some(value)) = (json[name].is_null(), value) {
                json[name] = value.into();
            }
        }
        self.total += 1;
        let line = format!("{json}\n");
        match self.pieces.last_mut().filter(|(piece, _)| piece.len() < PIECE) {
            Some((piece, until)) => {
                piece.push_str(&line);
                *until = self.total;
            }
            None => self.pieces.push((line, self.total)),
        }
    }

    fn send(self, client: &Client, args: &ImportArgs) -> Result<Verdict, Failure> {
        let (begun, total) = (Instant::now(), self.total);
        let begun_import: Reply<ImportBegun> = client.call(Method::POST, "/api/v1/imports")?;
        let path = format!("/api/v1/imports/{}", begun_import.import);
        let length = self.send_pieces(client, &path).inspect_err(|_| {
            // The service discards it by itself if it cannot be reached.
            let _ = client.call::<ImportAborted>(Method::DELETE, &path);
        })?;
        let query = args.change.reason_query().into_iter().chain([("overrides", &*length)]);
        let reply: Reply<Imported> = client.call(Method::PUT, &with_query(&path, query))?;
        args.change.admin.print(&reply.json, || {
            let rate = per_second(total, begun.elapsed());
            format!(
                "imported {} in {:.1}s ({} per second); {} in force\n",
                count(reply.imported, "override"),
                begun.elapsed().as_secs_f64(),
                thousands(rate),
                thousands(reply.total as u64),
            )
        });
        Ok(Verdict::Yes)
    }

    /// Sends the overrides, and returns the number of those that the import then has.
    fn send_pieces(self, client: &Client, path: &str) -> Result<String, Failure> {
        let (begun, is_shown) = (Instant::now(), io::stderr().is_terminal());
        let mut length = "0".to_owned();
        for (piece, until) in self.pieces {
            // The service compares the number with that of Redis, which may have lost some.
            let path = with_query(path, [("overrides", &*length)]);
            let body = ("application/x-ndjson", Bytes::from(piece));
            let reply: Reply<ImportLength> = client.send(Method::POST, &path, Some(body))?;
            length = reply.overrides.to_string();
            if is_shown {
                // There is no other place to report to.
                let _ = write!(io::stderr(), "\r{}", bar(until, self.total, begun.elapsed()));
            }
        }
        if is_shown {
            let _ = writeln!(io::stderr());
        }
        Ok(length)
    }
}

fn per_second(count: u64, elapsed: Duration) -> u64 {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    count.saturating_mul(1000) / millis
}

/// `[#####     ]  50 %  500,000 of 1,000,000, 81,000/s`
fn bar(done: u64, total: u64, elapsed: Duration) -> String {
    let part = |of: u64| (done.min(total).saturating_mul(of)).checked_div(total).unwrap_or(of);
    format!(
        "[{:<20}] {:>3} %  {} of {}, {}/s",
        "#".repeat(usize::try_from(part(20)).unwrap_or_default()),
        part(100),
        thousands(done),
        thousands(total),
        thousands(per_second(done, elapsed))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of overrides, or the errors.
    fn check(text: &[u8], is_csv: bool) -> Result<u64, Vec<String>> {
        Import::read(text, is_csv, false, None, None).map(|import| import.total)
    }

    #[test]
    fn the_bar_shows_the_progress() {
        let second = Duration::from_secs(2);
        assert_eq!(bar(0, 1_000_000, second), "[                    ]   0 %  0 of 1,000,000, 0/s");
        assert_eq!(
            bar(500_000, 1_000_000, second),
            "[##########          ]  50 %  500,000 of 1,000,000, 250,000/s"
        );
        assert_eq!(bar(7, 7, Duration::ZERO), "[####################] 100 %  7 of 7, 7,000/s");
    }

    #[test]
    fn every_error_of_a_file_has_its_line() {
        let json = r#"{"domain": "d", "descriptor": "k=a", "action": "block"}"#;
        let checked = check(format!("{json}\n\n{{}}\n{json}\nx\n").as_bytes(), false);
        let errors = checked.unwrap_err();
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors[0].starts_with("line 3: domain is missing"), "{errors:?}");
        assert!(errors[1].starts_with("line 5: invalid JSON"), "{errors:?}");
        assert_eq!(check(format!("{json}\n{json}\n").as_bytes(), false), Ok(2));
        assert_eq!(check(b"\n", false), Err(vec!["the file has no overrides".to_owned()]));
        let header = "domain,descriptor,action,requests_per_unit,unit\n";
        let good = format!("{header}d,\"k=a,l=b\",limit,5,hour\nd,k,block,,\n");
        assert_eq!(check(good.as_bytes(), true), Ok(2));
        let bad = format!("{header}d,k=a,limit,5\nd,k=a,limit,5,our\nd,k=a,limit,-5,hour\nd,\"k=\n");
        let errors = check(bad.as_bytes(), true).unwrap_err();
        assert!(errors[0].starts_with("line 2: expected 5 cells, got 4"), "{errors:?}");
        assert!(errors[1].starts_with("line 3: unit: unknown unit \"our\""), "{errors:?}");
        assert!(errors[2].starts_with("line 4: requests_per_unit: expected an integer"), "{errors:?}");
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
            let errors = check(text, false).unwrap_err();
            assert!(errors[0].starts_with(expected), "{errors:?}");
        }
        assert_eq!(check(format!("\u{feff}{json}\r\n{json}\r\n").as_bytes(), false), Ok(2));
        for end in ["\n", "\r\n"] {
            let header =
                ["\u{feff}domain,descriptor,action", "d,k,block", "d,\"k=", "x\",block", "d,k,bloc", ""];
            let errors = check(header.join(end).as_bytes(), true).unwrap_err();
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].starts_with("line 5: action: unknown action"), "{errors:?}");
            let latin = [&b"domain,descriptor,action"[..], end.as_bytes(), b"d,k=\xe9,block", end.as_bytes()];
            let expected = vec!["line 2: the text is not UTF-8; save the file as UTF-8".to_owned()];
            assert_eq!(check(&latin.concat(), true), Err(expected));
        }
        assert!(check(b"\xff\xfed\0", true).unwrap_err()[0].starts_with("line 1: the text is not UTF-8"));
        let many = "x\n".repeat(100);
        assert_eq!(check(many.as_bytes(), false).unwrap_err().len(), MAX_ERRORS + 1);
    }
}
