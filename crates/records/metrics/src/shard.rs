//! Counters without contention between cores: each has several cells, and a thread adds to its own.
//!
//! Every worker thread calls [`assign`] once when it starts, and then adds to the cells of its number; a reader sums all.
//! Threads without a number share the first cell, which costs time but loses no count.

use std::{
    cell::Cell,
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

/// Assigns a shard to the calling thread.
///
/// Numbers are sequential, so the workers of a server, started together, get distinct shards if there are enough.
pub fn assign() {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    THREAD.set(NEXT.fetch_add(1, Relaxed));
}

/// The number of the calling thread; its low bits select the shard.
#[inline]
pub fn of_thread() -> usize {
    THREAD.get()
}

thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

static COUNT: AtomicUsize = AtomicUsize::new(1);

/// Sets the shards of counters that count for the first time from now on, so that workers do not contend.
pub fn set_count(shards: ShardCount) {
    COUNT.store(shards.get(), Relaxed);
}

/// The number of shards of a counter: a power of two, at most [`ShardCount::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardCount(u8);

impl ShardCount {
    /// A rule costs 64 bytes a shard, so 10,000 rules take 10 MB at this number. Beyond it, cores share shards, which
    /// costs nanoseconds.
    pub const MAX: usize = 16;

    /// One for each worker, rounded up to a power of two.
    pub fn for_workers(workers: usize) -> Self {
        let count = workers.clamp(1, Self::MAX).next_power_of_two();
        #[expect(clippy::cast_possible_truncation, reason = "at most `MAX`")]
        Self(count as u8)
    }

    pub fn get(self) -> usize {
        usize::from(self.0)
    }
}

/// The cells of one shard, alone in their cache lines.
#[repr(align(64))]
struct Block<const N: usize>([AtomicU64; N]);

/// `N` counters, each spread over all shards. Memory is allocated at the first count.
#[derive(Default)]
pub(super) struct Cells<const N: usize> {
    blocks: OnceLock<Box<[Block<N>]>>,
}

impl<const N: usize> Cells<N> {
    fn allocate(shards: usize) -> Box<[Block<N>]> {
        (0..shards).map(|_| Block([const { AtomicU64::new(0) }; N])).collect()
    }

    /// Adds to the counter of this number, saturating. Adding 0 allocates nothing.
    pub(super) fn add(&self, counter: usize, n: u64) {
        if n == 0 {
            return;
        }
        let blocks = self.blocks.get_or_init(|| Self::allocate(COUNT.load(Relaxed)));
        let cell = &blocks[THREAD.get() & (blocks.len() - 1)].0[counter];
        // A thread is nearly always alone with its cell, so this is one attempt.
        let mut before = cell.load(Relaxed);
        while let Err(now) = cell.compare_exchange_weak(before, before.saturating_add(n), Relaxed, Relaxed) {
            before = now;
        }
    }

    pub(super) fn get(&self, counter: usize) -> u64 {
        self.all()[counter]
    }

    /// All counters. They are read one by one, so one may be a hit ahead of the next.
    pub(super) fn all(&self) -> [u64; N] {
        let mut sums = [0_u64; N];
        for block in self.blocks.get().into_iter().flatten() {
            for (sum, cell) in sums.iter_mut().zip(&block.0) {
                *sum = sum.saturating_add(cell.load(Relaxed));
            }
        }
        sums
    }

    pub(super) fn touched(&self) -> bool {
        self.blocks.get().is_some()
    }
}

impl<const N: usize> fmt::Debug for Cells<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all().fmt(f)
    }
}

/// A number that never decreases.
#[derive(Default, Debug)]
pub struct Counter(Cells<1>);

impl Counter {
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    #[inline]
    pub fn add(&self, n: u64) {
        self.0.add(0, n);
    }

    pub fn get(&self) -> u64 {
        self.0.get(0)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn cells<const N: usize>(workers: usize) -> Cells<N> {
        Cells { blocks: Cells::allocate(ShardCount::for_workers(workers).get()).into() }
    }

    #[test]
    fn shards_are_a_power_of_two_and_at_most_sixteen() {
        let counts = [0, 1, 2, 3, 4, 5, 16, 17, 1000].map(|n| ShardCount::for_workers(n).get());
        assert_eq!(counts, [1, 1, 2, 4, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn a_shard_fills_whole_cache_lines() {
        assert_eq!((size_of::<Block<6>>(), align_of::<Block<6>>()), (64, 64));
        assert_eq!(size_of::<Block<18>>() % 64, 0);
    }

    #[test]
    fn no_hit_is_lost_with_shared_or_separate_shards() {
        for workers in [1, 2, 4] {
            let cells = cells::<2>(workers);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        assign();
                        for _ in 0..50_000 {
                            cells.add(0, 1);
                            cells.add(1, 3);
                        }
                    });
                }
            });
            assert_eq!(cells.all(), [200_000, 600_000]);
        }
    }

    #[test]
    fn a_counter_saturates() {
        for hits in [1 << 32, 1 << 63, u64::MAX] {
            let cells = cells::<1>(4);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        assign();
                        cells.add(0, u64::MAX - hits);
                        for _ in 0..1000 {
                            cells.add(0, hits);
                            assert!(cells.get(0) >= hits, "it never wraps");
                        }
                    });
                }
            });
            assert_eq!(cells.get(0), u64::MAX);
        }
    }

    #[test]
    fn cells_allocate_at_the_first_hit() {
        let cells = Cells::<6>::default();
        cells.add(3, 0);
        assert!(!cells.touched());
        assert_eq!(cells.all(), [0; 6]);
        cells.add(3, 2);
        assert!(cells.touched());
        assert_eq!(cells.all(), [0, 0, 0, 2, 0, 0]);
    }

    #[test]
    fn assigned_threads_count_in_different_shards() {
        let cells = cells::<1>(16);
        let numbers: Vec<usize> = thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        assign();
                        cells.add(0, 1);
                        THREAD.get()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_ne!(numbers[0], numbers[1]);
        assert_eq!(cells.get(0), 2);
    }
}
