//! Locks without poisoning.
//!
//! A panic costs the work that it interrupts and no more: guarded values are consistent between any two statements.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
