//! Panics for tests that run the binary, in builds with debug assertions only.
//!
//! `TOLLGATE_TEST_PANICS` names a directory. A thread that reaches the point `x` while the directory has a file `x` removes
//! the file and panics.

use std::{env, fs, path::PathBuf, sync::LazyLock};

static DIRECTORY: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| env::var_os("TOLLGATE_TEST_PANICS").map(PathBuf::from));

/// A place where tests can cause a panic.
///
/// # Panics
/// If a test has put a file of this name in the directory.
#[track_caller]
pub fn point(name: &str) {
    if let Some(directory) = &*DIRECTORY
        && fs::remove_file(directory.join(name)).is_ok()
    {
        panic!("a test has this thread panic at {name}");
    }
}
