//! Shared entries by name, for many lookups and few additions on all threads, with a bound on names made from callers'
//! values.
//!
//! A lookup hashes the name once, with a keyed hash because callers may choose names, and takes the read lock of one of
//! several tables; it allocates nothing. Beside the tables there is a list, which the exposition reads in chunks:
//! no lookup of a known name waits for it, and a new name waits for one chunk at most.

use std::{
    collections::{BTreeMap, HashSet},
    convert::Infallible,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use hashbrown::HashTable;

use super::{
    labels::statsd_key,
    room::{Place, Room},
};
use clock::Time;
use faults::mutex::lock;

/// Enough tables that cores that look up different names rarely need the same lock.
const TABLES: usize = 16;

/// Entries per chunk of the list: microseconds during which a new name may wait.
const CHUNK: usize = 256;

/// The directory's own references to an entry: one in its table, one in the list.
const OWN_REFERENCES: usize = 2;

/// Something with a name that never changes.
pub(super) trait Named {
    fn name(&self) -> &str;
    /// The room it takes; `None` for a name that no caller made.
    fn place(&self) -> Option<&Place>;
}

pub(super) struct Directory<T> {
    hasher: RandomState,
    tables: [Table<T>; TABLES],
    list: Mutex<Vec<Arc<T>>>,
    /// Held for reading while the list is read, so that no entry is forgotten meanwhile.
    forgetting: RwLock<()>,
    /// Bounds the names that callers make.
    pub(super) room: Arc<Room>,
}

/// A table with its lock, alone in its cache lines.
#[repr(align(64))]
struct Table<T>(RwLock<HashTable<Arc<T>>>);

impl<T: Named> Directory<T> {
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self {
            hasher: RandomState::new(),
            tables: std::array::from_fn(|_| Table(RwLock::new(HashTable::new()))),
            list: Mutex::default(),
            forgetting: RwLock::default(),
            room,
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<T>> {
        let hash = self.hasher.hash_one(name);
        self.table(hash).read().find(hash, |entry| entry.name() == name).cloned()
    }

    /// The entry of this name, which is used now.
    pub(super) fn touch(&self, name: &str, now: Time) -> Option<Arc<T>> {
        self.get(name).inspect(|entry| entry.place().into_iter().for_each(|place| place.touch(now)))
    }

    /// The entry of this name, made if there is none. It takes no room.
    pub(super) fn get_or_make(&self, name: &str, make: impl FnOnce() -> T) -> Arc<T> {
        let Ok(entry) = self.get_or_try_make(name, || Ok::<_, Infallible>(make()));
        entry
    }

    /// The entry of this name, made in `room`, the directory's or a part of it, if there is none; `None` if there is no
    /// room.
    pub(super) fn admit(
        &self,
        name: &str,
        room: &Arc<Room>,
        now: Time,
        make: impl FnOnce(Place) -> T,
    ) -> Option<Arc<T>> {
        self.touch(name, now).or_else(|| {
            // Without a write lock, because names without room may arrive at a high rate.
            if room.refuses() {
                return None;
            }
            self.get_or_try_make(name, || Place::take(room, now).map(make).ok_or(())).ok()
        })
    }

    fn get_or_try_make<E>(&self, name: &str, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(known) = self.get(name) {
            return Ok(known);
        }
        let hash = self.hasher.hash_one(name);
        let mut table = self.table(hash).write();
        // Another thread may have made it between the two locks.
        if let Some(known) = table.find(hash, |entry| entry.name() == name) {
            return Ok(Arc::clone(known));
        }
        let entry = Arc::new(make()?);
        table.insert_unique(hash, Arc::clone(&entry), |entry| self.hasher.hash_one(entry.name()));
        lock(&self.list).push(Arc::clone(&entry));
        Ok(entry)
    }

    /// Visits every entry once, the oldest first. An entry added meanwhile may be left out.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&T)) {
        let _nothing_is_forgotten = self.forgetting.read().unwrap_or_else(PoisonError::into_inner);
        let mut chunk = Vec::with_capacity(CHUNK);
        for start in (0..).step_by(CHUNK) {
            chunk.extend(lock(&self.list).iter().skip(start).take(CHUNK).cloned());
            if chunk.is_empty() {
                return;
            }
            chunk.drain(..).for_each(|entry| visit(&entry));
        }
    }

    /// The counts above 0 of all names, and of `rest` for names without room. Names with the same statsd name are
    /// summed.
    pub(super) fn totals(&self, rest: &T, count: impl Fn(&T) -> u64) -> BTreeMap<String, u64> {
        let mut totals = BTreeMap::new();
        let mut add = |entry: &T| {
            let n = count(entry);
            if n > 0 {
                let total: &mut u64 = totals.entry(statsd_key(entry.name()).into_owned()).or_default();
                *total = total.saturating_add(n);
            }
        };
        self.for_each(&mut add);
        add(rest);
        totals
    }

    /// Forgets names of callers that were idle for long, in whole groups.
    pub(super) fn make_room<G: Hash + Eq>(&self, now: Time, group: impl Fn(&T) -> G) {
        self.forget_unheld(group, |entry| entry.place().is_none_or(|place| !place.is_idle(now)));
    }

    /// Forgets the groups without an entry that is held outside the directory or kept by `keep`, and returns the number
    /// of entries left. Lookups wait for it, so it is for rare moments.
    pub(super) fn forget_unheld<G: Hash + Eq>(
        &self,
        group: impl Fn(&T) -> G,
        keep: impl Fn(&T) -> bool,
    ) -> usize {
        let _no_reader = self.forgetting.write().unwrap_or_else(PoisonError::into_inner);
        // With every table locked, no thread can take a reference to an entry that has none.
        let mut tables: Vec<_> = self.tables.iter().map(Table::write).collect();
        let mut list = lock(&self.list);
        let held = |entry: &Arc<T>| keep(entry) || Arc::strong_count(entry) > OWN_REFERENCES;
        let groups: HashSet<G> = list.iter().filter(|entry| held(entry)).map(|entry| group(entry)).collect();
        list.retain(|entry| groups.contains(&group(entry)));
        for table in &mut tables {
            table.retain(|entry| groups.contains(&group(entry)));
        }
        list.len()
    }

    /// The tables take the hash's low and topmost bits for themselves, so these come from between.
    fn table(&self, hash: u64) -> &Table<T> {
        let [.., byte, _, _] = hash.to_le_bytes();
        &self.tables[usize::from(byte) % TABLES]
    }
}

impl<T> Table<T> {
    fn read(&self) -> RwLockReadGuard<'_, HashTable<Arc<T>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashTable<Arc<T>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    impl Named for String {
        fn name(&self) -> &str {
            self
        }

        fn place(&self) -> Option<&Place> {
            None
        }
    }

    fn shown(directory: &Directory<String>) -> Vec<String> {
        let mut names = Vec::new();
        directory.for_each(|name| names.push(name.clone()));
        names
    }

    #[test]
    fn threads_that_make_one_name_share_its_entry() {
        let directory = Directory::<String>::new(Room::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..1_000 {
                        let name = n.to_string();
                        directory.get_or_make(&name, || name.clone());
                    }
                });
            }
        });
        let mut names = shown(&directory);
        assert_eq!(names.len(), 1_000);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 1_000);
        let first = directory.get("7").unwrap();
        assert!(Arc::ptr_eq(&first, &directory.get("7").unwrap()));
    }

    #[test]
    fn a_name_that_was_not_made_is_not_kept() {
        let directory = Directory::<String>::new(Room::new(0));
        assert_eq!(directory.get_or_try_make("a", || Err("no room")), Err("no room"));
        assert!(directory.get("a").is_none());
        assert!(shown(&directory).is_empty());
    }

    #[test]
    fn forgets_only_groups_without_references() {
        let directory = Directory::<String>::new(Room::new(0));
        let make = |name: &str| directory.get_or_make(name, || name.to_owned());
        let held = make("a1");
        for name in ["a2", "b1", "b2", "c1"] {
            make(name);
        }
        let left = directory.forget_unheld(|name| name.as_bytes()[0], |name| name.starts_with('c'));
        assert_eq!(left, 3);
        assert_eq!(shown(&directory), ["a1", "a2", "c1"]);
        assert!(directory.get("b1").is_none() && directory.get("a2").is_some());
        assert_eq!(*held, "a1");
    }

    #[derive(Debug)]
    struct Entry(String, Option<Place>);

    impl Named for Entry {
        fn name(&self) -> &str {
            &self.0
        }

        fn place(&self) -> Option<&Place> {
            self.1.as_ref()
        }
    }

    const NOW: Time = Time::from_seconds(1_000_000);

    fn bounded(max: usize) -> Directory<Entry> {
        Directory::new(Room::new(max))
    }

    fn admitted(bounded: &Directory<Entry>, name: &str, now: Time) -> bool {
        bounded.admit(name, &bounded.room, now, |place| Entry(name.to_owned(), Some(place))).is_some()
    }

    #[test]
    fn admits_names_up_to_the_bound() {
        let bounded = bounded(2);
        let found = ["a", "b", "c", "a"].map(|name| admitted(&bounded, name, NOW));
        assert_eq!((found, bounded.room.taken()), ([true, true, false, true], 2));
    }

    #[test]
    fn names_of_rules_take_no_room() {
        let bounded = bounded(1);
        bounded.get_or_make("rule", || Entry("rule".to_owned(), None));
        assert!(["rule", "a"].iter().all(|name| admitted(&bounded, name, NOW)));
        assert!(!admitted(&bounded, "b", NOW));
    }

    #[test]
    fn threads_never_admit_more_than_the_bound() {
        let bounded = bounded(100);
        let count =
            |thread: usize| (0..100).filter(|n| admitted(&bounded, &format!("{thread}.{n}"), NOW)).count();
        let total: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || count(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((total, bounded.room.taken()), (100, 100));
    }

    #[test]
    fn only_idle_names_of_callers_are_forgotten() {
        let bounded = bounded(2);
        let (half, hour) = (Time::from_seconds(1_001_800), Time::from_seconds(1_003_600));
        assert!(admitted(&bounded, "idle", NOW) && admitted(&bounded, "used", NOW));
        bounded.get_or_make("rule", || Entry("rule".to_owned(), None));
        assert!(bounded.touch("used", half).is_some());
        for (now, taken) in [(Time::from_seconds(1_003_599), 2), (hour, 1)] {
            bounded.make_room(now, |entry| entry.0.clone());
            assert_eq!(bounded.room.taken(), taken);
        }
        assert!(bounded.get("idle").is_none() && bounded.get("rule").is_some());
        assert!(admitted(&bounded, "new", hour) && !admitted(&bounded, "newer", hour));
    }
}
