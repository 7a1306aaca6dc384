//! A [`Directory`] for names that callers make up: it has room for so many of them and no more.

use std::{collections::BTreeMap, hash::Hash, sync::Arc};

use super::{
    directory::{Directory, Named},
    labels::statsd_key,
    room::{Place, Room},
};
use crate::clock::Time;

/// Shared things by name, of which only so many are made for names that callers chose.
#[derive(Debug)]
pub(super) struct Bounded<T> {
    names: Directory<T>,
    room: Arc<Room>,
}

/// What a caller made, and may be given up.
pub(super) trait Placed: Named {
    /// Its place; none for what no caller chose.
    fn place(&self) -> Option<&Place>;
}

struct NoRoom;

impl<T: Placed> Bounded<T> {
    /// Names that take this room.
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self { names: Directory::new(), room }
    }

    /// The entry of this name, if there is one, which is in use now.
    pub(super) fn touch(&self, name: &str, now: Time) -> Option<Arc<T>> {
        self.names.get(name).inspect(|entry| {
            if let Some(place) = entry.place() {
                place.touch(now);
            }
        })
    }

    /// The entry of this name, made on first sight. Nothing when it is new and finds no room.
    pub(super) fn admit(&self, name: &str, now: Time, make: impl FnOnce(Place) -> T) -> Option<Arc<T>> {
        self.touch(name, now).or_else(|| {
            // Without the lock that adding takes: names without room may come fast.
            if self.room.refuses() {
                return None;
            }
            let make = || Place::take(&self.room, now).map(make).ok_or(NoRoom);
            self.names.get_or_try_make(name, make).ok()
        })
    }

    /// Gives up what callers made and nobody used for a long time. What `group` puts together goes together.
    pub(super) fn make_room<G: Hash + Eq>(&self, now: Time, group: impl Fn(&T) -> G) {
        self.names.forget_unheld(group, |entry| entry.place().is_none_or(|place| !place.is_idle(now)));
    }

    /// All names, also to add some that take no room because it was not a caller who chose them.
    pub(super) fn names(&self) -> &Directory<T> {
        &self.names
    }

    /// What the names take part of.
    pub(super) fn room(&self) -> &Arc<Room> {
        &self.room
    }
}

/// What was counted by each name, and by `rest` for those without room; only where there is something.
/// Names are shown as statsd writes them, so some may add up.
pub(super) fn totals<T: Placed>(
    names: &Bounded<T>,
    rest: &T,
    count: impl Fn(&T) -> u64,
) -> BTreeMap<String, u64> {
    let mut totals = BTreeMap::new();
    let mut add = |entry: &T| {
        let n = count(entry);
        if n > 0 {
            let total: &mut u64 = totals.entry(statsd_key(entry.name()).into_owned()).or_default();
            *total = total.saturating_add(n);
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

    #[derive(Debug)]
    struct Entry(String, Option<Place>);

    impl Named for Entry {
        fn name(&self) -> &str {
            &self.0
        }
    }

    impl Placed for Entry {
        fn place(&self) -> Option<&Place> {
            self.1.as_ref()
        }
    }

    const NOW: Time = Time::from_seconds(1_000_000);

    fn bounded(max: usize) -> Bounded<Entry> {
        Bounded::new(Room::new(max))
    }

    fn admitted(bounded: &Bounded<Entry>, name: &str, now: Time) -> bool {
        bounded.admit(name, now, |place| Entry(name.to_owned(), Some(place))).is_some()
    }

    #[test]
    fn names_beyond_the_bound_find_no_room_and_known_ones_stay() {
        let bounded = bounded(2);
        let found = ["a", "b", "c", "a"].map(|name| admitted(&bounded, name, NOW));
        assert_eq!((found, bounded.room().taken()), ([true, true, false, true], 2));
    }

    #[test]
    fn names_that_no_caller_chose_take_no_room() {
        let bounded = bounded(1);
        bounded.names().get_or_make("rule", || Entry("rule".to_owned(), None));
        assert!(["rule", "a"].iter().all(|name| admitted(&bounded, name, NOW)));
        assert!(!admitted(&bounded, "b", NOW));
    }

    #[test]
    fn threads_never_admit_more_than_there_is_room_for() {
        let bounded = bounded(100);
        let count =
            |thread: usize| (0..100).filter(|n| admitted(&bounded, &format!("{thread}.{n}"), NOW)).count();
        let total: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || count(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((total, bounded.room().taken()), (100, 100));
    }

    #[test]
    fn only_idle_names_of_callers_make_room() {
        let bounded = bounded(2);
        let (half, hour) = (Time::from_seconds(1_001_800), Time::from_seconds(1_003_600));
        assert!(admitted(&bounded, "idle", NOW) && admitted(&bounded, "used", NOW));
        bounded.names().get_or_make("rule", || Entry("rule".to_owned(), None));
        assert!(bounded.touch("used", half).is_some());
        for (now, taken) in [(Time::from_seconds(1_003_599), 2), (hour, 1)] {
            bounded.make_room(now, |entry| entry.0.clone());
            assert_eq!(bounded.room().taken(), taken);
        }
        assert!(bounded.names().get("idle").is_none() && bounded.names().get("rule").is_some());
        assert!(admitted(&bounded, "new", hour) && !admitted(&bounded, "newer", hour));
    }
}
