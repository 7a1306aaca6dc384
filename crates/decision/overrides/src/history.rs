//! The changes of overrides that lead to a version, and what to do when those in Redis lead to another one.
//!
//! A version is `number:token`, and each change names the one before. The number orders the versions of one line of
//! changes; the random token tells those apart that have the same number, since Redis continues from an older one after
//! a failover. Builds that did not number versions read these too, since they only compare them.
//!
//! Redis has a log of its last changes, which a script writes in the same step as the change itself. So a replica that
//! missed changes applies those that follow from its version.
//! If none do, Redis has lost changes: after a failover, or a restart from a snapshot. The changes that this replica knows
//! since the last common version are written back, except for overrides that have changed again: newer changes win. The
//! change that writes them back names the version that it restores, so that other replicas do not repeat it, and one
//! that knows later changes adds those.
//!
//! Plain functions; `shared` does the I/O.

use std::collections::{HashSet, VecDeque};

use serde_json::json;

pub(super) const MAX_CHANGES: usize = 128;

/// The maximum size of a change in a log, in bytes. A larger one is known as a change of everything.
pub(super) const MAX_CHANGE: usize = 16 * 1024;

/// The text of a change that requires to read all overrides, as after an import.
pub(super) const EVERYTHING: &str = "*";

const RESTORED: &str = "{\"restored\":";

/// A change from one version to the next; both are empty if there are no overrides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Change {
    pub(super) before: Box<str>,
    pub(super) after: Box<str>,
    /// Lines of JSON: overrides that were set or removed.
    pub(super) body: Box<str>,
}

impl Change {
    /// Reads a message or an entry of the log: the versions and the body.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '\n').map(Box::from);
        Some(Self { before: parts.next()?, after: parts.next()?, body: parts.next()? })
    }

    pub(super) fn is_of_everything(&self) -> bool {
        self.body.starts_with(EVERYTHING)
    }

    /// The version up to which it writes changes back that Redis had lost.
    fn restored(&self) -> Option<String> {
        let line = self.body.lines().find(|line| line.starts_with(RESTORED))?;
        let json: serde_json::Value = serde_json::from_str(line).ok()?;
        json.get("restored")?.as_str().map(str::to_owned)
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.body.lines().filter(|line| *line != EVERYTHING && !line.starts_with(RESTORED))
    }
}

/// The body of a change that writes these lines back, up to a version.
pub(super) fn restoring(version: &str, lines: &str) -> String {
    let marker = json!({"restored": version});
    if lines.starts_with(EVERYTHING) { format!("{lines}\n{marker}") } else { format!("{marker}\n{lines}") }
}

/// The version in force in a replica, and the last changes that led to it, each from the version that the one before it
/// ends with. The version is empty if there are no overrides in Redis, or they were not read yet.
#[derive(Clone, Default, Debug)]
pub(super) struct History {
    version: Box<str>,
    changes: VecDeque<Change>,
}

impl History {
    pub(super) fn of(version: &str, path: Vec<Change>) -> Self {
        let mut history = Self::default();
        for change in path {
            history.push(change);
        }
        if *history.version != *version {
            history = Self { version: version.into(), changes: VecDeque::new() };
        }
        history
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Adds a change. One that does not follow from the last begins a new history.
    pub(super) fn push(&mut self, mut change: Change) {
        if self.version != change.before {
            self.changes.clear();
        }
        if change.body.len() > MAX_CHANGE {
            change.body = EVERYTHING.into();
        }
        self.version = change.after.clone();
        self.changes.push_back(change);
        if self.changes.len() > MAX_CHANGES {
            self.changes.pop_front();
        }
    }

    /// Whether a version is in force. One that is older than all known changes is: otherwise Redis had lost the changes
    /// since, and this replica notices that within two seconds.
    pub(super) fn has(&self, version: &str) -> bool {
        let behind = number(&self.version).checked_sub(number(version));
        self.position(version).is_some()
            || number(version) > 0 && behind.is_some_and(|behind| behind >= MAX_CHANGES as u64)
    }

    /// Whether a change can be applied to the version in force.
    pub(super) fn continues_with(&self, change: &Change) -> bool {
        self.version == change.before && !change.is_of_everything()
    }

    /// The number of changes up to a version; `None` if it is unknown.
    fn position(&self, version: &str) -> Option<usize> {
        if *self.version == *version {
            return Some(self.changes.len());
        }
        self.changes.iter().position(|change| *change.before == *version)
    }
}

fn number(version: &str) -> u64 {
    version.split_once(':').and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
}

/// The entries of the log in Redis that lead to a version, oldest first. `log` is newest first.
pub(super) fn path_to(version: &str, log: &[String]) -> Vec<Change> {
    let changes = log.iter().filter_map(|text| Change::parse(text)).skip_while(|one| *one.after != *version);
    let mut expected: Box<str> = version.into();
    let mut path: Vec<Change> = changes
        .take_while(|change| std::mem::replace(&mut expected, change.before.clone()) == change.after)
        .collect();
    path.reverse();
    path
}

/// What a replica does when the version in Redis is another one than its own.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Step {
    Apply(Vec<Change>),
    Read,
    /// Redis was emptied, and then changed: it writes all of its overrides back that Redis does not have.
    Restore,
    /// Redis lost changes, and `new` ones followed.
    Diverged {
        new: Vec<Change>,
        lost: Vec<Change>,
    },
}

