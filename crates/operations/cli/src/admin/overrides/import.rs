//! `tollgate override import`: checks the whole file, sends it in pieces, and puts it in force at once.

use std::{
    fs,
    io::{self, Cursor, Read as _},
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hyper::Method;

use super::{ImportArgs, source::Source};
use crate::{
    admin::{Client, Query, Reply, user},
    progress::{Progress, per_second},
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
    pieces: Vec<Piece>,
    total: u64,
}

#[derive(PartialEq, Eq, Debug)]
struct Piece {
    lines: String,
    /// The number of overrides up to its end.
    until: u64,
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
        user(environment).map(String::as_str),
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
    let mut admin = args.change.admin.clone();
    if args.check {
        let text = || format!("{file}: {}: OK\n", count(import.total, "override"));
        admin.print(&json!({"checked": import.total}), text);
        return Ok(Verdict::Yes);
    }
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
        let mut import = Self { pieces: Vec::new(), total: 0 };
        let mut errors = Vec::new();
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
        match self.pieces.last_mut().filter(|piece| piece.lines.len() < PIECE) {
            Some(piece) => {
                piece.lines.push_str(&line);
                piece.until = self.total;
            }
            None => self.pieces.push(Piece { lines: line, until: self.total }),
        }
    }

    fn send(self, client: &Client, args: &ImportArgs) -> Result<Verdict, Failure> {
        let started = Instant::now();
        let total = self.total;
        let begun: Reply<ImportBegun> = client.call(Method::POST, "/api/v1/imports", Query::new(), None)?;
        let path = format!("/api/v1/imports/{}", begun.import);
        let length = self.send_pieces(client, &path).inspect_err(|_| {
            // The service discards it by itself if it cannot be reached.
            let _ = client.delete::<ImportAborted>(&path, Query::new());
        })?;
        let query = [args.change.query(), vec![("overrides", length)]].concat();
        client.changed(client.call(Method::PUT, &path, query, None), None, |reply: &Imported| {
            format!(
                "imported {} in {:.1}s ({} per second); {} in force\n",
                count(reply.imported, "override"),
                started.elapsed().as_secs_f64(),
                thousands(per_second(total, started.elapsed())),
                thousands(reply.total as u64),
            )
        })
    }

    /// Sends the overrides, and returns the number of those that the import then has.
    fn send_pieces(self, client: &Client, path: &str) -> Result<String, Failure> {
        let mut progress = Progress::new("override", Some(self.total));
        let mut length = "0".to_owned();
        for Piece { lines, until } in self.pieces {
            // The service compares the number with that of Redis, which may have lost some.
            let body = ("application/x-ndjson", Bytes::from(lines));
            let reply: Reply<ImportLength> =
                client.call(Method::POST, path, vec![("overrides", length)], Some(body))?;
            length = reply.overrides.to_string();
            progress.show(until, until);
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of overrides, or the errors.
    fn check(text: &[u8], is_csv: bool) -> Result<u64, Vec<String>> {
        Import::read(text, is_csv, false, None, None).map(|import| import.total)
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
