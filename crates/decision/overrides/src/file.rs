//! Overrides in a file, for counters in memory: `OVERRIDES_FILE`.
//!
//! The file has a line of JSON for each change, flushed to the disk before the change takes effect. At startup, and when
//! most lines are outdated, a new file is written and renamed over the old one. If it cannot be written, because the disk
//! is full or read-only, the overrides that it has are in force, and changes are refused until it can.

use std::{
    fs::File,
    io::{self, BufReader, Write as _},
    path::{Path, PathBuf},
};

use serde::de::IgnoredAny;
use serde_json::{Value as Json, json};
use tracing::{info, warn};

use super::{index::Index, model::Override, target::Target};
use clock::Time;
use faults::files;
use recent::Quoting;

/// The file is rewritten when it has more outdated lines than overrides, and more than this.
const MAX_OUTDATED: usize = 1_000;

const MAX_ERRORS: usize = 10;

pub(super) struct Journal {
    path: PathBuf,
    /// `None` until the file was written once.
    file: Option<File>,
    lines: usize,
    /// Why the last write failed.
    failure: Option<String>,
}

impl Journal {
    /// Reads the file into an index, and creates it if it is missing. Returns all errors in it, each with its line. A file
    /// that cannot be written is none, unless its directory does not exist.
    pub(super) fn open(path: &Path, index: &Index, now: Time) -> Result<Self, Vec<String>> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            vec![format!("OVERRIDES_FILE: {}: cannot {what}: {error}", path.display())]
        };
        // A rename would replace a symlink instead of its target.
        let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
        match files::open(path) {
            Ok(file) => load(path, BufReader::new(file), index)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read", &files::advised(&error))),
        }
        while !index.sweep(now.max(Time::from_seconds(1))).is_empty() {}
        let mut journal = Self { path: path.to_owned(), file: None, lines: 0, failure: None };
        match journal.rewrite(index) {
            Err(why) if !path.parent().is_some_and(|dir| dir.as_os_str().is_empty() || dir.is_dir()) => {
                Err(failed("write", &why))
            }
            _ => Ok(journal),
        }
    }

    /// Why the last write failed; the next change tries again.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.clone()
    }

    /// Replaces the file by all overrides of an index. After an error the old file is still there.
    pub(super) fn rewrite(&mut self, index: &Index) -> Result<(), String> {
        let written = self.try_rewrite(index);
        self.note(written)
    }

    /// Appends a change: an override that is set, or [`removed`].
    pub(super) fn append(&mut self, change: &Json, index: &Index) -> Result<(), String> {
        let written = self.try_append(change, index);
        self.note(written)
    }

    fn note(&mut self, written: io::Result<()>) -> Result<(), String> {
        let path = self.path.display();
        match &written {
            Ok(()) if self.failure.take().is_some() => info!(%path, "OVERRIDES_FILE can be written again"),
            Ok(()) => {}
            Err(error) => {
                let why = files::advised(error);
                if self.failure.as_ref() != Some(&why) {
                    warn!(%path, %error, "cannot write OVERRIDES_FILE: overrides cannot be changed until it can");
                }
                self.failure = Some(why);
            }
        }
        written.map_err(|error| files::advised(&error))
    }

    fn try_rewrite(&mut self, index: &Index) -> io::Result<()> {
        let snapshot = index.checkpoint();
        let file = files::replace(&self.path, |writer| {
            snapshot.all().try_for_each(|one| writeln!(writer, "{}", one.to_stored()))
        })?;
        self.file = Some(file);
        self.lines = snapshot.len();
        Ok(())
    }

    fn try_append(&mut self, change: &Json, index: &Index) -> io::Result<()> {
        if self.file.is_none() || self.lines.saturating_sub(index.len()) > index.len().max(MAX_OUTDATED) {
            self.try_rewrite(index)?;
        }
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let before = file.metadata()?.len();
        files::append(file, format!("{change}\n").as_bytes())?;
        file.sync_data().inspect_err(|_| {
            let _ = file.set_len(before);
        })?;
        self.lines += 1;
        Ok(())
    }
}

pub(super) fn removed(target: &Target) -> Json {
    json!({"removed": target.to_stored()})
}

/// Reads a change as an override to add to a draft. A removal is an override that expired at second 0.
pub(super) fn read_change(line: &str) -> Result<Override, Quoting> {
    let json: Result<Json, _> = serde_json::from_str(line);
    let mut json = json.map_err(|error| Quoting::new(format!("invalid JSON: {error}")))?;
    let Some(Json::Object(mut removed)) = json.get_mut("removed").map(Json::take) else {
        return Override::from_stored(&json).map_err(Quoting::new);
    };
    removed.insert("action".to_owned(), "allow".into());
    let one = Override::from_stored(&Json::Object(removed)).map_err(Quoting::new)?;
    Ok(Override { expires: Some(0), ..one })
}

