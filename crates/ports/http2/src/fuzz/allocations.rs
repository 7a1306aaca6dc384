//! Counts the allocations of a thread, in builds for tests and fuzzing: part of the meter that bounds the cost of what
//! a peer sends.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// What a thread has allocated since it started.
#[derive(Clone, Copy, Default, Debug)]
pub struct Allocations {
    pub calls: usize,
    /// The bytes of these.
    pub bytes: usize,
    /// The bytes that are not freed; wraps below zero where a thread frees what another allocated.
    pub live: usize,
}

thread_local! {
    static SEEN: Cell<Allocations> = const { Cell::new(Allocations { calls: 0, bytes: 0, live: 0 }) };
}

pub fn allocations() -> Allocations {
    SEEN.get()
}

/// The system's allocator, counted: the `#[global_allocator]` of a test that meters.
#[derive(Debug)]
pub struct Counting;

fn add(bytes: usize) {
    // A thread that ends may free memory after its counters.
    let _ = SEEN.try_with(|seen| {
        let Allocations { calls, bytes: before, live } = seen.get();
        seen.set(Allocations {
            calls: calls.wrapping_add(1),
            bytes: before.wrapping_add(bytes),
            live: live.wrapping_add(bytes),
        });
    });
}

fn remove(bytes: usize) {
    let _ = SEEN
        .try_with(|seen| seen.set(Allocations { live: seen.get().live.wrapping_sub(bytes), ..seen.get() }));
}

#[expect(unsafe_code, reason = "the trait of allocators; it only counts and calls the system's")]
// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as the caller guarantees.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        remove(layout.size());
        // SAFETY: as the caller guarantees.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        remove(layout.size());
        add(size);
        // SAFETY: as the caller guarantees.
        unsafe { System.realloc(place, layout, size) }
    }
}