/// The step from this replica's version to the one that `path` leads to.
pub(super) fn step(known: &History, path: &[Change]) -> Step {
    let from = |at: usize| path.iter().skip(at).cloned().collect();
    if known.version.is_empty() {
        return Step::Read;
    }
    if let Some(at) = path.iter().position(|change| change.before == known.version) {
        return Step::Apply(from(at));
    }
    let version = path.last().map(|change| &*change.after);
    // The last version of this replica from which the path continues. Version "" is that of an empty Redis.
    let common = known.changes.iter().enumerate().rev().find_map(|(at, change)| {
        let is_last = version == Some(&*change.before);
        let next = path.iter().position(|next| next.before == change.before);
        next.or(is_last.then_some(path.len())).map(|next| (at, next))
    });
    // Another replica has written changes back up to a version of this one.
    let restored = path.iter().filter_map(|change| known.position(&change.restored()?)).max();
    let (lost, next) = match (common, restored) {
        (Some((lost, next)), None) => (lost, next),
        (Some((lost, next)), Some(restored)) => (lost.max(restored), next),
        (None, Some(lost)) => (lost, 0),
        (None, None) if path.first().is_some_and(|first| first.before.is_empty()) => return Step::Restore,
        (None, None) => return Step::Read,
    };
    Step::Diverged { new: from(next), lost: known.changes.iter().skip(lost).cloned().collect() }
}

