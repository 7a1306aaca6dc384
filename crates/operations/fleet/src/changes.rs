//! The log of changes: what changed, when, on which replica, by whom, and why.
//!
//! In Redis it is a stream of the last [`MAX_KEPT`] changes that all replicas write. Changes while Redis is out of
//! service wait in this process, at most [`MAX_WAITING`], and are written when it is back. Without Redis the log is in
//! the file next to `OVERRIDES_FILE`, else in memory.

use std::{
    collections::VecDeque,
    fs::OpenOptions,
    io::{self, Write as _},
    path::PathBuf,
    sync::Mutex,
};

use deadpool_redis::redis::{cmd, pipe};
use tokio::sync::Notify;
use tracing::warn;

use crate::members::own_id;
use api::Change;
use clock::{Rfc3339, Time};
use faults::{files, mutex::lock};
use redis_store::CommandPool;
use text::cut_owned;

pub const MAX_KEPT: usize = 1_000;

/// The maximum size of the file, with room to spare: a change has a few kilobytes at most, and the file twice [`MAX_KEPT`].
const MAX_BYTES: u64 = 64 << 20;

/// Maximum number of changes that wait for Redis.
const MAX_WAITING: usize = 500;

/// Maximum number of rules in the difference of a reload.
pub const MAX_RULES: usize = 30;

/// The same event on several replicas within this time is one change.
const SAME_SECONDS: u64 = 600;

/// The events that every replica sees for itself.
pub const EVENTS: [&str; 4] = ["rules_reloaded", "rules_rejected", "store_lost", "store_back"];

pub struct Changes {
    /// `None` in memory and in Redis.
    file: Option<PathBuf>,
    is_in_redis: bool,
    own: Mutex<Own>,
    wake: Notify,
}

/// Changes of this process: those that wait for Redis, else all, the oldest first.
#[derive(Default)]
struct Own {
    changes: VecDeque<Change>,
    /// The number of earlier changes, which were written or dropped.
    first: u64,
    /// The number of changes that waited and were dropped.
    dropped: u64,
    /// Lines in the file.
    lines: usize,
}

/// A change on this replica, by itself and without a reason.
pub fn change(action: &str, what: impl Into<String>, now: Time) -> Change {
    Change {
        time: Rfc3339(now).to_string(),
        action: action.to_owned(),
        what: cut_owned(what.into()),
        replicas: vec![own_id().to_owned()],
        ..Change::default()
    }
}

/// The same, by someone for a reason.
#[must_use]
pub fn by_someone(change: Change, by: String, reason: Option<String>) -> Change {
    Change { by: Some(cut_owned(by)), reason: reason.map(cut_owned), ..change }
}

impl Changes {
    pub fn in_redis() -> Self {
        Self { file: None, is_in_redis: true, own: Mutex::default(), wake: Notify::new() }
    }