fn load(path: &Path, mut file: impl io::BufRead, index: &Index) -> Result<(), Vec<String>> {
    let mut draft = index.draft();
    let mut errors = Vec::new();
    let mut line = Vec::new();
    let mut number = 0_usize;
    loop {
        line.clear();
        number += 1;
        let at = || format!("OVERRIDES_FILE: {}:{number}", path.display());
        match file.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) if line.trim_ascii().is_empty() => continue,
            Ok(_) => {}
            Err(error) => {
                errors.push(format!("{}: {error}", at()));
                break;
            }
        }
        let text = str::from_utf8(&line).map_err(|error| Quoting::new(error.to_string()));
        let change = text.and_then(|text| read_change(text.trim_end()));
        let added = change.and_then(|one| index.add_to(&mut draft, one).map_err(Quoting::new));
        match added.map_err(|error| error.logged(index.values()).to_owned()) {
            Ok(()) => {}
            Err(error) if is_incomplete(&line) => {
                warn!("{}: ignoring an incomplete last line: {error}", at());
            }
            Err(error) => errors.push(format!("{}: {error}", at())),
        }
        if errors.len() >= MAX_ERRORS {
            break;
        }
    }
    if errors.is_empty() {
        index.add(&draft).map_err(|error| vec![format!("OVERRIDES_FILE: {}: {error}", path.display())])
    } else {
        Err(errors)
    }
}

/// True for the beginning of a line, which a crash during a write leaves. Anything else may be a file of another kind,
/// which must not be replaced.
fn is_incomplete(line: &[u8]) -> bool {
    !line.ends_with(b"\n") && serde_json::from_slice::<IgnoredAny>(line).is_err_and(|error| error.is_eof())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, process::Command, sync::Arc};

    use super::*;
    use crate::table;

    const NOW: Time = Time::from_seconds(1_800_000_000);

    fn one(text: &str) -> Override {
        table::of_json_line(
            &format!("{{\"domain\":\"d\",\"descriptor\":\"{text}\",\"action\":\"block\"}}"),
            NOW,
        )
        .unwrap()
        .one
    }

    fn open(path: &Path, now: Time) -> Result<(Journal, Index), Vec<String>> {
        let index = Index::default();
        Journal::open(path, &index, now).map(|journal| (journal, index))
    }

    #[test]
    fn changes_survive_a_restart_and_expired_overrides_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overrides.jsonl");
        let (mut journal, index) = open(&path, NOW).unwrap();
        let ending = Override { expires: Some(1_800_000_010), ..one("k=c") };
        for one in [&one("k=a"), &one("k=b"), &ending] {
            journal.append(&one.to_stored(), &index).unwrap();
            index.set(one).unwrap();
        }
        journal.append(&removed(&one("k=a").target), &index).unwrap();
        let (_, index) = open(&path, NOW).unwrap();
        assert_eq!(index.len(), 2);
        assert_eq!(index.get(&one("k=b").target), Some(Arc::new(one("k=b"))));
        let (_, index) = open(&path, Time::from_seconds(1_800_000_010)).unwrap();
        assert_eq!(index.len(), 1);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1, "the file was rewritten");
    }

    #[test]
    fn errors_have_their_lines_and_an_incomplete_last_line_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overrides.jsonl");
        let good = one("k=a").to_stored().to_string();
        fs::write(&path, format!("{good}\nx\n\n{{\"domain\":\"d\"}}\n{good}\n")).unwrap();
        let errors = open(&path, NOW).err().unwrap();
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors[0].contains("overrides.jsonl:2: invalid JSON"), "{errors:?}");
        assert!(errors[1].contains("overrides.jsonl:4: descriptor is missing"), "{errors:?}");
        fs::write(&path, format!("{good}\n{{\"doma")).unwrap();
        assert_eq!(open(&path, NOW).unwrap().1.len(), 1);
        let missing = open(&dir.path().join("no/such/file"), NOW).err().unwrap();
        assert!(
            missing[0].starts_with("OVERRIDES_FILE: ") && missing[0].contains("cannot write"),
            "{missing:?}"
        );
    }

    #[test]
    fn a_line_that_a_crash_cut_anywhere_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overrides.jsonl");
        let [first, second] = ["k=a", "k=\u{1f600}"].map(|text| one(text).to_stored().to_string());
        for length in 1..second.len() {
            fs::write(&path, [first.as_bytes(), b"\n", &second.as_bytes()[..length]].concat()).unwrap();
            assert_eq!(open(&path, NOW).unwrap().1.len(), 1, "{length} bytes");
        }
    }

    #[test]
    fn a_file_of_another_kind_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for text in ["a secret", "{\"key\": 1}", "\u{0}", "a: yaml\n"] {
            fs::write(&path, text).unwrap();
            assert!(open(&path, NOW).is_err(), "{text:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
        let errors = open(&dir.path().join("pipe"), NOW).err().unwrap();
        assert!(errors[0].contains("pipe: cannot read: not a regular file"), "{errors:?}");
    }

    #[test]
    fn changes_go_to_the_target_of_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let [path, target] = ["symlink", "target"].map(|name| dir.path().join(name));
        fs::write(&target, "").unwrap();
        symlink(&target, &path).unwrap();
        let (mut journal, index) = open(&path, NOW).unwrap();
        journal.append(&one("k=a").to_stored(), &index).unwrap();
        assert!(path.is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap().lines().count(), 1);
    }

    #[test]
    fn outdated_lines_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overrides.jsonl");
        let (mut journal, index) = open(&path, NOW).unwrap();
        for _ in 0..1_300 {
            journal.append(&one("k=a").to_stored(), &index).unwrap();
            index.set(&one("k=a")).unwrap();
        }
        assert!(fs::read_to_string(&path).unwrap().lines().count() < 1_100);
        assert_eq!(open(&path, NOW).unwrap().1.len(), 1);
    }
}