/// What of the lost changes is written back after newer ones.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Rest<'a> {
    /// These lines, each the last for its override.
    Lines(Vec<(String, &'a str)>),
    /// All overrides, because an import was lost.
    Everything,
    /// Nothing: an import followed, and wins.
    Superseded,
}

/// The rest of lost changes that newer ones have not replaced. `id` returns the identifier of a line's override.
pub(super) fn rest<'a>(
    known: &History,
    new: &[Change],
    lost: &'a [Change],
    id: impl Fn(&str) -> Option<String>,
) -> Rest<'a> {
    let is_known =
        |change: &Change| change.restored().is_some_and(|restored| known.position(&restored).is_some());
    if new.iter().any(|change| change.is_of_everything() && change.restored().is_none()) {
        return Rest::Superseded;
    }
    if lost.iter().any(Change::is_of_everything) {
        return if new.iter().any(Change::is_of_everything) { Rest::Superseded } else { Rest::Everything };
    }
    // What another replica has written back is older than the changes that are lost after it.
    let newer = new.iter().filter(|change| !is_known(change));
    let mut seen: HashSet<String> = newer.flat_map(Change::lines).filter_map(&id).collect();
    let lines = lost.iter().rev().flat_map(Change::lines);
    let lines = lines.filter_map(|line| Some((id(line)?, line)));
    let mut lines: Vec<_> = lines.filter(|(id, _)| seen.insert(id.clone())).collect();
    lines.reverse();
    Rest::Lines(lines)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fastrand::Rng;

    use super::*;

    fn change(before: &str, after: &str, body: &str) -> Change {
        Change { before: before.into(), after: after.into(), body: body.into() }
    }

    fn text(one: &Change) -> String {
        format!("{}\n{}\n{}", one.before, one.after, one.body)
    }

    fn history(changes: &[Change]) -> History {
        let version = changes.last().map_or("", |one| &*one.after);
        History::of(version, changes.to_vec())
    }

    #[test]
    fn a_message_of_any_form_is_read_or_ignored() {
        let one = change("a", "b", "{\"x\":1}\n{\"y\":2}");
        assert_eq!(Change::parse(&text(&one)), Some(one));
        for bad in ["", "a", "a\nb"] {
            assert_eq!(Change::parse(bad), None, "{bad:?}");
        }
        for body in ["{\"restored\":", "{\"restored\":7}", ""] {
            assert_eq!(change("a", "b", body).restored(), None, "{body}");
        }
        for lines in ["*", "{\"x\":1}"] {
            let restored = change("a", "b", &restoring("v", lines));
            assert_eq!(restored.restored().as_deref(), Some("v"));
            assert_eq!(restored.is_of_everything(), lines == "*");
            assert_eq!(restored.lines().count(), usize::from(lines != "*"));
        }
    }

    #[test]
    fn a_path_ends_at_the_version_and_has_no_gap() {
        let log = ["c\nd\n4", "b\nc\n3", "x\nb\n2", "\na\n1"].map(str::to_owned);
        let path =
            |version| path_to(version, &log).iter().map(|one| one.body.to_string()).collect::<String>();
        assert_eq!([path("d"), path("c"), path("a"), path("z")], ["234", "23", "1", ""]);
    }

    #[test]
    fn a_history_is_bounded_in_changes_and_bytes_and_has_no_gap() {
        let changes = |from: usize, to: usize| {
            (from..to).map(|n| change(&n.to_string(), &(n + 1).to_string(), "x")).collect::<Vec<_>>()
        };
        let mut known = history(&changes(0, MAX_CHANGES));
        assert_eq!((known.position("0"), known.position("1")), (Some(0), Some(1)));
        known.push(change(&MAX_CHANGES.to_string(), "next", &"x".repeat(MAX_CHANGE + 1)));
        assert_eq!((known.position("0"), known.position("1")), (None, Some(0)));
        assert!(known.changes.back().unwrap().is_of_everything());
        known.push(change("other", "version", "x"));
        assert_eq!((known.changes.len(), known.position("next")), (1, None));
    }

    #[test]
    fn a_version_is_in_force_if_it_is_known_or_older_than_all_known_ones() {
        let version = |n: usize| format!("{n}:x");
        let changes: Vec<_> =
            (200..200 + MAX_CHANGES).map(|n| change(&version(n), &version(n + 1), "x")).collect();
        let known = history(&changes);
        for (version, is_in_force) in [
            ("328:x", true),
            ("201:x", true),
            ("200:x", true),
            ("200:y", true),
            ("201:y", false),
            ("328:y", false),
            ("329:x", false),
            ("x", false),
            ("0:x", false),
            (":1", false),
        ] {
            assert_eq!(known.has(version), is_in_force, "{version}");
        }
        let continues = |before, after, body| known.continues_with(&change(before, after, body));
        assert!(continues("328:x", "329:y", "x"));
        assert!(continues("328:x", "y", "x"), "of a build that does not number versions");
        assert!(!continues("328:x", "329:y", "*"));
        assert!(!continues("327:x", "328:y", "x"), "after a failover");
        assert!(History::of("y", changes).changes.is_empty(), "a path that leads to another version");
    }

    #[test]
    fn an_import_that_is_lost_writes_everything_back_and_one_that_follows_wins() {
        let lost = [change("a", "b", "*"), change("b", "c", "one 1")];
        let known = history(&lost);
        let id = |line: &str| line.split(' ').next().map(str::to_owned);
        let new = [change("a", "x", "two 2")];
        assert_eq!(rest(&known, &new, &lost, id), Rest::Everything);
        let import = [change("a", "x", "*")];
        assert_eq!(rest(&known, &import, &lost, id), Rest::Superseded);
        let restored = [change("a", "x", &restoring("b", "*"))];
        let Step::Diverged { new, lost } = step(&known, &restored) else { panic!("diverged") };
        assert_eq!(rest(&known, &new, &lost, id), Rest::Lines(vec![("one".to_owned(), "one 1")]));
    }

    /// Redis and replicas: changes have increasing numbers, so the right value of an override is the largest known.
    #[derive(Clone, Default, Debug)]
    struct Redis {
        version: String,
        values: BTreeMap<String, u64>,
        log: Vec<String>,
    }

    #[derive(Clone, Default, Debug)]
    struct Replica {
        values: BTreeMap<String, u64>,
        known: History,
    }

    fn id_of(line: &str) -> Option<String> {
        line.split_once(' ').map(|(id, _)| id.to_owned())
    }

    fn apply<'a>(values: &mut BTreeMap<String, u64>, lines: impl Iterator<Item = &'a str>) {
        for (id, value) in lines.filter_map(|line| line.split_once(' ')) {
            values.insert(id.to_owned(), value.parse().unwrap());
        }
    }

    impl Redis {
        /// As `scripts/log.lua` numbers a change of a caller with this version.
        fn change(&mut self, token: u64, own: &str, body: &str) -> Change {
            let after = format!("{}:{token}", number(&self.version).max(number(own)) + 1);
            let one = change(&self.version, &after, body);
            apply(&mut self.values, one.lines());
            self.log.insert(0, text(&one));
            self.log.truncate(MAX_CHANGES);
            self.version = after;
            one
        }
    }

    impl Replica {
        fn receive(&mut self, change: &Change) {
            if self.known.continues_with(change) {
                apply(&mut self.values, change.lines());
                self.known.push(change.clone());
            }
        }

        fn catch_up(&mut self, redis: &mut Redis, next: &mut u64) {
            if *self.known.version == redis.version {
                return;
            }
            let path = path_to(&redis.version, &redis.log);
            match step(&self.known, &path) {
                Step::Apply(changes) => changes.iter().for_each(|one| self.receive(one)),
                Step::Read => {
                    self.values = redis.values.clone();
                    self.known = History::of(&redis.version, path);
                }
                Step::Restore => panic!("Redis was not emptied"),
                Step::Diverged { new, lost } => {
                    for one in &new {
                        apply(&mut self.values, one.lines());
                    }
                    let Rest::Lines(lines) = rest(&self.known, &new, &lost, id_of) else {
                        panic!("there are no imports")
                    };
                    let lines: Vec<_> = lines.iter().map(|(_, line)| *line).collect();
                    apply(&mut self.values, lines.iter().copied());
                    let mut path = path;
                    if !lines.is_empty() {
                        *next += 1;
                        let own = &self.known.version;
                        path.push(redis.change(*next, own, &restoring(own, &lines.join("\n"))));
                    }
                    self.known = History::of(&redis.version, path);
                }
            }
        }
    }

    #[test]
    fn changes_that_any_replica_knows_survive_and_newer_ones_win() {
        for seed in 0..20_000 {
            let mut rng = Rng::with_seed(seed);
            let mut redis = Redis::default();
            let mut replicas = vec![Replica::default(); rng.usize(1..4)];
            let (mut next, mut saved, mut has_lost) = (0, redis.clone(), false);
            // The largest number of each override that Redis or a replica had at the last loss, and later ones.
            let mut expected = BTreeMap::new();
            for _ in 0..rng.usize(1..40) {
                match rng.u32(..10) {
                    0..5 => {
                        next += 1;
                        let line = format!("{} {next}", ["a", "b", "c"][rng.usize(..3)]);
                        let one = redis.change(next, "", &line);
                        apply(&mut expected, one.lines());
                        // Some replicas miss the message.
                        replicas
                            .iter_mut()
                            .filter(|_| rng.u32(..4) > 0)
                            .for_each(|one_of| one_of.receive(&one));
                    }
                    5..7 => {
                        let at = rng.usize(..replicas.len());
                        replicas[at].catch_up(&mut redis, &mut next);
                    }
                    7 => saved = redis.clone(),
                    8 if !saved.version.is_empty() && !has_lost => {
                        // A second loss before all replicas know of the first one may undo what was written back.
                        has_lost = true;
                        redis = saved.clone();
                        expected = redis.values.clone();
                        for (id, value) in replicas.iter().flat_map(|one| &one.values) {
                            let most: &mut u64 = expected.entry(id.clone()).or_default();
                            *most = (*most).max(*value);
                        }
                    }
                    _ => {}
                }
            }
            let mut rounds = 0;
            while replicas.iter().any(|one| *one.known.version != redis.version) {
                for one in &mut replicas {
                    one.catch_up(&mut redis, &mut next);
                }
                rounds += 1;
                assert!(rounds < 5, "seed {seed}: the replicas do not agree: {redis:?}\n{replicas:#?}");
            }
            assert_eq!(redis.values, expected, "seed {seed}: {redis:#?}");
            assert!(replicas.iter().all(|one| one.values == expected), "seed {seed}: {replicas:#?}");
        }
    }
}