    /// A log in this file, or in memory. An unreadable line of the file is left out.
    pub fn local(file: Option<PathBuf>) -> Self {
        let read = |path: &PathBuf| match files::read(path, MAX_BYTES) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    warn!(path = %path.display(), %error, "cannot read the log of changes");
                }
                String::new()
            }
        };
        let text = file.as_ref().map(read).unwrap_or_default();
        let lines = text.lines().count();
        let mut changes: VecDeque<Change> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        changes.drain(..changes.len().saturating_sub(MAX_KEPT));
        let own = Mutex::new(Own { changes, lines, ..Own::default() });
        Self { file, is_in_redis: false, own, wake: Notify::new() }
    }

    pub fn record(&self, change: Change) {
        let mut own = lock(&self.own);
        if let Some(path) = &self.file
            && let Err(error) = own.append(path, &change)
        {
            warn!(path = %path.display(), %error, "cannot write the log of changes; it is kept in memory");
        }
        own.changes.push_back(change);
        let most = if self.is_in_redis { MAX_WAITING } else { MAX_KEPT };
        while own.changes.len() > most {
            own.forget_first();
            own.dropped += u64::from(self.is_in_redis);
        }
        self.wake.notify_one();
    }

    /// The number of changes that wait for Redis.
    pub fn waiting(&self) -> usize {
        if self.is_in_redis { lock(&self.own).changes.len() } else { 0 }
    }

    /// Waits for changes that are not written to Redis.
    pub async fn wait(&self) {
        if lock(&self.own).changes.is_empty() {
            self.wake.notified().await;
        }
    }

    /// Writes waiting changes to Redis. After an error they wait on.
    pub async fn write(&self, pool: &CommandPool, now: Time) -> Result<(), String> {
        let (waiting, first, dropped) = {
            let own = lock(&self.own);
            (own.changes.clone(), own.first, own.dropped)
        };
        if waiting.is_empty() {
            return Ok(());
        }
        let lost = || format!("{dropped} changes waited for Redis and were dropped");
        let lost = (dropped > 0).then(|| change("changes_dropped", lost(), now));
        let key = stream(pool);
        let mut commands = pipe();
        for change in lost.iter().chain(&waiting) {
            let json = serde_json::to_string(change).map_err(|error| error.to_string())?;
            commands
                .cmd("XADD")
                .arg(&key)
                .arg(&["MAXLEN", "~"])
                .arg(MAX_KEPT)
                .arg(&["*", "change"])
                .arg(json);
            commands.ignore();
        }
        pool.pipeline::<()>(&key, &commands).await?;
        let mut own = lock(&self.own);
        // Others may have been added meanwhile, and written ones dropped.
        let end = first + waiting.len() as u64;
        while own.first < end && !own.changes.is_empty() {
            own.forget_first();
        }
        own.dropped -= dropped;
        Ok(())
    }

    /// The newest `most` changes, the newest first; without `pool` only those of this process.
    pub async fn read(&self, pool: Option<&CommandPool>, most: usize) -> Result<Vec<Change>, String> {
        let mut all: Vec<Change> = lock(&self.own).changes.iter().cloned().collect();
        if let Some(pool) = pool {
            let key = stream(pool);
            let mut range = cmd("XREVRANGE");
            // Each replica writes its own line of an event.
            range.arg(&key).arg("+").arg("-").arg("COUNT").arg(most.saturating_mul(50).min(MAX_KEPT));
            let entries: Vec<(String, Vec<String>)> = pool.command(&key, &range).await?;
            let change = |(_, fields): &(String, Vec<String>)| serde_json::from_str(fields.get(1)?).ok();
            all.extend(entries.iter().filter_map(change));
        }
        let mut merged = merge(all);
        merged.truncate(most);
        Ok(merged)
    }
}

fn stream(pool: &CommandPool) -> String {
    pool.key("log")
}

impl Own {
    fn forget_first(&mut self) {
        self.changes.pop_front();
        self.first += 1;
    }

    fn append(&mut self, path: &PathBuf, change: &Change) -> io::Result<()> {
        let line = serde_json::to_string(change)? + "\n";
        if self.lines < 2 * MAX_KEPT {
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            files::append(&mut file, line.as_bytes())?;
            self.lines += 1;
            return Ok(());
        }
        files::replace(path, |writer| {
            for change in &self.changes {
                writeln!(writer, "{}", serde_json::to_string(change)?)?;
            }
            writer.write_all(line.as_bytes())
        })?;
        self.lines = self.changes.len() + 1;
        Ok(())
    }
}

/// Changes by their times, each once. One that waits here is also in Redis while its reply is under way, and twice there
/// if the reply was lost.
fn distinct(mut all: Vec<Change>) -> Vec<Change> {
    all.sort_by(|one, other| one.time.cmp(&other.time));
    let mut distinct: Vec<Change> = Vec::with_capacity(all.len());
    for change in all {
        let mut at_its_time = distinct.iter().rev().take_while(|other| other.time == change.time);
        if !at_its_time.any(|other| *other == change) {
            distinct.push(change);
        }
    }
    distinct
}

/// Changes by their times, the newest first. An event that several replicas saw is one change, of the first time.
fn merge(all: Vec<Change>) -> Vec<Change> {
    let mut merged: Vec<Change> = Vec::new();
    for change in distinct(all) {
        let is_same = |known: &&mut Change| {
            known.action == change.action
                && (known.what == change.what || change.action.starts_with("store_"))
                && !known.replicas.iter().any(|replica| change.replicas.contains(replica))
                && seconds(&change.time).saturating_sub(seconds(&known.time)) <= SAME_SECONDS
        };
        let is_event = EVENTS.contains(&change.action.as_str());
        let known = if is_event { merged.iter_mut().rev().find(is_same) } else { None };
        match known {
            Some(known) => known.replicas.extend(change.replicas),
            None => merged.push(change),
        }
    }
    merged.reverse();
    merged
}

