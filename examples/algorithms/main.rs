//! Compares the five algorithms: writes the picture `docs/algorithms.svg`, and prints the figures of
//! `docs/algorithms.md`, which are the same in every run.
//!
//! ```text
//! cargo run --example algorithms
//! ```

mod arrivals;
mod errors;
mod five;
mod picture;

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/algorithms.svg");
    fs::write(path, picture::draw())?;
    print!("{}", errors::tables());
    Ok(())
}
