//! Panics on purpose, for tests that run the binary: builds with debug assertions only.
//!
//! `TOLLGATE_TEST_PANICS` names a directory. A thread that passes the point `x` while a file `x` stands
//! there removes the file and panics, so that each file is one panic.

use std::{env, fs, path::PathBuf, sync::LazyLock};

static DIRECTORY: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| env::var_os("TOLLGATE_TEST_PANICS").map(PathBuf::from));

/// Lets a test panic here.
///
/// # Panics
/// When a test has put a file of this name in the directory.
#[track_caller]
pub fn point(name: &str) {
    if let Some(directory) = &*DIRECTORY
        && fs::remove_file(directory.join(name)).is_ok()
    {
        panic!("a test has this thread panic at {name}");
    }
}