/// Seconds since 1970 of an RFC 3339 time; 0 for another text.
fn seconds(time: &str) -> u64 {
    time.parse().map(|Rfc3339(time)| time.seconds()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_seconds(1_800_000_000 + seconds)
    }

    fn on(replica: &str, action: &str, what: &str, seconds: u64) -> Change {
        Change { replicas: vec![replica.to_owned()], ..change(action, what, at(seconds)) }
    }

    fn names(changes: &[Change]) -> Vec<(String, usize)> {
        changes.iter().map(|change| (change.what.clone(), change.replicas.len())).collect()
    }

    #[test]
    fn a_reload_of_three_replicas_is_one_line_and_a_second_one_is_another() {
        let reload = |replica, what, seconds| on(replica, "rules_reloaded", what, seconds);
        let all = vec![
            reload("a", "1 to 2", 0),
            reload("b", "1 to 2", 70),
            on("a", "override_set", "x", 80),
            on("b", "override_set", "x", 80),
            reload("c", "1 to 2", 90),
            reload("a", "2 to 1", 100),
            reload("b", "2 to 1", 101),
            reload("a", "1 to 2", 110),
            reload("c", "2 to 1", 111),
            // A month later.
            reload("d", "1 to 2", 2_678_400),
        ];
        let expected = [("1 to 2", 1), ("1 to 2", 1), ("2 to 1", 3), ("x", 1), ("x", 1), ("1 to 2", 3)];
        assert_eq!(names(&merge(all)), expected.map(|(what, n)| (what.to_owned(), n)));
        // A reload and an override that are both here and in Redis.
        let twice =
            [reload("a", "1 to 2", 0), on("a", "override_set", "x", 0), on("a", "override_set", "y", 0)];
        let all = [twice.clone(), twice].concat();
        assert_eq!(
            names(&merge(all)),
            [("y", 1), ("x", 1), ("1 to 2", 1)].map(|(what, n)| (what.to_owned(), n))
        );
        let lost = vec![on("a", "store_lost", "refused", 1), on("b", "store_lost", "timeout", 2)];
        assert_eq!(names(&merge(lost)), [("refused".to_owned(), 2)]);
    }

    #[tokio::test]
    async fn a_log_in_a_file_survives_a_restart_and_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overrides.jsonl.changes");
        let log = Changes::local(Some(path.clone()));
        for n in 0..2 * MAX_KEPT + 10 {
            log.record(by_someone(
                change("override_set", n.to_string(), at(n as u64)),
                "ann".to_owned(),
                None,
            ));
        }
        fs::write(&path, fs::read_to_string(&path).unwrap() + "{\"cut").unwrap();
        let log = Changes::local(Some(path.clone()));
        let newest = log.read(None, 2).await.unwrap();
        assert_eq!(names(&newest), [("2009".to_owned(), 1), ("2008".to_owned(), 1)]);
        assert_eq!(newest[0].by.as_deref(), Some("ann"));
        assert_eq!(log.read(None, MAX_KEPT).await.unwrap().len(), MAX_KEPT);
        assert!(fs::read_to_string(&path).unwrap().lines().count() < 2 * MAX_KEPT);
        // A file that cannot be written costs no change.
        let log = Changes::local(Some(dir.path().join("no/such/file")));
        log.record(change("started", "x", at(1)));
        assert_eq!(log.read(None, 10).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn changes_that_wait_for_redis_are_bounded() {
        let log = Changes::in_redis();
        for n in 0..MAX_WAITING + 7 {
            log.record(change("override_set", n.to_string(), at(n as u64)));
        }
        log.wait().await;
        let own = lock(&log.own);
        assert_eq!((own.changes.len(), own.dropped, own.first), (MAX_WAITING, 7, 7));
    }

    #[test]
    fn texts_are_bounded() {
        let change =
            by_someone(change("a", "w".repeat(9_999), at(0)), "b".repeat(9_999), Some("r".repeat(9_999)));
        assert!(serde_json::to_string(&change).unwrap().len() < 1_200);
    }
}
