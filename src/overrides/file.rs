//! Overrides in a file, for counters in memory: `OVERRIDES_FILE`.
//!
//! A line of JSON for each change, appended and flushed to the disk before the change takes effect. At the start, and
//! when most lines are outdated, the file is written anew beside the old one, which it then replaces.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, BufWriter, Write as _},
    path::{Path, PathBuf},
};

use serde_json::{Value as Json, json};
use tracing::warn;

use super::{
    index::Index,
    model::{Action, Override, Target},
};
use crate::clock::Time;

/// More outdated lines than there are overrides, and than this, and the file is written anew.
const OUTDATED: usize = 1_000;

/// Mistakes that are reported at once.
const MAX_MISTAKES: usize = 10;

/// The file, open for appending.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    lines: usize,
}

impl Journal {
    /// Reads the file into an index, and creates it if it is missing.
    ///
    /// # Errors
    /// When it cannot be read or written, and every mistake in it, each with its line.
    pub(super) fn open(path: &Path, index: &Index, now: Time) -> Result<Self, Vec<String>> {
        let failed = |what: &str, error: &io::Error| {
            vec![format!("OVERRIDES_FILE: {}: cannot {what}: {error}", path.display())]
        };
        match File::open(path) {
            Ok(file) => load(path, BufReader::new(file), index)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read", &error)),
        }
        while !index.sweep(now.max(Time::from_seconds(1))).is_empty() {}
        let (file, lines) = write_anew(path, index).map_err(|error| failed("write", &error))?;
        Ok(Self { path: path.to_owned(), file, lines })
    }

    /// Appends overrides that are set.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn append_set(&mut self, one: &Override, index: &Index) -> io::Result<()> {
        self.append(&one.to_json(), index)
    }

    /// Appends that the override for a target is removed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn append_removed(&mut self, target: &Target, index: &Index) -> io::Result<()> {
        self.append(&removed(target), index)
    }

    /// Writes the file anew with all overrides of an index.
    ///
    /// # Errors
    /// When it cannot be written; then the old one is still there.
    pub(super) fn rewrite(&mut self, index: &Index) -> io::Result<()> {
        (self.file, self.lines) = write_anew(&self.path, index)?;
        Ok(())
    }

    fn append(&mut self, line: &Json, index: &Index) -> io::Result<()> {
        if self.lines.saturating_sub(index.len()) > index.len().max(OUTDATED) {
            self.rewrite(index)?;
        }
        let before = self.file.metadata()?.len();
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        if let Err(error) = written.and_then(|()| self.file.sync_data()) {
            // Half a line would make the next one unreadable.
            let _ = self.file.set_len(before);
            return Err(error);
        }
        self.lines = self.lines.saturating_add(1);
        Ok(())
    }
}

/// The line that removes the override for a target.
pub(super) fn removed(target: &Target) -> Json {
    let one = Override {
        target: target.clone(),
        action: Action::Block,
        expires: None,
        reason: Box::default(),
        by: Box::default(),
    };
    let mut json = one.to_json();
    let descriptor = json.get_mut("descriptor").map(Json::take).unwrap_or_default();
    json!({"removed": {"domain": target.domain(), "descriptor": descriptor}})
}

/// One change: an override that is set, or the target of one that is removed.
pub(super) enum Change {
    Set(Override),
    Removed(Target),
}

impl Change {
    /// # Errors
    /// When the line is no change.
    pub(super) fn read(line: &str) -> Result<Self, String> {
        let mut json: Json =
            serde_json::from_str(line).map_err(|error| format!("this is not JSON: {error}"))?;
        // What ended long ago is read as well, and swept.
        if let Some(mut removed) = json.get_mut("removed").map(Json::take) {
            if let Some(fields) = removed.as_object_mut() {
                fields.insert("action".to_owned(), "block".into());
            }
            return Ok(Self::Removed(Override::from_json(&removed, Time::default())?.target));
        }
        Ok(Self::Set(Override::from_json(&json, Time::default())?))
    }

    /// The override to add: one that has ended always stands for a removal.
    pub(super) fn into_override(self) -> Override {
        match self {
            Self::Set(one) => one,
            Self::Removed(target) => Override {
                target,
                action: Action::Allow,
                expires: Some(0),
                reason: Box::default(),
                by: Box::default(),
            },
        }
    }
}

