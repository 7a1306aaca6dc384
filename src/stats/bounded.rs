//! A [`Directory`] for names that callers make up: it has room for so many of them and no more.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use super::{
    directory::{Directory, Named},
    labels::statsd_key,
};

/// Names longer than this find no room, or a bound on names would not bound memory. In bytes; no
/// dashboard shows more.
pub(super) const LONGEST_NAME: usize = 1024;

/// Shared things by name, of which only so many are made for names that callers chose.
#[derive(Debug)]
pub(super) struct Bounded<T> {
    names: Directory<T>,
    admitted: AtomicUsize,
    max: usize,
}

struct NoRoom;

impl<T: Named> Bounded<T> {
    /// Room for `max` names.
    pub(super) fn new(max: usize) -> Self {
        Self { names: Directory::new(), admitted: AtomicUsize::new(0), max }
    }

    /// The entry of this name, made on first sight. Nothing when it is new and finds no room.
    pub(super) fn admit(&self, name: &str, make: impl FnOnce() -> T) -> Option<Arc<T>> {
        if name.len() > LONGEST_NAME || self.admitted() >= self.max {
            return self.names.get(name);
        }
        let make = || if self.take_place() { Ok(make()) } else { Err(NoRoom) };
        self.names.get_or_try_make(name, make).ok()
    }

    /// All names, also to add some that take no room because it was not a caller who chose them.
    pub(super) fn names(&self) -> &Directory<T> {
        &self.names
    }

    /// How many names were admitted.
    pub(super) fn admitted(&self) -> usize {
        self.admitted.load(Relaxed)
    }

    /// How many there is room for.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Places are counted here and not by the tables, each of which knows only its own names.
    fn take_place(&self) -> bool {
        let next = |admitted| (admitted < self.max).then_some(admitted + 1);
        self.admitted.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

/// What was counted by each name, and by `rest` for those without room; only where there is something.
/// Names are shown as statsd writes them, so some may add up.
pub(super) fn totals<T: Named>(
    names: &Bounded<T>,
    rest: &T,
    count: impl Fn(&T) -> u64,
) -> BTreeMap<String, u64> {
    let mut totals = BTreeMap::new();
    let mut add = |entry: &T| {
        let n = count(entry);
        if n > 0 {
            *totals.entry(statsd_key(entry.name()).into_owned()).or_default() += n;
        }
    };
    names.names().for_each(&mut add);
    add(rest);
    totals
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn admitted(bounded: &Bounded<String>, name: &str) -> bool {
        bounded.admit(name, || name.to_owned()).is_some()
    }

    #[test]
    fn names_beyond_the_bound_find_no_room_and_known_ones_stay() {
        let bounded = Bounded::new(2);
        assert_eq!(["a", "b", "c", "a"].map(|name| admitted(&bounded, name)), [true, true, false, true]);
        assert_eq!(bounded.admitted(), 2);
    }

    #[test]
    fn overlong_names_find_no_room() {
        let bounded = Bounded::new(2);
        assert!(!admitted(&bounded, &"x".repeat(LONGEST_NAME + 1)));
        assert!(admitted(&bounded, &"x".repeat(LONGEST_NAME)));
    }

    #[test]
    fn names_that_no_caller_chose_take_no_room() {
        let bounded = Bounded::new(1);
        bounded.names().get_or_make("rule", || "rule".to_owned());
        assert!(admitted(&bounded, "rule") && admitted(&bounded, "a") && !admitted(&bounded, "b"));
    }

    #[test]
    fn threads_never_admit_more_than_there_is_room_for() {
        let bounded = Bounded::new(100);
        let count = |thread: usize| (0..100).filter(|n| admitted(&bounded, &format!("{thread}.{n}"))).count();
        let total: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || count(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((total, bounded.admitted()), (100, 100));
    }
}
