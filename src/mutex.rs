//! Locks that ignore poisoning.
//!
//! A panic costs the work that it interrupts and no more: what a lock guards is changed in steps that are complete, so
//! that it is consistent after one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