fn load(path: &Path, mut file: impl io::BufRead, index: &Index) -> Result<(), Vec<String>> {
    let (mut draft, mut mistakes, mut line, mut number) = (index.draft(), Vec::new(), String::new(), 0_usize);
    loop {
        line.clear();
        number = number.saturating_add(1);
        let at = format!("OVERRIDES_FILE: {}:{number}", path.display());
        match file.read_line(&mut line) {
            Ok(0) => break,
            Ok(_) if line.trim().is_empty() => continue,
            Ok(_) => {}
            Err(error) => {
                mistakes.push(format!("{at}: {error}"));
                break;
            }
        }
        let added = Change::read(line.trim_end()).and_then(|change| {
            let one = change.into_override();
            index.add_to(&mut draft, &one)
        });
        match added {
            Ok(()) => {}
            Err(error) if !line.ends_with('\n') => {
                warn!("{at}: ignoring an incomplete last line: {error}");
            }
            Err(error) => mistakes.push(format!("{at}: {error}")),
        }
        if mistakes.len() >= MAX_MISTAKES {
            break;
        }
    }
    if mistakes.is_empty() {
        index.add(&draft).map_err(|error| vec![format!("OVERRIDES_FILE: {}: {error}", path.display())])
    } else {
        Err(mistakes)
    }
}

/// Writes all overrides beside the file and renames, so that a crash leaves one of the two.
fn write_anew(path: &Path, index: &Index) -> io::Result<(File, usize)> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut writer = BufWriter::new(File::create(&new)?);
    let (mut lines, mut result) = (0_usize, Ok(()));
    index.for_each(|one| {
        lines = lines.saturating_add(1);
        result = writeln!(writer, "{}", one.to_json());
        result.is_ok()
    });
    result?;
    writer.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    fs::rename(&new, path)?;
    Ok((OpenOptions::new().append(true).open(path)?, lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overrides::table;

    const NOW: Time = Time::from_seconds(1_800_000_000);

    fn one(text: &str) -> Override {
        table::of_json_line(
            &format!("{{\"domain\":\"d\",\"descriptor\":\"{text}\",\"action\":\"block\"}}"),
            NOW,
        )
        .unwrap()
    }

    fn open(path: &Path, now: Time) -> Result<(Journal, Index), Vec<String>> {
        let index = Index::default();
        Journal::open(path, &index, now).map(|journal| (journal, index))
    }

    #[test]
    fn changes_survive_a_restart_and_ended_overrides_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overrides.jsonl");
        let (mut journal, index) = open(&path, NOW).unwrap();
        let ending = Override { expires: Some(1_800_000_010), ..one("k=c") };
        for one in [&one("k=a"), &one("k=b"), &ending] {
            journal.append_set(one, &index).unwrap();
            index.set(one).unwrap();
        }
        journal.append_removed(&one("k=a").target, &index).unwrap();
        let (_, index) = open(&path, NOW).unwrap();
        assert_eq!(index.len(), 2);
        assert_eq!(index.get(&one("k=b").target), Some(one("k=b")));
        let (_, index) = open(&path, Time::from_seconds(1_800_000_010)).unwrap();
        assert_eq!(index.len(), 1);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1, "it was written anew");
    }

    #[test]
    fn mistakes_have_their_lines_and_half_a_last_line_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overrides.jsonl");
        let good = one("k=a").to_json().to_string();
        fs::write(&path, format!("{good}\nx\n\n{{\"domain\":\"d\"}}\n{good}\n")).unwrap();
        let mistakes = open(&path, NOW).err().unwrap();
        assert_eq!(mistakes.len(), 2, "{mistakes:?}");
        assert!(mistakes[0].contains("overrides.jsonl:2: this is not JSON"), "{mistakes:?}");
        assert!(mistakes[1].contains("overrides.jsonl:4: descriptor is missing"), "{mistakes:?}");
        fs::write(&path, format!("{good}\n{{\"doma")).unwrap();
        assert_eq!(open(&path, NOW).unwrap().1.len(), 1);
        let missing = open(&dir.path().join("no/such/file"), NOW).err().unwrap();
        assert!(
            missing[0].starts_with("OVERRIDES_FILE: ") && missing[0].contains("cannot write"),
            "{missing:?}"
        );
    }

    #[test]
    fn outdated_lines_do_not_gather() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overrides.jsonl");
        let (mut journal, index) = open(&path, NOW).unwrap();
        for _ in 0..2_500 {
            journal.append_set(&one("k=a"), &index).unwrap();
            index.set(&one("k=a")).unwrap();
        }
        assert!(fs::read_to_string(&path).unwrap().lines().count() < 1_100);
        assert_eq!(open(&path, NOW).unwrap().1.len(), 1);
    }
}
