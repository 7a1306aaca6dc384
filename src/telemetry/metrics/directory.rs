//! Things by name, for many threads that look up and few that add.
//!
//! A look-up hashes the name once, with a keyed hash because callers may choose names, and takes the
//! read lock of one of several tables; it allocates nothing. Beside the tables stands a list, from which
//! the exposition reads a page at a time: however long it takes, no look-up of a known name waits for
//! it, and a new name waits for one page at most.

use std::{
    collections::HashSet,
    convert::Infallible,
    fmt,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::mutex::lock;
use hashbrown::HashTable;

/// Enough that cores which look up different names seldom meet at one lock.
const TABLES: usize = 16;

/// Entries the list is read by at a time: microseconds during which a new name may wait.
const PAGE: usize = 256;

/// What a directory itself holds of each entry: one reference in its table, one in the list.
const OWN_REFERENCES: usize = 2;

/// Something with a name that never changes.
pub(super) trait Named {
    /// The name it is found by.
    fn name(&self) -> &str;
}

/// Shared things by name.
pub(super) struct Directory<T> {
    hasher: RandomState,
    tables: [Table<T>; TABLES],
    list: Mutex<Vec<Arc<T>>>,
    /// Held for reading while the list is paged through, so that nothing is forgotten meanwhile.
    forgetting: RwLock<()>,
}

/// A table with its lock, alone in its cache lines.
#[repr(align(64))]
struct Table<T>(RwLock<HashTable<Arc<T>>>);

impl<T: Named> Directory<T> {
    pub(super) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            tables: std::array::from_fn(|_| Table(RwLock::new(HashTable::new()))),
            list: Mutex::default(),
            forgetting: RwLock::default(),
        }
    }

    /// The entry of this name.
    pub(super) fn get(&self, name: &str) -> Option<Arc<T>> {
        let hash = self.hasher.hash_one(name);
        self.table(hash).read().find(hash, |entry| entry.name() == name).cloned()
    }

    /// The entry of this name, made if there is none.
    pub(super) fn get_or_make(&self, name: &str, make: impl FnOnce() -> T) -> Arc<T> {
        let Ok(entry) = self.get_or_try_make(name, || Ok::<_, Infallible>(make()));
        entry
    }

    /// The entry of this name, made if there is none and `make` does not refuse.
    pub(super) fn get_or_try_make<E>(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
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

    /// Shows every entry once, the oldest first. Those that come meanwhile may be shown or not.
    pub(super) fn for_each(&self, mut show: impl FnMut(&T)) {
        let _nothing_is_forgotten = self.forgetting.read().unwrap_or_else(PoisonError::into_inner);
        let mut page = Vec::with_capacity(PAGE);
        for start in (0..).step_by(PAGE) {
            page.extend(lock(&self.list).iter().skip(start).take(PAGE).cloned());
            if page.is_empty() {
                return;
            }
            page.drain(..).for_each(|entry| show(&entry));
        }
    }

    /// Forgets whole groups: those of which no entry is held outside the directory, nor one that `keep`
    /// wants kept. Says how many entries are left. Look-ups wait for it, so it is for rare moments.
    pub(super) fn forget_unheld<G: Hash + Eq>(
        &self,
        group: impl Fn(&T) -> G,
        keep: impl Fn(&T) -> bool,
    ) -> usize {
        let _no_reader = self.forgetting.write().unwrap_or_else(PoisonError::into_inner);
        // With every table locked, nobody can take a reference to what is found without one.
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
        super::one_of(&self.tables, usize::from(byte) % TABLES)
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

impl<T> fmt::Debug for Directory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries", lock(&self.list).len())
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
    }

    fn shown(directory: &Directory<String>) -> Vec<String> {
        let mut names = Vec::new();
        directory.for_each(|name| names.push(name.clone()));
        names
    }

    #[test]
    fn a_name_has_one_entry_however_many_threads_ask_for_it() {
        let directory = Directory::<String>::new();
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
    fn what_is_not_made_is_not_remembered() {
        let directory = Directory::<String>::new();
        assert_eq!(directory.get_or_try_make("a", || Err("no room")), Err("no room"));
        assert!(directory.get("a").is_none());
        assert!(shown(&directory).is_empty());
    }

    #[test]
    fn only_groups_that_nobody_holds_are_forgotten() {
        let directory = Directory::<String>::new();
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
}
